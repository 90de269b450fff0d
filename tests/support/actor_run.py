"""A real actor process against fake engines, with the test in the trainer's place."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipelinerl.config import Config, Job, save, typed
from pipelinerl.launcher.placement import derive
from pipelinerl.run_state.announcements import TrainerAnnouncements
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.streams import SingleStreamSpec, read_stream
from tests.support import tiny_model
from tests.support.fake_engine import FakeEngine
from tests.support.forked import Forked
from tests.support.processes import DEADLINE_S, bound, until

ROOT = Path(__file__).resolve().parents[2]
WARNING = re.compile(r"[-\d]{10} [:,\d]{12} WARNING ")


def write_config(output_dir: Path, model: Path, engines: list[FakeEngine], **changes: Any) -> None:
    placed = [
        Job(kind="actor_llm", idx=i, replica_idx=i, url=engine.url, name=f"actor_vllm_{i}")
        for i, engine in enumerate(engines)
    ]
    placed.append(Job(kind="actor", idx=len(engines), name="actor"))
    jobs = [job.model_dump() for job in placed]
    config = OmegaConf.create(Config(output_dir=str(output_dir)).model_dump(mode="json", by_alias=True))
    basic: dict[str, Any] = {
        "model_path": str(model),
        "attempts": 2,
        "max_lag": 0,
        "dataset_loader": "tests.support.toy_domain.load",
        "train_dataset_names": ["train"],
        "test_dataset_names": ["test"],
        "dataset_loader_params": {"count": 3},
        "actor": {
            "rollout_policy": "tests.support.toy_domain.play",
            "llm_max_rollouts": 4,
            "rollout_retry_initial_delay_s": 0.01,
        },
        "llm": {"parameters": {"max_tokens": 8}},
        "test_llm": {"parameters": {"max_tokens": 6}},
        "engine": {"start_deadline_s": 200},
        "finetune": {"train_batch_size": 4, "gradient_accumulation_passes": 1, "max_train_steps": 100},
        "wandb": {"use_wandb": False},
        "jobs": jobs,
    }
    if "dataset_loader" in changes:
        del basic["dataset_loader_params"]
    merged = OmegaConf.merge(config, basic, changes)
    assert isinstance(merged, DictConfig)
    merged.derived = derive(typed(merged), placed).model_dump()
    save(merged, output_dir)


class ActorRun:
    """The actor of `output_dir` as a process; its trainer goes on from `version`, which it announces.

    With `announces=False` the test does that. `start=Popen`: actor and workers in interpreters of their own.
    """

    def __init__(
        self,
        output_dir: Path,
        job: int = 1,
        version: int = 0,
        announces: bool = True,
        start: type[subprocess.Popen[str]] = Forked,
    ):
        self.output_dir = output_dir
        ResumePoint(version=version, step=version // 4).write(output_dir)
        self.trainer = TrainerAnnouncements(output_dir)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-m", "pipelinerl.actor", str(output_dir), "--job", str(job)]
        self.process = start(bound(*argv), env=env, stderr=subprocess.PIPE, text=True)
        if announces:
            self.trainer.weight_update_success(version)

    def __enter__(self) -> "ActorRun":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=DEADLINE_S)
        self.trainer.close()

    def update(self, engine: FakeEngine, version: int) -> None:
        """The trainer has trained up to `version`, and the engine serves it."""
        self.trainer.samples_processed(version)
        engine.version = str(version)
        self.trainer.weight_update_success(version)

    def read(self, topic: str) -> list[Any]:
        with read_stream(SingleStreamSpec(self.output_dir, topic)) as reader:
            return reader.read_available()

    def until(self, condition: Callable[[], Any]) -> Any:
        """The condition's first true value; the process must live meanwhile."""

        def looked_at() -> Any:
            if self.process.poll() is not None:
                _, errors = self.process.communicate()
                raise AssertionError(f"actor ended with {self.process.returncode}: {errors}")
            return condition()

        return until(looked_at, "what the test waits for")

    def end(self) -> tuple[int, str]:
        """Exit code and last line of stderr; a warning, such as of a slow engine, is no error."""
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        lines = [line for line in errors.strip().splitlines() if not WARNING.match(line)]
        return self.process.returncode, lines[-1] if lines else ""


__all__ = ["ActorRun", "tiny_model", "write_config"]
