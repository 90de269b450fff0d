"""Attention on a GPU over a row in which sequences share prefixes, with torch's variable-length kernel.

A row is a trie in depth-first order, so what reads a node's keys lies right behind it. Each node attends to
itself; then, level by level, everything below a node attends to it, and the two results are merged by their
log-sum-exps (Dao et al. 2022, appendix B.3). The kernel takes the merged result and its log-sum-exp for each
part of the backward, as in ring attention (Liu et al. 2023), so no key is copied for its readers. A trie of
many levels, or one whose keys few tokens read, is attended sequence by sequence instead, on gathered keys. So
are layers whose window cuts a sequence: of its keys only those that some query sees are gathered.

One operation whatever the row, so that compiled layers have one graph.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from pipelinerl.modeling.compiling import compiled
from pipelinerl.modeling.segments import Segments

_FORWARD, _BACKWARD = torch.ops.aten._flash_attention_forward, torch.ops.aten._flash_attention_backward
NAME = "pipelinerl::prefix_attention"


class Spans(NamedTuple):
    """What the kernel is told of its sequences: int32 `[n + 1]` offsets and the longest, queries and keys."""

    offsets: torch.Tensor
    known: torch.Tensor
    longest: int
    longest_known: int


class Level(NamedTuple):
    """Tokens of the row that read, and those that they read, int64 each; of level 0 the whole row."""

    readers: torch.Tensor
    read: torch.Tensor
    spans: Spans


def prefix_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    scale: float | None,
    window: int | None = None,
) -> torch.Tensor:
    """query `[L, H, D]`, key and value `[L, H_kv, D]`, bfloat16 or float16; returns `[L, H, D]`."""
    keys, levels = segments.keys_within(window), segments.levels_within(window)
    assert keys is not None and levels is not None
    out, _ = _attend(
        query,
        key,
        value,
        [segments.offsets, keys.offsets, keys.rows, keys.order, keys.starts],
        segments.max_length,
        keys.max_length,
        [levels.offsets, levels.rows, levels.parts],
        scale,
        window,
    )
    return out


@torch.library.custom_op(NAME, mutates_args=())
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    whole: list[torch.Tensor],
    longest: int,
    longest_known: int,
    levels: list[torch.Tensor],
    scale: float | None,
    window: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    offsets, known, rows = whole[:3]
    if not (parts := _levels(levels)):
        spans = Spans(offsets, known, longest, longest_known)
        return _forward(query, key[rows], value[rows], spans, True, scale, window)
    out, total = _forward(query, key, value, parts[0].spans, True, scale)
    for readers, read, spans in parts[1:]:
        more, other = _forward(query[readers], key[read], value[read], spans, False, scale)
        merged, total[:, readers] = _merge()(out[readers], more, total[:, readers], other)
        out.index_copy_(0, readers, merged)
    return out, total


@torch.library.custom_op(f"{NAME}_backward", mutates_args=())
def _attend_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor,
    whole: list[torch.Tensor],
    longest: int,
    longest_known: int,
    levels: list[torch.Tensor],
    scale: float | None,
    window: int | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    offsets, known, rows, order, starts = whole
    if not (parts := _levels(levels)):
        spans = Spans(offsets, known, longest, longest_known)
        of_query, *of_keys = _backward(
            gradient, query, key[rows], value[rows], out, total, spans, True, scale, window
        )
        summed = [torch.embedding_bag(one.flatten(1), order, starts)[0].view_as(key) for one in of_keys]
        return of_query, summed[0], summed[1]
    sums = _backward(gradient, query, key, value, out, total, parts[0].spans, True, scale)
    for readers, read, spans in parts[1:]:
        found = _backward(
            gradient[readers],
            query[readers],
            key[read],
            value[read],
            out[readers],
            total[:, readers].contiguous(),
            spans,
            False,
            scale,
        )
        for one, more, at in zip(sums, found, (readers, read, read), strict=True):
            one.index_copy_(0, at, one[at] + more)  # no row is twice in a level
    return sums


@_attend.register_fake
def _(query: torch.Tensor, key: Any, value: Any, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)


@_attend_backward.register_fake
def _(gradient: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Any:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    query, key, value, whole, longest, longest_known, levels, scale, window = inputs
    ctx.save_for_backward(query, key, value, *output, *whole, *levels)
    ctx.bounds, ctx.options = (longest, longest_known), (scale, window)


def _differentiate(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
    query, key, value, out, total, *others = ctx.saved_tensors
    whole, levels = others[:5], others[5:]
    found = _attend_backward(
        gradient.contiguous(), query, key, value, out, total, whole, *ctx.bounds, levels, *ctx.options
    )
    return *found, [None] * len(whole), None, None, [None] * len(levels), None, None


_attend.register_autograd(_differentiate, setup_context=_save)


def _levels(packed: list[torch.Tensor]) -> list[Level]:
    """What `segments.Levels` holds, level by level; none where keys are gathered."""
    offsets, rows, table = packed
    found, at, row = [], 0, 0
    for count, readers, read, longest, longest_read in table[table[:, 0] > 0].tolist():  # on the host
        known = at + count + 1
        spans = Spans(offsets[at:known], offsets[known : known + count + 1], longest, longest_read)
        found.append(Level(rows[row : row + readers], rows[row + readers : row + readers + read], spans))
        at, row = known + count + 1, row + readers + read
    return found


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    spans: Spans,
    causal: bool,
    scale: float | None,
    window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result `[n, H, D]` and float32 log-sum-exps `[H, n]`."""
    causal, options = _visible(causal, window)
    found = _FORWARD(query, key, value, *spans, 0.0, causal, False, scale=scale, **options)
    return found[0], found[1]


def _backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor,
    spans: Spans,
    causal: bool,
    scale: float | None,
    window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value; without dropout the kernel does not look at its random state."""
    state = torch.empty(2, dtype=torch.uint64, device=query.device)
    unused = torch.empty(0, device=query.device)
    causal, options = _visible(causal, window)
    found = _BACKWARD(
        gradient, query, key, value, out, total, *spans, 0.0, causal, state, unused, scale=scale, **options
    )
    return found[0], found[1], found[2]


def _visible(causal: bool, window: int | None) -> tuple[bool, dict[str, int]]:
    """What the kernel is told of the keys that a query sees; both ends of its window count."""
    if window is None:
        return causal, {}
    return False, {"window_size_left": window - 1, "window_size_right": 0}


def _merged(
    one: torch.Tensor, other: torch.Tensor, one_total: torch.Tensor, other_total: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the keys of both, `[n, H, D]`, and its log-sum-exps `[H, n]`."""
    share = torch.sigmoid(other_total - one_total).T[..., None]
    both = one.float() + share * (other.float() - one.float())
    return both.to(one.dtype), torch.logaddexp(one_total, other_total)


@lru_cache(maxsize=1)
def _merge() -> Any:
    """As one kernel where there is one."""
    return compiled(_merged) if torch.cuda.is_available() else _merged
