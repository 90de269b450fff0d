"""Several hosts on Ray, made of namespaces on one machine: what the backend costs, how fast a loss is named.

    python -m benchmarks.several_hosts [--rounds 3] [--out benchmarks/results/several_hosts.json]

Needs root, `ip`, `unshare`, `nsenter` and Ray (`tests/support/network_hosts.py`). Runs of the guessing
game on the CPU. Seconds from the command to the first process of the run, and to the end of 4 steps: on
one host without Ray, on one host of a Ray cluster, and on two with the engine on the second, in turn.
Then, in a run over two hosts, seconds from the second host's death, or the cut of its network, to the
line that names it, and to the launcher's end. Every round is kept.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks._figures import at_most, command_line, report, write_json
from tests.support.network_hosts import NetworkHost, NetworkHosts, why_not

STEPS = 4
DEADLINE_S = 300.0
START_GOAL_S, NAMED_GOAL_S = 10.0, 30.0
COMMON = [
    *("-m", "pipelinerl.launch", "+domain=guessing", "hardware=cpu", "streams=redis", "--plain"),
    *("wandb.use_wandb=false", "observe.rollout_page=false", "eval_every_n_versions=0", "eval_at_end=false"),
]
Seconds = dict[str, float]


class Timed:
    """A launcher with the moments at which its log says something."""

    def __init__(self, folder: Path, host: NetworkHost | None, *words: str) -> None:
        self._log = folder / "launcher" / "launcher_0.log"
        self._steps = folder / "finetune" / "metrics.jsonl"
        command = [sys.executable, *COMMON, f"output_dir={folder}", *words]
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command if host is None else host.command(*command),
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def until(self, condition: Callable[[], bool]) -> float:
        """When it came true, as `time.monotonic` counts."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(f"{DEADLINE_S} s passed; see {self._log}")
            time.sleep(0.02)
        return time.monotonic()

    def says(self, words: str) -> float:
        return self.until(lambda: self._log.exists() and words in self._log.read_text())

    def steps(self, number: int) -> float:
        """When so many optimizer steps are done."""
        said = '"stats/completed_steps"'
        return self.until(lambda: self._steps.exists() and self._steps.read_text().count(said) >= number)

    def ends(self) -> float:
        return self.until(lambda: self.process.poll() is not None)


def whole_run(folder: Path, host: NetworkHost | None, *words: str) -> Seconds:
    """A run of a few steps."""
    run = Timed(folder, host, f"finetune.max_train_steps={STEPS}", *words)
    first = run.says(" started (pid")
    done = run.ends()
    if run.process.returncode != 0:
        raise RuntimeError(f"the run in {folder} ended with status {run.process.returncode}")
    return {"first process": first - run.begun, "end": done - run.begun}


def struck_run(folder: Path, how: str) -> Seconds:
    """A run whose second host is killed or cut off after two steps."""
    with NetworkHosts(2) as network:
        run = Timed(folder, network.hosts[0], "world.backend=ray", "finetune.max_train_steps=5000")
        run.steps(2)
        struck = time.monotonic()
        getattr(network.hosts[1], how)()
        named = run.says(" is lost: ")
        return {"named": named - struck, "ended": run.ends() - struck}


def measure(rounds: int, folder: Path) -> dict[str, list[Seconds]]:
    """Rows of every way, by round."""
    rows: dict[str, list[Seconds]] = {}

    def keep(name: str, seconds: Seconds) -> None:
        shutil.rmtree(folder / "run", ignore_errors=True)
        rows.setdefault(name, []).append(seconds)
        print(name, {key: round(value, 2) for key, value in seconds.items()}, flush=True)

    for _ in range(rounds):
        keep("local", whole_run(folder / "run", None))
        for count, name in ((1, "one host of Ray"), (2, "two hosts of Ray")):
            with NetworkHosts(count) as network:
                keep(name, whole_run(folder / "run", network.hosts[0], "world.backend=ray"))
    for _ in range(rounds):
        for how in ("kill", "cut"):
            keep(how, struck_run(folder / "run", how))
    return rows


def main() -> int:
    options = command_line(__doc__)
    if hindrance := why_not():
        print(f"several_hosts: {hindrance}")
        return 1
    with tempfile.TemporaryDirectory(prefix="several-hosts-") as folder:
        rows = measure(options.rounds, Path(folder))

    def median(way: str, what: str) -> float:
        return statistics.median(row[what] for row in rows[way])

    local, one, two = "local", "one host of Ray", "two hosts of Ray"
    pairs = zip(rows[one], rows[local])
    start = statistics.median(ray["first process"] - plain["first process"] for ray, plain in pairs)
    figures = [
        at_most("start with Ray on one host, beyond that without", start, "s", START_GOAL_S),
        at_most("4 steps on one host", median(local, "end"), "s", None),
        at_most("4 steps on one host of Ray", median(one, "end"), "s", None),
        at_most("4 steps on two hosts", median(two, "end"), "s", None),
        at_most("a host is killed: named", max(row["named"] for row in rows["kill"]), "s", NAMED_GOAL_S),
        at_most("a host is cut off: named", max(row["named"] for row in rows["cut"]), "s", NAMED_GOAL_S),
    ]
    missed = report("several_hosts", figures, {"rounds": options.rounds, "steps": STEPS}, options.out)
    write_json(options.out, json.loads(options.out.read_text()) | {"rounds": rows})
    return missed


if __name__ == "__main__":
    sys.exit(main())
