"""Weights read before the pause: nothing changes by it, one version at most is kept, and the order stays."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelinerl.engines.client import SamplingParams
from pipelinerl.engines.received import FileUpdateInfo
from pipelinerl.engines.serving import weight_updates
from pipelinerl.engines.serving.backend import WeightsUnfit
from pipelinerl.engines.serving.module_weights import ModuleWeights
from pipelinerl.engines.serving.update_state import OutOfOrder, State, UpdateState
from pipelinerl.engines.serving.weight_updates import WeightUpdates
from pipelinerl.engines.wire import CHECK_ROUTE, PREPARE_ROUTE
from pipelinerl.weights.engine_state import offered
from pipelinerl.weights.transports.file import FileTransport
from tests.support.engine_harness import (
    RunningEngine,
    full_logprobs,
    random_prompt,
    reference,
    running_engine,
)

PAUSE = "/pause?mode=keep&clear_cache=false"
EVENT_DEADLINE_S = 60.0


async def prepare(engine: RunningEngine, info: dict[str, Any], expect: int = 200) -> None:
    await engine.post(PREPARE_ROUTE, {"update_info": info}, expect=expect)


def damaged(transport: FileTransport, model: Any, damage: str) -> dict[str, Any]:
    """What announces version 2 as it was before it was `truncated` or `altered`."""
    info = transport.stage(2, model.named_parameters()).info
    path = Path(info["path"])
    data = bytearray(path.read_bytes())
    if damage == "altered":
        data[-50] ^= 1
    path.write_bytes(data[:-100] if damage == "truncated" else data)
    return info


async def test_the_engine_offers_the_route_and_an_engine_that_says_nothing_does_not(tied_model: Path) -> None:
    async with (
        running_engine(tied_model) as engine,
        engine.session.post(f"{engine.url}/init_weight_transfer_engine", json={"init_info": {}}) as answer,
    ):
        assert offered(await answer.read()) == {CHECK_ROUTE, PREPARE_ROUTE}
    for other in (b"", b"{}", b'{"message": "Weight transfer initialized"}', b"[1]", b"fine", b'"x"'):
        assert not offered(other)


async def test_a_damaged_file_is_refused_and_generation_goes_on(
    tied_model: Path, other_tied_model: Path, tmp_path: Path
) -> None:
    transport, new = FileTransport(tmp_path), reference(other_tied_model)
    prompt = random_prompt(40)
    async with running_engine(tied_model) as engine:
        await engine.post("/init_weight_transfer_engine", {"init_info": {}})
        expected = await engine.client.prompt_logprobs(prompt)
        good = transport.stage(1, new.named_parameters()).info
        for damage in ("truncated", "altered"):
            await prepare(engine, good)
            await prepare(engine, damaged(transport, new, damage), expect=400)
            assert engine.server.engine.weights.prepared_version is None, "nothing is kept of either"
            np.testing.assert_array_equal(await engine.client.prompt_logprobs(prompt), expected)
        assert await engine.get("/weight_info") == {"weight_version": "default", "state": "serving"}
        # A refused head start does not stand in the way of the update itself.
        await engine.update(good)
        scores = await engine.client.prompt_logprobs(prompt)
        np.testing.assert_allclose(scores, full_logprobs(new, prompt), atol=2e-5)


async def test_preparing_out_of_order_is_refused(tied_model: Path, tmp_path: Path) -> None:
    transport, model = FileTransport(tmp_path), reference(tied_model)
    infos = {version: transport.stage(version, model.named_parameters()).info for version in (3, 4)}
    async with running_engine(tied_model) as engine:
        await prepare(engine, infos[3], expect=409)  # no transport yet
        await engine.post("/init_weight_transfer_engine", {"init_info": {}})
        await engine.post(PREPARE_ROUTE, {"update_info": infos[3], "more": 1}, expect=400)
        await engine.post(PAUSE)
        await prepare(engine, infos[4])  # a pause is no obstacle
        await engine.post("/start_weight_update")
        await prepare(engine, infos[4], expect=409)
        await engine.post("/update_weights", {"update_info": infos[4]})
        await prepare(engine, infos[4], expect=409)
        await engine.post("/finish_weight_update", {"weight_version": "4"})
        await prepare(engine, infos[3], expect=409)  # versions only grow
        await engine.post("/resume")
        one = await engine.client.generate(random_prompt(5), SamplingParams(max_tokens=3, ignore_eos=True))
        assert one.versions == [(4, 0, 3)]
        await engine.post(PAUSE)
        await engine.post("/start_weight_update")
        await engine.post("/update_weights", {"update_info": infos[4] | {"bytes": 1}}, expect=400)
        await prepare(engine, infos[4], expect=409)  # not after a refused update


async def test_an_update_with_another_version_reads_its_own_file(
    tied_model: Path, other_tied_model: Path, tmp_path: Path
) -> None:
    transport, prompt = FileTransport(tmp_path), random_prompt(30)
    old, new = reference(tied_model), reference(other_tied_model)
    async with running_engine(tied_model) as engine:
        weights = engine.server.engine.weights
        await engine.post("/init_weight_transfer_engine", {"init_info": {}})
        await prepare(engine, transport.stage(1, old.named_parameters()).info)
        assert weights.prepared_version == "1"
        await prepare(engine, transport.stage(2, old.named_parameters()).info)
        assert weights.prepared_version == "2"
        info = transport.stage(3, new.named_parameters()).info
        await engine.update(info)
        assert weights.prepared_version is None
        scores = await engine.client.prompt_logprobs(prompt)
        np.testing.assert_allclose(scores, full_logprobs(new, prompt), atol=2e-5)
        for forgets in ("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine"):
            await prepare(engine, info)
            await engine.post(forgets, {"init_info": {}} if "init" in forgets else None)
            assert weights.prepared_version is None


class Updates:
    """`WeightUpdates` of a small module without an engine; reads wait until they are released."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = torch.nn.Linear(2, 2, bias=False)
        monkeypatch.setattr(self.module, "tie_weights", lambda: None, raising=False)
        self.state = UpdateState()
        self.state.init()
        weights = ModuleWeights(self.module)
        self.updates = WeightUpdates(weights, self.state, lambda work: work(), lambda: None)
        self.transport = FileTransport(folder)
        self.reading, self.go_on = threading.Event(), threading.Event()
        read = self.updates.loader.read

        def slow(info: FileUpdateInfo) -> Any:
            self.reading.set()
            assert self.go_on.wait(EVENT_DEADLINE_S)
            return read(info)

        monkeypatch.setattr(self.updates.loader, "read", slow)

    def info(self, version: int, value: float) -> FileUpdateInfo:
        return FileUpdateInfo(**self.transport.stage(version, [("weight", torch.full((2, 2), value))]).info)


async def in_thread(work: Callable[[FileUpdateInfo], None], info: FileUpdateInfo) -> None:
    await asyncio.wait_for(asyncio.to_thread(work, info), EVENT_DEADLINE_S)


async def test_an_update_that_overtakes_a_slow_read_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Updates(tmp_path, monkeypatch)
    late = asyncio.ensure_future(in_thread(case.updates.prepare, case.info(1, 1.0)))
    assert await asyncio.to_thread(case.reading.wait, EVENT_DEADLINE_S)
    case.state.pause()
    case.state.start()
    case.state.loading("2")
    case.go_on.set()
    with pytest.raises(OutOfOrder, match="prepare_weights while loading"):
        await late
    assert case.updates.prepared_version is None
    case.state.state = State.UPDATING
    await in_thread(case.updates.update, case.info(2, 2.0))
    assert case.state.state is State.LOADED
    assert torch.equal(case.module.weight, torch.full((2, 2), 2.0))


async def test_whatever_hinders_an_update_s_read_leaves_an_engine_that_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Updates(tmp_path, monkeypatch)
    before = case.module.weight.detach().clone()
    monkeypatch.setattr(weight_updates, "READ_DEADLINE_S", 0.01)

    def read(_: object) -> None:
        raise next(errors)

    torchs = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried ..."
    errors = iter([KeyError("w"), RuntimeError("something else"), MemoryError(), RuntimeError(torchs)])
    monkeypatch.setattr(case.updates.loader, "read", read)
    no_memory = "the host has no memory for a second copy .* lower engine.count"
    for kind, said in (
        (KeyError, "w"),
        (RuntimeError, "something else"),
        (WeightsUnfit, no_memory),
        (WeightsUnfit, no_memory),
    ):
        case.state.pause()
        case.state.start()
        with pytest.raises(kind, match=said):
            case.updates.update(case.info(1, 1.0))
        assert case.state.state is State.REFUSED and torch.equal(case.module.weight, before)
        case.state.resume()
    case.state.pause()
    case.state.start()
    with case.updates._reading, pytest.raises(TimeoutError, match="another read of weights did not end"):
        case.updates.update(case.info(1, 1.0))
    assert case.state.state is State.REFUSED
