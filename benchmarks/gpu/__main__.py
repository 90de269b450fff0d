"""All rows of the GPU table by one command, in order of value, each with its own limit.

    python -m benchmarks.gpu --plan two_cards --stage 1 --minutes 9 [--out DIR] [--work DIR] [--only NAME ...]

`benchmarks/gpu/plan.py` says what runs where. Results come as they are made: after each step `--out` has
`results.tgz` with a JSON file and a log of every step so far. `--work` keeps what later stages need, such
as the model that the first one made. `--dry-run` prints what would run; `--tiny` rehearses on a machine
without a card whatever can be rehearsed, with vLLM where `VLLM_PYTHON` names an environment that has a CPU
build.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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

TRAINERS = ("benchmarks.gpu.trainer", "benchmarks.gpu.sharded")
STEP_STOP_S = 40.0
"""What a step gets beyond its limit to write down what it has."""
LARGEST_LOG = 400_000
"""Bytes of a log's end that are packed."""


class Driver:
    """Runs a stage within its minutes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._begun = time.monotonic()
        self._packing = threading.Lock()
        self.cores = len(os.sched_getaffinity(0))
        options.out.mkdir(parents=True, exist_ok=True)
        options.work.mkdir(parents=True, exist_ok=True)
        self.results: Path = options.work / "results"
        self.results.mkdir(exist_ok=True)

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
        return [(step.name, self._step(step, lane)) for step in lane.steps if self._wanted(step)]

    def _wanted(self, step: Step) -> bool:
        return not self.options.only or step.name in self.options.only

    def _step(self, step: Step, lane: Lane) -> int | None:
        if self.options.tiny:
            smaller = rehearsal(step, os.environ.get("VLLM_PYTHON"))
            if smaller is None:
                self._say(f"{step.name}: cannot be rehearsed here")
                return None
            step = smaller
        limit = limit_of(step, self.left_s - STEP_STOP_S)
        if limit is None:
            self._say(
                f"{step.name}: left out, {self.left_s:.0f} s are left of {self.options.minutes:g} minutes"
            )
            return None
        command = command_of(step, lane, self.cores, limit, self.options.work)
        self._say(f"{step.name}: at most {limit:.0f} s: {shlex.join(command)}")
        if self.options.dry_run:
            return None
        started = time.monotonic()
        run = LimitedRun(command, self.results / f"{step.name}.log", environment(step, lane))
        status = run.end(limit + STEP_STOP_S / 2)
        self._say(f"{step.name}: exit status {status} after {time.monotonic() - started:.0f} s")
        print(run.said(12), flush=True)
        self.pack()
        return status

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begun:.0f} s] {text}", flush=True)

    def pack(self) -> None:
        """Everything so far, in one file that is replaced as a whole."""
        with self._packing:
            beside = self.options.out / "results.partial"
            try:
                with tarfile.open(beside, "w:gz") as packed:
                    for path in sorted(self.results.iterdir()):
                        if path.suffix == ".log" and path.stat().st_size > LARGEST_LOG:
                            path = _end_of(path)
                        packed.add(path, path.name)
            except OSError as error:  # a step beside this one has just replaced a file
                self._say(f"not packed, the next step's end will: {error}")
                return
            os.replace(beside, self.options.out / "results.tgz")


def _end_of(path: Path) -> Path:
    shorter = path.with_suffix(".tail")
    shorter.write_bytes(path.read_bytes()[-LARGEST_LOG:])
    return shorter


def command_of(step: Step, lane: Lane, cores: int, limit_s: float, work: Path) -> list[str]:
    """The step's command line, on its lane's cores."""
    share = lane.core_list(cores)
    first, last = (int(part) for part in share.split("-"))
    values = {
        "work": str(work),
        "out": str(work / "results" / f"{step.name}.json"),
        "limit": f"{limit_s:.0f}",
        "soft": f"{limit_s - SOFT_S:.0f}",
        "workers": str(max(1, last - first - 1)),  # beside the trainer and the thread that feeds it
    }
    pinned = ["taskset", "-c", share] if shutil.which("taskset") and lane.cores != EVERY_CORE else []
    return [*pinned, sys.executable, *step.launcher, "-m", step.module, *filled(step.arguments, values)]


def environment(step: Step, lane: Lane) -> dict[str, str]:
    """Of a step: its cards, and what the trainer's rows need beside a card that is nearly full."""
    found = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    found |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0", "GLOO_SOCKET_IFNAME": "lo"}
    found["CUDA_VISIBLE_DEVICES"] = lane.cards
    if lane.cores != EVERY_CORE:
        found["TORCHINDUCTOR_COMPILE_THREADS"] = "4"  # others compile or make data beside it
    if step.module in TRAINERS:
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return {**os.environ, **found}


def table(results: Path) -> str:
    """All figures of the JSON files there, with their goals."""
    lines = []
    for path in sorted(results.glob("*.json")):
        record: dict[str, Any] = json.loads(path.read_text())
        for name, row in record.get("figures", {}).items():
            goal = "" if row["goal"] is None else f"goal {row['goal']:g}: {'met' if row['met'] else 'MISSED'}"
            lines.append(f"  {path.stem + ': ' + name:<78} {row['value']:>12,.6g} {row['unit']:<8} {goal}")
    return "\n".join(lines)


def card() -> str:
    """What nvidia-smi says about the cards; empty without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no card"
    asked = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=False)
    return asked.stdout.strip() or "no card"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", choices=list(PLANS), default="two_cards")
    parser.add_argument("--stage", type=int, default=0, help="1, 2, ...; 0: all")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything that is run now")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "results/gpu_out")))
    parser.add_argument("--work", type=Path, default=Path("/tmp/pipelinerl-gpu"))
    parser.add_argument("--only", nargs="+", default=[], help="names of steps")
    parser.add_argument("--tiny", action="store_true", help="rehearse without a card")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    options = parser.parse_args()
    options.out, options.work = options.out.absolute(), options.work.absolute()
    stages = PLANS[options.plan]
    if options.stage > len(stages):
        parser.error(f"--stage {options.stage}: {options.plan} has {len(stages)}")
    chosen = stages if options.stage == 0 else stages[options.stage - 1 : options.stage]
    driver = Driver(options)
    print(f"{card()}; {driver.cores} cores; load {os.getloadavg()[0]:.1f}", flush=True)
    done: list[tuple[str, int | None]] = []
    for stage in chosen:
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
