"""Supervised training on packed batches, on the CPU or one GPU: `train_supervised(model, batches, ...)`.

The forward, the scores and the optimizer are those of reinforcement learning; only the loss is plain
negative log-likelihood.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from pipelinerl.finetune.optimiser import build_optimiser
from pipelinerl.finetune.schedulers import build_scheduler
from pipelinerl.modeling.activations import compiled_layers
from pipelinerl.modeling.logprobs import token_scores
from pipelinerl.modeling.model import hidden_states, output_head, prepare_model
from pipelinerl.modeling.segments import Segments
from pipelinerl.rollouts import MASKED_TOKEN_ID

PREFETCHED_BATCHES = 4


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Several texts in one row.

    input_ids, labels, position_ids: int32 or int64 `[L]`; labels are MASKED_TOKEN_ID where nothing is
    learned; position_ids restart at 0 with each text; offsets int32 `[n + 1]`; weights float32 `[L]`
    multiplies a label's loss (None = 1 everywhere).
    """

    input_ids: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray | None = None

    @classmethod
    def from_texts(
        cls, texts: Sequence[tuple[np.ndarray, np.ndarray]], weights: Sequence[float] | None = None
    ) -> PackedBatch:
        """Pack (input_ids, labels) pairs in the given order; `weights` has one number per text."""
        lengths = np.array([len(ids) for ids, _ in texts])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        per_token = None if weights is None else np.repeat(np.asarray(weights, np.float32), lengths)
        ids = np.concatenate([np.asarray(ids) for ids, _ in texts])
        labels = np.concatenate([np.asarray(labels) for _, labels in texts])
        return cls(ids, labels, positions, offsets, per_token)

    def target_positions(self) -> np.ndarray:
        """Positions int64 `[N]` of the labels that are learned; a text's first token has no predictor."""
        return np.flatnonzero((self.labels != MASKED_TOKEN_ID) & (self.position_ids > 0))


@dataclass(slots=True)
class SupervisedSummary:
    """What a call of `train_supervised` did; losses are means per label in nats."""

    steps: int = 0
    tokens: int = 0
    targets: int = 0
    seconds: float = 0.0
    final_loss: float = float("nan")
    losses: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _DeviceBatch:
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    segments: Segments
    predictors: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    n_tokens: int


def _to_device(batch: PackedBatch, device: torch.device) -> _DeviceBatch:
    at = batch.target_positions()
    weights = np.ones(len(at), np.float32) if batch.weights is None else batch.weights[at]
    weights = weights / max(float(weights.sum()), 1e-12)

    def move(array: np.ndarray, dtype: Any) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

    return _DeviceBatch(
        move(batch.input_ids, np.int64)[None],
        move(batch.position_ids, np.int64)[None],
        Segments.from_offsets(batch.offsets, device),
        move(at - 1, np.int64),
        move(batch.labels[at], np.int64),
        move(weights, np.float32),
        len(batch.input_ids),
    )


def _prefetch(batches: Iterator[PackedBatch], steps: int, device: torch.device) -> Iterator[_DeviceBatch]:
    """Yield `steps` batches, prepared and copied by a thread while the device computes."""
    ready: queue.Queue[_DeviceBatch | BaseException | None] = queue.Queue(PREFETCHED_BATCHES)
    stopped = threading.Event()

    def put(item: _DeviceBatch | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.5)
                break
            except queue.Full:
                continue

    def fill() -> None:
        try:
            for _ in range(steps):
                batch = next(batches, None)
                if batch is None or stopped.is_set():
                    break
                put(_to_device(batch, device))
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=fill, name="supervised-prefetch", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join(timeout=10)


def train_supervised(
    model: PreTrainedModel,
    batches: Iterable[PackedBatch],
    steps: int,
    learning_rate: float = 1e-3,
    lr_scheduler_type: str = "cosine",
    num_warmup_steps: int = 20,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.95),
    gradient_clipping_threshold: float | None = 1.0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    compile: bool = False,
    log: Callable[[dict[str, float]], None] | None = None,
    log_every: int = 20,
) -> SupervisedSummary:
    """Train in place for `steps` optimizer steps of one packed batch each, or until `batches` ends.

    Weights and optimizer state are float32; with `dtype` bfloat16 the forward runs under autocast and the
    output head stays in float32. `log` gets {step, loss, lr, grad_norm, tokens, tokens_per_sec, seconds}
    every `log_every` steps; the device is synchronised only then. Raises FloatingPointError when the loss
    is not finite at a log step.
    """
    device = torch.device(device)
    model = prepare_model(model, device)
    optimiser = build_optimiser(model, learning_rate=learning_rate, weight_decay=weight_decay, betas=betas)
    scheduler = build_scheduler(optimiser, lr_scheduler_type, num_warmup_steps, steps)
    autocast = nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
    summary, losses = SupervisedSummary(), []
    start = time.monotonic()
    with compiled_layers(model, compile):
        for batch in _prefetch(iter(batches), steps, device):
            with autocast:
                hidden = hidden_states(model, batch.input_ids, batch.position_ids, batch.segments)[0]
            scores = token_scores(hidden[batch.predictors], output_head(model)[0], batch.targets)
            loss = -(scores.logprobs * batch.weights).sum()
            loss.backward()
            threshold = float("inf") if gradient_clipping_threshold is None else gradient_clipping_threshold
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), threshold)
            rate = optimiser.param_groups[0]["lr"]
            optimiser.step()
            scheduler.step()
            optimiser.zero_grad(set_to_none=True)
            summary.steps += 1
            summary.tokens += batch.n_tokens
            summary.targets += len(batch.targets)
            losses.append(loss.detach())
            if summary.steps % log_every == 0 or summary.steps == steps:
                mean = _mean_loss(losses, summary)
                summary.seconds = time.monotonic() - start
                if log is not None:
                    log(_log_record(summary, mean, rate, float(grad_norm)))
    if losses:
        _mean_loss(losses, summary)
    summary.seconds = time.monotonic() - start
    return summary


def _mean_loss(losses: list[torch.Tensor], summary: SupervisedSummary) -> float:
    """Mean of the losses since the last call, which it records and forgets."""
    mean = float(torch.stack(losses).mean())
    losses.clear()
    if not np.isfinite(mean):
        raise FloatingPointError(f"supervised loss is {mean} at step {summary.steps}; lower learning_rate")
    summary.final_loss = mean
    summary.losses.append((summary.steps, mean))
    return mean


def _log_record(summary: SupervisedSummary, loss: float, rate: float, grad_norm: float) -> dict[str, float]:
    return {
        "step": summary.steps,
        "loss": loss,
        "lr": rate,
        "grad_norm": grad_norm,
        "tokens": summary.tokens,
        "tokens_per_sec": summary.tokens / summary.seconds,
        "seconds": summary.seconds,
    }
