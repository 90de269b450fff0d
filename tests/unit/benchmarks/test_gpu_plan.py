"""The plan of the GPU table: what fits into a call, what runs beside what, what each command says."""

from __future__ import annotations

import itertools
from argparse import Namespace
from pathlib import Path

import pytest
from omegaconf import DictConfig

from benchmarks import async_sync
from benchmarks._long_tail import lengths
from benchmarks.gpu import killed, plan
from benchmarks.gpu.__main__ import command_of
from benchmarks.gpu.cards import SEVERAL_RANKS, check_cards
from benchmarks.gpu.engine import parsed
from benchmarks.gpu.served import model_config
from benchmarks.gpu.trainer import ROWS, SIZES
from pipelinerl.config.compose import compose
from pipelinerl.config.files import typed
from pipelinerl.launcher.checks import sampling
from tests.support.contract.engines import COLUMNS

PHASES = [phase for stages in plan.PLANS.values() for stage in stages for phase in stage]
STEPS = [(step, lane) for phase in PHASES for lane in phase for step in lane.steps]
LONGEST_CALL_S = 600.0
BORROWED_S = 30 * 60.0


@pytest.mark.parametrize("name", plan.PLANS)
def test_the_stages_of_a_plan_fit_into_what_is_borrowed(name: str) -> None:
    """A stage may exceed a call on paper, since steps seldom need their limits; all together must not."""
    assert sum(plan.seconds_of(stage) for stage in plan.PLANS[name]) <= BORROWED_S + 120
    beyond = 90 if name == "two_cards" else -30
    assert all(plan.seconds_of(stage) <= LONGEST_CALL_S + beyond for stage in plan.PLANS[name])


def test_lanes_beside_each_other_share_no_cores_and_timed_ones_no_cards() -> None:
    for one, other in itertools.chain.from_iterable(itertools.combinations(phase, 2) for phase in PHASES):
        assert one.untimed or other.untimed or not set(one.cards.split(",")) & set(other.cards.split(","))
        for cores in (16, 32):
            (first, last), (start, end) = one.core_range(cores), other.core_range(cores)
            assert last < start or end < first


def test_an_engine_is_timed_alone() -> None:
    for phase in PHASES:
        if any(step.module in plan.NEEDS_VLLM for lane in phase for step in lane.steps):
            assert len(phase) == 1


def test_what_is_untimed_says_nothing_about_speed() -> None:
    """Of an engine that is killed the run has to go on; how fast is a figure without a goal."""
    assert {step.module for step, lane in STEPS if lane.untimed} <= {"pytest", "benchmarks.gpu.killed"}


@pytest.mark.parametrize("name", plan.PLANS)
def test_the_columns_of_the_contract_are_all_run(name: str) -> None:
    steps = itertools.chain.from_iterable(lane.steps for phase in plan.PLANS[name][1] for lane in phase)
    names = {step.name for step in steps if step.name.startswith("contract")}
    assert names == {f"contract_{one.removeprefix('gpu-')}" for one in COLUMNS if one.startswith("gpu")}


def test_a_step_gets_what_is_left_and_is_left_out_when_that_is_too_little() -> None:
    step = plan.Step(name="x", module="m", limit_s=100, least_s=40)
    assert [plan.limit_of(step, left) for left in (500, 60, 39)] == [100, 60, None]


def test_only_what_can_be_rehearsed_is() -> None:
    assert plan.rehearsal(plan.step("engine", 100), None) is None
    assert plan.rehearsal(plan.step("trainer", 100), "/env/python") is None
    found = plan.rehearsal(plan.step("privacy_rl", 100), "/env/python")
    assert found is not None and "vllm_config.python=/env/python" in found.arguments
    without = plan.rehearsal(plan.step("privacy_rl", 100), None)
    assert without is not None and not any("vllm_config" in one for one in without.arguments)


def test_commands_are_complete() -> None:
    for step, lane in STEPS:
        command = command_of(step, lane, 32, 100.0, Path("/work"))
        holes = [f"{{{name}}}" for name in ("work", "out", "limit", "soft", "workers")]
        assert step.module in command and not any(hole in word for word in command for hole in holes)


def test_the_bootstrap_leaves_a_core_to_the_trainer() -> None:
    ((step, lane),) = [(step, lane) for step, lane in STEPS if "bootstrap.budget=0.8" in step.arguments]
    assert "bootstrap.workers=14" in command_of(step, lane, 32, 470.0, Path("/work"))


def test_braces_of_configuration_values_stay() -> None:
    assert plan.filled(["a={b: 1}", "{out}"], {"out": "x"}) == ["a={b: 1}", "x"]


def test_cells_of_the_trainer_exist() -> None:
    arguments = list(plan.step("trainer", 100).arguments)
    cells = [cell.split(":") for cell in arguments[arguments.index("--cells") + 1 :]]
    assert cells and all(size in SIZES and row in ROWS for size, row in cells)


def test_the_model_from_scratch_has_the_size_that_is_asked_for() -> None:
    """50 to 150 million parameters: matrices of the layers and the tied embedding, norms left out."""
    bootstrap = typed(preset("hardware=gpu")).bootstrap
    shape = bootstrap.shape
    attention = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    layer = attention + 3 * shape.hidden * shape.mlp
    assert 50e6 < shape.layers * layer + bootstrap.vocab_size * shape.hidden < 150e6
    assert sum(phase.tokens for phase in bootstrap.phases) <= 200e6


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_the_preset_plays_the_small_models_game(hardware: str) -> None:
    tree = preset(f"hardware={hardware}")
    assert tree.privacy_hopqa.prompt_set == "compact"
    assert tree.privacy_hopqa.training_reward_mode == "hop_step_situational"
    assert tree.vllm_config.vllm_kwargs.max_model_len == tree.engine.max_model_len == 1024
    assert tree.engine.kind == ("vllm" if hardware == "gpu" else "embedded")


def engine_options(name: str) -> list[Namespace]:
    """Of the engine's steps; an unknown one would be said only on the machine."""
    steps = [step for stage in plan.PLANS[name] for phase in stage for lane in phase for step in lane.steps]
    chosen = [step for step in steps if step.module == "benchmarks.gpu.engine"]
    return [parsed(plan.filled(step.arguments, {"work": "/w", "out": "/o"})) for step in chosen]


def test_arguments_of_the_plan_are_those_of_the_engine() -> None:
    (options,) = engine_options("two_cards")
    assert options.in_flight == [256, 512] and "failure" in options.rows


def test_the_engines_of_one_card_fit_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEVERAL_RANKS, "1")
    found = engine_options("one_card")
    for options in found:
        check_cards(options, model_config("1.7B"), 139 * 2**30)
    assert [one.gpus for one in found] == [["0", "0"]] * 2
    assert [one.backend for one in found] == ["nccl_ahead", "file_ahead"]


@pytest.mark.parametrize("hardware", list(async_sync.SIZES))
def test_the_synchronous_run_differs_in_the_age_of_texts_alone(hardware: str) -> None:
    size = async_sync.SIZES[hardware]
    one, other = (
        async_sync.overrides(hardware, size, Path("/model"), mode.updates, 12)
        for mode in async_sync.MODES.values()
    )
    assert {a.split("=")[0] for a, b in zip(one, other, strict=True) if a != b} == {"max_lag"}
    for overrides in (one, other):
        assert not list(sampling.check(typed(compose(overrides).tree)))


@pytest.mark.parametrize("size", async_sync.SIZES.values(), ids=list(async_sync.SIZES))
def test_the_asynchronous_run_does_not_wait_for_its_longest_text(size: async_sync.Size) -> None:
    """Steps that pass while it is sampled beside as many others as a step has: its length over the mean."""
    drawn = lengths(4096, size.median, 1.0, size.longest)
    mode = async_sync.MODES["asynchronous"]
    assert drawn.max() / drawn.mean() < min(mode.updates, mode.skipped)


def test_the_overrides_of_the_killed_run_exist() -> None:
    typed(compose(["hardware=gpu", *killed.GUESSING, *killed.ON_GPU]).tree)


def preset(*overrides: str) -> DictConfig:
    given = ["+domain=privacy_hopqa", "+preset=privacy_hopqa_from_scratch", *overrides]
    return compose(given).tree
