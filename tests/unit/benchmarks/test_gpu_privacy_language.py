"""What the privacy agent's benchmark asks of its runs, how tasks share cards, and what it makes of rows."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks import arms
from benchmarks.gpu.leak_course import parts_of
from benchmarks.gpu.privacy_language import (
    Place,
    figures_of,
    finished,
    leakage_left,
    run_overrides,
    start_of,
    tasks_of,
)
from benchmarks.gpu.runs import ENDED, STOP_S
from benchmarks.gpu.side_by_side import Task, run_all
from domains.privacy_hopqa.domain import PrivacyHopQADomain
from pipelinerl.config.compose import compose


def options(work: Path, **more: object) -> argparse.Namespace:
    given = {"hardware": "gpu", "work": work, "steps": 80, "evaluations": 3, "chains": 344, "overrides": []}
    given |= {"skills": ["policy", "adversary"], "arms": ["outcome", "penalty"], "seeds": [0, 1]}
    return argparse.Namespace(**given | more)


@pytest.mark.parametrize("hardware", ["gpu", "cpu"])
@pytest.mark.parametrize("arm", ["outcome", "situational", "penalty"])
def test_every_run_is_one_that_the_launcher_accepts(arm: str, hardware: str, tmp_path: Path) -> None:
    tree = compose(run_overrides(options(tmp_path, hardware=hardware), arm, 1)).tree
    assert PrivacyHopQADomain().validate(tree) == []
    assert tree.privacy_hopqa.prompt_set == "full" and tree.privacy_hopqa.world.seed == tree.seed == 1
    assert tree.privacy_hopqa.world.test_chains == 344
    if hardware == "gpu":
        every = tree.eval_every_n_versions
        assert 80 * 256 / every == 4  # three on the way, and the last version at the end
    rewards = tree.privacy_hopqa.training_reward_mode, tree.privacy_hopqa.privacy_reward_weight
    assert arm != "penalty" or rewards == ("hop_step_situational", 1)
    assert arm != "outcome" or rewards == ("outcome", 0)


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    place = Place(options(tmp_path, model=tmp_path), tmp_path / "rows.json")
    place.add("outcome_1", row(0.5, 0.25))
    assert [task.name for task in tasks_of(place, "supervised")] == ["policy", "adversary"]
    assert [task.name for task in tasks_of(place, "arms")] == ["outcome_0", "penalty_0", "penalty_1"]


def task(name: str, code: str, folder: Path, ended: dict[str, int]) -> Task:
    def keep(status: int) -> bool:
        ended[name] = status
        return status == 0

    return Task(name, [sys.executable, "-c", code], folder / f"{name}.log", keep)


def test_tasks_take_turns_on_the_cards(tmp_path: Path) -> None:
    code = f"import os; open(r'{tmp_path}/' + os.environ['CARD'], 'a').write('x')"
    ended: dict[str, int] = {}
    slots = [{**os.environ, "CARD": name} for name in ("a", "b")]
    tasks = [task(f"t{n}", code, tmp_path, ended) for n in range(5)]
    assert run_all(tasks, slots, time.monotonic() + STOP_S + 600, 1.0)
    assert ended == {f"t{n}": 0 for n in range(5)}
    assert len((tmp_path / "a").read_text() + (tmp_path / "b").read_text()) == 5


def test_the_limit_ends_what_runs_and_begins_nothing_more(tmp_path: Path) -> None:
    ended: dict[str, int] = {}
    tasks = [task(name, "import time; time.sleep(600)", tmp_path, ended) for name in ("one", "two")]
    begun = time.monotonic()
    assert not run_all(tasks, [dict(os.environ)], begun + STOP_S + 2.0, 1.0)
    assert ended == {"one": ENDED} and time.monotonic() - begun < 300


def test_a_task_that_fails_is_said_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: dict[str, int] = {}
    tasks = [
        task("bad", "raise SystemExit('no such card')", tmp_path, ended),
        task("good", "", tmp_path, ended),
    ]
    assert not run_all(tasks, [dict(os.environ)], time.monotonic() + STOP_S + 600, 1.0)
    assert ended == {"bad": 1, "good": 0} and "no such card" in capsys.readouterr().out


def row(success: float, leak: float) -> dict[str, object]:
    values = {name: [success, success] for name in arms.METRICS} | {"leak": [leak, leak]}
    rates = {"trained_texts_per_second": 100.0, "elapsed_s": 200.0}
    return {"evaluations": [[0, values | {"well_formed": [1.0, 1.0]}]] * 2, "rates": rates}


def test_every_arm_counts_with_the_seeds_that_it_has(tmp_path: Path) -> None:
    place = Place(options(tmp_path), tmp_path / "rows.json")
    for name in ("outcome_0", "outcome_1"):
        place.add(name, row(0.5, 0.25))
    assert finished(place.rows(), place.options) == {}
    place.add("penalty_0", row(0.5, 0.25))
    rows = place.rows()
    found = finished(rows, place.options)
    assert {arm: list(seeds) for arm, seeds in found.items()} == {"outcome": [0, 1], "penalty": [0]}
    assert start_of(rows)["leak"].mean == 0.25
    figures = {one.name: one for one in figures_of(rows)}
    assert figures["start: success"].met and figures["start: leak"].met
    assert figures["penalty_0: trained"].value == 100.0
    assert "machine" in json.loads(place.rows_file.read_text())["outcome_0"]


def test_what_the_penalty_leaves_of_the_leakage_is_over_the_chains_of_its_runs() -> None:
    def leaks(start: list[float | None], end: list[float | None]) -> dict[str, object]:
        return {"evaluations": [[0, {"leak": start}], [256, {"leak": [1.0]}], [512, {"leak": end}]]}

    rows = {"outcome_0": leaks([1.0], [1.0]), "penalty_0": leaks([1.0, 1.0], [1.0, 0.0])}
    assert {name: found[0] for name, found in leakage_left(rows).items()} == {"0": 0.5, "all": 0.5}
    more = rows | {"penalty_1": leaks([1.0, 1.0, None], [0.0, 0.0, 1.0])}
    assert {name: found[0] for name, found in leakage_left(more).items()} == {"0": 0.5, "1": 0.0, "all": 0.25}
    assert leakage_left({"outcome_0": rows["outcome_0"]}) == {}
    assert leakage_left({"penalty_0": leaks([0.0], [0.0])}) == {}  # nothing to take off


def test_what_is_left_has_an_interval_over_chains() -> None:
    """A seed whose interval holds a third does not decide whether the goal is met."""
    start, end = [1.0] * 30 + [0.0] * 70, [1.0] * 9 + [0.0] * 91
    left, low, high = leakage_left(
        {"penalty_0": {"evaluations": [[0, {"leak": start}], [9, {"leak": end}]]}}
    )["0"]
    assert low is not None and high is not None
    assert left == pytest.approx(0.3)
    assert low < 0.2 and 1 / 3 < high < 0.5


def test_a_run_that_has_lost_its_start_decides_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    def run(*texts: int) -> arms.Run:
        ends = [0.2, 0.4, 0.8][-len(texts) :]
        return arms.Run([*texts], [{name: [end] * 4 for name in arms.METRICS} for end in ends])

    whole, late = {0: run(0, 256, 512)}, {0: run(256, 512)}
    assert {name[:2] for name in arms.judged({"outcome": whole, "penalty": whole})} == {
        "O1",
        "O2",
        "O4",
        "O5",
    }
    assert arms.table({"outcome": late, "penalty": whole})["start"]["leak"]["mean"] == pytest.approx(0.2)
    assert "is lost" not in capsys.readouterr().out
    found = arms.judged({"outcome": late, "situational": whole, "penalty": whole})
    assert {name[:2] for name in found} == {"O4", "O5"}
    assert "outcome, seed 0: its evaluation before training is lost" in capsys.readouterr().out
    assert "start" not in arms.table({"outcome": late})


def test_the_course_of_leakage_is_by_equal_parts_of_the_texts() -> None:
    found = [(0, True), (99, False), (100, False), (599, True), (600, True)]
    parts = parts_of(found, texts=600)
    assert [part["texts"] for part in parts] == [100, 200, 300, 400, 500, 600]
    assert [part["leak"] for part in parts] == [0.5, 0.0, None, None, None, 1.0]
    assert [part["rollouts"] for part in parts] == [2, 1, 0, 0, 0, 2]
