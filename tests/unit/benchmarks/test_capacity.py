"""The simulation of the pipeline obeys the laws of queues, and gives the run that was measured."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import unit_costs
from benchmarks._figures import RESULTS
from benchmarks.capacity import (
    ANSWER,
    PARTS,
    SAVED,
    Costs,
    Network,
    Shape,
    figures,
    limits,
    main,
    row,
    shape_of,
    widened,
)
from tests.support import training

COSTS = Costs.measured()
SLOW = {
    "actor": {"scheduler": 0.05},
    "workers": {"worker": 0.05},
    "engines": {"token": 0.2 / ANSWER},
    "redis": {"redis": 0.05},
    "preprocess": {"preprocess": 0.05},
    "trainer": {"sample": 0.2},
}
"""Costs with which that part is the slowest of a small run."""


@pytest.mark.parametrize("part", PARTS)
def test_the_slowest_part_sets_the_rate_and_is_always_busy(part: str) -> None:
    """The utilisation law: a saturated network passes on what its slowest part can."""
    free = replace(COSTS, pause=0.0)
    costs, shape = replace(free, **SLOW[part]), Shape(engines=2, trainers=2, step=64)
    found, alone = Network(costs, shape).run(900), limits(costs, shape)
    assert min(alone, key=lambda name: alone[name]) == part
    assert found["samples"] == pytest.approx(alone[part], rel=0.02)
    assert found[part] == pytest.approx(1, abs=0.02)
    for other in set(PARTS) - {part}:
        assert found[other] == pytest.approx(alone[part] / alone[other], abs=0.04)


def test_pauses_cost_what_they_take() -> None:
    """Engines that limit lose the pause of each update and nothing else."""
    costs, shape = replace(COSTS, pause=0.5), Shape(engines=1, trainers=3, step=256)
    rate = Network(costs, shape).run(900)["samples"]
    step_s = 256 * ANSWER * costs.token + 0.5
    assert rate == pytest.approx(256 / step_s, rel=0.02)


def test_the_measured_run_on_two_gpus_is_given_within_a_tenth() -> None:
    measured = figures("gpu_trl")["ours: samples trained"]
    found = row(COSTS, Shape(engines=1, trainers=1, step=256), 400)
    assert found["samples"] == pytest.approx(measured, rel=0.1)
    assert found["first"] == "engines"


def test_more_of_what_limits_gives_the_gpus_back() -> None:
    costs = replace(COSTS, scheduler=0.02, preprocess=0.02)
    shape = shape_of(8, costs)
    assert row(costs, shape, 60)["share"] < 0.5
    assert row(costs, widened(shape, costs), 60)["share"] == pytest.approx(1, abs=0.05)


def test_what_is_stored_is_what_the_script_gives(tmp_path: Path) -> None:
    out = tmp_path / "capacity.json"
    assert main(["--gpus", "8", "--out", str(out), "--figure", str(tmp_path / "capacity.png")]) == 0
    stored = json.loads((RESULTS / "capacity.json").read_text())
    made = json.loads(out.read_text())
    assert made["rows"]["8"] == stored["rows"]["8"]
    assert made["check"] == stored["check"]


def test_a_checkpoint_has_that_many_bytes_of_a_parameter(tmp_path: Path) -> None:
    """Of a trainer that computes in bfloat16, as on cards."""
    training.train(tmp_path, load_as_bf16=True)
    model, state = (training.saved(tmp_path, name) for name in training.SAVED)
    kept = [*model.values(), *(one for name, one in state.items() if not name.startswith("rng."))]
    numbers = sum(one.numel() for one in model.values())
    assert sum(one.nbytes for one in kept) == pytest.approx(SAVED * numbers, rel=0.02)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_costs_of_single_processes_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "unit_costs.json"
    options = [
        "--tokens",
        "16",
        "--in-flight",
        "16",
        "--seconds",
        "1",
        "--groups",
        "128",
        "--gigabytes",
        "0.1",
    ]
    assert unit_costs.main([*options, "--out", str(out)]) == 0
    found = json.loads(out.read_text())["figures"]
    stored = json.loads((RESULTS / "unit_costs.json").read_text())["figures"]
    assert found.keys() == stored.keys()
    assert all(row["value"] > 0 for row in found.values())
