"""Requests that share blocks of the cache are read as groups; attention over both parts is that of all."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipelinerl.engines.vllm import prompt_groups as module
from pipelinerl.engines.vllm.prompt_groups import PromptGroups, prompt_groups

BLOCK, CACHE, HEADS, KEY_HEADS, SIZE = 4, 400, 4, 2, 8


@pytest.fixture(autouse=True)
def any_length_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SHARED", 1)


def table(rows: list[list[int]], width: int = 12) -> torch.Tensor:
    """Blocks of each request; what lies behind them is left over from others."""
    left_over = torch.full((len(rows), width), 7, dtype=torch.int32)
    for row, blocks in zip(left_over, rows):
        row[: len(blocks)] = torch.tensor(blocks)
    return left_over


def grouped(rows: list[list[int]], lengths: list[int]) -> PromptGroups:
    return prompt_groups(table(rows), torch.tensor(lengths, dtype=torch.int32), BLOCK, CACHE)


def members(found: PromptGroups) -> dict[frozenset[int], int]:
    """Requests of each group, and the tokens that it shares."""
    bounds = zip(found.starts[:-1].tolist(), found.starts[1:].tolist(), found.shared.tolist())
    return {frozenset(found.order[a:b].tolist()): shared for a, b, shared in bounds if b > a}


def saved(found: PromptGroups, lengths: list[int]) -> float:
    """Share of the step's keys and values that need not be read."""
    return float(((found.starts.diff() - 1).clamp(min=0) * found.shared).sum()) / sum(lengths)


def test_attempts_at_one_problem_are_a_group_wherever_they_lie_in_the_step() -> None:
    first, second = [10, 11, 12], [20, 21]
    rows = [[*first, 30], [*second, 31], [40, 41], [*first, 32, 33], [*second, 34], [*first, 35]]
    lengths = [14, 10, 6, 18, 12, 13]
    found = grouped(rows, lengths)
    assert members(found) == {frozenset({0, 3, 5}): 12, frozenset({1, 4}): 8, frozenset({2}): 0}
    assert found.own.tolist() == [2, 2, 6, 6, 4, 1]
    assert found.own_blocks[3, :2].tolist() == [32, 33] and found.own_blocks[2, :2].tolist() == [40, 41]
    assert saved(found, lengths) == pytest.approx((2 * 12 + 8) / 73)


def test_a_system_prompt_of_all_does_not_hide_what_attempts_share() -> None:
    system = [1, 2]
    rows = [[*system, 3, 4, 50], [*system, 3, 4, 51], [*system, 5, 52], [*system, 5, 53], [*system, 54]]
    assert members(grouped(rows, [17, 18, 13, 14, 9])) == {
        frozenset({0, 1}): 16,
        frozenset({2, 3}): 12,
        frozenset({4}): 0,
    }


def test_the_block_of_the_newest_token_is_not_shared() -> None:
    """A request whose newest token is the last of a block that others have, too, reads that one by itself."""
    found = grouped([[1, 2, 3], [1, 2, 4], [1, 2]], [12, 11, 8])
    assert members(found)[frozenset({0, 1})] == 8
    assert found.own.min() >= 1 and found.own.tolist()[2] == 8


def test_copies_of_a_block_end_what_is_shared() -> None:
    """Two requests may have computed the same prompt at the same time, each into blocks of its own."""
    found = grouped([[1, 8, 3, 60], [1, 9, 3, 61]], [14, 14])
    assert members(found) == {frozenset({0, 1}): 4}


def test_short_beginnings_are_left_to_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SHARED", 9)
    found = grouped([[1, 2, 30], [1, 2, 31]], [9, 10])
    assert found.shared.tolist() == [0, 0] and saved(found, [9, 10]) == 0.0
    assert found.own.tolist() == [9, 10]


def test_rows_of_padding_have_no_tokens() -> None:
    found = grouped([[1, 2, 30], [1, 2, 31], [0], [0]], [9, 10, 0, 0])
    assert members(found)[frozenset({0, 1})] == 8
    assert found.own.tolist()[2:] == [0, 0]


def attended(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float64 [H, D] and the log-sum-exp [H]; with no key 0 and -inf."""
    if not len(keys):
        return np.zeros((HEADS, SIZE)), np.full(HEADS, -np.inf)
    keys, values = (one.repeat(HEADS // KEY_HEADS, axis=1) for one in (keys, values))
    scores = np.einsum("hd,thd->ht", query, keys) / np.sqrt(SIZE)
    top = scores.max(1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(1, keepdims=True)
    return np.einsum("ht,thd->hd", weights / total, values), (np.log(total) + top)[:, 0]


def read(cache: np.ndarray, blocks: torch.Tensor, tokens: int) -> np.ndarray:
    return cache[blocks.numpy()].reshape(-1, KEY_HEADS, SIZE)[:tokens]


@pytest.mark.parametrize("seed", range(6))
def test_two_parts_merged_are_the_attention_of_each_request(seed: int) -> None:
    """Random steps, in float32: what the back-end asks of the kernels, computed token by token here."""
    rng = np.random.default_rng(seed)
    free = iter(rng.permutation(np.arange(1, CACHE)).tolist())
    rows, lengths, system = [], [], [next(free) for _ in range(rng.integers(0, 3))]
    for size in rng.integers(1, 6, 5):
        prompt = [*system, *(next(free) for _ in range(rng.integers(0, 4)))]
        for _ in range(size):
            own = int(rng.integers(1, 14))
            blocks = [*prompt, *(next(free) for _ in range(-(-own // BLOCK)))]
            rows.append(blocks)
            lengths.append(len(prompt) * BLOCK + own)
    mixed = rng.permutation(len(rows)).tolist()
    rows, lengths = [rows[i] for i in mixed], [lengths[i] for i in mixed]
    found = grouped(rows, lengths)
    keys, values = rng.normal(size=(2, CACHE, BLOCK, KEY_HEADS, SIZE)).astype(np.float32)
    queries = rng.normal(size=(len(rows), HEADS, SIZE)).astype(np.float32)
    shared = {}
    for group in range(len(rows)):
        tokens = int(found.shared[group])
        parts = [read(one, found.blocks[group], tokens) for one in (keys, values)]
        for query in range(int(found.starts[group]), int(found.starts[group + 1])):
            shared[query] = attended(queries[int(found.order[query])], *parts)
    assert sorted(shared) == list(range(len(rows))), "each query is in one group"
    for request, (blocks, length) in enumerate(zip(rows, lengths)):
        known = [read(one, torch.tensor(blocks), length) for one in (keys, values)]
        expected, _ = attended(queries[request], *known)
        tokens = int(found.own[request])
        rest = [read(one, found.own_blocks[request], tokens) for one in (keys, values)]
        (one, one_lse), (two, two_lse) = shared[int(found.place[request])], attended(queries[request], *rest)
        weight = 1 / (1 + np.exp(two_lse - one_lse))
        merged = weight[:, None] * one + (1 - weight)[:, None] * two
        np.testing.assert_allclose(merged, expected, atol=1e-5)


def test_the_layers_of_a_step_find_its_groups_once() -> None:
    assert module.groups_of(None, torch.empty(0)) is None, "vLLM measures its memory so"
    rows, lengths = [[1, 2, 3, 7], [1, 2, 3, 8]], [3 * BLOCK + 1, 3 * BLOCK + 2]
    step = SimpleNamespace(
        grouped=False,
        groups=None,
        max_seq_len=max(lengths),
        block_table=table(rows),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
    )
    cache = torch.empty(CACHE, 2, BLOCK, 8)
    assert module.groups_of(step, cache) is None
    step.grouped = True
    found = module.groups_of(step, cache)
    assert found is not None and module.groups_of(step, cache) is found
    assert members(found) == {frozenset({0, 1}): 12} and found.own_blocks.shape == (2, 4)
