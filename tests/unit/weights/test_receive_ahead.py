"""What a worker of vLLM does with a version that it has received ahead; vLLM is played by stubs."""

import importlib
import logging
import sys
import types
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import pipelinerl.engines.vllm
from pipelinerl.base.threads import in_thread
from pipelinerl.engines.version_file import HostMemory
from pipelinerl.engines.wire import PermanentUpdateError, permanent_words
from pipelinerl.weights.transports.base import Member, TransportError
from pipelinerl.weights.transports.file import FileTransport

MODULE = "pipelinerl.engines.vllm.receive_ahead"
FILES = "pipelinerl.engines.vllm.receive_file"
Version = list[tuple[str, torch.Tensor]]


class Anything:
    """Stands for classes that are only derived from, or named in annotations."""

    def __class_getitem__(cls, item: object) -> type:
        return cls


STUBS: dict[str, dict[str, Any]] = {
    "vllm": {},
    "vllm.config": {"set_current_vllm_config": lambda config: nullcontext()},
    "vllm.distributed": {},
    "vllm.distributed.weight_transfer": {},
    "vllm.distributed.weight_transfer.base": {
        name: type(name, (Anything,), {})
        for name in ("WeightTransferEngine", "WeightTransferInitInfo", "WeightTransferUpdateInfo")
    },
    "vllm.distributed.weight_transfer.nccl_engine": {
        "NCCLWeightTransferEngine": type("NCCLWeightTransferEngine", (), {"init_info_cls": Anything}),
        "NCCLWeightTransferUpdateInfo": Anything,
    },
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.model_executor": {},
    "vllm.model_executor.layers": {},
    "vllm.model_executor.layers.vocab_parallel_embedding": {"VocabParallelEmbedding": nn.Embedding},
    "vllm.model_executor.model_loader": {},
    "vllm.model_executor.model_loader.reload": {
        "initialize_layerwise_reload": None,
        "finalize_layerwise_reload": None,
    },
    "vllm.model_executor.model_loader.reload.layerwise": {
        "get_layerwise_info": None,
        "make_online_process_loader": None,
    },
}


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The module as a worker imports it; nothing of it stays."""
    for name, content in STUBS.items():
        stub = types.ModuleType(name)
        vars(stub).update(content)
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    yield importlib.import_module(MODULE)
    for name in (MODULE, FILES):
        del sys.modules[name]
        delattr(pipelinerl.engines.vllm, name.rpartition(".")[2])


class Worker:
    """An engine with a model, of which it is counted how often it is loaded layer by layer."""

    def __init__(self, transfer: types.ModuleType, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
        self.loads = 0
        self.received: Version = []
        engine = transfer._Ahead()
        engine.device, engine.model, engine.model_config = torch.device(device), nn.Linear(4, 3), None
        engine.vllm_config = SimpleNamespace(quant_config=None)
        engine.parse_update_info = lambda info: info
        engine.receiver = lambda info: lambda: self.received
        self.engine: Any = engine
        monkeypatch.setattr(transfer, "reload_layerwise", self._load)

    @torch.no_grad()
    def _load(self, engine: Any, tensors: Version) -> None:
        self.loads += 1
        for name, tensor in tensors:
            engine.model.get_parameter(name).copy_(tensor)

    def update(self, number: float) -> None:
        self.received = [("weight", torch.full((3, 4), number)), ("bias", torch.full((3,), number))]
        self.engine.start_weight_update()
        self.engine.update_weights({})
        self.engine.finish_weight_update()
        model = self.engine.model
        assert {*model.weight.flatten().tolist(), *model.bias.tolist()} == {number}


def test_the_first_version_is_loaded_and_the_later_ones_are_copied(
    transfer: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(transfer, monkeypatch, "cuda")
    for version in (1.0, 2.0, 3.0):
        worker.update(version)
    assert worker.loads == 1
    worker.engine.model.bias = nn.Parameter(torch.zeros(3))
    for version in (4.0, 5.0):
        worker.update(version)
    assert worker.loads == 2, "once more when a parameter lies elsewhere"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_files_are_read_into_one_memory_that_a_gpu_copies_from(
    transfer: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str
) -> None:
    locked: list[int] = []

    def lock(pointer: int, size: int, flags: int) -> int:
        locked.append(size)
        return 0

    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=lock))
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    engine, transport = transfer.FileAheadEngine(), FileTransport(tmp_path, ahead=True)
    engine.device = torch.device(device)
    engine.parallel_config = SimpleNamespace(data_parallel_index=0, world_size=1, rank=0)
    [info] = transport.init_info([Member("http://h:1", 1, "0.32.0")])
    engine.init_transfer_engine(sys.modules[FILES].FileInitInfo(**info))
    versions = []
    for number in (1.0, 2.0):
        staged = transport.stage(int(number), [("w", torch.full((3, 5), number))])
        receive = engine.receiver(sys.modules[FILES].FileUpdateInfo(**staged.info))
        with engine._reading:  # as by an earlier version that is still being read
            received = in_thread(receive)
            assert not wait([received], 0.2).done
        [(_, tensor)] = received.result(60)
        assert tensor.eq(number).all() and transport.arrived(staged, "http://h:1")
        versions.append(tensor)
    first, second = versions
    assert locked == ([staged.bytes] if device == "cuda" else [])
    assert (first.data_ptr() == second.data_ptr()) == (device == "cuda")
    # Without a copy to a device the model may hold what it was given.
    assert device == "cuda" or first.eq(1.0).all()
    Path(staged.info["path"]).write_bytes(b"x" * staged.bytes)
    with pytest.raises(ValueError, match="has checksum"):
        receive()
    with pytest.raises(TransportError, match=r"ValueError: .*has checksum"):
        transport.arrived(staged, "http://h:1")
    monkeypatch.setattr(transfer, "RECEIVED_DEADLINE_S", 0.01)
    with engine._reading, pytest.raises(TimeoutError, match="an earlier version is still being read"):
        receive()


@pytest.mark.parametrize("back_end", ["FileWeightTransferEngine", "FileAheadEngine"])
def test_adapters_are_read_from_a_file_and_added_to_the_start(
    transfer: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, back_end: str
) -> None:
    """From the rendezvous on; one that cannot be added is said where the engine says what it has read."""
    files, base = sys.modules[FILES], torch.arange(12.0).view(3, 4)
    for name, value in (("cudart", None), ("synchronize", lambda: None)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    monkeypatch.setattr(transfer, "_pin", lambda memory, size: None)
    engine: Any = (transfer if "Ahead" in back_end else files).__dict__[back_end]()
    engine.device, engine.model = torch.device("cuda"), nn.Sequential(nn.Linear(4, 3))
    engine.model[0].weight.data = base.clone()
    parallel = SimpleNamespace(data_parallel_index=0, world_size=1, rank=0, tensor_parallel_size=1)
    engine.vllm_config = SimpleNamespace(quant_config=None, parallel_config=parallel)
    engine.parallel_config, engine._checkpoint = parallel, lambda: iter([("0.weight", base)])
    engine.parse_update_info = lambda info: files.FileUpdateInfo(**info)
    transport = FileTransport(tmp_path, ahead="Ahead" in back_end, adapter_scale=0.5)
    [info] = transport.init_info([Member("http://h:1", 1, "0.33.0")])
    engine.init_transfer_engine(files.FileInitInfo(**info))

    def update(version: int, name: str) -> None:
        pair = {"A": torch.full((2, 4), float(version)), "B": torch.ones(3, 2)}
        sent = [(f"base_model.model.{name}.lora_{part}.weight", one) for part, one in pair.items()]
        engine.start_weight_update()
        engine.update_weights(transport.stage(version, sent).info)
        engine.finish_weight_update()

    for version in (1, 2, 3):
        update(version, "0")
        assert torch.equal(engine.model[0].weight.data, base + version)
    with pytest.raises(PermanentUpdateError, match=r"does not hold 1\.weight"):
        update(4, "1")
    assert torch.equal(engine.model[0].weight.data, base + 3)
    engine.shutdown()


def no_memory(*_: object) -> bool:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("on a CPU", "on cpu, or quantised"),
        ("quantised", "on cuda, or quantised"),
        ("derived", "the model holds absorbed"),
        ("no memory", "no memory is left to compare"),
    ],
)
def test_a_model_that_copies_would_not_serve_is_loaded_each_time_and_looked_at_once(
    transfer: types.ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    why: str,
    said: str,
) -> None:
    worker = Worker(transfer, monkeypatch, "cpu" if why == "on a CPU" else "cuda")
    if why == "quantised":
        worker.engine.vllm_config.quant_config = "fp8"
    if why == "derived":
        worker.engine.model.absorbed = torch.ones(3)
    if why == "no memory":
        monkeypatch.setattr(torch, "equal", no_memory)
    with caplog.at_level(logging.INFO):
        for version in (1.0, 2.0, 3.0):
            worker.update(version)
    assert worker.loads == 3
    assert sum(f"loaded layer by layer: {said}" in one.message for one in caplog.records) == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            KeyError("layers.0.gate.weight"),
            r"vLLM's Linear does not load .*KeyError: 'layers.0.gate.weight'.*model_path",
        ),
        (AssertionError(), r"AssertionError without a word.*model_path"),
        (
            ValueError("There is no module or parameter named 'x'"),
            r"ValueError: There is no module.*model_path",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried"),
            r"\(CUDA out of memory\); lower .*gpu-memory-util",
        ),
    ],
)
def test_tensors_that_vllm_does_not_load_are_refused_for_good(
    transfer: types.ModuleType, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    files = sys.modules[FILES]

    def load_weights(tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        raise error

    for name in ("initialize_layerwise_reload", "finalize_layerwise_reload"):
        monkeypatch.setattr(files, name, lambda *_: None)
    model = nn.Linear(4, 3)
    monkeypatch.setattr(model, "load_weights", load_weights, raising=False)
    engine = SimpleNamespace(model=model, model_config=None, device=torch.device("cpu"))
    with pytest.raises(PermanentUpdateError, match=said) as refused:
        files.reload_layerwise(engine, [])
    assert permanent_words(str(refused.value)) == refused.value.words
    error = RuntimeError("NCCL error: remote process exited")
    with pytest.raises(RuntimeError, match="remote process exited"):
        files.reload_layerwise(engine, [])


class Experts(nn.Module):
    """A layer of experts as vLLM's: what it is loaded with is packed only while its kernel is made."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6))
        self.quant_method = SimpleNamespace(moe_kernel=None)

    def process(self) -> None:
        if self.quant_method.moe_kernel is None:
            self.quant_method.moe_kernel = object()
            self.weight.data = self.weight.data.flip(0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_cpu_build_packs_the_experts_of_each_version_and_a_gpu_keeps_its_kernel(
    transfer: types.ModuleType, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    files, experts = sys.modules[FILES], Experts()
    experts.process()
    first = experts.quant_method.moe_kernel

    def load_weights(tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        [experts.weight.data] = [tensor for _, tensor in tensors]

    monkeypatch.setattr(files, "initialize_layerwise_reload", lambda model: None)
    monkeypatch.setattr(files, "finalize_layerwise_reload", lambda model, config: experts.process())
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **__: tensor)
    model = nn.Sequential(experts)
    monkeypatch.setattr(model, "load_weights", load_weights, raising=False)
    engine = SimpleNamespace(model=model, model_config=None, device=torch.device(device))
    for version in (torch.arange(6.0), 2 * torch.arange(6.0)):
        files.reload_layerwise(engine, [("0.weight", version)])
        assert torch.equal(experts.weight, version.flip(0) if device == "cpu" else version)
    # Graphs of a GPU were recorded with the kernel, whose experts are not packed there.
    assert (experts.quant_method.moe_kernel is first) == (device == "cuda")


class Head(nn.Embedding):
    """Packs its weights once they are loaded, as a CPU build of vLLM does."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.quant_method = SimpleNamespace(process_weights_after_loading=self._pack)

    def _pack(self, layer: nn.Module) -> None:
        self.packed = self.weight.detach().clone()


class ScaledEmbedding(nn.Embedding):
    """What vLLM makes of VaultGemma's."""


@pytest.mark.parametrize("kind", [nn.Embedding, ScaledEmbedding])
def test_a_tied_head_is_packed_again_from_the_embedding_of_each_version(
    transfer: types.ModuleType, monkeypatch: pytest.MonkeyPatch, kind: type[nn.Embedding]
) -> None:
    files, model = sys.modules[FILES], nn.Module()
    for name in ("initialize_layerwise_reload", "finalize_layerwise_reload"):
        monkeypatch.setattr(files, name, lambda *_: None)
    vars(model)["config"] = SimpleNamespace(tie_word_embeddings=True)
    model.lm_head, model.embed = Head(), kind(3, 2)

    @torch.no_grad()
    def load_weights(tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in tensors:
            model.get_parameter(name).copy_(tensor)

    monkeypatch.setattr(model, "load_weights", load_weights, raising=False)
    engine = SimpleNamespace(model=model, model_config=None, device=torch.device("cpu"))
    for version in (torch.ones(3, 2), torch.zeros(3, 2)):
        files.reload_layerwise(engine, [("embed.weight", version)])
        assert torch.equal(model.lm_head.packed, version)


class LayerwiseReload:
    """vLLM's: parameters are on the meta device until their loaders have been called; the rest comes back."""

    def __init__(self, files: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self._infos: dict[nn.Module, SimpleNamespace] = {}
        for name, function in (
            ("initialize_layerwise_reload", self._begin),
            ("finalize_layerwise_reload", self._end),
            ("get_layerwise_info", self._infos.__getitem__),
            ("make_online_process_loader", self._loader),
        ):
            monkeypatch.setattr(files, name, function)

    def _begin(self, model: nn.Module) -> None:
        for layer in model.modules():
            old = dict(layer.named_parameters(recurse=False))
            for tensor in old.values():
                assert getattr(tensor, "weight_loader", print).__name__, "vLLM asks for it"
            self._infos[layer] = SimpleNamespace(loaded_weights=[], old=old)
            for name, tensor in old.items():
                setattr(layer, name, nn.Parameter(tensor.detach().to("meta")))

    def _loader(self, layer: nn.Module, name: str) -> Any:
        def load(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
            self._infos[layer].loaded_weights.append((name, loaded_weight))
            param.weight_loader(param, loaded_weight)  # which counts what it would copy

        return load

    @torch.no_grad()
    def _end(self, model: nn.Module, config: None) -> None:
        for layer, info in self._infos.items():
            for name, old in info.old.items():
                setattr(layer, name, old)
            for name, tensor in info.loaded_weights:
                info.old[name].copy_(tensor)
            for buffer in layer.buffers(recurse=False) if info.loaded_weights else ():
                buffer.fill_(torch.nan)  # it was on the meta device, too


class Copying(nn.Module):
    """A layer whose tensors vLLM's gpt-oss copies into parameters itself, with a constant beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.sinks = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(2))
        self.experts.weight_loader = partial(print)  # type: ignore[attr-defined]  # MiniMax M2 has such
        self.register_buffer("beta", torch.tensor(0.5))


class GptOssForCausalLM(nn.Sequential):
    """Called as vLLM's class."""

    @torch.no_grad()
    def load_weights(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in tensors:
            parameter = self.get_parameter(name)
            if "sinks" in name:
                parameter.data.copy_(tensor)
            else:
                parameter.copy_(tensor)


def test_what_a_loader_copies_into_parameters_itself_arrives_and_constants_stay(
    transfer: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy to the meta device does nothing, and a buffer that no version has comes back uninitialised."""
    files, layer = sys.modules[FILES], Copying()
    LayerwiseReload(files, monkeypatch)
    engine = SimpleNamespace(model=GptOssForCausalLM(layer), model_config=None, device=torch.device("cpu"))
    for number in (1.0, 2.0):
        sent = {"0.experts": torch.full((2, 3), number), "0.sinks": torch.full((2,), -number)}
        files.reload_layerwise(engine, sent.items())
        assert torch.equal(layer.experts, sent["0.experts"]) and torch.equal(layer.sinks, sent["0.sinks"])
        assert float(layer.beta) == 0.5


def test_what_an_engine_has_no_memory_for_or_does_not_know_is_refused_for_good(
    transfer: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    engine, memory = transfer.NcclAheadEngine(), HostMemory()
    engine.device, engine._stream = torch.device("cuda"), object()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**36))
    monkeypatch.setattr(torch, "empty", no_room)
    with pytest.raises(
        PermanentUpdateError, match=r"ahead=true needs 3\.0 GiB .* 1\.0 GiB are free; set it to"
    ):
        engine._reserve(3 * 2**30)
    with pytest.raises(PermanentUpdateError, match=r"type float4 .*vllm_kwargs\.dtype"):
        transfer._dtype("float4")
    assert transfer._dtype("bfloat16") is torch.bfloat16
    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=lambda *_: 2))
    with pytest.raises(PermanentUpdateError, match=r"needs 2\.0 GiB of page-locked host memory"):
        transfer._pin(memory, 2**31)


def test_what_hindered_receiving_is_said_and_changes_nothing(
    transfer: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(transfer, monkeypatch, "cuda")
    worker.update(1.0)

    def fail() -> Version:
        raise ValueError("a packet is missing")

    worker.engine.receiver = lambda info: fail
    worker.engine.start_weight_update()
    with pytest.raises(ValueError, match="there is nothing to load"):
        worker.engine.finish_weight_update()
    worker.engine.update_weights({})
    with pytest.raises(ValueError, match="a packet is missing"):
        worker.engine.finish_weight_update()
    assert worker.engine.model.bias.tolist() == [1.0, 1.0, 1.0]
