"""A GPU's attention over shared prefixes, with the kernel's mathematics written out on the CPU."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.fx.experimental import _config as symbolic_shapes

from pipelinerl.finetune.rl.prefix_packing import SortedIds
from pipelinerl.modeling import attention, prefix_attention
from pipelinerl.modeling import segments as segments_module
from pipelinerl.modeling.attention import varlen_attention
from pipelinerl.modeling.prefixes import Prefixes, shared_with_previous
from pipelinerl.modeling.segments import MOST_LEVELS, Segments

HEADS, SIZE = 4, 8
Spans = list[tuple[slice, slice]]


def spans(offsets: torch.Tensor, known: torch.Tensor) -> Spans:
    pairs = zip(offsets.tolist(), offsets.tolist()[1:], known.tolist(), known.tolist()[1:])
    return [(slice(a, b), slice(c, d)) for a, b, c, d in pairs]


def scores(
    query: torch.Tensor, key: torch.Tensor, causal: bool, scale: float, left: int, right: int
) -> torch.Tensor:
    """[H, n, m], aligned at the lower right; of a window both ends count, and -1 is none."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    found = torch.einsum("nhd,mhd->hnm", query, key) * scale
    if causal:
        hidden = torch.ones(found.shape[1:], dtype=torch.bool).triu(1 + found.shape[2] - found.shape[1])
        found = found.masked_fill(hidden, -torch.inf)
    behind = found.shape[2] - found.shape[1]
    if left >= 0:
        hidden = torch.ones(found.shape[1:], dtype=torch.bool).tril(behind - left - 1)
        found = found.masked_fill(hidden, -torch.inf)
    if right >= 0:
        hidden = torch.ones(found.shape[1:], dtype=torch.bool).triu(behind + right + 1)
        found = found.masked_fill(hidden, -torch.inf)
    return found


def forward(
    query: Any,
    key: Any,
    value: Any,
    offsets: Any,
    known: Any,
    n: int,
    m: int,
    dropout: float,
    causal: bool,
    _: bool,
    *,
    scale: float,
    window_size_left: int = -1,
    window_size_right: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, total = torch.empty_like(query), query.new_empty(query.shape[1], len(query))
    for rows, keys in spans(offsets, known):
        assert 0 < rows.stop - rows.start <= n and 0 < keys.stop - keys.start <= m
        found = scores(query[rows], key[keys], causal, scale, window_size_left, window_size_right)
        total[:, rows] = found.logsumexp(-1)
        values = value[keys].repeat_interleave(query.shape[1] // value.shape[1], 1)
        out[rows] = torch.einsum("hnm,mhd->nhd", found.softmax(-1), values)
    return out, total


def backward(
    gradient: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    total: Any,
    offsets: Any,
    known: Any,
    n: int,
    m: int,
    dropout: float,
    causal: bool,
    state: Any,
    unused: Any,
    *,
    scale: float,
    window_size_left: int = -1,
    window_size_right: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """From the result and the log-sum-exps that it is given, which may be of more keys than these."""
    sums = [torch.zeros_like(one) for one in (query, key, value)]
    shared = query.shape[1] // key.shape[1]
    for rows, keys in spans(offsets, known):
        weights = (
            scores(query[rows], key[keys], causal, scale, window_size_left, window_size_right)
            - total[:, rows, None]
        ).exp()
        values = value[keys].repeat_interleave(shared, 1)
        by_weight = torch.einsum("nhd,mhd->hnm", gradient[rows], values)
        constant = (gradient[rows] * out[rows]).sum(-1).T[..., None]
        by_score = weights * (by_weight - constant) * scale
        sums[0][rows] = torch.einsum("hnm,mhd->nhd", by_score, key[keys].repeat_interleave(shared, 1))
        of_key = torch.einsum("hnm,nhd->mhd", by_score, query[rows])
        of_value = torch.einsum("hnm,nhd->mhd", weights, gradient[rows])
        for one, found in ((sums[1], of_key), (sums[2], of_value)):
            one[keys] = found.unflatten(1, (-1, shared)).sum(2)
    return sums[0], sums[1], sums[2]


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(prefix_attention, "_FORWARD", forward)
    monkeypatch.setattr(prefix_attention, "_BACKWARD", backward)
    monkeypatch.setattr(segments_module, "LEVELS_FROM", 0.0)
    yield


def row_of(texts: Sequence[Sequence[int]]) -> Prefixes:
    ids = [np.array(text, np.int32) for text in texts]
    ids = [ids[i] for i in SortedIds.of(ids).order]
    return Prefixes(np.cumsum([0, *map(len, ids)]), shared_with_previous(ids))


def attended(segments: Segments, fast: bool, kv_heads: int, window: int | None = None) -> list[torch.Tensor]:
    """Result and gradients."""
    generator, length = torch.Generator().manual_seed(0), segments.offsets.tolist()[-1]
    shapes = [(1, heads, length, SIZE) for heads in (HEADS, kv_heads, kv_heads)]
    states = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    query, key, value = states
    upstream = torch.randn(1, length, HEADS, SIZE, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_has_varlen_kernel", lambda query, value: fast)
        out, _ = varlen_attention(
            torch.nn.Module(), query, key, value, None, scaling=0.3, segments=segments, sliding_window=window
        )
    (out * upstream).sum().backward()
    return [out.detach(), *(one.grad for one in states if one.grad is not None)]


TEXTS = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=9), min_size=1, max_size=12)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(TEXTS, st.sampled_from([1, 2, 4]), st.sampled_from([None, 1, 2, 5, 9]), st.booleans())
def test_the_trie_gives_what_sequences_give(
    texts: list[list[int]], kv_heads: int, window: int | None, told: bool
) -> None:
    segments = Segments.from_prefixes(row_of(texts), window=window if told else None)
    plain = Segments.from_prefixes(row_of(texts))
    expectations = attended(plain, False, kv_heads, window)
    for found, expected in zip(attended(segments, True, kv_heads, window), expectations, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


COMB = [[1] * n + [2] * 3 for n in range(MOST_LEVELS + 3)]
"""Each text leaves the others one token later."""


def test_levels_are_few_or_none() -> None:
    group = Segments.from_prefixes(row_of([[1, 1, 1, 2, n] for n in range(5)])).levels
    assert group is not None and group.parts[:3].tolist() == [[6, 0, 0, 4, 4], [1, 5, 4, 5, 4], [0] * 5]
    deep, shallow = (Segments.from_prefixes(row_of(COMB[:n])).levels for n in (None, MOST_LEVELS + 2))
    assert deep is not None and not deep.parts.any()
    assert shallow is not None and shallow.parts[:, 0].tolist() == [2 * MOST_LEVELS + 2, *[1] * MOST_LEVELS]
    for texts in (COMB, COMB[: MOST_LEVELS + 2]):
        segments = Segments.from_prefixes(row_of(texts))
        for found, expected in zip(attended(segments, True, 2), attended(segments, False, 2)):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_keys_of_few_readers_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for texts, expected in (
        ([[1, 1, 1, n] for n in range(9)], True),
        ([[1, 1, 1, n] for n in range(3)], False),
    ):
        levels = Segments.from_prefixes(row_of(texts)).levels
        assert levels is not None and bool(levels.parts.any()) == expected


@symbolic_shapes.patch(use_duck_shape=False)  # as `compiled` does; pytest's own patch would leave it deleted
def test_one_operation_whatever_the_row() -> None:
    """Compiled once for rows of levels and of none, once more with a window, and differentiable there."""
    graphs = 0

    def counting(module: torch.fx.GraphModule, examples: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module.forward

    def layer(states: torch.Tensor, segments: Segments, windowed: bool) -> torch.Tensor:
        window = 4 if windowed else None
        return prefix_attention.prefix_attention(states, states, states, segments, 0.3, window).square()

    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend=counting)
    for windowed in (False, True):
        for texts in ([[1, 1, 1, 2, n] for n in range(5)], COMB, COMB[:4], [[1, 2, 3], [4, 5, 6, 7]]):
            segments = Segments.from_prefixes(row_of(texts), window=4)
            states = torch.randn(int(segments.offsets[-1]), HEADS, SIZE, requires_grad=True)
            expected = layer(states, segments, windowed)
            torch.testing.assert_close(compiled(states, segments, windowed), expected)
        assert graphs == 1 + windowed
