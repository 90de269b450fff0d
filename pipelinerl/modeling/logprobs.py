"""Token log-probabilities and entropies from hidden states, without ever holding `[N, V]` logits.

The vocabulary is walked in blocks. The forward merges each block into running sums of the softmax (Milakov &
Gimelshein 2018); the backward computes the logits of a block again and turns them into gradients. Blocks of
the vocabulary, not of the tokens, because then each row of the head's gradient is written once; only the
gradient of the hidden states, V/D times smaller, is added up.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from pipelinerl.modeling.compiling import compiled

CHUNK_ELEMENTS = 1 << 24
"""Most logits held at a time on the CPU (64 MiB in float32)."""
CUDA_CHUNK_ELEMENTS = 96 << 20
"""The same on a GPU: 384 MiB in float32, and 192 MiB for their gradient in bfloat16."""
FUSED_VOCABULARY = 8192
"""From this vocabulary on a GPU's passes over the logits are compiled into one, which takes some seconds."""
_COLUMNS = 256
"""On a GPU blocks are a multiple of this wide, for the sake of matrix kernels."""


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
    chunk_elements: int | None = None,
    cap: float | None = None,
) -> TokenScores:
    """Score `targets` under softmax(hidden @ head_weight.T / temperature), in float32 whatever the inputs.

    With `cap` what the softmax gets is between -cap and cap: z becomes `cap * tanh(z / cap)`, z being divided
    by the temperature already.

    hidden `[N, D]` predicts targets int64 `[N]`; head_weight `[V, D]`, head_bias `[V]`. Logits are always
    float32 sums: with a bfloat16 head on a GPU their factors are bfloat16 (whose products are exact in
    float32), otherwise float32. Differentiable in hidden, weight and bias through both results. At most
    `chunk_elements` logits are held at a time. Raises ValueError when temperature is not positive or shapes
    disagree.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if hidden.dim() != 2 or targets.shape != hidden.shape[:1]:
        raise ValueError(f"hidden {tuple(hidden.shape)} and targets {tuple(targets.shape)} disagree")
    width = _block_width(len(targets), hidden.is_cuda, chunk_elements)
    scale = 1.0 / temperature
    return TokenScores(*_TokenScores.apply(hidden, head_weight, head_bias, targets, scale, width, cap))


def _block_width(rows: int, cuda: bool, chunk_elements: int | None) -> int:
    limit = chunk_elements or (CUDA_CHUNK_ELEMENTS if cuda else CHUNK_ELEMENTS)
    width = max(1, limit // max(rows, 1))
    return width // _COLUMNS * _COLUMNS if cuda and width > _COLUMNS else width


def _blocks(vocabulary: int, width: int) -> Iterator[slice]:
    return (slice(at, min(at + width, vocabulary)) for at in range(0, vocabulary, width))


def _factor_dtype(hidden: torch.Tensor, weight: torch.Tensor) -> torch.dtype:
    """bfloat16 where a GPU multiplies it into float32 sums; float32 otherwise."""
    on_tensor_cores = hidden.is_cuda and weight.dtype == torch.bfloat16
    return torch.bfloat16 if on_tensor_cores else torch.float32


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b with float32 sums."""
    return a @ b if a.dtype == torch.float32 else torch.mm(a, b, out_dtype=torch.float32)


def _logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    cap: float | None = None,
) -> torch.Tensor:
    logits = _product(hidden, weight.to(hidden.dtype).T)
    if bias is not None:
        logits.add_(bias.float())
    if scale != 1.0:
        logits.mul_(scale)
    return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


class _Sums(NamedTuple):
    """Of some columns, float32 `[N]` each: m = max z, sum e^(z-m), sum e^(z-m) (z-m), and z of the target.

    The last is 0 when the target is not among the columns.
    """

    top: torch.Tensor
    total: torch.Tensor
    weighted: torch.Tensor
    chosen: torch.Tensor


def _merged(one: _Sums, other: _Sums) -> _Sums:
    top = torch.maximum(one.top, other.top)
    parts = []
    for sums in (one, other):
        shift = sums.top - top
        parts.append((shift.exp() * sums.total, shift.exp() * (sums.weighted + shift * sums.total)))
    (total, weighted), (more, more_weighted) = parts
    return _Sums(top, total + more, weighted + more_weighted, one.chosen + other.chosen)


def _block_sums(logits: torch.Tensor, local: torch.Tensor) -> _Sums:
    """Sums of one block, whose logits are overwritten; `local` is the target's column, perhaps outside."""
    top = logits.amax(-1)
    inside = (local >= 0) & (local < logits.shape[1])
    column = local.clamp(0, logits.shape[1] - 1)
    chosen = torch.where(inside, logits.gather(1, column[:, None])[:, 0], 0.0)
    if torch.compiler.is_compiling():
        centred = logits - top[:, None]
        weights = centred.exp()
        return _Sums(top, weights.sum(-1), (weights * centred).sum(-1), chosen)
    centred = logits.sub_(top[:, None])
    weights = centred.exp()
    return _Sums(top, weights.sum(-1), weights.mul_(centred).sum(-1), chosen)


def _block_gradient(
    logits: torch.Tensor,
    local: torch.Tensor,
    top: torch.Tensor,
    log_total: torch.Tensor,
    entropy: torch.Tensor,
    grad_logprobs: torch.Tensor,
    grad_entropy: torch.Tensor | None,
    scale: float,
    dtype: torch.dtype,
    cap: float | None = None,
) -> torch.Tensor:
    """Gradient by the unscaled logits of one block, `[N, width]` in `dtype`; the logits are overwritten.

    d logp_t / d z = onehot_t - p;  d H / d z = -p * (log p + H);  of a capped z, d z / d x = 1 - (z / cap)^2.
    """
    compiling = torch.compiler.is_compiling()
    slope = None if cap is None else 1 - (logits / cap).square()
    # log p + H is the small difference of two numbers that are small themselves where the distribution is
    # sharp: subtracting one rounded sum from large logits would leave little of it.
    parts = (top + log_total,) if grad_entropy is None else (top, log_total)
    logp = logits
    for part in parts:
        logp = logp - part[:, None] if compiling else logp.sub_(part[:, None])
    if grad_entropy is None:
        upstream = grad_logprobs[:, None]
    else:
        upstream = grad_logprobs[:, None] + grad_entropy[:, None] * (logp + entropy[:, None])
    if compiling:  # one kernel: compare instead of scatter
        columns = torch.arange(logits.shape[1], device=logits.device)
        at_target = torch.where(columns == local[:, None], grad_logprobs[:, None], 0.0)
        found = (at_target - logp.exp() * upstream) * scale
        return (found if slope is None else found * slope).to(dtype)
    grad = logp.exp_().mul_(upstream).neg_()
    inside = (local >= 0) & (local < logits.shape[1])
    column = local.clamp(0, logits.shape[1] - 1)
    grad.scatter_add_(1, column[:, None], torch.where(inside, grad_logprobs, 0.0)[:, None])
    if scale != 1.0:
        grad.mul_(scale)
    return (grad if slope is None else grad.mul_(slope)).to(dtype)


@lru_cache(maxsize=1)
def _fused() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The two block functions as one kernel each."""
    return compiled(_block_sums), compiled(_block_gradient)


def _block_functions(weight: torch.Tensor) -> tuple[Callable[..., Any], Callable[..., Any]]:
    large = weight.is_cuda and len(weight) >= FUSED_VOCABULARY
    return _fused() if large else (_block_sums, _block_gradient)


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        scale: float,
        width: int,
        cap: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        block_sums, _ = _block_functions(weight)
        sums: _Sums | None = None
        with torch.autocast(hidden.device.type, enabled=False):
            factors = hidden.to(_factor_dtype(hidden, weight))
            for block in _blocks(len(weight), width):
                logits = _logits(factors, weight[block], None if bias is None else bias[block], scale, cap)
                found = _Sums(*block_sums(logits, targets - block.start))
                sums = found if sums is None else _merged(sums, found)
                del logits  # or two blocks are held at a time
        assert sums is not None
        log_total = sums.total.log()
        log_normaliser = sums.top + log_total
        entropy = log_total - sums.weighted / sums.total
        ctx.save_for_backward(hidden, weight, bias, targets, sums.top, log_total, entropy)
        ctx.scale, ctx.width, ctx.cap = scale, width, cap
        # Without an entropy bonus its gradient is None, not zeros that would cost a pass over the logits.
        ctx.set_materialize_grads(False)
        return sums.chosen - log_normaliser, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, top, log_total, entropy = ctx.saved_tensors
        grad_logprobs, grad_entropy = grads
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(top)
        _, block_gradient = _block_functions(weight)
        with torch.autocast(hidden.device.type, enabled=False):
            factors = hidden.to(_factor_dtype(hidden, weight))
            grad_hidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
            grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
            grad_bias = None if bias is None else torch.empty_like(bias)
            for block in _blocks(len(weight), ctx.width):
                part = weight[block].to(factors.dtype)
                logits = _logits(factors, part, None if bias is None else bias[block], ctx.scale, ctx.cap)
                grad = block_gradient(
                    logits,
                    targets - block.start,
                    top,
                    log_total,
                    entropy,
                    grad_logprobs,
                    grad_entropy,
                    ctx.scale,
                    factors.dtype,
                    ctx.cap,
                )
                del logits
                grad_hidden += _product(grad, part)
                if grad_weight is not None:
                    grad_weight[block] = grad.T @ factors
                if grad_bias is not None:
                    grad_bias[block] = grad.sum(0, dtype=torch.float32)
            return grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None, None, None, None
