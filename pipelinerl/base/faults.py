"""Fault points: named places at which a test halts a process, or takes its disk or memory away. Never part of
a run.

    PIPELINERL_FAULT=finetune:mid_checkpoint:hold PIPELINERL_FAULT_FOLDER=DIR python -m pipelinerl.launch ...

The first process that reaches the point takes the fault; it writes its process id to `DIR/hit`, so that a
test knows when and where, and a process that is started again goes on. Without the folder the variable is
refused. Unset, `hit` is one comparison. Standard library only, because every role imports it first.
"""

import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

FAULT, FOLDER = "PIPELINERL_FAULT", "PIPELINERL_FAULT_FOLDER"
POINTS = (
    "launcher:start",
    "engine:start",
    "engine:mid_prepare",
    "engine:mid_update",
    "actor:start",
    "worker:start",
    "worker:mid_rollout",
    "environment:start",
    "preprocess:start",
    "preprocess:mid_step",
    "finetune:start",
    "finetune:mid_update",
    "finetune:mid_checkpoint",
    "finetune:between_swaps",
    "streams:write",
)
ACTIONS = ("hold", "kill", "stop", "full_disk", "no_memory")
HIT, RELEASE = "hit", "release"
HOLD_DEADLINE_S = 120.0
_HOLD_INTERVAL_S = 0.01


class FaultRefused(ValueError):
    """The variable is set wrongly, or outside a test."""


@dataclass(frozen=True)
class Fault:
    """What happens at `point`, at its `count`th passage in a process (from 1)."""

    point: str
    action: str
    count: int
    folder: Path


_asked = os.environ.get(FAULT)
_passages: dict[str, int] = {}


def parse(value: str, folder: str | None) -> Fault:
    """The fault in `ROLE:PLACE:ACTION[:COUNT]`. Raises FaultRefused with one line."""
    if not folder or not Path(folder).is_dir():
        raise FaultRefused(
            f"{FAULT}={value}: faults are for tests, which also set {FOLDER} to an existing folder; unset it"
        )
    parts = value.split(":")
    point, action, count = ":".join(parts[:2]), parts[2] if len(parts) > 2 else "", (parts[3:] or ["1"])[0]
    if point not in POINTS:
        raise FaultRefused(f"{FAULT}={value}: no point {point}; use one of {', '.join(POINTS)}")
    if action not in ACTIONS or len(parts) > 4:
        raise FaultRefused(f"{FAULT}={value}: no action {action!r}; use one of {', '.join(ACTIONS)}")
    if not count.isdigit() or int(count) < 1:
        raise FaultRefused(f"{FAULT}={value}: the count {count!r} is not a number from 1")
    return Fault(point, action, int(count), Path(folder))


def problem() -> str | None:
    """Why the environment's fault is refused, or None; the launcher asks before it starts anything."""
    if _asked is None:
        return None
    try:
        parse(_asked, os.environ.get(FOLDER))
    except FaultRefused as error:
        return str(error)
    return None


def hit(point: str) -> None:
    """The process is at `point`. Halts, or raises OSError or MemoryError, only when a test asked for it."""
    if _asked is not None:
        _consider(parse(_asked, os.environ.get(FOLDER)), point)


def _consider(fault: Fault, point: str) -> None:
    if point != fault.point:
        return
    _passages[point] = _passages.get(point, 0) + 1
    if _passages[point] < fault.count:
        return
    if fault.action == "full_disk":  # stays full, in every process
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), point)
    if fault.action == "no_memory":
        raise MemoryError(point)
    if _taken(fault):
        return
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        _hold(fault)


def _taken(fault: Fault) -> bool:
    """Whether the fault has happened already, in this or another process."""
    try:
        with (fault.folder / HIT).open("x") as file:  # of several processes one makes it
            file.write(f"{os.getpid()}\n")
    except FileExistsError:
        return True
    return False


def _hold(fault: Fault) -> None:
    """Stay here until the test writes `release`; the other threads of the process go on."""
    end = time.monotonic() + HOLD_DEADLINE_S
    while not (fault.folder / RELEASE).exists():
        if time.monotonic() > end:
            raise TimeoutError(f"held at {fault.point} for {HOLD_DEADLINE_S:g} s without {RELEASE}")
        time.sleep(_HOLD_INTERVAL_S)
