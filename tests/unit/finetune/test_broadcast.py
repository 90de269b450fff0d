"""When engine and trainer are compared, what is counted, and which transport a configuration means."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.config import Config, ConfigError, Job
from pipelinerl.engines.wire import PermanentUpdateError
from pipelinerl.finetune import broadcast
from pipelinerl.finetune.broadcast import (
    PARITY_REQUEST,
    Broadcaster,
    EngineBroadcaster,
    UnchangedEngines,
    broadcaster_of,
)
from pipelinerl.run_state.lost_engines import tell_lost
from pipelinerl.weights.parity import ParityLimits, ParityResult
from pipelinerl.weights.refusals import Failure
from pipelinerl.weights.transports.base import transport_kind
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.transports.nccl import NcclTransport
from pipelinerl.weights.version_update import UpdateReport, WeightUpdateError
from tests.support.engine_harness import build_model, reference, running_engine
from tests.support.processes import until
from tests.support.training import unheard

OPTIONS: dict[str, Any] = {
    "transport": "file",
    "kv": "keep",
    "parity_every": 4,
    "parity_max_abs": 1e-4,
    "parity_mean_abs": 0.02,
    "directory": None,
    "buffer_mb": 1,
    "buffers": 2,
    "ahead": False,
}


def config(output_dir: Path, **weights: Any) -> Config:
    """One embedded engine, float32 on both sides."""
    return Config.model_validate(
        {
            "output_dir": str(output_dir),
            "engine": {"kind": "embedded"},
            "finetune": {"load_as_bf16": False},
            "jobs": [Job(kind="actor_llm", idx=0, name="actor_vllm_0", url="http://e")],
            "weights": OPTIONS | weights,
        }
    )


class FakePublisher:
    """Publishes without engines; `joined` and `stale` are what the next call says."""

    copies = False

    def __init__(self, *_: object) -> None:
        self.version: int | None = None
        self.joined: list[str] = []
        self.stale: list[str] = []
        self.error: Exception | None = None
        self.may_end = threading.Event()

    def hold(self, tensors: Iterator[Any]) -> list[Any]:
        return list(tensors)

    def publish_held(self, version: int, held: list[Any]) -> UpdateReport:
        """Beside the trainer, until it `may_end`; `error` is how."""
        assert self.may_end.wait(100)
        if self.error is not None:
            raise self.error
        return self.publish(version, iter(held))

    def publish(self, version: int, tensors: Iterator[Any]) -> UpdateReport:
        self.version = version
        report = UpdateReport(
            version, 10, {"pause": 0.01}, {"http://e": 0.03}, lost_tokens=7.0, joined=self.joined
        )
        self.joined, self.stale = [], []
        return report

    def stale_engines(self) -> list[str]:
        return self.stale


@pytest.fixture
def parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[EngineBroadcaster, FakePublisher, list[int | None]]:
    publisher = FakePublisher()
    compared: list[int | None] = []

    def check_parity(*_: object) -> list[ParityResult]:
        compared.append(publisher.version)
        return [ParityResult("http://e", 2e-5, 1e-6)]

    monkeypatch.setattr(broadcast, "Publisher", lambda *arguments, **named: publisher)
    monkeypatch.setattr(broadcast, "check_parity", check_parity)
    monkeypatch.setattr(broadcast, "check_loaded", lambda publisher: None)
    learner: Any = SimpleNamespace(
        elements=3,
        device=torch.device("cpu"),
        model=SimpleNamespace(config=SimpleNamespace(vocab_size=9)),
        weights=lambda: iter(()),
        score_rows=lambda ids: np.zeros(0),
        probe_ids=lambda: np.zeros((4, 64), np.int32),
    )
    cfg = config(tmp_path, directory=str(tmp_path / "weights"))
    (tmp_path / "finetune").mkdir()
    return EngineBroadcaster(learner, cfg), publisher, compared


Parts = tuple[EngineBroadcaster, FakePublisher, list[int | None]]


def test_a_comparison_follows_the_first_two_updates_then_every_so_many(parts: Parts) -> None:
    made, _, compared = parts
    for version in range(9):
        made.publish(version, unheard)
    assert compared == [0, 1, 4, 8]


def test_the_publisher_hears_from_the_launcher_which_engines_are_given_up(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one host as on several."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(broadcast, "Publisher", lambda *arguments, **named: given.update(named))
    EngineBroadcaster(parts[0]._learner, config(tmp_path, directory=str(tmp_path / "weights")))
    assert given["lost"]() == []
    tell_lost(tmp_path, ["http://e"])
    assert given["lost"]() == ["http://e"]


def test_a_comparison_can_be_asked_for_once(parts: Parts, tmp_path: Path) -> None:
    made, _, compared = parts
    made.publish(0, unheard)
    made.publish(1, unheard)
    request = tmp_path / "finetune" / PARITY_REQUEST
    request.touch()
    made.publish(2, unheard)
    made.publish(3, unheard)
    assert compared == [0, 1, 2] and not request.exists()


def test_an_engine_that_joins_is_compared_before_it_is_announced(parts: Parts) -> None:
    made, publisher, compared = parts
    made.publish(0, unheard)
    made.publish(1, unheard)
    publisher.joined = ["http://e"]
    for version in (2, 3):
        made.publish(version, unheard)
    assert compared == [0, 1, 2, 3]


def beside(parts: Parts) -> tuple[EngineBroadcaster, FakePublisher, list[int | None], list[int]]:
    """Behind the first two updates, which are compared, with an update to version 2 in a thread."""
    made, publisher, compared = parts
    announced: list[int] = []
    publisher.copies = True
    for version in (0, 1, 2):
        made.publish(version, announced.append)
    return made, publisher, compared, announced


def test_an_update_goes_on_beside_the_trainer_and_the_next_one_waits_for_it(parts: Parts) -> None:
    made, publisher, compared, announced = beside(parts)
    assert made.refresh() is False and (publisher.version, announced) == (1, [0, 1])
    publisher.may_end.set()
    until(lambda: announced == [0, 1, 2], "the announcement, without the trainer's doing")
    publisher.may_end.clear()
    found = made.publish(3, announced.append)
    assert found["weights/bytes"] == 10.0 and found["weights/held_s"] >= 0, "those of version 2"
    waiting = threading.Thread(target=made.publish, args=(4, announced.append))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive() and publisher.version == 2
    publisher.may_end.set()
    waiting.join(100)
    assert made.end() is False
    assert announced == [0, 1, 2, 3, 4] and compared == [0, 1, 4], "what is compared is not sent beside"


@pytest.mark.parametrize("next_step", ["refresh", "end", "publish"])
def test_an_update_that_fails_beside_the_trainer_is_done_again_by_it(parts: Parts, next_step: str) -> None:
    made, publisher, compared, announced = beside(parts)
    publisher.error = WeightUpdateError([Failure("http://e", "update", "no answer within 1 s")])
    publisher.may_end.set()
    until(lambda: not [one for one in threading.enumerate() if "publish_held" in one.name], "its end")
    assert announced == [0, 1]
    if next_step == "publish":
        made.publish(3, announced.append)
        assert announced == [0, 1, 3] and compared == [0, 1, 3], "weights of version 2 are gone"
    else:
        assert getattr(made, next_step)() is True, "the loop announces it"
        assert publisher.version == 2 and compared == [0, 1, 2]
    assert made.end() is False


def test_an_engine_that_joins_an_update_beside_the_trainer_is_compared_before_it_is_announced(
    parts: Parts,
) -> None:
    made, publisher, compared, announced = beside(parts)
    publisher.joined = ["http://e"]
    publisher.may_end.set()
    assert made.end() is True and compared == [0, 1, 2] and announced == [0, 1]


def test_what_no_replacement_mends_ends_the_run_from_beside_the_trainer(parts: Parts) -> None:
    made, publisher, _, announced = beside(parts)
    publisher.error = WeightUpdateError([Failure("the trainer", "stage", PermanentUpdateError("disk full"))])
    publisher.may_end.set()
    with pytest.raises(WeightUpdateError, match="disk full"):
        made.publish(3, announced.append)
    assert announced == [0, 1]


def test_a_trainer_that_takes_turns_with_its_engines_waits_for_them(parts: Parts) -> None:
    made, publisher, _ = parts
    made._cfg = made._cfg.model_copy(update={"max_lag": 0})
    publisher.copies, announced = True, list[int]()
    for version in range(4):
        made.publish(version, announced.append)
        assert announced[-1] == version


def test_only_engines_that_were_started_again_make_a_refresh(parts: Parts) -> None:
    made, publisher, compared = parts
    assert made.refresh() is False, "nothing was published yet"
    made.publish(3, unheard)
    assert made.refresh() is False
    publisher.stale = ["http://e"]
    assert made.refresh() is True
    assert publisher.version == 3 and compared == [3, 3]


@pytest.mark.parametrize(
    ("given", "rounding", "allowed"), [(None, 0.02, 0.06), (None, 1e-4, 0.01), (0.5, 0.02, 0.5)]
)
def test_in_bfloat16_the_limit_is_what_rounding_explains_unless_it_is_set(
    parts: Parts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: float | None,
    rounding: float,
    allowed: float,
) -> None:
    made, _, _ = parts
    limits: list[ParityLimits] = []

    def check_parity(*arguments: Any) -> list[ParityResult]:
        limits.append(arguments[-1])
        return [ParityResult("http://e", 0.0, 0.0)]

    monkeypatch.setattr(broadcast, "check_parity", check_parity)
    monkeypatch.setattr(broadcast, "check_loaded", lambda publisher: None)
    exact = config(tmp_path, parity_mean_abs=given)
    made._cfg = exact.model_copy(
        update={"finetune": exact.finetune.model_copy(update={"load_as_bf16": True})}
    )
    made._learner.probe_rounding = lambda: rounding  # type: ignore[method-assign]
    assert made.publish(0, unheard)["weights/parity_limit"] == pytest.approx(allowed)
    assert limits == [ParityLimits(None, pytest.approx(allowed))]


def test_an_update_reports_what_it_cost(parts: Parts) -> None:
    made, _, _ = parts
    found = made.publish(0, unheard)
    assert found["weights/max_paused_s"] == 0.03 and found["weights/lost_tokens"] == 7.0
    assert found["weights/pause_s"] == 0.01 and found["weights/bytes"] == 10.0
    assert found["weights/parity_max_abs"] == 2e-5 and found["weights/parity_mean_abs"] == 1e-6
    assert found["weights/parity_limit"] == 1e-4


async def test_an_engine_that_is_sent_nothing_has_the_weights_that_training_begins_with(
    tmp_path: Path,
) -> None:
    """Scored by transformers: it decides which of two models an engine has."""
    folders = [build_model(tmp_path / name, tied=True, seed=seed) for seed, name in enumerate("ab")]
    ids = np.random.default_rng(3).integers(0, 96, (2, 12), dtype=np.int32)

    def learner(folder: Path) -> Any:
        model = reference(folder)

        def score(rows: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                logprobs = model(torch.as_tensor(rows, dtype=torch.int64)).logits.log_softmax(-1)
            wanted = torch.as_tensor(rows[:, 1:], dtype=torch.int64)[..., None]
            return logprobs[:, :-1].gather(-1, wanted)[..., 0].numpy()

        return SimpleNamespace(probe_ids=lambda: ids, score_rows=score)

    async with running_engine(folders[0], max_model_len=64) as engine:
        job = Job(kind="actor_llm", idx=0, name="actor_vllm_0", url=engine.url)
        base = config(tmp_path)
        given = {"jobs": (job,), "model_path": "theirs"}
        imitating = base.finetune.rl.model_copy(update={"policy_loss": "sft"})
        for debug, finetune, kind in (
            ({"use_existing_llms": True}, {"send_weight_updates": False}, UnchangedEngines),
            ({"use_existing_llms": True, "mode": "open_loop"}, {}, UnchangedEngines),
            ({}, {"send_weight_updates": False}, Broadcaster),
            ({"use_existing_llms": True}, {"send_weight_updates": False, "rl": imitating}, Broadcaster),
        ):
            sections = {
                "debug": base.debug.model_copy(update=debug),
                "finetune": base.finetune.model_copy(update=finetune),
            }
            cfg = base.model_copy(update=given | sections)
            same, other = (broadcaster_of(learner(folder), cfg) for folder in folders)
            assert type(same) is type(other) is kind
            assert await asyncio.to_thread(same.publish, 0, unheard) == {}
            if kind is UnchangedEngines:
                with pytest.raises(ConfigError, match=f"engine {engine.url} has other weights than "):
                    await asyncio.to_thread(other.publish, 0, unheard)
            found = await asyncio.to_thread(other.publish, 64, unheard)
            assert found == {}, "training has moved the trainer's"


def test_the_transport_is_the_configured_one(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    files = config(tmp_path, directory=str(tmp_path / "w"))
    made = transport_kind(files).sender(files, 10, torch.float32, cpu)
    assert isinstance(made, FileTransport) and made.directory.parent == tmp_path / "w"
    nccl = config(tmp_path, transport="nccl")
    sender = transport_kind(nccl).sender
    assert isinstance(sender(nccl, 10, torch.bfloat16, torch.device("cuda", 0)), NcclTransport)
    with pytest.raises(ValueError, match="the trainer runs on cpu, which has no NCCL; use file"):
        sender(nccl, 10, torch.bfloat16, cpu)
