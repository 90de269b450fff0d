"""The plan of the GPU table: what fits into a call, what runs beside what, what each command says."""

from __future__ import annotations

import itertools
from argparse import Namespace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from benchmarks import async_sync
from benchmarks._long_tail import lengths
from benchmarks.gpu import killed, plan
from benchmarks.gpu.__main__ import command_of
from benchmarks.gpu.cards import SEVERAL_RANKS, check_cards
from benchmarks.gpu.engine import asked, parsed
from benchmarks.gpu.served import model_config
from benchmarks.gpu.trainer import ROWS, SIZES
from pipelinerl.config.compose import Request, compose
from pipelinerl.config.files import typed
from pipelinerl.launcher.checks import sampling
from tests.support.contract.engines import COLUMNS

STEPS = [
    pytest.param(step, lane, id=f"{name}-{step.name}")
    for name, stages in plan.PLANS.items()
    for stage in stages
    for phase in stage
    for lane in phase
    for step in lane.steps
]
LONGEST_CALL_S = 600.0
BORROWED_S = 30 * 60.0


@pytest.mark.parametrize("name", plan.PLANS)
def test_the_stages_of_a_plan_fit_into_what_is_borrowed(name: str) -> None:
    """A stage may exceed a call on paper, since steps seldom need their limits; all together must not."""
    assert sum(plan.seconds_of(stage) for stage in plan.PLANS[name]) <= BORROWED_S + 120
    assert all(plan.seconds_of(stage) <= LONGEST_CALL_S + 90 for stage in plan.PLANS[name])


def test_with_one_card_a_stage_fits_into_a_call_by_its_limits() -> None:
    assert all(plan.seconds_of(stage) <= LONGEST_CALL_S - 30 for stage in plan.PLANS["one_card"])


def test_lanes_beside_each_other_share_no_cores_and_timed_ones_no_cards() -> None:
    for stages in plan.PLANS.values():
        for phase in itertools.chain.from_iterable(stages):
            for one, other in itertools.combinations(phase, 2):
                shared = set(one.cards.split(",")) & set(other.cards.split(","))
                assert not shared or one.untimed or other.untimed
                for cores in (16, 32):
                    taken = [_numbers(lane.core_list(cores)) for lane in (one, other)]
                    assert not taken[0] & taken[1]


def test_an_engine_is_timed_alone() -> None:
    for stages in plan.PLANS.values():
        for phase in itertools.chain.from_iterable(stages):
            if any(step.module in plan.NEEDS_VLLM for lane in phase for step in lane.steps):
                assert len(phase) == 1


def test_what_is_untimed_says_nothing_about_speed() -> None:
    """Of an engine that is killed the run has to go on; how fast is a figure without a goal."""
    for stages in plan.PLANS.values():
        for lane in itertools.chain.from_iterable(itertools.chain.from_iterable(stages)):
            if lane.untimed:
                assert {step.module for step in lane.steps} <= {"pytest", "benchmarks.gpu.killed"}


@pytest.mark.parametrize("name", plan.PLANS)
def test_the_columns_of_the_contract_are_all_run(name: str) -> None:
    steps = itertools.chain.from_iterable(lane.steps for phase in plan.PLANS[name][1] for lane in phase)
    names = {step.name for step in steps if step.name.startswith("contract")}
    assert names == {f"contract_{one.removeprefix('gpu-')}" for one in COLUMNS if one.startswith("gpu")}


@pytest.mark.parametrize("name", plan.PLANS)
def test_the_first_stage_has_what_is_wanted_most(name: str) -> None:
    first = [step.name for phase in plan.PLANS[name][0] for lane in phase for step in lane.steps]
    assert first == ["engine", "async_sync"]


def test_a_step_gets_what_is_left_and_is_left_out_when_that_is_too_little() -> None:
    step = plan.Step(name="x", module="m", limit_s=100, least_s=40)
    assert plan.limit_of(step, 500) == 100
    assert plan.limit_of(step, 60) == 60
    assert plan.limit_of(step, 39) is None


def test_only_what_can_be_rehearsed_is() -> None:
    engine = plan.engine("engine", 100, tiny=plan.TINY_ENGINE)
    assert plan.rehearsal(engine, None) is None
    assert plan.rehearsal(plan.trainer(100), "/env/python") is None
    found = plan.rehearsal(plan.reinforcement(100), "/env/python")
    assert found is not None and "vllm_config.python=/env/python" in found.arguments
    without = plan.rehearsal(plan.reinforcement(100), None)
    assert without is not None and not any("vllm_config" in one for one in without.arguments)


@pytest.mark.parametrize(("step", "lane"), STEPS)
def test_commands_are_complete(step: plan.Step, lane: plan.Lane) -> None:
    command = command_of(step, lane, 32, 100.0, Path("/work"))
    assert not any(
        f"{{{name}}}" in one for one in command for name in ("work", "out", "limit", "soft", "workers")
    )
    assert step.module in command


def test_the_bootstrap_leaves_a_core_to_the_trainer() -> None:
    lane = plan.Lane((), "1", plan.SECOND_HALF)
    command = command_of(plan.bootstrap(470), lane, 32, 470.0, Path("/work"))
    assert "bootstrap.workers=14" in command


def test_braces_of_configuration_values_stay() -> None:
    assert plan.filled(["a={b: 1}", "{out}"], {"out": "x"}) == ["a={b: 1}", "x"]


def test_cells_of_the_trainer_exist() -> None:
    for cell in plan.TRAINER_CELLS:
        size, row = cell.split(":")
        assert size in SIZES and row in ROWS


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


def engine_options(step: plan.Step, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    monkeypatch.setattr("sys.argv", ["engine", *plan.filled(step.arguments, {"work": "/w", "out": "/o"})])
    return parsed()


def test_arguments_of_the_plan_are_those_of_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's are parsed; it would say an unknown one only on the machine."""
    options = engine_options(plan.PLANS["two_cards"][0][0][0].steps[0], monkeypatch)
    assert options.api_servers == [0, 1] and options.in_flight == [256, 512] and "failure" in options.rows


def test_the_engines_of_one_card_fit_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEVERAL_RANKS, "1")
    config, found = model_config("1.7B"), []
    for lane in itertools.chain.from_iterable(itertools.chain.from_iterable(plan.PLANS["one_card"])):
        for step in lane.steps:
            if step.module == "benchmarks.gpu.engine":
                options = engine_options(step, monkeypatch)
                check_cards(options, [one.backend for one in asked(options)], config, 139 * 2**30)
                found.append((options.gpus, options.backends))
    assert found == [(["0", "0"], ["nccl_ahead"]), (["0", "0"], ["file_ahead"])]


@pytest.mark.parametrize("hardware", list(async_sync.SIZES))
def test_the_synchronous_run_differs_in_the_age_of_texts_alone(hardware: str) -> None:
    size = async_sync.SIZES[hardware]
    one, other = (
        async_sync.overrides(hardware, size, Path("/model"), mode.updates, 12)
        for mode in async_sync.MODES.values()
    )
    assert {a.split("=")[0] for a, b in zip(one, other, strict=True) if a != b} == {"max_lag"}
    for overrides in (one, other):
        assert not list(sampling.check(typed(compose(Request(overrides=overrides)).tree)))


@pytest.mark.parametrize("hardware", list(async_sync.SIZES))
def test_the_asynchronous_run_does_not_wait_for_its_longest_text(hardware: str) -> None:
    """Steps that pass while it is sampled beside as many others as a step has: its length over the mean."""
    size = async_sync.SIZES[hardware]
    drawn = lengths(4096, size.median, size.sigma, size.longest)
    mode = async_sync.MODES["asynchronous"]
    assert drawn.max() / drawn.mean() < min(mode.updates, mode.skipped)


def test_the_overrides_of_the_killed_run_exist() -> None:
    typed(compose(Request(overrides=["hardware=gpu", *killed.GUESSING, *killed.ON_GPU])).tree)


def preset(*overrides: str) -> OmegaConf:
    asked = ["+domain=privacy_hopqa", "+preset=privacy_hopqa_from_scratch", *overrides]
    return compose(Request(overrides=asked)).tree


def _numbers(cores: str) -> set[int]:
    first, last = (int(part) for part in cores.split("-"))
    return set(range(first, last + 1))
