"""Attention that torch's kernels do not compute: capped scores (Gemma 2) and sinks (gpt-oss), on any device.

Called by `attention` for one sequence at a time and by the embedded engine. Queries are taken in blocks, each
of which sees only the keys that its window leaves, and the backward computes the weights of a block again, so
that no matrix over all queries and keys is held. Sums are float32 whatever the inputs.
"""

from typing import Any, NamedTuple

import torch

BLOCK = 256
"""Queries at a time."""


class Rule(NamedTuple):
    """What a layer asks for beside causal attention, None each in most of them."""

    window: int | None = None
    cap: float | None = None
    sinks: torch.Tensor | None = None
    """`[H]`"""

    @property
    def has_kernel(self) -> bool:
        """Whether torch's kernels compute it."""
        return self.cap is None and self.sinks is None


def capped_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    window: int | None = None,
    cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of query `[B, H, n, D]`, the last n tokens of key and value `[B, K, m, D]`; as query.

    Scores become `cap * tanh(score / cap)`; a key counts if it lies less than `window` tokens before the
    query; sinks `[H]` are the scores of one more key for each head, whose value is 0.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query, key = query.to(value.dtype), key.to(value.dtype)
    found: torch.Tensor = _Attention.apply(query, key, value, sinks, scale, window, cap)
    return found


def capped(scores: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Scores or logits between -cap and cap."""
    return scores if cap is None else torch.tanh(scores / cap) * cap


def with_sinks(total: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Log-sum-exps `[B, H, n]` of scores, those of the sinks `[H]` included."""
    return total if sinks is None else torch.logaddexp(total, sinks.to(total.dtype)[:, None])


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`[B, K, n, D] @ [B, K, D, m]` with float32 sums, of float64 factors float64 ones."""
    if one.is_cuda and one.dtype == other.dtype == torch.bfloat16:
        flat = torch.bmm(one.flatten(0, 1), other.flatten(0, 1), out_dtype=torch.float32)
        return flat.unflatten(0, one.shape[:2])
    wide = torch.float64 if torch.float64 in (one.dtype, other.dtype) else torch.float32
    return one.to(wide) @ other.to(wide)


def _grouped(states: torch.Tensor, heads: int) -> torch.Tensor:
    """`[B, H, n, ...]` to `[B, K, H/K * n, ...]`: the query heads of a key head one behind the other."""
    return states.unflatten(1, (heads, -1)).flatten(2, 3)


def _apart(states: torch.Tensor, heads: int, count: int) -> torch.Tensor:
    """Undoes `_grouped` for H heads of `count` queries."""
    return states.unflatten(2, (-1, count)).flatten(1, 2).reshape(states.shape[0], heads, count, -1)


class _Block:
    """Queries `[begin, end)` of n and the keys that they see among m, `[first, last)`."""

    def __init__(self, begin: int, n: int, m: int, window: int | None) -> None:
        before = m - n
        self.begin, self.end = begin, min(begin + BLOCK, n)
        self.first = 0 if window is None else max(0, before + begin - window + 1)
        self.last = before + self.end
        self.offset, self.window = before + begin - self.first, window

    def hidden(self, device: torch.device) -> torch.Tensor:
        """Bool `[queries, keys]`, true where a query does not see a key."""
        shape = self.end - self.begin, self.last - self.first
        seen = torch.ones(shape, dtype=torch.bool, device=device).tril(self.offset)
        if self.window is not None:
            seen = seen.triu(self.offset - self.window + 1)
        return ~seen


def _scores(
    query: torch.Tensor, key: torch.Tensor, block: _Block, scale: float, cap: float | None
) -> torch.Tensor:
    """Capped scores `[B, H, queries, keys]` of a block, not masked yet."""
    heads, shared = query.shape[1], key.shape[1]
    part = _grouped(query[:, :, block.begin : block.end], shared)
    keys = key[:, :, block.first : block.last].transpose(2, 3)
    return capped(_apart(_product(part, keys) * scale, heads, block.end - block.begin), cap)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
        scale: float,
        window: int | None,
        cap: float | None,
    ) -> torch.Tensor:
        heads, shared, n, m = query.shape[1], key.shape[1], query.shape[2], key.shape[2]
        out, totals = torch.empty_like(query), []
        with torch.autocast(query.device.type, enabled=False):
            for begin in range(0, n, BLOCK):
                block = _Block(begin, n, m, window)
                scores = _scores(query, key, block, scale, cap)
                scores.masked_fill_(block.hidden(query.device), -torch.inf)
                total = with_sinks(scores.logsumexp(-1), sinks)
                weights = _grouped((scores - total[..., None]).exp().to(value.dtype), shared)
                found = _product(weights, value[:, :, block.first : block.last])
                out[:, :, block.begin : block.end] = _apart(found, heads, block.end - block.begin)
                totals.append(total)
        ctx.save_for_backward(query, key, value, sinks, out, torch.cat(totals, 2))
        ctx.options = scale, window, cap
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, sinks, out, total = ctx.saved_tensors
        scale, window, cap = ctx.options
        heads, shared, n, m = query.shape[1], key.shape[1], query.shape[2], key.shape[2]
        of_query = torch.empty_like(query)
        of_key, of_value = (torch.zeros_like(key, dtype=total.dtype) for _ in range(2))
        constant = (gradient.to(total.dtype) * out).sum(
            -1
        )  # of a query: its weights' mean of their gradients
        with torch.autocast(query.device.type, enabled=False):
            for begin in range(0, n, BLOCK):
                block = _Block(begin, n, m, window)
                rows, seen = slice(block.begin, block.end), slice(block.first, block.last)
                scores = _scores(query, key, block, scale, cap)
                # Before the mask, behind which a slope of minus infinity would meet a weight of 0.
                slope = scale if cap is None else (1 - (scores / cap).square()) * scale
                scores.masked_fill_(block.hidden(query.device), -torch.inf)
                weights = (scores - total[:, :, rows, None]).exp()
                upstream = _grouped(gradient[:, :, rows], shared).to(value.dtype)
                by_weight = _apart(
                    _product(upstream, value[:, :, seen].transpose(2, 3)), heads, block.end - block.begin
                )
                by_score = (by_weight - constant[:, :, rows, None]).mul_(weights).mul_(slope)
                by_score = _grouped(by_score.to(value.dtype), shared)
                of_query[:, :, rows] = _apart(
                    _product(by_score, key[:, :, seen]), heads, block.end - block.begin
                )
                of_key[:, :, seen] += _product(by_score.transpose(2, 3), _grouped(query[:, :, rows], shared))
                grouped = _grouped(weights.to(value.dtype), shared)
                of_value[:, :, seen] += _product(grouped.transpose(2, 3), upstream)
        of_sinks = None
        if sinks is not None:
            share = (sinks.to(total.dtype)[:, None] - total).exp()
            of_sinks = -(share * constant).sum((0, 2)).to(sinks.dtype)
        return of_query, of_key.to(key.dtype), of_value.to(value.dtype), of_sinks, None, None, None
