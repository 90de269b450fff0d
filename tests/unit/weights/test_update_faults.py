"""Every step of an update fails in every way: nothing is announced, and the right engines are given up.

The steps are those of the protocol: 0 health, 1 pause, 2 start, 3 update, 4 finish, 5 resume, 6 parity.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipelinerl.config import Config, Job
from pipelinerl.finetune import broadcast
from pipelinerl.finetune.broadcast import EngineBroadcaster
from pipelinerl.run_state.replacements import Replacements
from pipelinerl.weights.send.file_transport import FileTransport
from pipelinerl.weights.send.parity import check_parity, probe_ids
from pipelinerl.weights.send.publisher import Publisher
from pipelinerl.weights.send.version_update import WeightUpdateError
from tests.support.fake_vllm import FakeEmbedded, serving
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


def test_a_broken_engine_is_replaced_and_gets_a_full_update_and_parity_before_the_announcement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, seen = FakeEmbedded(), list[dict[str, str]]()
    with training(tmp_path, engine) as trainer:
        replacements = Replacements(tmp_path)
        trainer.publish(16)
        engine.faults[PATHS["update"]] = [500]

        def launcher_replaces(seconds: float) -> None:
            seen.append(replacements.take())
            engine.restart()

        monkeypatch.setattr(broadcast.time, "sleep", launcher_replaces)
        metrics = trainer.publish(32)
    [(url, cause)] = seen[0].items()
    assert url in trainer._publisher.engines and "failed at update" in cause
    assert engine.label == "32" and not engine.paused
    assert engine.calls[0] == "/init_weight_transfer_engine", "everything from the beginning"
    assert metrics["weights/parity_max_abs"] == 0.0


def test_parity_beyond_the_limit_after_a_replacement_ends_the_update(tmp_path: Path) -> None:
    engine = FakeEmbedded()
    engine.logprob = -2.0
    with training(tmp_path, engine) as trainer, pytest.raises(WeightUpdateError, match="parity of"):
        trainer.publish(16)


def test_an_engine_lost_in_the_comparison_gets_the_update_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEmbedded()
    with training(tmp_path, engine) as trainer:
        engine.faults[PATHS["parity"]] = [0]
        monkeypatch.setattr(broadcast.time, "sleep", lambda seconds: engine.restart())
        trainer.publish(16)
        assert engine.label == "16" and not engine.paused
