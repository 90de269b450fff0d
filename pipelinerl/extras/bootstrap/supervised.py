"""Supervised training on packed batches, on the CPU or one GPU; called by the recipe.

The forward, the scores and the optimizer are those of reinforcement learning; only the loss is plain
negative log-likelihood.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from pipelinerl.config.finetune import FinetuneConfig
from pipelinerl.extras.bootstrap.model import precision
from pipelinerl.extras.bootstrap.packs import PackedBatch
from pipelinerl.finetune.optimiser import build_optimiser, build_scheduler
from pipelinerl.modeling.model import prepare_model
from pipelinerl.modeling.policy import Policy
from pipelinerl.modeling.segments import Segments
from pipelinerl.modeling.tensors import to_device
from pipelinerl.modeling.value_head import load_tensors

BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0


class Resumable:
    """The state of training in a file, written every `every` steps, and what an earlier start left there.

    `asked` describes what is trained: a state that was made for something else is refused (ValueError).
    """

    def __init__(self, path: Path, every: int, asked: dict[str, Any]) -> None:
        self.path, self._every, self._asked = path, every, asked
        self._found: dict[str, Any] | None = None
        if every and path.is_file():
            self._found = load_tensors(path)
            if self._found["asked"] != asked:
                raise ValueError(f"{path} belongs to another recipe; remove it, or set another bootstrap.out")
        self.step: int = 0 if self._found is None else self._found["step"]
        """Steps that were done before this start."""
        self.starts: int = 0 if self._found is None else self._found["starts"]
        """Starts before this one."""

    def restore(self, **parts: Any) -> None:
        """Load the state of each part, if there is one."""
        if self._found is not None:
            for name, part in parts.items():
                part.load_state_dict(self._found[name])
            self._found = None

    def keep(self, step: int, **parts: Any) -> None:
        """Write the state of each part if this step is one of those; a kill leaves the state before."""
        if not self._every or step % self._every:
            return
        states = {name: part.state_dict() for name, part in parts.items()}
        beside = self.path.with_suffix(".tmp")
        torch.save({"asked": self._asked, "step": step, "starts": self.starts + 1, **states}, beside)
        os.replace(beside, self.path)


def train_supervised(
    model: PreTrainedModel,
    batches: Iterable[PackedBatch],
    steps: int,
    learning_rate: float,
    num_warmup_steps: int,
    weight_decay: float,
    log: Callable[[dict[str, float]], None],
    log_every: int,
    device: torch.device | str = "cpu",
    held_out: Sequence[PackedBatch] = (),
    resumable: Resumable | None = None,
) -> None:
    """Train in place, one optimizer step per batch; `steps`, their number, is where the cosine schedule ends.

    With `resumable` the batches are those from its step on.

    Weights and optimizer state are float32. On a GPU the forward runs in bfloat16 under autocast, compiled,
    and the output head stays in float32. `log` gets {step, loss, tokens, tokens_per_sec} every `log_every`
    steps and after the last one, the loss as mean per label in nats since the last call; the device is
    synchronised only then. With `held_out` it also gets their `validation_loss`. Raises FloatingPointError
    when the loss is not finite.
    """
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    policy = Policy(prepare_model(model, device, compile=on_gpu))
    finetune = FinetuneConfig(
        learning_rate=learning_rate,
        num_warmup_steps=num_warmup_steps,
        max_train_steps=steps,
        weight_decay=weight_decay,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
    )
    optimiser = build_optimiser(model, finetune)
    scheduler = build_scheduler(optimiser, finetune)
    parts = {"model": model, "optimiser": optimiser, "scheduler": scheduler}
    if resumable is not None:
        resumable.restore(**parts)
    tokens, losses, started = 0, [], time.monotonic()
    for step, batch in enumerate(batches, 1 if resumable is None else resumable.step + 1):
        loss = _loss(policy, batch, device)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimiser.step()
        scheduler.step()
        optimiser.zero_grad(set_to_none=True)
        tokens += len(batch.input_ids)
        losses.append(loss.detach())
        if step % log_every == 0 or step == steps:
            mean = float(torch.stack(losses).mean())
            losses.clear()
            if not np.isfinite(mean):
                raise FloatingPointError(f"supervised loss is {mean} at step {step}; lower learning_rate")
            rate = tokens / (time.monotonic() - started)
            record = {"step": step, "loss": mean, "tokens": tokens, "tokens_per_sec": rate}
            if held_out:
                record["validation_loss"] = validation_loss(policy, held_out, device)
            log(record)
        if resumable is not None:
            resumable.keep(step, **parts)


@torch.no_grad()
def validation_loss(policy: Policy, held_out: Sequence[PackedBatch], device: torch.device) -> float:
    """Mean negative log-likelihood of all labels, in nats."""
    labels = [float(batch.weights[batch.target_positions()].sum()) for batch in held_out]
    losses = [float(_loss(policy, batch, device)) for batch in held_out]
    return float(np.average(losses, weights=labels))


def _loss(policy: Policy, batch: PackedBatch, device: torch.device) -> torch.Tensor:
    """Weighted mean of the labels' negative log-likelihood."""
    at = batch.target_positions()
    weights = batch.weights[at]
    with precision(device):
        scores, _ = policy(
            to_device(batch.input_ids[None].astype(np.int64), device),
            to_device(batch.position_ids()[None], device),
            Segments.from_offsets(batch.offsets(), device),
            to_device(at - 1, device),
            to_device(batch.labels[at].astype(np.int64), device),
        )
    shares = weights / max(float(weights.sum()), 1e-12)
    return -(scores.logprobs * to_device(shares, device)).sum()
