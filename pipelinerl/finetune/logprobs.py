"""Token log-probabilities and entropies from hidden states, without ever holding `[N, V]` logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

CHUNK_ELEMENTS = 1 << 24
"""Most logits held at a time (64 MiB in float32)."""


class TokenScores(NamedTuple):
    """Float32 `[N]` each: log-probability of the target and entropy of its distribution, both in nats."""

    logprobs: torch.Tensor
    entropy: torch.Tensor


def token_scores(
    hidden: torch.Tensor,
    head_weight: torch.Tensor,
    targets: torch.Tensor,
    temperature: float = 1.0,
    head_bias: torch.Tensor | None = None,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> TokenScores:
    """Score `targets` under softmax(hidden @ head_weight.T / temperature), in float32 whatever the inputs.

    hidden `[N, D]` predicts targets int64 `[N]`; head_weight `[V, D]`, head_bias `[V]`. Differentiable in
    hidden, weight and bias through both results; logits are recomputed chunk by chunk in the backward.
    Raises ValueError when temperature is not positive or shapes disagree.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if hidden.dim() != 2 or targets.shape != hidden.shape[:1]:
        raise ValueError(f"hidden {tuple(hidden.shape)} and targets {tuple(targets.shape)} disagree")
    chunk = max(1, chunk_elements // head_weight.shape[0])
    return TokenScores(*_TokenScores.apply(hidden, head_weight, head_bias, targets, 1.0 / temperature, chunk))


def _logits(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: float
) -> torch.Tensor:
    logits = hidden.float() @ weight.T
    if bias is not None:
        logits = logits + bias.float()
    return logits.mul_(scale) if scale != 1.0 else logits


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        scale: float,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
        entropy = torch.empty_like(logprobs)
        log_normaliser = torch.empty_like(logprobs)
        with torch.autocast(hidden.device.type, enabled=False):
            weight32 = weight.float()
            for at in range(0, len(targets), chunk):
                rows = slice(at, at + chunk)
                logits = _logits(hidden[rows], weight32, bias, scale)
                lse = logits.logsumexp(-1)
                log_normaliser[rows] = lse
                logprobs[rows] = logits.gather(1, targets[rows, None])[:, 0] - lse
                probs = (logits - lse[:, None]).exp_()
                entropy[rows] = lse - (probs.mul_(logits)).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, log_normaliser, entropy)
        ctx.scale, ctx.chunk = scale, chunk
        # Without an entropy bonus its gradient is None, not zeros that would cost a pass over the logits.
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, log_normaliser, entropy = ctx.saved_tensors
        grad_logprobs, grad_entropy = grads
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(log_normaliser)
        with torch.autocast(hidden.device.type, enabled=False):
            weight32 = weight.float()
            grad_hidden = torch.empty_like(hidden)
            grad_weight = torch.zeros_like(weight32) if ctx.needs_input_grad[1] else None
            grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
            for at in range(0, len(targets), ctx.chunk):
                rows = slice(at, at + ctx.chunk)
                logits = _logits(hidden[rows], weight32, bias, ctx.scale)
                logp = logits.sub_(log_normaliser[rows, None])
                # d logp_t / d z = onehot_t - p;  d H / d z = -p * (log p + H)
                upstream = grad_logprobs[rows, None]
                if grad_entropy is None:
                    grad = logp.exp_().mul_(-upstream)
                else:
                    upstream = upstream + grad_entropy[rows, None] * (logp + entropy[rows, None])
                    grad = logp.exp_().mul_(upstream).neg_()
                grad.scatter_add_(1, targets[rows, None], grad_logprobs[rows, None])
                grad.mul_(ctx.scale)
                grad_hidden[rows] = (grad @ weight32).to(hidden.dtype)
                if grad_weight is not None:
                    grad_weight.addmm_(grad.T, hidden[rows].float())
                if grad_bias is not None:
                    grad_bias += grad.sum(0)
            weight_out = None if grad_weight is None else grad_weight.to(weight.dtype)
            bias_out = None if grad_bias is None or bias is None else grad_bias.to(bias.dtype)
            return grad_hidden, weight_out, bias_out, None, None, None
