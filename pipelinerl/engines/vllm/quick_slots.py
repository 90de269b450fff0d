"""Spares vLLM's scheduler the search for cache blocks where a request's next token has its place already.

For every request and step the scheduler asks its cache manager for room for one more token, which takes a
fifth of the engine's own time. A block holds 16 tokens or more, so in most steps nothing is taken and, with a
prefix cache, no block has become full: the answer is then the manager's empty one, which is given here. All
else goes the way of vLLM. That holds for models whose layers all attend to the whole context; others are left
as they are. vLLM's plug-in puts this into place where the launcher has set `SWITCH`.
"""

import inspect
import logging
from collections.abc import Sequence
from importlib import import_module
from typing import Any

SWITCH = "PIPELINERL_QUICK_SLOTS"
"""Variable that is `1` in the environment of engines that are to do so."""
MANAGER, MANAGERS = "vllm.v1.core.kv_cache_manager", "vllm.v1.core.single_type_kv_cache_manager"
MANAGER_HAS = ("coordinator", "enable_caching", "max_model_len", "empty_kv_cache_blocks")
BLOCKS_HAS = ("req_to_blocks", "num_cached_block", "block_size", "block_pool", "_partial_hit_reqs")
PARAMETERS = ("self", "request", "num_new_tokens")
# vLLM writes out only what its own loggers say.
log = logging.getLogger(f"vllm.{__name__}")


def answer_quickly() -> None:
    """Put it into place in a process of vLLM; again, it does nothing."""
    manager = import_module(MANAGER).KVCacheManager
    if hasattr(manager.__init__, "__wrapped__"):
        return
    taken = tuple(inspect.signature(manager.allocate_slots).parameters)
    if taken[: len(PARAMETERS)] != PARAMETERS:
        log.warning(
            "every token's place is searched: KVCacheManager.allocate_slots takes %s", ", ".join(taken)
        )
        return
    begin = manager.__init__

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        why = misfit(self)
        if why is None:
            self.allocate_slots = _quick(self)
        else:
            log.warning("every token's place is searched: %s", why)

    __init__.__wrapped__ = begin  # type: ignore[attr-defined]
    manager.__init__ = __init__


def misfit(manager: Any) -> str | None:
    """Why this manager has to search for itself, in a few words; None where it need not."""
    for name in MANAGER_HAS:
        if not hasattr(manager, name):
            return f"KVCacheManager has no {name}"
    groups: Sequence[Any] = getattr(manager.coordinator, "single_type_managers", ())
    if len(groups) != 1 or type(groups[0]) is not import_module(MANAGERS).FullAttentionManager:
        return "not all layers of this model attend to the whole context"
    for name in BLOCKS_HAS:
        if not hasattr(groups[0], name):
            return f"FullAttentionManager has no {name}"
    if manager.enable_caching and groups[0].block_size != groups[0].block_pool.hash_block_size:
        return "its prefix cache has parts of blocks"
    return None


def _quick(manager: Any) -> Any:
    search, nothing, longest = manager.allocate_slots, manager.empty_kv_cache_blocks, manager.max_model_len
    blocks, caching = manager.coordinator.single_type_managers[0], manager.enable_caching
    held, full, shared, size = (
        blocks.req_to_blocks,
        blocks.num_cached_block,
        blocks._partial_hit_reqs,
        blocks.block_size,
    )
    running = import_module("vllm.v1.request").RequestStatus.RUNNING

    def allocate_slots(
        request: Any, num_new_tokens: int, *rest: Any, num_lookahead_tokens: int = 0, **named: Any
    ) -> Any:
        name, end = request.request_id, request.num_computed_tokens + num_new_tokens
        if (
            not rest
            and not named
            and num_new_tokens > 0
            and request.status == running
            and end + num_lookahead_tokens <= min(len(held.get(name, ())) * size, longest)
            # Never more blocks than those that vLLM would look at: it may keep some of them back.
            and (not caching or full.get(name, 0) >= min(end, request.num_tokens) // size)
            and name not in shared
        ):
            return nothing
        return search(request, num_new_tokens, *rest, num_lookahead_tokens=num_lookahead_tokens, **named)

    return allocate_slots
