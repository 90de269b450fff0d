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
from pipelinerl.finetune.ranks import Ranks
from tests.support.policy import tiny_model
from tests.support.summing_rank import (
    CASES,
    STEPS,
    accumulate,
    gradients,
    holders,
    learner_of_case,
)
from tests.unit.finetune.test_ranks import DEADLINE_S, start_ranks

ALONE = ("dies", "compiled")
SHARED_START = [case for case in CASES if case not in ALONE and (case != "adapters" or find_spec("peft"))]
Events = list[list[list[str]]]
"""By rank and step."""


def run(folder: Path, count: int, cases: list[str], kind: str = "cpu") -> list[tuple[int, str]]:
    for case in cases:
        (folder / case).mkdir(parents=True)
        tiny_model().save_pretrained(folder / case / "model")
    return start_ranks(folder, count, "summing_rank", cases=cases, kind=kind)


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """How many ranks there were, and where each case left what it found."""
    folder, count = tmp_path_factory.mktemp("ranks"), request.param
    ended = run(folder, count, [*SHARED_START, "dies"])
    for case in SHARED_START:
        assert all((folder / case / f"{case}_{rank}.json").is_file() for rank in range(count)), ended
    (folder / "ended.json").write_text(json.dumps(ended))
    return count, folder


def events_of(folder: Path, case: str, count: int) -> Events:
    return [json.loads((folder / case / f"{case}_{rank}.json").read_text()) for rank in range(count)]


def sums_of(step: list[str]) -> list[str]:
    return [one for one in step if one.startswith("sum")]


def assert_sums(folder: Path, case: str, count: int, kind: str = "cpu", tolerance: float = 1e-6) -> None:
    """Against gradients of each rank's micro-batches, taken here one after the other and added."""
    found = [load_file(folder / case / f"{case}_{rank}.safetensors") for rank in range(count)]
    learner = learner_of_case(case, Ranks(), folder / case, kind)
    for step in range(STEPS):
        totals: dict[str, torch.Tensor] = {}
        for rank in range(count):
            accumulate(learner, case, step, rank)
            own = {name: one.cpu() for name, one in gradients(learner).items()}
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
                if count == 2 and kind == "cpu":
                    assert torch.equal(gradient, total), (case, step, rank, name)
                else:  # three numbers are added in another order, and a GPU's kernels add as they come
                    torch.testing.assert_close(gradient, total, atol=tolerance, rtol=10 * tolerance)


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("case", SHARED_START)
def test_every_rank_has_the_sum(ranks: tuple[int, Path], case: str) -> None:
    count, folder = ranks
    assert_sums(folder, case, count)


@pytest.mark.slow  # the compiler takes as long as all other cases together
@pytest.mark.timeout(2 * DEADLINE_S)
def test_every_rank_has_the_sum_of_compiled_layers(tmp_path: Path) -> None:
    for code, said in run(tmp_path, 2, ["compiled"]):
        assert code == 0, said[-2000:]
    assert_sums(tmp_path, "compiled", 2)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_sums_begin_before_the_backward_pass_ends(ranks: tuple[int, Path]) -> None:
    count, folder = ranks
    learner = learner_of_case("float32", Ranks(), folder / "float32")
    parameters = len(holders(learner))
    for first, *others in events_of(folder, "float32", count):
        assert first[: 2 * parameters] == ["gradient"] * 2 * parameters  # the order is not known before
        for step in others:
            *before, behind = "".join("g" if one == "gradient" else "s" for one in step).split("s")
            # Not within the first of two micro-batches, nor before a first layer of two is begun.
            assert parameters < len(before[0]) < parameters * 3 / 2
            assert sum(map(len, before)) + len(behind) == 2 * parameters and behind == "g"


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("case", SHARED_START)
def test_all_ranks_sum_the_same_in_the_same_order(ranks: tuple[int, Path], case: str) -> None:
    count, folder = ranks
    sums = [[sums_of(step) for step in own] for own in events_of(folder, case, count)]
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
def test_a_rank_that_fails_within_its_backward_pass_ends_and_so_do_the_others(
    ranks: tuple[int, Path],
) -> None:
    count, folder = ranks
    ended = json.loads((folder / "ended.json").read_text())
    assert len(ended) == count and all(code != 0 for code, _ in ended)
    (_, said_first), (_, said), *_ = ended
    assert "peer" in said_first and "out of something in the backward pass" in said


class Done(dist.Work):
    """Of a collective that is over when it begins."""

    def is_completed(self) -> bool:
        return True

    def wait(self, *_: object) -> bool:
        return True


class Twins(Ranks):
    """Two ranks, of which the other does what this one does."""

    count = 2

    def arrive(self) -> dist.Work:
        return Done()


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(tensor: torch.Tensor, async_op: bool) -> dist.Work:
        tensor.mul_(2)
        return Done()

    monkeypatch.setattr(gradient_sums, "BUCKET_BYTES", 1)
    monkeypatch.setattr(dist, "all_reduce", double)


def test_a_parameter_of_several_nested_passes_is_summed_when_all_are_over(doubled: None) -> None:
    """Its gradient is 5 + 3 of two blocks that are recomputed on their own."""
    shared = torch.nn.Parameter(torch.ones(1))
    sums = GradientSums(Twins(), [(shared, shared)])

    def block(x: torch.Tensor, factor: int) -> torch.Tensor:
        return factor * x * shared

    for _ in range(3):
        sums.begin()
        start = torch.ones(1, requires_grad=True)
        parts = [checkpoint(block, start, factor, use_reentrant=True) for factor in (5, 3)]
        torch.cat(parts).sum().backward()
        sums.finish()
        assert shared.grad == torch.tensor([16.0])
        shared.grad = None


def test_a_gradient_that_comes_behind_its_sum_is_an_error(doubled: None) -> None:
    one = torch.nn.Parameter(torch.ones(2, 3))
    sums = GradientSums(Twins(), [(one, one)])
    sums.begin()
    one.sum().backward()
    sums.finish()
    sums.begin()
    one.sum().backward()
    with pytest.raises(RuntimeError, match=r"parameter of shape \(2, 3\), and in the first step once"):
        one.sum().backward()


def test_a_plan_follows_the_backward_pass_and_ends_with_what_it_did_not_reach_once() -> None:
    sizes = [100, 4, 4, 4, 4, 50, 4]
    plan = plan_buckets(sizes, Counter([6, 5, 4, 3, 3, 2, 0]), limit=8)
    assert plan == Plan([[5], [6, 4], [0], [2], [1, 3]], early=4)
    assert plan_buckets(sizes, Counter(), limit=1000) == Plan([[0, 1, 2, 3, 4, 5, 6]], early=0)
