"""Supervised training on packed batches, on the CPU or one GPU; called by the recipe.

The forward, the scores and the optimizer are those of reinforcement learning; only the loss is plain
negative log-likelihood.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext

import numpy as np
import torch
from transformers import PreTrainedModel

from pipelinerl.bootstrap.packs import PackedBatch
from pipelinerl.finetune.optimiser import build_optimiser
from pipelinerl.finetune.schedulers import build_scheduler
from pipelinerl.modeling.model import prepare_model
from pipelinerl.modeling.policy import Policy
from pipelinerl.modeling.segments import Segments
from pipelinerl.modeling.tensors import to_device

BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0


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
) -> None:
    """Train in place, one optimizer step per batch; `steps`, their number, is where the cosine schedule ends.

    Weights and optimizer state are float32. On a GPU the forward runs in bfloat16 under autocast, compiled,
    and the output head stays in float32. `log` gets {step, loss, tokens, tokens_per_sec} every `log_every`
    steps and after the last one, the loss as mean per label in nats since the last call; the device is
    synchronised only then. Raises FloatingPointError when that loss is not finite.
    """
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    policy = Policy(prepare_model(model, device, compile=on_gpu))
    optimiser = build_optimiser(model, learning_rate=learning_rate, weight_decay=weight_decay, betas=BETAS)
    scheduler = build_scheduler(optimiser, "cosine", num_warmup_steps, steps)
    tokens, losses, started = 0, [], time.monotonic()
    for step, batch in enumerate(batches, 1):
        with torch.autocast(device.type, torch.bfloat16) if on_gpu else nullcontext():
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
            log({"step": step, "loss": mean, "tokens": tokens, "tokens_per_sec": rate})


def _loss(policy: Policy, batch: PackedBatch, device: torch.device) -> torch.Tensor:
    """Weighted mean of the labels' negative log-likelihood."""
    at = batch.target_positions()
    weights = batch.weights[at]
    scores, _ = policy(
        to_device(batch.input_ids[None].astype(np.int64), device),
        to_device(batch.position_ids()[None], device),
        Segments.from_offsets(batch.offsets(), device),
        to_device(at - 1, device),
        to_device(batch.labels[at].astype(np.int64), device),
    )
    shares = weights / max(float(weights.sum()), 1e-12)
    return -(scores.logprobs * to_device(shares, device)).sum()
