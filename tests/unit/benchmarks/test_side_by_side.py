"""How tasks share cards and cores, and keep to the limit of a call."""

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu.runs import ENDED, STOP_S
from benchmarks.gpu.side_by_side import Task, run_all, slots


def task(name: str, code: str, folder: Path, ended: dict[str, int]) -> Task:
    def keep(status: int) -> bool:
        ended[name] = status
        return status == 0

    return Task(name, [sys.executable, "-c", code], folder / f"{name}.log", keep)


def test_a_card_has_as_many_places_as_it_is_shared_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert [place["CUDA_VISIBLE_DEVICES"] for place in slots("gpu", 2)] == ["0", "1", "0", "1"]


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
