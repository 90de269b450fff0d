"""A run of the launcher as a benchmark sees it: started, waited for, ended at a limit, and what it wrote."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

STOP_S = 30.0
POLL_S = 0.2
KEPT_BYTES = 20_000
"""Of the end of each log of a run."""
ENDED = 124
"""Exit status of what was ended at its limit, as that of `timeout`."""


class Terminated(BaseException):
    """SIGTERM came: what is open closes itself on the way out."""


def leave_in_order() -> None:
    """From now on SIGTERM raises `Terminated`, so that nothing this process started stays behind."""

    def terminated(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, terminated)


class LimitedRun:
    """A child process in a group of its own, which ends at a limit: SIGTERM first, SIGKILL for what stays.

    `Terminated` while its end is waited for ends it too; `terminated` says so, and whoever waited goes on
    to write down what there is.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.terminated = False
        self._started = time.monotonic()
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=env or os.environ, start_new_session=True
            )
        atexit.register(self._stop_if_running)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def begun_earlier(self, other: LimitedRun) -> None:
        """Count seconds from the start of another run, which this one replaces."""
        self._started = other._started

    def until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Wait for something that the run does; False if it ended, or the limit (since its start) passed."""
        try:
            while not condition():
                if self.process.poll() is not None or self.seconds > limit_s:
                    return condition()
                time.sleep(POLL_S)
        except Terminated:
            self._terminate()
            return condition()
        return True

    def end(self, limit_s: float) -> int:
        """The exit status; ENDED when the limit (since its start) passed and the run had to be stopped."""
        try:
            return self.process.wait(max(0.0, limit_s - self.seconds))
        except subprocess.TimeoutExpired:
            self.stop()
        except Terminated:
            self._terminate()
        return ENDED

    def _terminate(self) -> None:
        self.terminated = True
        self.stop(STOP_S / 2)  # whoever ended this process does not wait longer either

    def stop(self, wait_s: float = STOP_S) -> None:
        """SIGTERM to the whole group, after `wait_s` SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(wait_s)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    def _stop_if_running(self) -> None:
        """At the end of this process, whatever ended it."""
        if self.process.poll() is None:
            self.stop(STOP_S / 2)

    def said(self, lines: int = 15) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def fresh(out: Path) -> Path:
    """`out` without the run that an earlier measurement left there: its metrics would pass for new ones."""
    if (out / "launcher").is_dir():
        shutil.rmtree(out)
    return out


def launcher(out: Path, overrides: Sequence[str]) -> list[str]:
    """Command line of a run in `out`."""
    fixed = [f"output_dir={out}", "wandb.use_wandb=false"]
    return [sys.executable, "-m", "pipelinerl.launch", *fixed, *overrides]


def write_partial(out: Path, found: Any) -> None:
    """What there is so far, beside where the table will be, for somebody who ends this before its end."""
    out.with_suffix(".partial").write_text(json.dumps(found, indent=1))


def keep(out: Path, beside: Path) -> None:
    """What is left of a run on a machine that is given back: metrics of its roles, and the end of each log.

    They get the name of `beside` with endings of their own.
    """
    for path in sorted(out.glob("*/metrics.jsonl")):
        beside.with_suffix(f".{path.parent.name}.jsonl").write_bytes(path.read_bytes())
    with beside.with_suffix(".logs.txt").open("wb") as kept:
        for path in sorted(out.glob("**/*.log")):
            kept.write(f"==== {path.relative_to(out)}\n".encode() + path.read_bytes()[-KEPT_BYTES:] + b"\n")


def records(out: Path, role: str) -> list[dict[str, Any]]:
    """What a role has written to its `metrics.jsonl`; a torn last line is left out."""
    path = out / role / "metrics.jsonl"
    found = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def values(rows: Sequence[dict[str, Any]], key: str) -> list[float]:
    """All values that a metric had."""
    return [float(row[key]) for row in rows if isinstance(row.get(key), (int, float))]


def steps_of(rows: Sequence[dict[str, Any]]) -> list[tuple[float, float, float]]:
    """(seconds since 1970, optimizer steps done, texts trained) of each of the trainer's records."""
    return [
        (float(row["time"]), float(row["stats/completed_steps"]), float(row["stats/samples"]))
        for row in rows
        if "stats/completed_steps" in row and "stats/samples" in row
    ]


def seconds_per_step(rows: Sequence[dict[str, Any]], skip: int) -> float:
    """Mean over the steps after the first `skip`, which fill the buffers. ValueError for fewer steps."""
    steps = [(at, done) for at, done, _ in steps_of(rows) if done >= skip]
    if len(steps) < 2 or steps[-1][1] <= steps[0][1]:
        raise ValueError(f"only {len(steps)} records after step {skip}; the run was too short")
    return (steps[-1][0] - steps[0][0]) / (steps[-1][1] - steps[0][1])
