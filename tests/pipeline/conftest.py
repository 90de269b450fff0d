"""Whole runs with real processes: a launcher, and a model small enough to start in seconds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelinerl.run_state.accounting import reconcile
from tests.support.tiny_model import build_tokenizer, causal_lm

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240.0


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

    def __init__(self, output_dir: Path, arguments: list[str], env: Mapping[str, str] | None = None) -> None:
        self.output_dir = output_dir
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pipelinerl.launch", f"output_dir={output_dir}", *arguments],
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

    def until(self, condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait for something that the run does."""
        end = time.monotonic() + deadline_s
        while not condition():
            if self._process.poll() is not None:
                self.wait()
                pytest.fail(f"the launcher ended before {what}: {self.err or self.out[-2000:]}")
            if time.monotonic() > end:
                pytest.fail(f"{deadline_s} s passed before {what}")
            time.sleep(0.05)

    def comes_true(self, condition: Callable[[], bool]) -> bool:
        """Wait for it as long as the launcher lives; whether it came."""
        end = time.monotonic() + DEADLINE_S
        while self._process.poll() is None:
            if condition():
                return True
            assert time.monotonic() < end, f"{DEADLINE_S} s passed"
            time.sleep(0.05)
        return False

    def close(self) -> None:
        """Kill what still runs; the counts of a run that ended by itself, whoever it lost, must add up."""
        ended = self._process.poll() is not None
        if not ended:
            self._process.kill()
        self._process.wait(timeout=30)
        if ended and (self.output_dir / "accounting/actor.jsonl").exists() and not self.children():
            counts = reconcile(self.output_dir)
            assert counts.adds_up, "\n".join(counts.lines())


@pytest.fixture
def launch(tmp_path: Path, model: Path) -> Iterator[Callable[..., LauncherProcess]]:
    """Starts guessing runs in one folder; at most a few texts per step."""
    started: list[LauncherProcess] = []
    common = [
        "+domain=guessing",
        f"model_path={model}",
        "finetune.gradient_accumulation_passes=16",
        "finetune.attempts=4",
        "dataset_loader_params={count: 6, max_guesses: 2}",
        "max_lag=64",
        "wandb.use_wandb=false",
    ]

    def start(*overrides: str) -> LauncherProcess:
        started.append(LauncherProcess(tmp_path / "run", [*common, *overrides]))
        return started[-1]

    yield start
    for process in started:
        process.close()
