"""Whole runs with real processes: a launcher, and a model small enough to start in seconds."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelinerl.base.ports import is_free
from pipelinerl.config import load
from pipelinerl.engines.wire import shared_directory
from pipelinerl.observe.history import read_metrics
from pipelinerl.run_state.accounting import Outcome, RolloutCounts, reconcile
from pipelinerl.streams import SingleStreamSpec, read_stream
from tests.support.metric_tables import check_run
from tests.support.processes import bound, command_line
from tests.support.tiny_model import build_tokenizer, causal_lm

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 400.0
GONE_S = 120.0
NO_PAGE = "observe.rollout_page=false"
"""The page of rollouts takes longer than a step; `test_readme.py` has a run that writes it."""
SMALL = ["finetune.attempts=4", "finetune.gradient_accumulation_passes=16", "wandb.use_wandb=false", NO_PAGE]
"""Groups of four and steps of 16 samples, unless a run asks for others; wandb starts slower than it steps."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers with a tokeniser of characters."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(str(folder))
    shape: dict[str, Any] = {"hidden": 32, "positions": 1024, "spread": 0.02}
    causal_lm(len(tokenizer), **shape, eos=tokenizer.eos_token_id).save_pretrained(folder)
    return folder


class LauncherProcess:
    """A launcher in a process of its own, and everything that it started."""

    def __init__(
        self,
        output_dir: Path,
        arguments: list[str],
        env: Mapping[str, str] | None = None,
        command: Callable[..., list[str]] = lambda *words: [*words],
    ) -> None:
        """`command` makes of the words one that runs them elsewhere."""
        self.output_dir = output_dir
        words = [*SMALL, *arguments]
        self._process = subprocess.Popen(
            bound(*command(sys.executable, "-m", "pipelinerl.launch", f"output_dir={output_dir}", *words)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **(env or {})},
        )
        self.out = self.err = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        """The exit status, after everything was printed."""
        self.out, self.err = self._process.communicate(timeout=DEADLINE_S)
        return self._process.returncode

    def error_lines(self) -> list[str]:
        """What it printed to stderr without warnings, such as of a role that takes long to stop."""
        return [line for line in self.err.splitlines() if " WARNING " not in line]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def children(self) -> list[psutil.Process]:
        """Every living process that works for this run, whoever its parent is by now."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            dead = process.info["status"] == psutil.STATUS_ZOMBIE
            if str(self.output_dir) in " ".join(words) and process.pid != self._process.pid and not dead:
                found.append(process)
        with contextlib.suppress(psutil.NoSuchProcess):
            found += psutil.Process(self._process.pid).children(recursive=True)
        return list({process.pid: process for process in found if process.is_running()}.values())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that the run does."""
        if not self.comes_true(condition, what):
            self.wait()
            pytest.fail(f"the launcher ended before {what}: {self.err or self.out[-2000:]}")

    def comes_true(self, condition: Callable[[], bool], what: str) -> bool:
        """Wait for it as long as the launcher lives; whether it came."""
        end = time.monotonic() + DEADLINE_S
        while self._process.poll() is None:
            if condition():
                return True
            assert time.monotonic() < end, f"{DEADLINE_S} s passed before {what}"
            time.sleep(0.05)
        return False

    def running(self, module: str) -> list[psutil.Process]:
        """Living processes of the run that run a module."""
        found = []
        for process in self.children():
            words = command_line(process)
            if "-m" in words and words[words.index("-m") + 1] == module:
                found.append(process)
        return found

    def steps(self) -> int:
        """Optimizer steps so far."""
        return len(optimizer_steps(self.output_dir))

    def summary(self) -> dict[str, Any]:
        """What the trainer leaves at the end."""
        return dict(json.loads((self.output_dir / "finetune" / "summary.json").read_text()))

    def counts(self) -> RolloutCounts:
        """The rollout accounting, which adds up."""
        counts = reconcile(self.output_dir)
        assert counts.adds_up, "\n".join(counts.lines())
        return counts

    def trained(self, steps: int, evaluated: int) -> set[str]:
        """It completes so many steps and asks so many problems before and after; the names of its figures."""
        assert self.wait() == 0, self.err
        assert self.summary()["completed_steps"] == steps and not self.children()
        counts = self.counts()
        assert counts.eval_started == 2 * evaluated == counts.eval_ends[Outcome.EVAL_DONE]
        check_run(self.output_dir)
        records = (read_metrics(self.output_dir, role) for role in ("actor", "finetune"))
        return {name for found in records for record in found for name in record}

    def leaves_nothing(self, processes: list[psutil.Process], deadline_s: float = GONE_S) -> None:
        """Every process of the run ends, its ports are free again and so is its shared memory."""
        _, alive = psutil.wait_procs(processes, timeout=deadline_s)
        assert alive == [], [process.cmdline() for process in alive]
        if not (self.output_dir / "conf").is_dir():
            return
        ports = [job.port for job in load(self.output_dir).jobs if job.port]
        assert ports
        end = time.monotonic() + deadline_s
        while not all(map(is_free, ports)) or shared_directory(self.output_dir).exists():
            assert time.monotonic() < end, f"a port of {ports} is bound, or shared memory is left"
            time.sleep(0.05)

    def close(self) -> None:
        """Kill what still runs; the counts of a run that ended by itself, whoever it lost, must add up."""
        ended = self._process.poll() is not None
        if not ended:
            self._process.kill()
        self._process.wait(timeout=DEADLINE_S)
        if ended and (self.output_dir / "accounting/actor.jsonl").exists() and not self.children():
            self.counts()


def optimizer_steps(output_dir: Path) -> list[dict[str, Any]]:
    """The trainer's records, one per optimizer step."""
    return [record for record in read_metrics(output_dir, "finetune") if "stats/completed_steps" in record]


def records_of(output_dir: Path, topic: str) -> list[Any]:
    """All records of a stream on disk."""
    with read_stream(SingleStreamSpec(output_dir, topic)) as reader:
        return reader.read_available()


Start = Callable[..., LauncherProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run: `start(*overrides, name="run")` in a folder of that name."""
    started: list[LauncherProcess] = []

    def run(*overrides: str, name: str = "run", **how: Any) -> LauncherProcess:
        started.append(LauncherProcess(tmp_path / name, list(overrides), **how))
        return started[-1]

    yield run
    for process in started:
        process.close()


@pytest.fixture
def launch(start: Start, model: Path) -> Start:
    """`start` for short guessing runs with a random model."""
    common = ["+domain=guessing", f"model_path={model}", "max_lag=64"]
    return partial(start, *common, "dataset_loader_params={count: 6, max_guesses: 2}")
