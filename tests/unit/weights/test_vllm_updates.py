"""Publisher, NCCL transport and client against servers with the rules of vLLM 0.26 to 0.33."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch

from pipelinerl.engines.client import EngineClient, EngineRequestError, SamplingParams
from pipelinerl.engines.wire import PermanentUpdateError
from pipelinerl.weights.engine_update import PublishDeadlines
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports import nccl as nccl_transport
from pipelinerl.weights.transports.base import TransportError
from pipelinerl.weights.transports.nccl import NcclTransport
from pipelinerl.weights.version_update import SenderStuck, WeightUpdateError
from tests.support.fake_vllm import FakeVllm, Meeting, serving
from tests.support.processes import until

# Each has rules that the one before has not.
VERSIONS = ("0.26.0", "0.27.1", "0.28.0", "0.32.0")
DEADLINES = PublishDeadlines(
    health_s=60, init_s=60, pause_s=60, start_s=60, update_s=60, finish_s=60, resume_s=60, abort_s=60
)
UPDATE = ["/sleep", "/start_weight_update", "/update_weights", "/finish_weight_update", "/wake_up"]
FIRST = ["/pause", *UPDATE[1:4], "/resume"]
IN_BETWEEN = UPDATE[1:4]


@dataclass
class Setup:
    engines: list[FakeVllm]
    urls: list[str]
    meeting: Meeting
    transport: NcclTransport
    publisher: Publisher

    def break_sender(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its next broadcast fails as NCCL does."""

        def fail(*_: object, **__: object) -> None:
            raise TransportError("ncclUnhandledCudaError")

        monkeypatch.setattr(self.meeting.groups[0], "broadcast", fail)

    def hang_in_update(self, engine: FakeVllm) -> None:
        """It does not answer, and the broadcast, which needs everybody, does not end."""
        self.publisher._deadlines = replace(DEADLINES, update_s=1.0)
        engine.hangs.add("/update_weights")
        self.meeting.groups[0].hang = True

    def publish(self, version: int) -> Any:
        return self.publisher.publish(version, tensors(version))

    def assert_serve(self, version: int) -> None:
        for engine in self.engines:
            assert_serves(engine, version)

    def fails(self, version: int, match: str) -> WeightUpdateError:
        """What an update that fails says."""
        with pytest.raises(WeightUpdateError, match=match) as error:
            self.publish(version)
        return error.value


def tensors(version: int) -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(version)
    return [("w", torch.full((2,), -float(version))), ("a", torch.randn(5, 3)), ("b", torch.randn(7))]


@contextmanager
def two_engines(version: str, ahead: bool = False) -> Iterator[Setup]:
    """They and a publisher that has agreed on its transport with them."""
    meeting = Meeting()
    engines = [FakeVllm(version, meeting, ahead=ahead) for _ in range(2)]
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(one)) for one in engines]
        transport = NcclTransport(
            torch.device("cpu"),
            torch.bfloat16,
            buffer_bytes=20,
            connect=meeting.connect,
            first_port=19600,
            ahead=ahead,
        )
        publisher = Publisher(urls, transport, deadlines=DEADLINES)
        publisher.wait_ready(100)
        yield Setup(engines, urls, meeting, transport, publisher)
        publisher.close()


@pytest.fixture(params=VERSIONS)
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    with two_engines(request.param) as made:
        yield made


@pytest.fixture(params=[(version, ahead) for version in VERSIONS for ahead in (False, True)])
def either(request: pytest.FixtureRequest) -> Iterator[Setup]:
    """Received in the pause, or ahead of it."""
    with two_engines(*request.param) as made:
        yield made


def assert_serves(engine: FakeVllm, version: int) -> None:
    assert not engine.paused and not engine.updating
    for name, tensor in tensors(version):
        assert torch.equal(engine.weights[name], tensor.to(torch.bfloat16)), name


def test_a_version_reaches_every_engine_packed(setup: Setup) -> None:
    for version in (1, 2):
        report = setup.publish(version)
        setup.assert_serve(version)
        for engine in setup.engines:
            assert engine.label == (str(version) if engine.labels else "default")
        assert report.excluded == {} and report.bytes == 2 * (2 + 15 + 7)
        assert {"send", "pause", "start", "update", "finish", "resume"} <= report.seconds.keys()
    assert setup.engines[0].calls == ["/init_weight_transfer_engine", *FIRST, *UPDATE]
    assert len(setup.meeting.groups) == 1


def test_a_cache_that_is_computed_anew_is_cleared_by_a_pause(either: Setup) -> None:
    publisher = Publisher(either.urls, either.transport, "recompute", DEADLINES)
    publisher.wait_ready(100)
    publisher.publish(1, tensors(1))
    received = IN_BETWEEN[:2]
    begun = [*received, "/pause"] if either.transport.ahead else ["/pause", *received]
    assert either.engines[0].calls[-5:] == [*begun, "/finish_weight_update", "/resume"]
    assert_serves(either.engines[0], 1)


@pytest.mark.parametrize("step", IN_BETWEEN)
def test_a_failure_in_between_costs_all_without_a_confirmed_finish(setup: Setup, step: str) -> None:
    first, second = setup.engines
    first.faults[step] = [500]
    setup.meeting.groups[0].hang = step == "/update_weights"  # the broadcast needs everybody
    error = setup.fails(1, f"fault at {step}")
    assert error.engine == setup.urls[0] and setup.urls[0] in error.broken
    assert first.paused and "/wake_up" not in first.calls
    if step == "/finish_weight_update":  # the other one had everything
        assert_serves(second, 1)
        assert error.broken == [setup.urls[0]]
    else:
        assert error.broken == sorted(setup.urls) and second.paused
    assert not [one for one in threading.enumerate() if "send" in one.name], "the sender is free"
    assert setup.publisher.version is None
    for engine in setup.engines:
        engine.restart()
    setup.publish(2)
    setup.assert_serve(2)
    assert len(setup.meeting.groups) == 2 and setup.meeting.groups[0].destroyed.is_set()


def test_an_engine_that_hangs_is_named_and_the_others_do_not_wait_for_it(either: Setup) -> None:
    first, second = either.engines
    either.hang_in_update(first)
    started = time.monotonic()
    error = either.fails(1, r"update of .*no answer within 1 s")
    assert time.monotonic() - started < 50, "not one of the other deadlines"
    assert error.broken == sorted(either.urls)
    assert "/wake_up" not in first.calls + second.calls


def test_a_sender_that_fails_costs_the_engines_that_wait_for_it_at_once(
    either: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    either.break_sender(monkeypatch)
    error = either.fails(1, "send of the trainer: ncclUnhandledCudaError")
    assert error.broken == sorted(either.urls)
    assert all(one.paused and "/finish_weight_update" not in one.calls for one in either.engines)


def test_engines_without_room_are_all_named_and_nobody_waits_for_the_broadcast(either: Setup) -> None:
    for one in either.engines:
        one.refuses["/update_weights"] = str(PermanentUpdateError("no room"))
    either.meeting.groups[0].hang = True
    error = either.fails(1, f"update of {either.urls[0]} and {either.urls[1]}: no room$")
    assert error.permanent
    assert not [one for one in threading.enumerate() if "send" in one.name], "the sender is free"


@pytest.mark.parametrize("place", ["before the first packet", "while engines wait"])
def test_a_trainer_without_room_for_its_packets_is_named_with_its_keys(
    either: Setup, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def no_room(*_: object) -> None:
        if place == "while engines wait":
            until(lambda: all("/update_weights" in one.calls for one in either.engines), "both to wait")
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 MiB.")

    monkeypatch.setattr(nccl_transport, "_Lane", no_room)
    error = either.fails(1, r"send of the trainer: no memory .* weights\.buffers=2 .*weights\.buffer_mb=0")
    assert error.permanent and "lower weights.buffers or weights.buffer_mb" in str(error)


def test_a_sender_that_cannot_be_freed_is_said_so(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    setup.publisher._deadlines = replace(DEADLINES, abort_s=0.5)
    monkeypatch.setattr(setup.transport, "send", lambda staged, deadline_s: release.wait(100))
    setup.engines[0].faults["/update_weights"] = [500]
    with pytest.raises(SenderStuck, match=r"does not end 0\.5 s after its transfer was aborted"):
        setup.publish(1)
    release.set()


def test_an_engine_that_is_gone_is_left_out_of_a_new_group(setup: Setup) -> None:
    setup.publish(1)
    setup.engines[0].dead = True
    report = setup.publish(2)
    assert list(report.excluded) == [setup.urls[0]]
    assert_serves(setup.engines[1], 2)
    assert setup.meeting.groups[-1].rendezvous["world_size"] == 2
    setup.engines[0].restart()
    assert setup.publisher.stale_engines() == [setup.urls[0]]
    report = setup.publish(3)
    assert setup.meeting.groups[-1].rendezvous["world_size"] == 3 and sorted(report.joined) == sorted(
        setup.urls
    )
    setup.assert_serve(3)
    assert setup.publisher.stale_engines() == []


def test_an_engine_restarted_between_two_updates_is_recognised(setup: Setup) -> None:
    setup.publish(1)
    setup.engines[1].restart()
    assert setup.publisher.stale_engines() == [setup.urls[1]]
    setup.publish(2)
    setup.assert_serve(2)


def test_an_engine_that_refuses_the_rendezvous_is_named(setup: Setup) -> None:
    setup.engines[0].restart()
    setup.engines[0].faults["/init_weight_transfer_engine"] = [500]
    error = setup.fails(1, "fault at /init_weight_transfer_engine")
    assert error.step == "init_weight_transfer_engine"
    setup.publish(2)
    assert_serves(setup.engines[0], 2)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_request_that_was_frozen_ends_with_the_new_weights(version: str) -> None:
    meeting = Meeting()
    engine = FakeVllm(version, meeting)
    with serving(engine) as url:
        async with aiohttp.ClientSession() as session:
            client = EngineClient(url, session, announced_version=lambda: 3)
            engine.label = "3" if engine.labels else "default"
            before = await client.generate([1, 2], SamplingParams(max_tokens=2))
            assert before.versions == [(3, 0, 2)] and before.exact_versions == engine.reports_versions
            assert before.token_ids.tolist() == [11, 12]
            engine.paused = True
            resume = threading.Timer(0.1, lambda: (setattr(engine, "label", "4"), engine.resume("", None)))
            resume.start()
            after = await client.generate([1, 2], SamplingParams(max_tokens=2))
            expected = [(3, 0, 1), (4, 1, 2)] if engine.reports_versions else [(3, 0, 2)]
            assert after.versions == expected
            scores = await client.prompt_logprobs(np.array([1, 2, 3]))
            assert scores.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("version", "said"), [("0.32.0", r"HTTP 403: .*--enable-scale-out"), ("0.30.0", "HTTP 404: .*Not Found")]
)
async def test_a_server_without_token_routes_says_so(version: str, said: str) -> None:
    engine = FakeVllm(version, Meeting(), scale_out=False)
    with serving(engine) as url:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(EngineRequestError, match=said):
                await EngineClient(url, session).generate([1], SamplingParams(max_tokens=1))
