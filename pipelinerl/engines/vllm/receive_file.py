"""vLLM's side of the file transport, registered with its weight-transfer factory under the name `file`.

vLLM's workers import this module when an engine is started with `--weight-transfer-config
'{"backend": "file"}'`. The embedded engine reads the same files with a loader of its own.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info, make_online_process_loader

from pipelinerl.engines.version_file import HostMemory, read_tensors
from pipelinerl.engines.vllm.receive_adapters import AdapterVersion, TakesAdapters
from pipelinerl.engines.wire import PermanentUpdateError, lacks_memory

# What vLLM's loaders raise for a name or a shape that the model does not have; the same tensors are refused
# again. Errors of CUDA and NCCL are RuntimeErrors, and a new process may do better.
UNFIT = (KeyError, AssertionError, ValueError, TypeError, AttributeError, IndexError, NotImplementedError)

COPIES_ITSELF = ("GptOssForCausalLM",)
"""Models of vLLM whose loaders copy tensors into parameters without the parameters' `weight_loader`."""


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Nothing to agree on, but for an engine that reads ahead, or is sent adapters alone."""

    reader: str = ""  # what it calls itself where it says that it has read a file
    adapters: bool = False


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """Where one version lies, and how to recognise that it is whole."""

    path: str
    version: str
    bytes: int
    checksum: str
    adapter_scale: float | None = None
    """The tensors are adapters alone, whose products are multiplied by this."""


class FileWeightTransferEngine(TakesAdapters, WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Loads a version from a safetensors file that this host can read."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    _memory: HostMemory | None = None

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """No rendezvous; adapters alone are prepared for, where the trainer will send them."""
        if init_info.adapters:
            self.expect_adapters()

    def start_weight_update(self) -> None:
        """Nothing changes before the file has been checked."""
        # vLLM's own back-ends begin their layer-wise reload here and end it in finish; parameters are on the
        # meta device in between, so a damaged file would leave nothing to go on with.

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Check the whole file, then load it; ValueError, with the old weights in place, if it is damaged."""
        # The base class synchronises an accelerator behind this, which a CPU build does not have.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Called by `update_weights` alone; abstract in the base class."""
        found = self.ready(checked_tensors(update_info, self.memory()), update_info.adapter_scale)
        if isinstance(found, AdapterVersion):
            self.put_adapters(found)
            return
        self.forget_adapters()
        reload_layerwise(self, found)

    def memory(self) -> HostMemory:
        """Where the next file is read to: the same for every version on a GPU."""
        # On a CPU nothing is copied between it and the model, whose loaders may keep what they get.
        if self._memory is None or self.device.type == "cpu":
            self._memory = HostMemory()
        return self._memory

    def finish_weight_update(self) -> None:
        """`update_weights` has done everything."""

    def shutdown(self) -> None:
        """Give back the memory that files are read into, and that of weights below adapters."""
        self.forget_adapters()
        if self._memory is not None:
            self._memory.release()

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """Abstract in the base class of vLLM 0.26 and 0.27."""
        raise NotImplementedError("files are written by pipelinerl.weights.transports.file, without vLLM")


def checked_tensors(info: FileUpdateInfo, memory: HostMemory) -> dict[str, torch.Tensor]:
    """The file's tensors as views of `memory`, by name; ValueError if it is not what was announced."""
    return read_tensors(Path(info.path), info.bytes, info.checksum, memory)


def reload_layerwise(engine: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Load a version, on whatever device, the way vLLM loads a checkpoint; returns when the model has it."""
    model, device = engine.model, engine.device
    with _refused_for_good(model):
        if device.type == "cpu":
            forget_expert_kernels(model)
        _name_loaders(model)
        constants = _constants(model)
        initialize_layerwise_reload(model)
        # In the order of the layers: vLLM keeps what it has of a layer until it has all of it.
        in_order = sorted(tensors, key=lambda one: _layer_order(one[0]))
        with _DirectCopies(model) if type(model).__name__ in COPIES_ITSELF else nullcontext():
            model.load_weights((name, tensor.to(device, non_blocking=True)) for name, tensor in in_order)
        finalize_layerwise_reload(model, engine.model_config)
        for buffer, value in constants:
            buffer.copy_(value)
        _restore_tie(model)
    if device.type != "cpu":
        torch.accelerator.synchronize()


def forget_expert_kernels(model: torch.nn.Module) -> None:
    """Let a CPU build of vLLM pack the experts of the next version, in place."""
    # The kernel reads packed experts. vLLM (0.32, 0.33) packs them only while it makes the kernel of a layer:
    # later versions would lie there unpacked, 2 nats off without an error. It makes a missing kernel anew.
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def _name_loaders(model: torch.nn.Module) -> None:
    """vLLM's reload (0.32) asks loaders of weights for names, which MiniMax M2's partial functions lack."""
    for parameter in model.parameters():
        loader: Any = getattr(parameter, "weight_loader", None)
        if isinstance(loader, partial) and not hasattr(loader, "__name__"):
            loader.__name__ = "weight_loader"  # type: ignore[attr-defined]


def _constants(model: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Buffers that no version has, in layers of which it has something, and copies of them.

    vLLM (0.32) leaves such a buffer uninitialised: of Apertus' activation the two constants, beside the two
    parameters. Layers with a `quant_method` may derive their buffers from weights, so these stay as they are.
    """
    return [
        (buffer, buffer.clone())
        for layer in model.modules()
        if getattr(layer, "quant_method", None) is None and any(True for _ in layer.parameters(recurse=False))
        for buffer in layer.buffers(recurse=False)
    ]


class _DirectCopies(TorchDispatchMode):
    """Hands to vLLM's layer-wise reload what a model's loader copies into parameters itself.

    Parameters are on the meta device while a version is loaded. A copy to them is lost without an error,
    unless it goes through their `weight_loader`: gpt-oss would keep its first experts and sinks.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._owners = {
            tensor.untyped_storage()._cdata: (layer, name)
            for layer in model.modules()
            for name, tensor in layer.named_parameters(recurse=False)
            if tensor.is_meta
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called for every operation on tensors; it changes only copies of a version's tensors."""
        if func is torch.ops.aten.copy_.default and args[0].is_meta and not args[1].is_meta:
            owner = self._owners.get(args[0].untyped_storage()._cdata)
            if owner is not None and not self._within_loader(*owner):
                layer, name = owner
                parameter = getattr(layer, name)
                parameter.weight_loader = _copied
                make_online_process_loader(layer, name)(parameter, args[1])
                return args[0]
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _within_loader(layer: torch.nn.Module, name: str) -> bool:
        """vLLM notes a call before it asks the parameter's loader how much it would copy."""
        noted = get_layerwise_info(layer).loaded_weights
        return bool(noted) and noted[-1][0] == name


def _copied(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    """A `weight_loader` for a tensor that is the whole parameter."""
    param.data.copy_(loaded_weight)


@contextmanager
def _refused_for_good(model: torch.nn.Module) -> Iterator[None]:
    """PermanentUpdateError, with its class, for what the loaders of vLLM raise of the tensors themselves."""
    try:
        yield
    except UNFIT as error:
        what = f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__} without a word"
        raise PermanentUpdateError(
            f"vLLM's {type(model).__name__} does not load the trainer's tensors ({what}); engine and trainer "
            "have to be given one model (model_path), of an architecture that this vLLM loads by those names"
        ) from error
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        first = str(error).partition(". ")[0]
        raise PermanentUpdateError(
            f"the engine has no memory left to load a version ({first}); lower "
            "vllm_config.vllm_kwargs.gpu-memory-utilization"
        ) from error


def _layer_order(name: str) -> list[tuple[int, str]]:
    """Sorts numbers in names by their value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _restore_tie(model: torch.nn.Module) -> None:
    """Give a head tied to the embedding the new weights."""
    head = getattr(model, "lm_head", None)
    if head is None or not getattr(model.config, "tie_word_embeddings", False):
        return
    # No tensor is loaded for such a head, so a layer-wise reload leaves it as it was: what a CPU build has
    # packed for its matrix product would stay that of the old weights, 3 to 5 nats off without an error.
    # A head is a class below the embedding's, and so is an embedding with a scale (VaultGemma).
    for one in model.modules():
        if isinstance(one, VocabParallelEmbedding) and not isinstance(one, type(head)):
            head.weight = one.weight
            head.quant_method.process_weights_after_loading(head)
            return
