"""Every step of an update fails in every way: nothing is announced, and the right engines are given up.

The steps are those of the protocol: 0 health, 1 pause, 2 start, 3 update, 4 finish, 5 resume, 6 parity.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipelinerl.config import Config, Job
from pipelinerl.engines.wire import PermanentUpdateError
from pipelinerl.finetune import broadcast
from pipelinerl.finetune.broadcast import EngineBroadcaster
from pipelinerl.run_state.replacements import Replacements
from pipelinerl.weights.parity import check_parity, probe_ids
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports import file as file_transport
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.version_update import WeightUpdateError
from tests.support.fake_vllm import FakeEmbedded, serving
from tests.support.training import unheard
from tests.unit.weights.test_publisher import DEADLINES, EXACT, TENSORS, score

PATHS = {
    "health": "/health",
    "pause": "/pause",
    "start": "/start_weight_update",
    "update": "/update_weights",
    "finish": "/finish_weight_update",
    "resume": "/resume",
    "parity": "/inference/v1/generate",
}
NO_ROOM = "no room; set weights.ahead=false"
GIVES_UP_THE_ENGINE = {"start", "update", "finish"}
FAULTS = {
    "500": "HTTP 500: .*fault at",
    "disconnect": "RemoteDisconnected|closed",
    "timeout": "no answer within",
}


def inject(engine: FakeEmbedded, step: str, how: str) -> None:
    if how == "timeout":
        engine.hangs.add(PATHS[step])
    else:
        engine.faults[PATHS[step]] = [500 if how == "500" else 0] * 20


@contextmanager
def ready(engine: FakeEmbedded, folder: Path, **deadlines: float) -> Iterator[Publisher]:
    with serving(engine) as url:
        publisher = Publisher([url], FileTransport(folder), deadlines=replace(DEADLINES, **deadlines))
        publisher.wait_ready(100)
        yield publisher


@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("step", PATHS)
def test_a_fault_in_any_step_is_named_and_announces_nothing(tmp_path: Path, step: str, how: str) -> None:
    engine = FakeEmbedded()
    short = {f"{step}_s": 0.3} if how == "timeout" else {}  # for the step that hangs, and no other
    with ready(engine, tmp_path, **short) as publisher:
        inject(engine, step, how)
        with pytest.raises(WeightUpdateError, match=FAULTS[how]) as error:
            publisher.publish(1, TENSORS)
            check_parity(publisher, probe_ids(50, length=4), score, EXACT)
        [url] = publisher.engines
        assert (error.value.engine, error.value.step) == (url, step)
        assert len(str(error.value).splitlines()) == 1
        assert publisher.engines[url].broken == (step in GIVES_UP_THE_ENGINE)
        if step in GIVES_UP_THE_ENGINE:
            assert "/resume" not in engine.calls, "half a model must not serve"
        if step == "health":
            assert "no engine can take part" in str(error.value) and publisher.version is None
            assert "/pause" not in engine.calls


class Forgetful(FakeEmbedded):
    """Confirms every step and keeps its old label."""

    def finish(self, query: str, body: Any) -> Any:
        self.updating = False


def test_an_engine_with_another_label_than_it_confirmed_is_stale(tmp_path: Path) -> None:
    engine = Forgetful()
    with ready(engine, tmp_path) as publisher:
        publisher.publish(1, TENSORS)
        assert publisher.stale_engines() == list(publisher.engines)


@pytest.mark.parametrize("paused", [True, False])
def test_a_new_trainer_takes_over_an_engine_that_a_dead_one_left_paused(tmp_path: Path, paused: bool) -> None:
    engine = FakeEmbedded()
    engine.label, engine.paused = "64", paused
    with ready(engine, tmp_path) as publisher:
        publisher.publish(48, TENSORS)
        assert (engine.label, engine.paused) == ("48", False)


def test_an_engine_left_in_mid_update_is_given_up_by_name(tmp_path: Path) -> None:
    engine = FakeEmbedded()
    engine.paused = True
    engine.faults[PATHS["start"]] = [409]
    with ready(engine, tmp_path) as publisher:
        with pytest.raises(WeightUpdateError, match=r"start of .*HTTP 409") as error:
            publisher.publish(48, TENSORS)
        assert error.value.broken == list(publisher.engines) and engine.paused


class Policy(torch.nn.Module):
    """Two parameters, and the vocabulary that a probe needs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.zeros(4))
        self.config = SimpleNamespace(vocab_size=50)


@contextmanager
def training(folder: Path, engine: FakeEmbedded) -> Iterator[EngineBroadcaster]:
    """A trainer that has found its engine."""
    policy = Policy()
    learner: Any = SimpleNamespace(
        model=policy,
        device=torch.device("cpu"),
        score_rows=score,
        probe_ids=lambda: probe_ids(50),
        elements=10,
        weights=lambda: list(policy.named_parameters()),
    )
    (folder / "finetune").mkdir()
    with serving(engine) as url:
        weights = {"transport": "file", "ahead": False, "parity_every": 0}
        cfg = Config.model_validate(
            {
                "output_dir": str(folder),
                "engine": {"kind": "embedded", "start_deadline_s": 200.0},
                "finetune": {"load_as_bf16": False},
                "jobs": [Job(kind="actor_llm", idx=0, name="actor_vllm_0", url=url)],
                "weights": weights | {"directory": str(folder / "weights")},
            }
        )
        trainer = EngineBroadcaster(learner, cfg)
        trainer.start()
        yield trainer
        trainer.close()


def waits_by(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """For the trainer alone: the end of its guard waits by the clock as well."""
    monkeypatch.setattr(broadcast, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))


def test_a_broken_engine_is_replaced_and_gets_a_full_update_and_parity_before_the_announcement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, seen = FakeEmbedded(), list[dict[str, str]]()
    with training(tmp_path, engine) as trainer:
        replacements = Replacements(tmp_path)
        trainer.publish(16, unheard)
        engine.faults[PATHS["update"]] = [500]

        def launcher_replaces(seconds: float) -> None:
            seen.append(replacements.take())
            engine.restart()

        waits_by(monkeypatch, launcher_replaces)
        metrics = trainer.publish(32, unheard)
    [(url, cause)] = seen[0].items()
    assert url in trainer._publisher.engines and "failed at update" in cause
    assert engine.label == "32" and not engine.paused
    assert engine.calls[0] == "/init_weight_transfer_engine", "everything from the beginning"
    assert metrics["weights/parity_max_abs"] == 0.0


@pytest.mark.parametrize("step", ["init", "pause", "start", "update", "finish", "resume", "parity"])
def test_what_no_restart_mends_ends_the_run_at_once_and_replaces_nothing(tmp_path: Path, step: str) -> None:
    engine = FakeEmbedded()
    with training(tmp_path, engine) as trainer:
        replacements = Replacements(tmp_path)
        engine.refuses[PATHS.get(step, "/init_weight_transfer_engine")] = str(PermanentUpdateError(NO_ROOM))
        engine.restart()  # so that there is a rendezvous
        with pytest.raises(WeightUpdateError, match=f" of http://127.0.0.1:[0-9]+: {NO_ROOM}$"):
            trainer.publish(16, unheard)
        assert replacements.take() == {} and trainer._publisher.version == (16 if step == "parity" else None)


def test_a_permanent_refusal_of_the_first_rendezvous_ends_the_start_and_a_lost_engine_does_not(
    tmp_path: Path,
) -> None:
    engine = FakeEmbedded()
    with training(tmp_path, engine) as trainer:
        engine.faults["/init_weight_transfer_engine"] = [0]
        trainer.start()
        trainer.publish(16, unheard)
        assert engine.label == "16"
        engine.refuses["/init_weight_transfer_engine"] = str(PermanentUpdateError(NO_ROOM))
        with pytest.raises(WeightUpdateError, match=NO_ROOM):
            trainer.start()


def replaced(
    monkeypatch: pytest.MonkeyPatch, engine: FakeEmbedded, then: dict[int, str] | None = None
) -> list[int]:
    """The launcher starts it again whenever the trainer waits, up to 3 times; the count is added to a list.

    `then`: what it refuses its updates with from that start on; an empty text is nothing.
    """
    starts = [0]

    def launcher_replaces(seconds: float) -> None:
        starts[0] += 1
        if starts[0] > 3:
            raise AssertionError("its restarts are used up")
        if starts[0] in (then or {}):
            engine.refuses = {PATHS["update"]: then[starts[0]]} if then[starts[0]] else {}
        engine.restart()

    waits_by(monkeypatch, launcher_replaces)
    return starts


def test_a_refusal_that_a_new_process_repeats_ends_the_run_instead_of_three_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEmbedded()
    with training(tmp_path, engine) as trainer:
        replacements, starts = Replacements(tmp_path), replaced(monkeypatch, engine)
        trainer.publish(16, unheard)
        engine.refuses[PATHS["update"]] = "assertion 15 of layer 3"
        with pytest.raises(WeightUpdateError, match=r"assertion 15 .* a new process .* the same words$"):
            trainer.publish(32, unheard)
        assert starts == [1] and len(replacements.take()) == 1


def test_other_words_and_words_before_an_update_that_worked_are_no_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEmbedded()
    with training(tmp_path, engine) as trainer:
        starts = replaced(monkeypatch, engine, {1: "another reason", 2: ""})
        engine.refuses[PATHS["update"]] = "one reason"
        trainer.publish(16, unheard)
        assert starts == [2] and engine.label == "16"
        starts = replaced(monkeypatch, engine, {1: ""})
        engine.refuses[PATHS["update"]] = "another reason"
        trainer.publish(32, unheard)
        assert starts == [1] and engine.label == "32"


def test_an_engine_that_dies_in_each_update_has_its_three_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEmbedded()
    with training(tmp_path, engine) as trainer:
        starts = replaced(monkeypatch, engine)
        engine.faults[PATHS["update"]] = [0, 0, 0]
        trainer.publish(16, unheard)
        assert starts == [3] and engine.label == "16"


def test_a_folder_without_room_is_named_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    engine = FakeEmbedded()
    with training(tmp_path, engine) as trainer:
        monkeypatch.setattr(file_transport, "write_version", full)
        with pytest.raises(
            WeightUpdateError, match=r"stage of the trainer: .*No space left.* weights\.directory"
        ):
            trainer.publish(16, unheard)


def test_parity_beyond_the_limit_after_a_replacement_ends_the_update(tmp_path: Path) -> None:
    engine = FakeEmbedded()
    engine.logprob = -2.0
    with training(tmp_path, engine) as trainer, pytest.raises(WeightUpdateError, match="parity of"):
        trainer.publish(16, unheard)


def test_an_engine_lost_in_the_comparison_gets_the_update_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEmbedded()
    with training(tmp_path, engine) as trainer:
        engine.faults[PATHS["parity"]] = [0]
        waits_by(monkeypatch, lambda seconds: engine.restart())
        trainer.publish(16, unheard)
        assert engine.label == "16" and not engine.paused
