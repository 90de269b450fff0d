"""Does a long run leak? Two hours of training, the memory and file handles of every process beside it.

    python -m benchmarks.soak [--hours 2] [--domain privacy_hopqa] [--out results/soak] [key=value ...]

Every half minute the launcher and all its descendants are sampled: proportional resident memory (a page that
several processes share counts once), file handles and threads, summed over the processes of a role. A role is
flat when the median of the last quarter is at most 5 % above the median of the second one: the first quarter
is start-up, compiled kernels and filling caches. The run is then ended by SIGTERM, which must leave nothing.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import psutil

from benchmarks._figures import Figure, at_most, report
from benchmarks.gpu.runs import launcher as launcher_command
from pipelinerl.observe.summary import summarise

SAMPLE_S = 30.0
GROWTH_GOAL = 5.0
END_S = 60.0
KINDS = ("memory MB", "file handles", "threads")
QUIET_STEP = "finetune.learning_rate=1e-6"
"""A policy that hardly moves keeps the load the same: groups stay mixed, so steps keep coming."""

Sample = dict[str, tuple[float, float, float]]
"""For each role: memory in MB, file handles, threads."""


def role_of(process: psutil.Process) -> str:
    """The module a process runs, or its program."""
    words = process.cmdline()
    if "-m" in words[:4]:
        return words[words.index("-m") + 1]
    return Path(words[0]).name if words else "gone"


def sample(launcher: psutil.Process) -> Sample:
    """All processes of the run, by role; one that ends meanwhile is left out."""
    found: Sample = {}
    for process in [launcher, *launcher.children(recursive=True)]:
        try:
            role, memory = role_of(process), process.memory_full_info().pss / 1e6
            values = (memory, float(process.num_fds()), float(process.num_threads()))
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
        old = found.get(role, (0.0, 0.0, 0.0))
        found[role] = (old[0] + values[0], old[1] + values[1], old[2] + values[2])
    return found


def growth(series: Sequence[float]) -> tuple[float, float]:
    """Medians of the second and the last quarter."""
    quarter = max(1, len(series) // 4)
    return median(series[quarter : 2 * quarter]), median(series[-quarter:])


def figures(samples: Sequence[Sample]) -> list[Figure]:
    """Growth in per cent, by role and for the sum, of what lived for at least half of the run."""
    series: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in samples:
        for index, kind in enumerate(KINDS):
            series["all", kind].append(sum(values[index] for values in one.values()))
            for role, values in one.items():
                series[role, kind].append(values[index])
    rows = []
    for (role, kind), found in sorted(series.items()):
        if len(found) < len(samples) / 2:
            continue
        before, after = growth(found)
        change = 100.0 * (after - before) / before if before else 0.0
        rows.append(Figure(f"{role}, {kind}", after, kind.split()[-1]))
        rows.append(at_most(f"{role}, growth of {kind}", change, "%", GROWTH_GOAL))
    return rows


def watch(launcher: subprocess.Popen[bytes], seconds: float) -> list[Sample]:
    """Samples until the time is over. Raises RuntimeError if the run ends by itself."""
    process, end, samples = psutil.Process(launcher.pid), time.monotonic() + seconds, list[Sample]()
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(SAMPLE_S, left))
        if launcher.poll() is not None:
            raise RuntimeError(f"the run ended by itself with status {launcher.returncode}")
        samples.append(sample(process))
    return samples


def stop(launcher: subprocess.Popen[bytes]) -> int:
    """End the run; the number of processes it left behind."""
    family = psutil.Process(launcher.pid).children(recursive=True)
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(END_S)
    return len(psutil.wait_procs(family, timeout=5)[1])


def main(argv: Sequence[str] | None = None) -> int:
    """Train, watch, end; returns how many goals are missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--domain", default="privacy_hopqa")
    parser.add_argument("--out", type=Path, default=Path("results/soak"))
    parser.add_argument("overrides", nargs="*", help="key=value for the run")
    asked = parser.parse_args(argv)
    given = [f"+domain={asked.domain}", "hardware=cpu", "force_restart=true", QUIET_STEP]
    given += ["finetune.max_train_steps=1000000", "eval_every_n_versions=0", *asked.overrides]
    command = launcher_command(asked.out, given)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
        try:
            samples = watch(launcher, 3600 * asked.hours)
            left = stop(launcher)
        finally:
            launcher.terminate()
    summary = summarise(asked.out)
    rows = [
        *figures(samples),
        Figure("optimizer steps", summary.rates["optimizer_steps"], "steps"),
        at_most("processes left behind", left, "processes", 0),
        at_most("books that do not add up", float(not summary.counts.adds_up), "", 0),
    ]
    settings = {"domain": asked.domain, "hours": asked.hours, "samples": len(samples)}
    return report("soak", rows, settings)


if __name__ == "__main__":
    sys.exit(main())
