"""Commands side by side on cards until all are done or the time is up: for several small runs."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._processes import stop
from benchmarks.gpu.cards import visible_cards
from benchmarks.gpu.runs import ENDED, POLL_S, STOP_S, LimitedRun, Terminated
from benchmarks.gpu.trl import on_loopback


@dataclass(frozen=True)
class Task:
    """One command. `keep` gets its exit status once it has ended, ENDED where the limit ended it.

    It writes down what is left, and says whether the task is done.
    """

    name: str
    command: Sequence[str]
    log: Path
    keep: Callable[[int], bool]


CORES = "BENCHMARK_CORES"
"""In the environment of a place: the cores that a task there keeps to."""


def slots(
    hardware: str, shares: int, *, every_card: bool = False, cores: int | None = None
) -> list[dict[str, str]]:
    """The environment of each place where a task can run: so many on each card, or on the CPU.

    With `every_card` a place has all cards; with `cores` each of several on a CPU has so many of its own.
    """
    base = on_loopback()
    if hardware == "cpu":
        mine = sorted(os.sched_getaffinity(0)) if cores and shares > 1 else []
        sets = [mine[(cores or 0) * n : (cores or 0) * (n + 1)] or mine for n in range(shares)]
        pinned = [{CORES: ",".join(map(str, one))} if one else {} for one in sets]
        return [base | {"OMP_NUM_THREADS": "1"} | one for one in pinned]
    if every_card:
        return [base] * shares
    cards = visible_cards()
    return [base | {"CUDA_VISIBLE_DEVICES": card} for _ in range(shares) for card in cards]


def run_all(tasks: Sequence[Task], slots: Sequence[Mapping[str, str]], end: float, least_s: float) -> bool:
    """Whether all are done; `slots` are the environments in which one task at a time can run.

    Nothing is begun with less than `least_s` before `end` (of `time.monotonic`), and at `end`, less the time
    that stopping takes, all that run are stopped. A failed one is said with the end of its log.
    """
    waiting, done = list(tasks), True
    running: dict[int, tuple[Task, LimitedRun]] = {}
    try:
        while waiting or running:
            left = end - STOP_S - time.monotonic()
            for slot in sorted(set(range(len(slots))) - running.keys()):
                if waiting and left > least_s:
                    task = waiting.pop(0)
                    print(f"{task.name}: begins, {left:.0f} s left", flush=True)
                    running[slot] = task, LimitedRun(_pinned(task, slots[slot]), task.log, slots[slot])
            if left <= 0 or not running:
                break
            time.sleep(POLL_S)
            for slot, (task, run) in list(running.items()):
                if (status := run.process.poll()) is not None:
                    done &= _ended(task, run, status)
                    del running[slot]
    except Terminated:
        done = False
    stop(*(run.process for _, run in running.values()), wait_s=STOP_S / 2)
    for task, run in running.values():
        done &= _ended(task, run, ENDED)
    return done and not waiting


def _pinned(task: Task, place: Mapping[str, str]) -> Sequence[str]:
    return ["taskset", "-c", place[CORES], *task.command] if CORES in place else task.command


def _ended(task: Task, run: LimitedRun, status: int) -> bool:
    print(f"{task.name}: status {status} after {run.seconds:.0f} s", flush=True)
    done = task.keep(status)
    if not done and status != ENDED:
        print(run.said(25), flush=True)
    return done
