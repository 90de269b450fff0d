"""Layers that are not full attention, in the memory plan: states of fixed size, and windows."""

from dataclasses import replace
from typing import Any

import pytest

from pipelinerl.launcher.cards import GIB
from pipelinerl.launcher.engine_memory import EngineWork, request_bytes, step_bytes
from pipelinerl.launcher.trainer_memory import needed_bytes
from tests.unit.launcher.test_memory_plan import planned, shape


def engine_work(**changes: Any) -> EngineWork:
    return EngineWork(max_model_len=10000, **changes)


def test_a_request_holds_states_and_windows_instead_of_all_keys() -> None:
    """By hand, from the published configurations; blocks of vLLM go to groups of equally many layers."""
    dense = request_bytes(shape("4B"), engine_work(), 5000)
    assert dense == 36 * 5000 * 2 * 8 * 128 * 2
    hybrid = shape("Qwen3.5-4B")
    state = 4 * 32 * 128 * 128 + 2 * 3 * (2 * 2048 + 4096)  # matrices in float32, three tokens of convolution
    keys = 8 * 5000 * 2 * 4 * 256 * 2
    assert request_bytes(hybrid, engine_work(), 5000) == keys + 24 * 2 * state
    assert request_bytes(hybrid, engine_work(states=1), 9000) == keys * 9 // 5 + 24 * state
    assert request_bytes(hybrid, engine_work(cards=2), 5000) == (keys + 24 * 2 * state) / 2
    windows, layer = shape("Gemma-3-4B"), 2 * 4 * 256 * 2  # of a token
    # 5 layers see all tokens, 29 see 1,024: six groups of five, one place of which is empty.
    assert request_bytes(windows, engine_work(), 5000) == layer * (5 * 5000 + 30 * 1024)
    assert request_bytes(windows, engine_work(), 5000, 3000) == layer * (5 * 5000 + 30 * 4024)
    assert request_bytes(windows, engine_work(), 700) == layer * 35 * 700
    assert request_bytes(windows, engine_work(bounded=False), 5000) == layer * 34 * 5000


def test_an_engine_that_says_experts_has_a_buffer_for_those_of_its_largest_step() -> None:
    """Of 30B-A3B 48 layers of 8 experts, in 4 bytes where layers write, and twice in one on the way out."""
    mixture, tokens = shape("30B-A3B"), 4096
    plain, saying = (
        step_bytes(mixture, engine_work(batched_tokens=tokens, routes=routes), 64) for routes in (False, True)
    )
    assert saying - plain == tokens * 48 * 8 * (4 + 2)
    many = replace(mixture, experts=512)
    wide = step_bytes(many, engine_work(batched_tokens=tokens, routes=True), 64)
    assert wide - saying == tokens * 48 * 8 * 2


def test_flags_that_change_what_a_request_holds_are_planned_with() -> None:
    def requests(model: str, **kwargs: Any) -> int:
        plan = planned(model, 80, 8, vllm_config={"vllm_kwargs": kwargs}, max_lag=None)
        assert plan.engine is not None
        return plan.engine.requests

    tight = {"kv-cache-memory-bytes": 8 * GIB}
    assert requests("Gemma-3-4B", **tight) > 2 * requests(
        "Gemma-3-4B", **tight, **{"disable-hybrid-kv-cache-manager": True}
    )
    small = requests("8B", **tight, **{"kv-cache-dtype": "fp8"})
    assert small == pytest.approx(2 * requests("8B", **tight), abs=1), "one byte for each number"
    assert requests("8B", **tight, **{"kv-cache-dtype": "auto"}) == requests("8B", **tight)
    assert requests("Qwen3.5-4B", **tight, **{"enable-prefix-caching": False}) > requests(
        "Qwen3.5-4B", **tight, **{"enable-prefix-caching": True}
    )


def test_linear_layers_keep_their_projections_and_four_norms_more_than_two() -> None:
    hybrid, windows = shape("Qwen3.5-4B"), shape("Gemma-3-4B")
    narrow = replace(hybrid, linear=None)  # all of it full attention
    assert needed_bytes(hybrid, False, True, 1000, 0.0) - needed_bytes(narrow, False, True, 1000, 0.0) == (
        24 * 1000 * 6 * ((2 * 2048 + 4096) + 4096 - (2 * 4096 + 2 * 1024))
    )
    fewer = replace(windows, norms=2)
    assert needed_bytes(windows, False, False, 1000, 0.0) - needed_bytes(
        fewer, False, False, 1000, 0.0
    ) == pytest.approx(34 * 1000 * 16 * 2560)


def test_branches_of_shared_prefixes_take_a_copy_of_one_layers_arguments_and_their_states() -> None:
    hybrid, dense = shape("Qwen3.5-4B"), shape("4B")
    alone, shared = (needed_bytes(hybrid, True, True, 1024, 0.0, shares) for shares in (False, True))
    # Queries, keys and values, the result, and gradients of all in bfloat16; of each 256 tokens a state of 32
    # heads and its gradient in float32.
    arguments = 2 * 2 * (2 * 2048 + 4096 + 4096)
    assert shared - alone == 1024 * arguments + 4 * 2 * 4 * 32 * 128 * 128
    assert needed_bytes(dense, True, True, 1024, 0.0, True) == needed_bytes(dense, True, True, 1024, 0.0)
