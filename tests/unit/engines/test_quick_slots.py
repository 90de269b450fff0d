"""A cache manager that answers quickly gives and takes the same blocks as one that searches."""

import logging
import sys
from collections import defaultdict
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelinerl.engines.vllm.quick_slots import answer_quickly

SIZE, LONGEST = 4, 40


class Status(Enum):
    WAITING, RUNNING, PREEMPTED = range(3)


class FullAttentionManager:
    """Blocks of requests, numbered in the order in which they are taken."""

    def __init__(self) -> None:
        self.req_to_blocks: dict[str, list[int]] = defaultdict(list)
        self.num_cached_block: dict[str, int] = {}
        self._partial_hit_reqs: dict[str, Any] = {}
        self.block_size, self.block_pool = SIZE, SimpleNamespace(hash_block_size=SIZE)
        self.cached: list[tuple[str, int]] = []
        self.free = list(range(20))


class SlidingWindowManager(FullAttentionManager):
    pass


def manager(caching: bool, blocks: type = FullAttentionManager, quick: bool = True) -> Any:
    """vLLM's, as far as a request with enough free blocks goes."""

    class KVCacheManager:
        def __init__(self, caching: bool) -> None:
            self.coordinator = SimpleNamespace(single_type_managers=(blocks(),))
            self.enable_caching, self.max_model_len, self.empty_kv_cache_blocks = caching, LONGEST, ()
            self.searched = 0

        def allocate_slots(self, request: Any, num_new_tokens: int, num_lookahead_tokens: int = 0) -> Any:
            self.searched += 1
            one, name = self.coordinator.single_type_managers[0], request.request_id
            end = request.num_computed_tokens + num_new_tokens
            needs = -(-min(end + num_lookahead_tokens, LONGEST) // SIZE) - len(one.req_to_blocks[name])
            watermark = 2 if request.status is not Status.RUNNING else 0
            if max(needs, 0) + watermark > len(one.free):
                return None
            taken = [one.free.pop(0) for _ in range(max(needs, 0))]
            one.req_to_blocks[name] += taken
            for full in range(one.num_cached_block.get(name, 0), min(end, request.num_tokens) // SIZE):
                if caching:
                    one.cached.append((name, one.req_to_blocks[name][full]))
                    one.num_cached_block[name] = full + 1
            return tuple(taken)

    modules: dict[str, dict[str, Any]] = {
        "vllm.v1.core.kv_cache_manager": {"KVCacheManager": KVCacheManager},
        "vllm.v1.core.single_type_kv_cache_manager": {"FullAttentionManager": FullAttentionManager},
        "vllm.v1.request": {"RequestStatus": Status},
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, values in modules.items():
            module = ModuleType(name)
            module.__dict__.update(values)
            patch.setitem(sys.modules, name, module)
        if quick:
            answer_quickly()
            answer_quickly()
        return KVCacheManager(caching)


STEP = st.tuples(st.sampled_from("abc"), st.sampled_from([1, 1, 1, 1, 2, 5]), st.sampled_from([0, 0, 0, 2]))


@settings(max_examples=150, deadline=None)
@given(caching=st.booleans(), steps=st.lists(STEP, max_size=80), gone=st.sets(st.integers(0, 79), max_size=4))
def test_blocks_are_those_that_a_search_gives(caching: bool, steps: list[Any], gone: set[int]) -> None:
    managers = [manager(caching), manager(caching, quick=False)]
    requests = {
        name: SimpleNamespace(request_id=name, num_computed_tokens=0, num_tokens=9, status=Status.WAITING)
        for name in "abc"
    }
    for number, (name, tokens, ahead) in enumerate(steps):
        request = requests[name]
        if request.num_computed_tokens + tokens > LONGEST:
            continue
        given_ = [one.allocate_slots(request, tokens, num_lookahead_tokens=ahead) for one in managers]
        assert given_[0] == given_[1]
        if given_[0] is not None:
            request.num_computed_tokens += tokens
            # Sampled tokens are known one step late, as when steps are scheduled ahead.
            request.num_tokens = max(9, request.num_computed_tokens)
            request.status = Status.RUNNING
        if number in gone:  # preempted: its blocks are free and it begins again
            for one in managers:
                blocks = one.coordinator.single_type_managers[0]
                blocks.free += blocks.req_to_blocks.pop(name, [])
                blocks.num_cached_block.pop(name, None)
            request.num_computed_tokens, request.status = 0, Status.PREEMPTED
        left, right = (one.coordinator.single_type_managers[0] for one in managers)
        assert dict(left.req_to_blocks) == dict(right.req_to_blocks) and left.cached == right.cached
        assert left.free == right.free


@pytest.mark.parametrize("caching", [False, True])
def test_one_step_in_a_block_searches(caching: bool) -> None:
    one = manager(caching)
    request = SimpleNamespace(request_id="a", num_computed_tokens=0, num_tokens=8, status=Status.WAITING)
    one.allocate_slots(request, 8)
    request.num_computed_tokens, request.status, one.searched = 8, Status.RUNNING, 0
    for _ in range(4 * SIZE):
        one.allocate_slots(request, 1)
        request.num_computed_tokens += 1
        request.num_tokens = request.num_computed_tokens
    # A block is known to be full in the step that needs the next one.
    assert one.searched == 4


def test_another_kind_of_layers_is_searched_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        one = manager(True, SlidingWindowManager)
    assert "allocate_slots" not in vars(one)
    assert [line.getMessage() for line in caplog.records] == [
        "every token's place is searched: not all layers of this model attend to the whole context"
    ]
