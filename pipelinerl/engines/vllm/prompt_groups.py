"""Which requests of a decoding step begin with the same blocks of the cache, found on the device.

The attention back-end of `shared_prompts.py` reads such blocks once for all of them. A step's shapes depend
on the number of its requests alone and nothing here waits for the device, so that the next step can be
scheduled meanwhile: groups are padded to as many as there are requests, empty ones have no queries.
"""

from dataclasses import dataclass
from typing import Any

import torch

LEAST_SHARED = 256
"""Tokens; shorter beginnings are read by each request."""


@dataclass(frozen=True)
class PromptGroups:
    """A step of R requests with one query each; groups follow each other, queries lie in their order."""

    order: torch.Tensor
    """int64 [R]: the request of each query."""
    place: torch.Tensor
    """int64 [R]: where the query of each request lies in that order."""
    starts: torch.Tensor
    """int32 [R + 1]: half-open ranges [starts[g], starts[g + 1]) of queries; those of padding are empty."""
    blocks: torch.Tensor
    """int32 [R, W]: blocks of each group, of which the first hold what it shares."""
    shared: torch.Tensor
    """int32 [R]: tokens that a group shares; 0 of a request by itself."""
    own_blocks: torch.Tensor
    """int32 [R, W]: blocks of each request behind those that it shares."""
    own: torch.Tensor
    """int32 [R]: tokens in them, at least 1 for a request that has any."""


def prompt_groups(
    block_table: torch.Tensor, seq_lens: torch.Tensor, block_size: int, blocks_of_cache: int
) -> PromptGroups:
    """Groups of the requests with these blocks (int32 [R, W], ids below `blocks_of_cache`) and lengths [R].

    A block with the newest token of a request is no other's. Of the blocks before it a request shares those,
    from its first on, that another request of the step has too; requests whose last such block is the same
    are a group, and share the blocks in which all of them agree. So attempts at one problem are a group also
    where all problems begin with the same system prompt.
    """
    requests, width = block_table.shape
    device, columns = block_table.device, torch.arange(width, device=block_table.device)
    rows = torch.arange(requests, device=device)
    full = ((seq_lens.long() - 1) // block_size).clamp(min=0)
    inside = columns < full[:, None]
    ids = torch.where(inside, block_table.long(), blocks_of_cache).clamp(0, blocks_of_cache)
    readers = torch.zeros(blocks_of_cache + 1, dtype=torch.int32, device=device)
    readers.scatter_add_(0, ids.reshape(-1), torch.ones_like(ids, dtype=torch.int32).reshape(-1))
    leading = (inside & (readers[ids] > 1)).long().cumprod(1).sum(1)
    last = ids.gather(1, (leading - 1).clamp(min=0)[:, None])[:, 0]
    key = torch.where(leading > 0, last, -1 - rows)
    order = key.argsort(stable=True)
    place = torch.empty_like(order).scatter_(0, order, rows)
    begins = torch.ones_like(order, dtype=torch.bool)
    begins[1:] = key[order][1:] != key[order][:-1]
    group = begins.long().cumsum(0) - 1
    first = torch.where(begins, rows, 0).cummax(0).values  # of each query's group
    table, leader = block_table[order], order[first]
    same = (table == block_table[leader]) & (columns < leading[order][:, None])
    agreed = same.long().cumprod(1).sum(1)
    sizes = torch.zeros_like(order).scatter_add_(0, group, torch.ones_like(group))
    shared = torch.full_like(order, width).scatter_reduce_(0, group, agreed, "amin")
    worth = (sizes > 1) & (shared * block_size >= LEAST_SHARED)
    shared = torch.where(worth, shared, 0)
    starts = torch.zeros(requests + 1, dtype=torch.int32, device=device)
    starts[1:] = sizes.cumsum(0)
    leaders = torch.zeros_like(order).scatter_(0, group, leader)
    skipped = shared[group][place]  # blocks, of each request
    own_columns = (columns + skipped[:, None]).clamp(max=width - 1)
    return PromptGroups(
        order=order,
        place=place,
        starts=starts,
        blocks=block_table[leaders],
        shared=(shared * block_size).int(),
        own_blocks=block_table.gather(1, own_columns),
        own=(seq_lens.long() - skipped * block_size).int(),
    )


def groups_of(metadata: Any, cache: torch.Tensor) -> PromptGroups | None:
    """Groups of the step with vLLM's `metadata`, found once for all its layers, each with such a `cache`
    ([blocks, H_kv, size, 2 D]); None where each request reads by itself.

    vLLM measures its memory with no metadata and an empty cache.
    """
    if not getattr(metadata, "grouped", False):
        return None
    if metadata.groups is None:
        blocks, _, size, _ = cache.shape
        width = min(-(-metadata.max_seq_len // size), metadata.block_table.shape[1])
        metadata.groups = prompt_groups(metadata.block_table[:, :width], metadata.seq_lens, size, blocks)
    found: PromptGroups = metadata.groups
    return found
