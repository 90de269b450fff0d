"""Versions that are received while the engines generate: the order of the steps, and every way of failing."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelinerl.base.threads import in_thread
from pipelinerl.engines.wire import PermanentUpdateError, read_mark
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports.base import Member, TransportError
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.version_update import WeightUpdateError
from tests.support.fake_vllm import FakeVllm, Meeting, serving
from tests.support.processes import until
from tests.unit.weights.test_vllm_updates import (
    DEADLINES,
    VERSIONS,
    Setup,
    assert_serves,
    tensors,
    two_engines,
)

STEPS = ["/start_weight_update", "/update_weights", "/sleep", "/finish_weight_update", "/wake_up"]
FIRST = [*STEPS[:2], "/pause", STEPS[3], "/resume"]


@pytest.fixture(params=VERSIONS)
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    with two_engines(request.param, ahead=True) as made:
        yield made


def test_engines_are_paused_only_when_everything_has_arrived(setup: Setup) -> None:
    for version in (1, 2):
        report = setup.publish(version)
        setup.assert_serve(version)
        for engine in setup.engines:
            assert engine.label == (str(version) if engine.labels else "default")
        assert {"send", "start", "update", "pause", "finish", "resume"} <= report.seconds.keys()
        assert set(report.paused_s) == set(setup.urls)
    assert setup.engines[0].calls == ["/init_weight_transfer_engine", *FIRST, *STEPS]


def test_a_slow_broadcast_pauses_nobody(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    group, paused = setup.meeting.groups[0], list[bool]()
    send = group.broadcast

    def slow(*arguments: Any, **named: Any) -> None:
        time.sleep(0.02)
        paused.extend(engine.paused for engine in setup.engines)
        send(*arguments, **named)

    monkeypatch.setattr(group, "broadcast", slow)
    setup.publish(1)
    assert paused and not any(paused)
    setup.assert_serve(1)


@pytest.mark.parametrize("step", ["/start_weight_update", "/update_weights"])
def test_a_failure_while_receiving_stops_every_engine_with_its_old_weights(setup: Setup, step: str) -> None:
    setup.publish(1)
    first, second = setup.engines
    first.faults[step] = [500]
    setup.meeting.groups[0].hang = step == "/update_weights"  # the broadcast needs everybody
    error = setup.fails(2, f"fault at {step}")
    assert error.engine == setup.urls[0] and error.broken == sorted(setup.urls)
    for engine in (first, second):
        assert engine.paused, "it cannot be started again, so it must not serve"
        assert torch.equal(engine.weights["w"], torch.full((2,), -1.0, dtype=torch.bfloat16))
    assert not [one for one in threading.enumerate() if "send" in one.name], "the sender is free"
    for engine in setup.engines:
        engine.restart()
    setup.publish(3)
    setup.assert_serve(3)


@pytest.mark.parametrize("step", ["/sleep", "/finish_weight_update"])
def test_a_failure_while_putting_into_place_costs_that_engine_alone(setup: Setup, step: str) -> None:
    first, second = setup.engines
    setup.publish(1)
    first.faults[step] = [500] * 9
    error = setup.fails(2, f"fault at {step}")
    assert error.broken == [setup.urls[0]] and setup.publisher.version == 1
    assert "/wake_up" not in first.calls
    assert_serves(second, 2)


def test_nobody_waits_until_an_engine_that_hangs_has_stopped(setup: Setup) -> None:
    """It does not answer its update, and would not answer the pause either; the others are stopped."""
    first, second = setup.engines
    setup.hang_in_update(first)
    first.hangs.add("/pause")
    setup.fails(1, r"update of .*no answer within 1 s")
    assert not first.paused and second.paused
    first.released.set()
    until(lambda: first.paused, "its pause: when it goes on it stops, for its weights are old")


class Reader(FakeVllm):
    """An engine that reads files ahead: it only says so, at once."""

    reader = ""
    said = ""

    def init(self, query: str, body: Any) -> Any:
        self.reader = body["init_info"]["reader"]
        return {}

    def update(self, query: str, body: Any) -> Any:
        mark = read_mark(Path(body["update_info"]["path"]), self.reader, 0)
        mark.write_text(self.said)
        self._received = in_thread(dict[str, torch.Tensor])
        return {}


def test_an_engine_that_cannot_read_a_file_does_not_cost_the_others(tmp_path: Path) -> None:
    first, second = Reader("0.32.0", Meeting(), ahead=True), Reader("0.32.0", Meeting(), ahead=True)
    with serving(first) as one, serving(second) as two:
        publisher = Publisher([one, two], FileTransport(tmp_path, ahead=True), deadlines=DEADLINES)
        publisher.wait_ready(100)
        publisher.publish(1, tensors(1))
        first.said = "ValueError: it is damaged"
        with pytest.raises(WeightUpdateError, match=r"update of .*it is damaged") as error:
            publisher.publish(2, tensors(2))
        assert error.value.broken == [one] and first.paused and first.label == "1"
        assert second.label == "2" and not second.paused
        assert not error.value.permanent and error.value.failures[0].refused
        second.said = f"PermanentUpdateError: {PermanentUpdateError('no page-locked memory')}"
        with pytest.raises(WeightUpdateError, match=f"update of {two}: no page-locked memory$") as error:
            publisher.publish(3, tensors(3))
        assert error.value.permanent
        publisher.close()


def test_what_is_held_is_sent_though_the_trainer_goes_on(tmp_path: Path) -> None:
    engine = Reader("0.32.0", Meeting(), ahead=True)
    with serving(engine) as url:
        publisher = Publisher([url], FileTransport(tmp_path, torch.bfloat16, ahead=True), deadlines=DEADLINES)
        assert publisher.copies
        publisher.wait_ready(100)
        for version in (1, 2):
            trained = {"w": torch.full((2, 3), float(version)), "v": torch.arange(4.0) * version}
            held = publisher.hold(trained.items())
            for tensor in trained.values():
                tensor.fill_(-7.0)  # the next step
            publisher.publish_held(version, held)
            sent = publisher.sent_tensors()
            assert sent is not None and engine.label == str(version)
            assert sent["w"].tolist() == [[version] * 3] * 2
            assert sent["v"].tolist() == [0, version, 2 * version, 3 * version]
        publisher.close()
    assert not FileTransport(tmp_path).copies, "engines would be paused for it amid the trainer's step"


def test_a_file_has_arrived_when_every_rank_has_said_so(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path, ahead=True)
    [first, second] = transport.init_info(
        [Member("http://h:1", 1, "0.32.0"), Member("http://h:2", 2, "0.32.0")]
    )
    assert first["reader"] != second["reader"]
    staged = transport.stage(1, tensors(1))
    path = Path(staged.info["path"])
    read_mark(path, first["reader"], 0).touch()
    read_mark(path, second["reader"], 0).touch()
    assert transport.arrived(staged, "http://h:1") and not transport.arrived(staged, "http://h:2")
    read_mark(path, second["reader"], 1).touch()
    assert transport.arrived(staged, "http://h:2")
    again = transport.stage(1, tensors(1))
    assert not transport.arrived(again, "http://h:1"), "what was read was another file"
    read_mark(path, first["reader"], 0).write_text("ValueError: it is damaged")
    with pytest.raises(TransportError, match="it is damaged"):
        transport.arrived(again, "http://h:1")


@pytest.mark.parametrize("ahead", [True, False])
def test_vllm_is_told_at_the_rendezvous_that_adapters_will_come(tmp_path: Path, ahead: bool) -> None:
    engines = [Member("http://h:1", 1, "0.32.0")] + [Member("http://h:2", 1, None)] * (not ahead)
    [vllm, *embedded] = FileTransport(tmp_path, ahead=ahead, adapter_scale=1.5).init_info(engines)
    assert vllm["adapters"] is True and embedded == [{}] * (not ahead)
    assert "adapters" not in FileTransport(tmp_path, ahead=ahead).init_info(engines)[0]


def test_marks_go_with_their_version(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path, ahead=True)
    [info] = transport.init_info([Member("http://h:1", 1, "0.32.0")])
    for version in (1, 2, 3):
        staged = transport.stage(version, tensors(version))
        read_mark(Path(staged.info["path"]), info["reader"], 0).touch()
    assert len(list(tmp_path.iterdir())) == 4, "two versions, each read by one"
    transport.close()
    assert not list(tmp_path.iterdir())


def test_an_engine_that_is_no_vllm_is_named(tmp_path: Path) -> None:
    with pytest.raises(PermanentUpdateError, match=r"http://h:1 is no vLLM; weights\.ahead needs vLLM"):
        FileTransport(tmp_path, ahead=True).init_info([Member("http://h:1", 1, None)])
