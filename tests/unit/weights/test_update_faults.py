"""Every step of an update fails in every way: nothing is announced, and the right engines are given up.

The steps are those of the protocol: 0 health, 1 pause, 2 start, 3 update, 4 finish, 5 resume, 6 parity.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.finetune import broadcast
from pipelinerl.finetune.broadcast import EngineBroadcaster
from pipelinerl.run_state.replacements import Replacements, ask_for_replacement
from pipelinerl.weights.send.engine_update import PublishDeadlines
from pipelinerl.weights.send.file_transport import FileTransport
from pipelinerl.weights.send.parity import ParityLimits, check_parity, probe_ids
from pipelinerl.weights.send.publisher import Publisher
from pipelinerl.weights.send.version_update import WeightUpdateError
from tests.unit.weights.test_publisher import FakeEngine, serving

TENSORS = [("a", torch.ones(2, 3)), ("b", torch.zeros(4))]
SHORT = PublishDeadlines(
    health_s=0.3, init_s=5, pause_s=0.3, start_s=0.3, update_s=0.3, finish_s=0.3, resume_s=0.3, parity_s=0.3
)
PATHS = {
    "pause": "/pause",
    "start": "/start_weight_update",
    "update": "/update_weights",
    "finish": "/finish_weight_update",
    "resume": "/resume",
    "parity": "/inference/v1/generate",
}
EXACT = ParityLimits(1e-4, None)
GIVES_UP_THE_ENGINE = {"start", "update", "finish"}
FAULTS = {
    "500": "HTTP 500: .*fault at",
    "disconnect": "RemoteDisconnected|closed",
    "timeout": "no answer within",
}


def inject(engine: FakeEngine, step: str, how: str) -> None:
    if how == "timeout":
        engine.hang_at = PATHS[step]
    else:
        engine.faults[PATHS[step]] = [500 if how == "500" else 0] * 20


def score(rows: np.ndarray) -> np.ndarray:
    return np.full((len(rows), rows.shape[1] - 1), -1.0, dtype=np.float32)


@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("step", PATHS)
def test_a_fault_in_any_step_is_named_and_announces_nothing(tmp_path: Path, step: str, how: str) -> None:
    engine = FakeEngine()
    with serving(engine) as url:
        publisher = Publisher([url], FileTransport(tmp_path), deadlines=SHORT)
        publisher.wait_ready(10)
        inject(engine, step, how)
        with pytest.raises(WeightUpdateError, match=FAULTS[how]) as error:
            publisher.publish(1, TENSORS)
            check_parity(publisher, probe_ids(50, length=4), score, EXACT)
        assert (error.value.engine, error.value.step) == (url, step)
        assert len(str(error.value).splitlines()) == 1
        assert publisher.engines[url].broken == (step in GIVES_UP_THE_ENGINE)
        if step in GIVES_UP_THE_ENGINE:
            assert "/resume" not in engine.calls, "half a model must not serve"


@pytest.mark.parametrize("how", FAULTS)
def test_an_engine_that_is_not_healthy_takes_no_part(tmp_path: Path, how: str) -> None:
    engine = FakeEngine()
    with serving(engine) as url:
        publisher = Publisher([url], FileTransport(tmp_path), deadlines=SHORT)
        publisher.wait_ready(10)
        if how == "timeout":
            engine.hang_at = "/health"
        else:
            engine.faults["/health"] = [500 if how == "500" else 0] * 9
        with pytest.raises(WeightUpdateError, match="no engine can take part") as error:
            publisher.publish(1, TENSORS)
        assert error.value.step == "health" and publisher.version is None
        assert "/pause" not in engine.calls


class Forgetful(FakeEngine):
    """Confirms every step and keeps its old label."""

    def answer(self, path: str, query: str, body: Any) -> tuple[int, Any]:
        label = self.label
        answered = super().answer(path, query, body)
        self.label = label
        return answered


def test_an_engine_with_another_label_than_it_confirmed_is_stale(tmp_path: Path) -> None:
    engine = Forgetful()
    with serving(engine) as url:
        publisher = Publisher([url], FileTransport(tmp_path), deadlines=SHORT)
        publisher.wait_ready(10)
        publisher.publish(1, TENSORS)
        assert publisher.stale_engines() == [url]


@pytest.mark.parametrize("paused", [True, False])
def test_a_new_trainer_takes_over_an_engine_that_a_dead_one_left_paused(tmp_path: Path, paused: bool) -> None:
    engine = FakeEngine()
    engine.label, engine.paused = "64", paused
    with serving(engine) as url:
        publisher = Publisher([url], FileTransport(tmp_path), deadlines=SHORT)
        publisher.wait_ready(10)
        publisher.publish(48, TENSORS)
        assert (engine.label, engine.paused) == ("48", False)


def test_an_engine_left_in_mid_update_is_given_up_by_name(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.paused = True
    engine.faults[PATHS["start"]] = [409]
    with serving(engine) as url:
        publisher = Publisher([url], FileTransport(tmp_path), deadlines=SHORT)
        publisher.wait_ready(10)
        with pytest.raises(WeightUpdateError, match=r"start of .*HTTP 409") as error:
            publisher.publish(48, TENSORS)
        assert error.value.broken == [url] and engine.paused


class Policy(torch.nn.Module):
    """Two parameters, and the vocabulary that a probe needs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.zeros(4))
        self.config = SimpleNamespace(vocab_size=50)


def broadcaster(folder: Path, url: str) -> EngineBroadcaster:
    weights = {"transport": "file", "kv": "keep", "parity_every": 0, "directory": str(folder / "weights")}
    weights |= {"parity_max_abs": 1e-4, "parity_mean_abs": 0.02, "group_port": 9000, "ahead": False}
    settings: Any = SimpleNamespace(
        output_dir=folder,
        folder=folder / "finetune",
        weights=weights,
        engine_dtype="float32",
        engine_urls=(url,),
        start_deadline_s=20.0,
        bfloat16=False,
    )
    policy = Policy()
    learner: Any = SimpleNamespace(
        model=policy,
        device=torch.device("cpu"),
        score_rows=score,
        elements=10,
        weights=lambda: list(policy.named_parameters()),
    )
    return EngineBroadcaster(learner, settings)


def test_a_broken_engine_is_replaced_and_gets_a_full_update_and_parity_before_the_announcement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, seen = FakeEngine(), list[dict[str, str]]()
    (tmp_path / "finetune").mkdir()
    with serving(engine) as url:
        trainer, replacements = broadcaster(tmp_path, url), Replacements(tmp_path)
        trainer.start()
        trainer.publish(16)
        engine.faults[PATHS["update"]] = [500]

        def launcher_replaces(seconds: float) -> None:
            seen.append(replacements.take())
            engine.restart()

        monkeypatch.setattr(broadcast.time, "sleep", launcher_replaces)
        metrics = trainer.publish(32)
        assert list(seen[0]) == [url] and "failed at update" in seen[0][url]
        assert engine.label == "32" and not engine.paused
        assert engine.calls[0] == "/init_weight_transfer_engine", "everything from the beginning"
        assert metrics["weights/parity_max_abs"] == 0.0
        trainer.close()


def test_parity_beyond_the_limit_after_a_replacement_ends_the_update(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.logprob = -2.0
    (tmp_path / "finetune").mkdir()
    with serving(engine) as url:
        trainer = broadcaster(tmp_path, url)
        trainer.start()
        with pytest.raises(WeightUpdateError, match="parity of"):
            trainer.publish(16)
        trainer.close()


def test_an_engine_lost_in_the_comparison_gets_the_update_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    (tmp_path / "finetune").mkdir()
    with serving(engine) as url:
        trainer = broadcaster(tmp_path, url)
        trainer.start()
        engine.faults[PATHS["parity"]] = [0]
        monkeypatch.setattr(broadcast.time, "sleep", lambda seconds: engine.restart())
        trainer.publish(16)
        assert engine.label == "16" and not engine.paused
        trainer.close()


def test_replacements_are_taken_once_and_those_of_an_earlier_start_never(tmp_path: Path) -> None:
    ask_for_replacement(tmp_path, ["http://old"], "long ago")
    replacements = Replacements(tmp_path)
    assert replacements.take() == {}
    ask_for_replacement(tmp_path, ["http://a", "http://b"], "half a model")
    assert replacements.take() == {"http://a": "half a model", "http://b": "half a model"}
    assert replacements.take() == {}
