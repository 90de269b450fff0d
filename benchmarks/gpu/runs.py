"""A run of the launcher as a benchmark sees it: started, waited for, ended at a limit, and what it wrote."""

import atexit
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._processes import Logged, stop
from benchmarks._processes import launcher as launcher  # the other half of LimitedRun(launcher(...), log)
from pipelinerl.observe.history import read_metrics

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


def no_model(model: Path | None) -> str | None:
    """What to say of a `--model` that is none; None of a folder that has one."""
    if model is not None and (model / "config.json").is_file():
        return None
    return f"--model {model}: no model there; python -m pipelinerl.pretrained smollm2 FOLDER"


class LimitedRun(Logged):
    """A child process in a group of its own, which ends at a limit: SIGTERM first, SIGKILL for what stays.

    `Terminated` while its end is waited for ends it too; `terminated` says so, and whoever waited goes on
    to write down what there is.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(command, log, env)
        self.terminated = False
        self.started = time.monotonic()
        atexit.register(self.stop, STOP_S / 2)

    @property
    def seconds(self) -> float:
        """Since its start."""
        return time.monotonic() - self.started

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
        """Nothing happens to one that has ended."""
        if self.process.poll() is None:
            stop(self.process, wait_s=wait_s)


def fresh(out: Path) -> Path:
    """`out` without the run that an earlier measurement left there: its metrics would pass for new ones."""
    if (out / "launcher").is_dir():
        shutil.rmtree(out)
    return out


@contextmanager
def survived(name: str) -> Iterator[None]:
    """What fails inside is said, and costs nothing beside it."""
    try:
        yield
    except (Exception, SystemExit) as error:
        print(f"{name} FAILED: {type(error).__name__}: {error}", flush=True)


def write_partial(out: Path, found: Any) -> None:
    """What there is so far, beside where the table will be, for somebody who ends this before its end."""
    out.with_suffix(".partial").write_text(json.dumps(found, indent=1))


def keep(out: Path, beside: Path) -> None:
    """What is left of a run on a machine that is given back: metrics of its roles, and the end of each log.

    They get the name of `beside` with endings of their own.
    """
    for path in sorted(out.glob("*/metrics.jsonl")):
        shutil.copy(path, beside.with_suffix(f".{path.parent.name}.jsonl"))
    with beside.with_suffix(".logs.txt").open("wb") as kept:
        for path in sorted(out.glob("**/*.log")):
            kept.write(f"==== {path.relative_to(out)}\n".encode() + path.read_bytes()[-KEPT_BYTES:] + b"\n")


def values(rows: Sequence[dict[str, Any]], key: str) -> list[float]:
    """All values that a metric had."""
    return [float(row[key]) for row in rows if isinstance(row.get(key), (int, float))]


def steps_of(out: Path) -> list[tuple[float, float]]:
    """(seconds since 1970, optimizer steps done) of each of the trainer's records."""
    rows = read_metrics(out, "finetune")
    return [(row["time"], row["stats/completed_steps"]) for row in rows if "stats/completed_steps" in row]


def seconds_per_step(steps: Sequence[tuple[float, float]], skip: int) -> float:
    """Mean over the steps after the first `skip`, which fill the buffers. ValueError for fewer steps."""
    steps = [(at, done) for at, done in steps if done >= skip]
    if len(steps) < 2 or steps[-1][1] <= steps[0][1]:
        raise ValueError(f"only {len(steps)} records after step {skip}; the run was too short")
    return (steps[-1][0] - steps[0][0]) / (steps[-1][1] - steps[0][1])
