"""What the launcher does about engines that somebody gave up, and about a run that stands still."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelinerl.base.waits import WaitExpired
from pipelinerl.config.machine import Job
from pipelinerl.launcher.commands import commands
from pipelinerl.launcher.run import Completion, Watchdog
from pipelinerl.run_state import lost_engines
from pipelinerl.run_state.replacements import ask_for_replacement
from tests.support.one_host import one_host
from tests.unit.launcher.conftest import Placed

URL = "http://127.0.0.1:8080"


class Recorded:
    """A supervisor that writes down what it is asked for."""

    def __init__(self) -> None:
        self.replaced: list[tuple[str, str]] = []
        self.done: set[str] = set()
        self.left_out: set[str] = set()

    def replace(self, name: str, cause: str) -> None:
        self.replaced.append((name, cause))

    def ended(self) -> set[str]:
        return self.done


def watchdog(folder: Path, progress_s: float, started: tuple[str, ...]) -> tuple[Watchdog, Recorded]:
    jobs = [
        Job(kind="actor_llm", idx=0, url=URL, name="actor_vllm_0"),
        Job(kind="finetune", idx=1, name="finetune"),
    ]
    cfg = SimpleNamespace(
        output_dir=str(folder),
        several_hosts=False,
        jobs=jobs,
        jobs_of=lambda kind: [job for job in jobs if job.kind == kind],
        watchdog=SimpleNamespace(progress_deadline_s=progress_s),
    )
    children = [SimpleNamespace(name=name) for name in started]
    plan: Any = SimpleNamespace(cfg=cfg, children=children, output_dir=folder)
    supervisor: Any = Recorded()
    return Watchdog(plan, supervisor), supervisor


def test_an_engine_that_the_trainer_gave_up_is_replaced_once(tmp_path: Path) -> None:
    dog, supervisor = watchdog(tmp_path, 3600.0, ("actor_vllm_0", "finetune"))
    ask_for_replacement(tmp_path, [URL], "weight update failed at update")
    dog.check()
    dog.check()
    assert supervisor.replaced == [("actor_vllm_0", "weight update failed at update")]


def test_engines_of_one_host_stand_in_for_each_other_and_nothing_else_does(
    placed: Placed, tmp_path: Path
) -> None:
    more = ("engine.count=3", "engine.min_alive=2", "world.preprocessor_fraction=1")
    cfg, _ = placed("hardware=cpu", *more, "finetune.rl.kl_coef=0.1")
    children = commands(cfg, tmp_path / "run", [], one_host(), None)
    engines = tuple(f"actor_vllm_{index}" for index in range(3))
    assert {child.name for child in children if child.spare} == set(engines) < {one.name for one in children}
    assert {(child.alike, child.least) for child in children if child.spare} == {(engines, 2)}


def test_the_trainer_is_told_once_of_an_engine_that_is_given_up(tmp_path: Path) -> None:
    lost_engines.begin(tmp_path)
    lost_engines.tell_lost(tmp_path, ["http://of-an-earlier-start"])
    lost_engines.begin(tmp_path)
    told = lost_engines.LostEngines(tmp_path)
    dog, supervisor = watchdog(tmp_path, 3600.0, ("actor_vllm_0", "finetune"))
    dog.check()
    assert told.take() == []
    supervisor.left_out.add("actor_vllm_0")
    dog.check()
    dog.check()
    assert told.take() == [URL] and told.take() == []


def test_an_engine_that_somebody_else_started_is_left_alone(tmp_path: Path) -> None:
    dog, supervisor = watchdog(tmp_path, 3600.0, ("finetune",))
    ask_for_replacement(tmp_path, [URL, "http://127.0.0.1:9"], "weight update failed at update")
    dog.check()
    assert supervisor.replaced == []


def test_standing_still_ends_the_run_only_while_the_trainer_works(tmp_path: Path) -> None:
    dog, supervisor = watchdog(tmp_path, 0.0, ("finetune",))
    supervisor.done.add("finetune")
    dog.check()
    supervisor.done.clear()
    with pytest.raises(WaitExpired, match="a rollout or an optimizer step: actor has not begun"):
        for _ in range(2):
            dog.check()


def test_the_last_evaluation_may_take_longer_than_a_rollout(tmp_path: Path) -> None:
    """Each rollout has its deadline; how many there are is nobody's fault."""
    cfg = SimpleNamespace(
        output_dir=str(tmp_path),
        actor=SimpleNamespace(rollout_deadline_s=0.3),
        jobs_of=lambda kind: [SimpleNamespace(name=kind)] if kind in ("finetune", "actor") else [],
    )
    plan: Any = SimpleNamespace(cfg=cfg, output_dir=tmp_path)
    supervisor: Any = Recorded()
    supervisor.done = {"finetune"}
    completion = Completion(plan, supervisor)
    book = tmp_path / "accounting" / "actor.jsonl"
    book.parent.mkdir()
    book.touch()
    assert not completion.reached()
    for _ in range(3):  # a rollout ends in each
        time.sleep(0.4)
        book.write_text(book.read_text() + "{}\n")
        assert not completion.reached()
    time.sleep(0.4)
    with pytest.raises(WaitExpired, match="actor to end a rollout of its last evaluation"):
        completion.reached()
    supervisor.done.add("actor")
    assert completion.reached()
