"""Attention that reads shared prompts once beside vLLM's own and beside float32, on a card."""

from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipelinerl.engines.vllm.installed import installed_version
from pipelinerl.engines.vllm.prompt_groups import prompt_groups

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


@pytest.mark.parametrize(("groups", "attempts", "shared_blocks"), [(6, 8, 64), (20, 4, 20), (2, 16, 100)])
def test_shared_reading_is_as_exact_as_that_of_vllm(groups: int, attempts: int, shared_blocks: int) -> None:
    from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl, FlashAttentionMetadata

    from pipelinerl.engines.vllm.shared_prompts import Backend, SharedPromptBackend, SharedPromptImpl

    assert Backend is SharedPromptBackend, "this release takes other parameters"
    table, lengths = (one.cuda() for one in step(groups, attempts, shared_blocks))
    requests = len(lengths)
    torch.manual_seed(0)
    cache = torch.randn(CACHE, KEY_HEADS, BLOCK, 2 * SIZE, device="cuda", dtype=torch.bfloat16)
    query = torch.randn(requests, HEADS, SIZE, device="cuda", dtype=torch.bfloat16)
    given: dict[str, Any] = {
        "num_actual_tokens": requests,
        "max_query_len": 1,
        "query_start_loc": torch.arange(requests + 1, dtype=torch.int32, device="cuda"),
        "max_seq_len": int(lengths.max()),
        "seq_lens": lengths,
        "block_table": table,
        "use_cascade": False,
    }
    known = {one.name: one for one in fields(FlashAttentionMetadata)}
    needed = {name: None for name, one in known.items() if one.default is MISSING}
    metadata: Any = FlashAttentionMetadata(**needed | {n: v for n, v in given.items() if n in known})
    scale = torch.ones((), device="cuda")
    layer: Any = SimpleNamespace(_q_scale=scale, _k_scale=scale, _v_scale=scale)
    sizes = {"num_heads": HEADS, "head_size": SIZE, "scale": SIZE**-0.5, "num_kv_heads": KEY_HEADS}
    sizes |= {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto"}
    found = []
    for kind, together in ((FlashAttentionImpl, None), (SharedPromptImpl, True)):
        metadata.groups = prompt_groups(table, lengths, BLOCK, CACHE) if together else None
        output = torch.full_like(query, torch.nan)
        kind(**sizes).forward(layer, query, query, query, cache, metadata, output)
        found.append(output.float())
    assert (metadata.groups.shared > 0).sum() == groups
    expected = exact(query, cache, table, lengths)
    stock, shared = ((one - expected).abs().max().item() for one in found)
    assert shared < 2 * stock + 1e-3
