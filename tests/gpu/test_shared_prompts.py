"""Attention that reads shared prompts once beside vLLM's own and beside float32, on a card."""

from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipelinerl.engines.vllm.installed import installed_version

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(installed_version() is None, reason="needs vLLM"),
]
BLOCK, CACHE, HEADS, KEY_HEADS, SIZE = 16, 4096, 16, 8, 128


def step(groups: int, attempts: int, shared_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Block tables and lengths of groups and of some requests by themselves, in a random order."""
    generator = torch.Generator().manual_seed(0)
    free = iter((torch.randperm(CACHE - 1, generator=generator) + 1).tolist())
    rows, lengths = [], []
    for size in [attempts] * groups + [1, 1, 1]:
        prompt = [next(free) for _ in range(shared_blocks)]
        for _ in range(size):
            own = int(torch.randint(1, 70, (), generator=generator))
            rows.append([*prompt, *(next(free) for _ in range(-(-own // BLOCK)))])
            lengths.append(shared_blocks * BLOCK + own)
    order = torch.randperm(len(rows), generator=generator).tolist()
    table = torch.zeros(len(rows), shared_blocks + 5, dtype=torch.int32)
    for row, at in zip(table, order):
        row[: len(rows[at])] = torch.tensor(rows[at])
    return table, torch.tensor([lengths[at] for at in order], dtype=torch.int32)


def exact(
    query: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """float32 [R, H, D] of the same numbers, request by request."""
    found = []
    for one, blocks, length in zip(query.float(), table.long(), lengths.tolist()):
        known = cache[blocks].float().transpose(1, 2).reshape(-1, KEY_HEADS, 2 * SIZE)[:length]
        keys, values = known.repeat_interleave(HEADS // KEY_HEADS, 1).split(SIZE, -1)
        shares = (torch.einsum("hd,thd->ht", one, keys) * SIZE**-0.5).softmax(-1)
        found.append(torch.einsum("ht,thd->hd", shares, values))
    return torch.stack(found)


class Layer:
    """One layer over a cache, by vLLM's attention or by this package's; its buffers stay where they are."""

    def __init__(self, table: torch.Tensor, lengths: torch.Tensor, splits: int = 0) -> None:
        from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadata

        self.table, self.lengths = table.cuda(), lengths.cuda()
        requests = len(lengths)
        torch.manual_seed(0)
        self.cache = torch.randn(CACHE, KEY_HEADS, BLOCK, 2 * SIZE, device="cuda", dtype=torch.bfloat16)
        self.query = torch.randn(requests, HEADS, SIZE, device="cuda", dtype=torch.bfloat16)
        given: dict[str, Any] = {
            "num_actual_tokens": requests,
            "max_query_len": 1,
            "query_start_loc": torch.arange(requests + 1, dtype=torch.int32, device="cuda"),
            "max_seq_len": table.shape[1] * BLOCK,
            "seq_lens": self.lengths,
            "block_table": self.table,
            "use_cascade": False,
            "max_num_splits": splits,
        }
        known = {one.name: one for one in fields(FlashAttentionMetadata)}
        needed = {name: None for name, one in known.items() if one.default is MISSING}
        self.metadata: Any = FlashAttentionMetadata(**needed | {n: v for n, v in given.items() if n in known})
        scale = torch.ones((), device="cuda")
        self.layer: Any = SimpleNamespace(_q_scale=scale, _k_scale=scale, _v_scale=scale)

    def attended(self, kind: Any, output: torch.Tensor) -> torch.Tensor:
        """Into `output`, bfloat16 [R, H, D], which is returned."""
        sizes: dict[str, Any] = {"num_heads": HEADS, "head_size": SIZE, "scale": SIZE**-0.5}
        sizes |= {"num_kv_heads": KEY_HEADS, "alibi_slopes": None, "sliding_window": None}
        given = self.layer, self.query, self.query, self.query, self.cache, self.metadata, output
        self.metadata.groups = None
        kind(**sizes, kv_cache_dtype="auto").forward(*given)
        return output

    def exact(self) -> torch.Tensor:
        return exact(self.query, self.cache, self.table, self.lengths)


@pytest.mark.parametrize("splits", [0, 32])
@pytest.mark.parametrize(("groups", "attempts", "shared_blocks"), [(6, 8, 64), (20, 4, 20), (2, 16, 100)])
def test_shared_reading_is_as_exact_as_that_of_vllm(
    groups: int, attempts: int, shared_blocks: int, splits: int
) -> None:
    from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl

    from pipelinerl.engines.vllm.shared_prompts import Backend, SharedPromptBackend, SharedPromptImpl

    assert Backend is SharedPromptBackend, "this release takes other parameters"
    one = Layer(*step(groups, attempts, shared_blocks), splits)
    found = []
    for kind, grouped in ((FlashAttentionImpl, False), (SharedPromptImpl, True)):
        one.metadata.grouped = grouped
        found.append(one.attended(kind, torch.full_like(one.query, torch.nan)).float())
    assert (one.metadata.groups.shared > 0).sum() == groups
    stock, shared = ((output - one.exact()).abs().max().item() for output in found)
    assert shared < 2 * stock + 1e-3


def test_a_graph_finds_the_groups_of_the_step_that_it_replays() -> None:
    from pipelinerl.engines.vllm.shared_prompts import SharedPromptImpl

    first, (table, lengths) = step(2, 16, 100), step(6, 5, 20)
    requests, width = len(first[1]), first[0].shape[1]
    one = Layer(*first, splits=32)
    one.metadata.grouped = True
    output = torch.full_like(one.query, torch.nan)
    apart = torch.cuda.Stream()
    apart.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(apart):
        one.attended(SharedPromptImpl, output)
    torch.cuda.current_stream().wait_stream(apart)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one.attended(SharedPromptImpl, output)
    # Another step of fewer requests: a graph's other places have no tokens.
    fewer = len(lengths)
    assert fewer < requests and table.shape[1] < width
    one.table.zero_()
    one.table[:fewer, : table.shape[1]] = table.cuda()
    one.lengths.zero_()
    one.lengths[:fewer] = lengths.cuda()
    graph.replay()
    assert (one.metadata.groups.shared > 0).sum() == 6
    expected = exact(one.query[:fewer], one.cache, one.table[:fewer], one.lengths[:fewer])
    assert (output[:fewer].float() - expected).abs().max().item() < 5e-3
