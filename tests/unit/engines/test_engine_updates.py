"""The order of an update, labels, checksums, damaged files; what every engine does is in tests/contract."""

import asyncio
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save, save_file

from pipelinerl.engines.client import SamplingParams
from pipelinerl.engines.cpu.settings import EngineSettings
from pipelinerl.engines.received import RECEIVED, Announced, UpdateFields
from pipelinerl.engines.wire import permanent_words
from pipelinerl.weights.parity import check_loaded
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports.base import StagedUpdate, Transport
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.version_update import WeightUpdateError
from tests.support.engine_harness import build_llama, full_logprobs, random_prompt, reference, running_engine
from tests.support.version_sums import checksum


async def test_calls_out_of_order_are_refused_and_generation_goes_on(
    tied_model: Path, tmp_path: Path
) -> None:
    transport = FileTransport(tmp_path)
    model = reference(tied_model)
    async with running_engine(tied_model) as engine:
        await engine.post("/pause?mode=keep&clear_cache=false")
        await engine.post("/start_weight_update", expect=409)  # no transport yet
        await engine.post("/init_weight_transfer_engine", {"init_info": {}})
        await engine.post("/resume")
        await engine.post("/start_weight_update", expect=409)  # not paused
        info = {"update_info": transport.stage(3, model.named_parameters()).info}
        await engine.post("/update_weights", info, expect=409)
        await engine.post("/pause?mode=keep&clear_cache=false")
        await engine.post("/pause?mode=keep&clear_cache=false")  # idempotent
        await engine.post("/start_weight_update")
        await engine.post("/start_weight_update", expect=409)
        await engine.post("/resume", expect=409)
        await engine.post("/finish_weight_update", {"weight_version": "3"}, expect=409)  # nothing loaded
        await engine.post("/update_weights", info)
        await engine.post("/update_weights", info, expect=409)
        await engine.post("/finish_weight_update", {"weight_version": "4"}, expect=409)
        await engine.post("/finish_weight_update", {"weight_version": "3"})
        assert (await engine.get("/is_paused"))["is_paused"]
        await engine.post("/resume")
        await engine.post("/resume")
        one = await engine.client.generate(random_prompt(5), SamplingParams(max_tokens=3, ignore_eos=True))
        assert one.versions == [(3, 0, 3)]
        # Versions only grow.
        older = {"update_info": transport.stage(2, model.named_parameters()).info}
        await engine.post("/pause?mode=keep&clear_cache=false")
        await engine.post("/start_weight_update")
        await engine.post("/update_weights", older, expect=409)


async def test_label_checksums_and_the_end_of_the_transport(
    tied_model: Path, other_tied_model: Path, tmp_path: Path
) -> None:
    transport = FileTransport(tmp_path)
    new = reference(other_tied_model)
    async with running_engine(tied_model) as engine, running_engine(other_tied_model) as other:
        assert await engine.get("/weight_info") == {"weight_version": "default", "state": "serving"}
        expected = (await other.post("/weight_checker"))["checksums"]
        before = (await engine.post("/weight_checker"))["checksums"]
        assert before.keys() == expected.keys() and before != expected
        await engine.post("/init_weight_transfer_engine", {"init_info": {}})
        info = transport.stage(4, new.named_parameters()).info
        await engine.post("/prepare_weights", {"update_info": info})
        await asyncio.to_thread(Path(info["path"]).unlink)  # what was prepared is all that is needed
        await engine.update(info)
        assert await engine.post("/weight_checker") == {"weight_version": "4", "checksums": expected}
        await engine.post("/update_weight_version", {"weight_version": "3"}, expect=409)
        await engine.post("/update_weight_version", {"weight_version": "6"})
        one = await engine.client.generate(random_prompt(5), SamplingParams(max_tokens=3, ignore_eos=True))
        assert one.versions == [(6, 0, 3)]
        await engine.post("/pause?mode=keep&clear_cache=false")
        await engine.post("/start_weight_update")
        for path, body in (
            ("/update_weight_version", {"weight_version": "7"}),
            ("/shutdown_weight_transfer_engine", None),
            ("/init_weight_transfer_engine", {"init_info": {}}),
        ):
            await engine.post(path, body, expect=409)
        info = transport.stage(7, new.named_parameters()).info
        await engine.post("/update_weights", {"update_info": info})
        await engine.post("/finish_weight_update", {"weight_version": "7"})
        await engine.post("/shutdown_weight_transfer_engine")
        await engine.post("/start_weight_update", expect=409)  # no transport any more
        await engine.post("/resume")
        assert await engine.get("/weight_info") == {"weight_version": "7", "state": "serving"}


@pytest.mark.parametrize("tied", [True, False])
async def test_an_update_reaches_the_fused_weights_of_a_llama(tmp_path: Path, tied: bool) -> None:
    old = build_llama(tmp_path / "old", tie_word_embeddings=tied)
    new = reference(build_llama(tmp_path / "new", tie_word_embeddings=tied, seed=1))
    prompt = random_prompt(40)
    async with running_engine(old) as engine:
        assert engine.backend.model.forward_name == "FusedForward"
        before = await engine.client.prompt_logprobs(prompt)
        np.testing.assert_allclose(before, full_logprobs(reference(old), prompt), atol=2e-5)
        await engine.post("/init_weight_transfer_engine", {"init_info": {}})
        await engine.update(FileTransport(tmp_path).stage(1, new.named_parameters()).info)
        after = await engine.client.prompt_logprobs(prompt)
    np.testing.assert_allclose(after, full_logprobs(new, prompt), atol=2e-5)
    assert np.abs(after - before).max() > 1.0  # every tensor is another


class Mailed(Announced):
    """A version that lies in no file: an address at which the trainer hands it out."""

    port: int

    def tensors(self) -> dict[str, torch.Tensor]:
        with socket.create_connection(("127.0.0.1", self.port), 100.0) as mail, mail.makefile("rb") as bytes_:
            content = bytes_.read()
        if not content:
            raise ValueError("the mail is empty")
        return load(content)


class Mail(Transport):
    """`Transport` of Mailed: what is staged is sent once to each engine that connects."""

    ahead = False

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.content = b""
        threading.Thread(target=self._hand_out, daemon=True).start()

    def _hand_out(self) -> None:
        with suppress(OSError):  # closed
            while True:
                with self.server.accept()[0] as engine:
                    engine.sendall(self.content)

    def init_info(self, members: Any) -> list[dict[str, Any]]:
        return [{} for _ in members]

    def stage(self, version: int, named: Any) -> StagedUpdate:
        tensors = {name: one.detach().clone() for name, one in named}
        self.content = save(tensors)
        layout = {name: (tuple(one.shape), str(one.dtype)) for name, one in tensors.items()}
        return StagedUpdate(
            {"version": str(version), "port": self.server.getsockname()[1]}, len(self.content), layout
        )

    def arrived(self, staged: StagedUpdate, url: str) -> bool:
        return True

    def sent_tensors(self, staged: StagedUpdate) -> dict[str, torch.Tensor]:
        return load(self.content)

    def close(self) -> None:
        self.server.close()


async def test_weights_of_another_transport_come_in_by_its_announcement(
    tied_model: Path, other_tied_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's side of a transport is one type and its line; the rest of an update is the same."""
    monkeypatch.setitem(RECEIVED, "mail", UpdateFields[Mailed])
    mail, new = Mail(), reference(other_tied_model)
    async with running_engine(tied_model, weight_transport="mail") as engine:
        publisher = Publisher([engine.url], mail)
        await asyncio.to_thread(publisher.wait_ready, 100)
        await asyncio.to_thread(publisher.publish, 5, list(new.named_parameters()))
        prompt = random_prompt(20)
        after = await engine.client.prompt_logprobs(prompt)
        np.testing.assert_allclose(after, full_logprobs(new, prompt), atol=2e-5)
        assert (await engine.get("/weight_info"))["weight_version"] == "5"
        await asyncio.to_thread(check_loaded, publisher)
        mail.content = save({name: one.detach() + 1 for name, one in new.named_parameters()})
        with pytest.raises(WeightUpdateError, match="parameters are not what was sent"):
            await asyncio.to_thread(check_loaded, publisher)
        mail.content = b""
        info = {"version": "6", "port": mail.server.getsockname()[1]}
        refused = await engine.post("/prepare_weights", {"update_info": info}, expect=400)
        assert refused["error"]["message"] == "the mail is empty"
        a_file = {"update_info": {**info, "path": "/x", "bytes": 1, "checksum": ""}}
        await engine.post("/prepare_weights", a_file, expect=400)
        publisher.close()


def test_an_engine_of_an_unknown_transport_does_not_start(tied_model: Path) -> None:
    (problem,) = EngineSettings(model=tied_model, weight_transport="pigeon").problems()
    assert problem == "--weight-transport pigeon is not received; use one of file"


async def test_a_damaged_file_is_refused_before_any_tensor_changes(
    tied_model: Path, other_tied_model: Path, untied_model: Path, tmp_path: Path
) -> None:
    transport = FileTransport(tmp_path)
    good = reference(other_tied_model)
    prompt = random_prompt(40)

    def staged(change: str) -> dict[str, Any]:
        tensors = dict(good.named_parameters())
        if change == "names":
            tensors = dict(reference(untied_model).named_parameters())
        elif change == "shape":
            tensors["model.norm.weight"] = torch.ones(3)
        elif change == "dtype":
            path = Path(transport.stage(1, tensors.items()).info["path"])
            save_file({name: one.detach().half() for name, one in tensors.items()}, path)
            size, found = path.stat().st_size, checksum(path.read_bytes())
            return {"path": str(path), "version": "1", "bytes": size, "checksum": found}
        info = transport.stage(1, tensors.items()).info
        path = Path(info["path"])
        data = bytearray(path.read_bytes())
        if change == "truncated":
            data = data[:-100]
        elif change == "altered":
            data[-50] ^= 1
        elif change == "not safetensors":
            data = bytearray(b"x" * len(data))
            info["checksum"] = checksum(bytes(data))
        elif change == "missing":
            path.unlink()
            return info
        path.write_bytes(data)
        return info

    unfit = ("names", "shape", "dtype")
    async with running_engine(tied_model) as engine:
        await engine.post("/init_weight_transfer_engine", {"init_info": {}})
        await engine.update(transport.stage(0, reference(tied_model).named_parameters()).info)
        expected = await engine.client.prompt_logprobs(prompt)
        for change in ("truncated", "altered", "not safetensors", "missing", *unfit):
            await engine.post("/pause?mode=keep&clear_cache=false")
            await engine.post("/start_weight_update")
            said = await engine.post("/update_weights", {"update_info": staged(change)}, expect=400)
            words = permanent_words(said["error"]["message"])
            assert (words is not None) == (change in unfit), said
            assert words is None or "given one model (model_path)" in words
            await engine.post("/start_weight_update", expect=409)  # not after a failure
            await engine.post("/finish_weight_update", {"weight_version": "1"}, expect=409)
            await engine.post("/resume")
            np.testing.assert_array_equal(await engine.client.prompt_logprobs(prompt), expected)
        assert await engine.client.weight_version() == 0
        await engine.update(transport.stage(1, good.named_parameters()).info)
        np.testing.assert_allclose(
            await engine.client.prompt_logprobs(prompt), full_logprobs(good, prompt), atol=2e-5
        )


async def test_parameters_that_were_not_sent_are_named(
    tied_model: Path, other_tied_model: Path, tmp_path: Path
) -> None:
    new = reference(other_tied_model)
    async with running_engine(tied_model) as engine:
        publisher = Publisher([engine.url], FileTransport(tmp_path))
        await asyncio.to_thread(publisher.wait_ready, 100)
        await asyncio.to_thread(publisher.publish, 1, new.named_parameters())
        await asyncio.to_thread(check_loaded, publisher)
        name, parameter = list(engine.backend.weights._module.named_parameters())[3]
        with torch.no_grad():
            parameter[(0,) * parameter.dim()] += 1e-6  # of which no comparison of log-probabilities knows
        with pytest.raises(
            WeightUpdateError, match=f"checksums.* parameters are not what was sent: {name} is"
        ):
            await asyncio.to_thread(check_loaded, publisher)
        assert publisher.engines[engine.url].broken
