"""What `world.backend=ray` costs on one host: the same run with it and without, in turn.

    python -m benchmarks.hosts_cost [--pairs 6] [--steps 32] [--work results/hosts_cost] [--out FILE]

The guessing game on the CPU; one host of a Ray cluster is one namespace with a Ray node
(`tests/support/network_hosts.py`; root, `ip` and Ray), started for its run only. Of every run, after the
first quarter of its steps: optimizer steps per second, processor seconds of the run's processes for a step,
and what Ray's own processes take of a core. A run that needs all cores of its host is slower by Ray's share
of them. Each pair has a file in `--work` and is not run again.
"""

import json
import math
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks._figures import RESULTS, Figure, at_most, command_line, report, write_json
from benchmarks.gpu.runs import LimitedRun, fresh, launcher, leave_in_order, steps_of
from tests.support.network_hosts import RAY_PORT, NetworkHost, NetworkHosts, why_not

COMMON = [
    *("+domain=guessing", "hardware=cpu", "--plain", "observe.rollout_page=false"),
    *("eval_every_n_versions=0", "eval_at_end=false"),
]
DEADLINE_S = 600.0
SHARE_GOAL = 2.0
"""Percent of what the cores of a host can do."""
T_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t for a two-sided 95 % interval of the mean of so many values; of more the last one, too wide."""


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Processor seconds of these, and of their children that have ended."""
    used = 0.0
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
    return used


def run(folder: Path, steps: int, host: NetworkHost | None) -> dict[str, float]:
    """One run until so many steps. RuntimeError if it ends before."""
    words = ["streams=redis", "finetune.max_train_steps=100000", *COMMON]
    if host:
        words += ["world.backend=ray", f"world.ray_address={host.address}:{RAY_PORT}"]
    command = launcher(fresh(folder), words)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    limited = LimitedRun(host.command(*command) if host else command, folder.with_suffix(".log"), env)

    def used(number: int) -> tuple[float, float, float, float]:
        """Steps, when they were done, and processor seconds of the run and of Ray when that was seen."""
        if not limited.until(lambda: done(folder)[1] >= number, DEADLINE_S):
            raise RuntimeError(f"the run in {folder} made no {number} steps\n{limited.said()}")
        below = psutil.Process(limited.process.pid).children(recursive=True)
        own = {limited.process.pid, *(one.pid for one in below)}
        others = [one for one in host.processes() if one.pid not in own] if host else []
        at, seen = done(folder)
        return seen, at, cpu_s([psutil.Process(limited.process.pid), *below]), cpu_s(others)

    try:
        first, last = used(steps // 4), used(steps)
    finally:
        limited.stop()
    counted, seconds, own_s, ray_s = (later - earlier for earlier, later in zip(first, last))
    rates = {"steps_per_s": counted / seconds, "cpu_s": own_s / counted, "ray_cpu_s": ray_s / counted}
    return {**rates, "steps": counted, "seconds": seconds}


def done(folder: Path) -> tuple[float, float]:
    """When the last optimizer step was done, and how many are."""
    return steps_of(folder)[-1] if steps_of(folder) else (0.0, 0.0)


def pair(folder: Path, steps: int, ray_first: bool) -> dict[str, dict[str, float]]:
    """One run of each kind, one after the other."""
    found = {}
    for ray in (ray_first, not ray_first):
        if ray:
            with NetworkHosts(1) as network:
                found["ray"] = run(folder / "ray", steps, network.hosts[0])
        else:
            found["local"] = run(folder / "local", steps, None)
    return found


def mean_of_logs(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of ratios and its 95 % interval. ValueError for fewer than two."""
    logs = [math.log(one) for one in ratios]
    if len(logs) < 2:
        raise ValueError("an interval needs two pairs at least")
    mean = statistics.fmean(logs)
    half = T_95.get(len(logs), T_95[max(T_95)]) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def figures_of(pairs: Sequence[Mapping[str, Mapping[str, float]]]) -> Iterator[Figure]:
    rate, low, high = mean_of_logs([one["ray"]["steps_per_s"] / one["local"]["steps_per_s"] for one in pairs])
    yield Figure("steps per second with Ray / without", rate, "x")
    yield Figure("  lower end of 95 %", low, "x")
    yield Figure("  upper end of 95 %", high, "x")
    used, low, high = mean_of_logs([one["ray"]["cpu_s"] / one["local"]["cpu_s"] for one in pairs])
    yield Figure("processor time of a step with Ray / without", used, "x")
    yield Figure("  lower end of 95 %, processor time", low, "x")
    yield Figure("  upper end of 95 %, processor time", high, "x")
    own = statistics.median(one["ray"]["ray_cpu_s"] * one["ray"]["steps_per_s"] for one in pairs)
    yield Figure("Ray's own processes", 100 * own, "% of a core")
    share = 100 * own / len(os.sched_getaffinity(0))
    yield at_most("Ray's own processes, of this host", share, "%", SHARE_GOAL)


def main() -> int:
    options = command_line(__doc__)
    if hindrance := why_not():
        print(f"hosts_cost: {hindrance}")
        return 1
    leave_in_order()
    work, pairs = options.work.absolute(), []
    work.mkdir(parents=True, exist_ok=True)
    for number in range(options.pairs):
        kept = work / f"pair.{number}.json"
        if not kept.is_file():
            write_json(kept, pair(work, options.steps, ray_first=number % 2 == 1))
        pairs.append(json.loads(kept.read_text()))
        print(json.dumps(pairs[-1]), flush=True)
    out = options.out or RESULTS / "hosts_cost.json"
    missed = report("hosts_cost", figures_of(pairs), {"pairs": len(pairs), "steps": options.steps}, out)
    write_json(out, json.loads(out.read_text()) | {"rows": pairs})
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
