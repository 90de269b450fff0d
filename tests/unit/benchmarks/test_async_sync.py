"""Deadlines of the two runs that are compared: one to the first optimizer step, one from then on."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import async_sync
from benchmarks._long_tail import lengths
from benchmarks.gpu.runs import ENDED, LimitedRun
from pipelinerl.config.compose import compose
from pipelinerl.config.files import typed
from pipelinerl.launcher.checks import sampling

SKIPPED = 3
PROGRAM = """
import json, sys, time
from pathlib import Path
out, steps, ends = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "ends"
(out / "finetune").mkdir(parents=True)
with (out / "finetune" / "metrics.jsonl").open("w") as metrics:
    for step in range(1, steps + 1):
        row = {"time": 2.0 * step, "stats/completed_steps": step, "stats/samples": 16 * step}
        metrics.write(json.dumps(row) + "\\n")
if not ends:
    time.sleep(600)
"""


def a_command(out: Path, steps: int, ends: bool) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(out), str(steps), "ends" if ends else "goes on"]


def a_run(out: Path, steps: int, ends: bool) -> LimitedRun:
    return LimitedRun(a_command(out, steps, ends), out.with_suffix(".log"))


def test_a_run_that_makes_no_step_is_named_at_the_deadline_of_its_start(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", 0, ends=False)
    with pytest.raises(RuntimeError, match=r"no optimizer step after .*--start 1"):
        async_sync.measure(run, tmp_path / "run", 1.0, 600.0, SKIPPED)
    assert run.process.poll() is not None


def test_a_run_that_dies_before_its_first_step_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="exit status 0, no optimizer step"):
        async_sync.measure(a_run(tmp_path / "run", 0, ends=True), tmp_path / "run", 600.0, 600.0, SKIPPED)


def test_a_run_that_is_not_through_counts_with_the_steps_it_made(tmp_path: Path) -> None:
    """The window begins with the first step, whenever that came."""
    run = a_run(tmp_path / "run", 10, ends=False)
    found = async_sync.measure(run, tmp_path / "run", 600.0, 1.0, SKIPPED)
    assert found["status"] == ENDED and found["steps"] == 10.0 and found["seconds_per_step"] == 2.0
    assert found["total_s"] >= found["first_step_s"] + 1.0


def test_too_few_steps_for_a_rate_are_an_error(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", SKIPPED, ends=True)
    with pytest.raises(RuntimeError, match="too short"):
        async_sync.measure(run, tmp_path / "run", 600.0, 600.0, SKIPPED)


def test_one_run_alone_makes_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other one fails; the table has no ratio, the exit status says so, nothing partial is left."""

    def command(out: Path, _: object) -> list[str]:
        return a_command(out, 8 if out.name == "synchronous" else 0, ends=True)

    monkeypatch.setattr(async_sync, "random_model", lambda folder, shape: folder)
    monkeypatch.setattr(async_sync, "launcher", command)
    monkeypatch.setattr(async_sync.runs, "leave_in_order", lambda: None)
    argv = ["async_sync", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "table.json")]
    monkeypatch.setattr(sys, "argv", argv)
    assert async_sync.main() == 1
    figures = json.loads((tmp_path / "table.json").read_text())["figures"]
    assert "synchronous: a step" in figures and "asynchronous: a step" not in figures
    assert "asynchronous FAILED" in capsys.readouterr().out
    assert not (tmp_path / "table.partial").exists()


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
