"""All rows of the GPU table by one command, in order of value, each with its own limit.

    python -m benchmarks.gpu [--plan two_cards] [--stage 0] [--minutes 9.0] [--out DIR]
                             [--work /tmp/pipelinerl-gpu] [--only NAME ...] [--tiny] [--dry-run]

`benchmarks/gpu/plan.yaml` says what runs where; `--stage` is 1, 2, ... or 0 for all, `--minutes` are for
everything that is run now. Results come as they are made: after each step `--out` has `results.tgz` with a
JSON file and a log of every step so far. `--work` keeps what later stages need, such as the model that the
first one made. `--only` names steps. `--dry-run` prints what would run; `--tiny` rehearses on a machine
without a card whatever can be rehearsed, with vLLM where `VLLM_PYTHON` names an environment that has a CPU
build.
"""

import argparse
import json
import os
import shlex
import shutil
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks._figures import command_line
from benchmarks.gpu.plan import (
    EVERY_CORE,
    PLANS,
    SOFT_S,
    Lane,
    Stage,
    Step,
    filled,
    limit_of,
    rehearsal,
    seconds_of,
)
from benchmarks.gpu.runs import LimitedRun
from pipelinerl.config.detect import nvidia_smi

TRAINERS = ("benchmarks.gpu.trainer", "benchmarks.gpu.sharded")
STEP_STOP_S = 40.0
"""What a step gets beyond its limit to write down what it has."""
ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "GLOO_SOCKET_IFNAME": "lo",
}


class Driver:
    """Runs a stage within its minutes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._begun = time.monotonic()
        self._packing = threading.Lock()
        self.cores = len(os.sched_getaffinity(0))
        self.results: Path = options.work / "results"
        for folder in (options.out, self.results):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def left_s(self) -> float:
        return 60.0 * self.options.minutes - (time.monotonic() - self._begun)

    def run(self, stage: Stage) -> list[tuple[str, int | None]]:
        """(name, exit status) of each step, None for those that were left out."""
        done: list[tuple[str, int | None]] = []
        for phase in stage:
            with ThreadPoolExecutor(len(phase)) as pool:
                for lane_done in pool.map(self._lane, phase):
                    done += lane_done
        return done

    def _lane(self, lane: Lane) -> list[tuple[str, int | None]]:
        only = self.options.only
        return [(one.name, self._step(one, lane)) for one in lane.steps if not only or one.name in only]

    def _step(self, step: Step, lane: Lane) -> int | None:
        if self.options.tiny:
            smaller = rehearsal(step, os.environ.get("VLLM_PYTHON"))
            if smaller is None:
                self._say(f"{step.name}: cannot be rehearsed here")
                return None
            step = smaller
        limit = limit_of(step, self.left_s - STEP_STOP_S)
        if limit is None:
            left = f"{self.left_s:.0f} s are left of {self.options.minutes:g} minutes"
            self._say(f"{step.name}: left out, {left}")
            return None
        command = command_of(step, lane, self.cores, limit, self.options.work)
        self._say(f"{step.name}: at most {limit:.0f} s: {shlex.join(command)}")
        if self.options.dry_run:
            return None
        run = LimitedRun(command, self.results / f"{step.name}.log", environment(step, lane))
        status = run.end(limit + STEP_STOP_S / 2)
        self._say(f"{step.name}: exit status {status} after {run.seconds:.0f} s\n{run.said(12)}")
        self.pack()
        return status

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begun:.0f} s] {text}", flush=True)

    def pack(self) -> None:
        """Everything so far, in one file that is replaced as a whole."""
        beside = self.options.out / "results.partial"
        with self._packing:
            try:
                with tarfile.open(beside, "w:gz") as packed:
                    for path in sorted(self.results.iterdir()):
                        packed.add(path, path.name)
            except OSError as error:  # a step beside this one has just replaced a file
                self._say(f"not packed, the next step's end will: {error}")
            else:
                os.replace(beside, self.options.out / "results.tgz")


def command_of(step: Step, lane: Lane, cores: int, limit_s: float, work: Path) -> list[str]:
    """The step's command line, on its lane's cores."""
    first, last = lane.core_range(cores)
    values = {
        "work": str(work),
        "out": str(work / "results" / f"{step.name}.json"),
        "limit": f"{limit_s:.0f}",
        "soft": f"{limit_s - SOFT_S:.0f}",
        "workers": str(max(1, last - first - 1)),  # beside the trainer and the thread that feeds it
    }
    pinned = shutil.which("taskset") and lane.cores != EVERY_CORE
    words = ["taskset", "-c", f"{first}-{last}"] if pinned else []
    return [*words, sys.executable, *step.launcher, "-m", step.module, *filled(step.arguments, values)]


def environment(step: Step, lane: Lane) -> dict[str, str]:
    """Of a step: its cards, and what the trainer's rows need beside a card that is nearly full."""
    found = {**os.environ, **ENVIRONMENT, "CUDA_VISIBLE_DEVICES": lane.cards}
    if lane.cores != EVERY_CORE:
        found["TORCHINDUCTOR_COMPILE_THREADS"] = "4"  # others compile or make data beside it
    if step.module in TRAINERS:
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return found


def table(results: Path) -> str:
    """All figures of the JSON files there, with their goals."""
    lines = []
    for path in sorted(results.glob("*.json")):
        for name, row in json.loads(path.read_text()).get("figures", {}).items():
            goal = "" if row["goal"] is None else f"goal {row['goal']:g}: {'met' if row['met'] else 'MISSED'}"
            lines.append(f"  {path.stem + ': ' + name:<78} {row['value']:>12,.6g} {row['unit']:<8} {goal}")
    return "\n".join(lines)


def card() -> str:
    """What nvidia-smi says about the cards."""
    return (nvidia_smi("-L") or "").strip() or "no card"


def main() -> int:
    options = command_line(__doc__, plan=PLANS)
    options.out = (options.out or Path(os.environ.get("OUT", "results/gpu_out"))).absolute()
    options.work = options.work.absolute()
    stages = PLANS[options.plan]
    if options.stage > len(stages):
        raise SystemExit(f"--stage {options.stage}: {options.plan} has {len(stages)}")
    driver = Driver(options)
    print(f"{card()}; {driver.cores} cores; load {os.getloadavg()[0]:.1f}", flush=True)
    done: list[tuple[str, int | None]] = []
    for stage in stages if options.stage == 0 else stages[options.stage - 1 : options.stage]:
        print(f"a stage of at most {seconds_of(stage):.0f} s", flush=True)
        done += driver.run(stage)
    if not options.dry_run:
        driver.pack()
        print(table(driver.results), flush=True)
    for name, status in done:
        print(f"{name:<24} {'left out' if status is None else f'exit status {status}'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
