"""Does a long run leak? Two hours of training, the memory and file handles of every process beside it.

    python -m benchmarks.soak [--hours 2.0] [--domain privacy_hopqa] [--out results/soak] [key=value ...]

Every half minute the launcher and all its descendants are sampled: proportional resident memory (a page that
several processes share counts once), file handles and threads, summed over the processes of a role. A role is
flat when the median of the last quarter is at most 5 % above the median of the second one: the first quarter
is start-up, compiled kernels and filling caches. The run is then ended by SIGTERM, which must leave nothing.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import psutil

from benchmarks._figures import Figure, at_most, command_line, report
from benchmarks.gpu.runs import LimitedRun, launcher
from pipelinerl.observe.summary import summarise

SAMPLE_S = 30.0
GROWTH_GOAL = 5.0
END_S = 60.0
KINDS = ("memory MB", "file handles", "threads")
# A policy that hardly moves keeps the load the same: groups stay mixed, so steps keep coming.
FIXED = ("hardware=cpu", "force_restart=true", "finetune.learning_rate=1e-6")
ENDLESS = ("finetune.max_train_steps=1000000", "eval_every_n_versions=0")
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
    found: Sample = defaultdict(lambda: (0.0, 0.0, 0.0))
    for process in [launcher, *launcher.children(recursive=True)]:
        try:
            role, memory = role_of(process), process.memory_full_info().pss / 1e6
            handles, threads = process.num_fds(), process.num_threads()
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
        before = found[role]
        found[role] = (before[0] + memory, before[1] + handles, before[2] + threads)
    return found


def figures(samples: Sequence[Sample]) -> Iterator[Figure]:
    """Growth in per cent, by role and for the sum, of what lived for at least half of the run."""
    series: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in samples:
        for index, kind in enumerate(KINDS):
            series["all", kind].append(sum(values[index] for values in one.values()))
            for role, values in one.items():
                series[role, kind].append(values[index])
    for (role, kind), found in sorted(series.items()):
        if len(found) >= len(samples) / 2:
            quarter = max(1, len(found) // 4)
            before, after = median(found[quarter : 2 * quarter]), median(found[-quarter:])
            change = 100.0 * (after - before) / before if before else 0.0
            yield Figure(f"{role}, {kind}", after, kind.split()[-1])
            yield at_most(f"{role}, growth of {kind}", change, "%", GROWTH_GOAL)


def main() -> int:
    options = command_line(__doc__)
    given = [f"+domain={options.domain}", *FIXED, *ENDLESS, *options.overrides]
    run = LimitedRun(launcher(options.out, given), Path(os.devnull))
    process, samples = psutil.Process(run.process.pid), list[Sample]()
    while (left := 3600 * options.hours - run.seconds) > 0:
        time.sleep(min(SAMPLE_S, left))
        if run.process.poll() is not None:
            raise RuntimeError(f"the run ended by itself with status {run.process.returncode}")
        samples.append(sample(process))
    family = process.children(recursive=True)
    run.process.terminate()
    run.end(run.seconds + END_S)
    remained = len(psutil.wait_procs(family, timeout=5)[1])
    summary = summarise(options.out)
    rows = [
        *figures(samples),
        Figure("optimizer steps", summary.rates["optimizer_steps"], "steps"),
        at_most("processes left behind", remained, "processes", 0),
        at_most("rollout accounting that does not add up", float(not summary.counts.adds_up), "", 0),
    ]
    settings = {"domain": options.domain, "hours": options.hours, "samples": len(samples)}
    return report("soak", rows, settings)


if __name__ == "__main__":
    sys.exit(main())
