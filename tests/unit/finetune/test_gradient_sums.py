"""Gradients of ranks add up whatever their micro-batches are, and sums begin before a backward pass ends."""

import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.utils.checkpoint import checkpoint

from pipelinerl.finetune import gradient_sums
from pipelinerl.finetune.gradient_sums import GradientSums, Plan, plan_buckets
from pipelinerl.finetune.ranks import AccelerateRanks, Ranks
from tests.support.policy import tiny_model
from tests.support.summing_rank import (
    CASES,
    STEPS,
    accumulate,
    gradients,
    holders,
    learner_of_case,
    micro_batches,
)
from tests.unit.finetune.test_ranks import DEADLINE_S, start_ranks

ALONE = ("compiled", "dies")
"""Cases that are started for themselves."""
SHARED_START = [case for case in CASES if case not in ALONE and (case != "adapters" or find_spec("peft"))]
Events = list[list[list[str]]]
"""By rank and step."""


def run(folder: Path, count: int, cases: list[str]) -> list[tuple[int, str]]:
    for case in cases:
        (folder / case).mkdir(parents=True)
        tiny_model().save_pretrained(folder / case / "model")
    return start_ranks(folder, count, "summing_rank.py", cases=cases)


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """How many ranks there were, and where each case left what it found."""
    folder = tmp_path_factory.mktemp("ranks")
    for code, said in run(folder, request.param, SHARED_START):
        assert code == 0, said[-2000:]
    return request.param, folder


def events_of(folder: Path, case: str, count: int) -> Events:
    return [json.loads((folder / case / f"{case}_{rank}.json").read_text()) for rank in range(count)]


def assert_sums(folder: Path, case: str, count: int) -> None:
    """Against gradients of each rank's micro-batches, taken here one after the other and added."""
    found = [load_file(folder / case / f"{case}_{rank}.safetensors") for rank in range(count)]
    learner = learner_of_case(case, Ranks(), folder / case)
    for step in range(STEPS):
        totals: dict[str, torch.Tensor] = {}
        for rank in range(count):
            for batch in micro_batches(case, step, rank):
                accumulate(learner, batch)
            own = gradients(learner)
            totals = {name: totals[name] + one if totals else one for name, one in own.items()}
            learner.optimiser.zero_grad(set_to_none=True)
        assert any(bool(one.any()) for one in totals.values())
        for rank in range(count):
            if case == "not finite" and step == 1:
                assert f"{step}.0" not in found[rank]
                continue
            for name, total in totals.items():
                gradient = found[rank][f"{step}.{name}"]
                assert gradient.dtype == torch.float32
                if count == 2:
                    assert torch.equal(gradient, total), (case, step, rank, name)
                else:  # the order in which three numbers are added differs
                    torch.testing.assert_close(gradient, total, atol=1e-6, rtol=1e-5)


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("case", SHARED_START)
def test_every_rank_has_the_sum(ranks: tuple[int, Path], case: str) -> None:
    count, folder = ranks
    assert_sums(folder, case, count)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_sums_begin_before_the_backward_pass_ends(ranks: tuple[int, Path]) -> None:
    count, folder = ranks
    for events in events_of(folder, "float32", count):
        first, *others = events
        assert first[-1].startswith("sum") and first.index("gradient") < Counter(first)["gradient"]
        assert {one.split()[0] for one in first[: Counter(first)["gradient"]]} == {"gradient"}
        for step in others:
            last = max(i for i, one in enumerate(step) if one == "gradient")
            early = [one for one in step[:last] if one != "gradient"]
            assert len(early) >= 3  # all but the last of a step's buckets


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("case", [case for case in SHARED_START if case != "late"])
def test_all_ranks_sum_the_same_in_the_same_order(ranks: tuple[int, Path], case: str) -> None:
    count, folder = ranks
    sums = [[[e for e in step if e.startswith("sum")] for step in own] for own in events_of(folder, case, count)]
    assert all(own == sums[0] for own in sums)
    assert all(step == sums[0][0] for step in sums[0])
    # One collective for several gradients, and every number in one of them.
    learner = learner_of_case(case, Ranks(), folder / case)
    assert 1 < len(sums[0][0]) < len(holders(learner))
    assert sum(int(one.split()[1]) for one in sums[0][0]) == sum(p.numel() for p in holders(learner))


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_late_rank_holds_up_no_backward_pass_and_is_met_by_no_collective(ranks: tuple[int, Path]) -> None:
    """Rank 1 begins when rank 0 is through: with a pass that waited, neither would go on."""
    count, folder = ranks
    for step in events_of(folder, "late", count)[0]:
        gradients_of_step = Counter(step)["gradient"]
        assert step[:gradients_of_step] == ["gradient"] * gradients_of_step
        assert len(step) > gradients_of_step


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_norm_that_is_not_finite_is_seen_by_all_ranks(ranks: tuple[int, Path]) -> None:
    count, folder = ranks
    assert [[step[-1] == "not finite" for step in own] for own in events_of(folder, "not finite", count)] == [
        [False, True, False]
    ] * count


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_rank_that_fails_within_its_backward_pass_ends_and_so_do_the_others(tmp_path: Path) -> None:
    (first, said_first), (second, said) = run(tmp_path, 2, ["dies"])
    assert first != 0 and "peer" in said_first
    assert second != 0 and "out of something in the backward pass" in said


@pytest.mark.slow
@pytest.mark.timeout(2 * DEADLINE_S)
def test_compiled_layers_have_the_sum(tmp_path: Path) -> None:
    for code, said in run(tmp_path, 2, ["compiled"]):
        assert code == 0, said[-2000:]
    assert_sums(tmp_path, "compiled", 2)
    for own in events_of(tmp_path, "compiled", 2):
        assert any(one.startswith("sum") for one in own[-1][: own[-1].index("gradient") + 8])
