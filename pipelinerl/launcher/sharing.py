"""Engine and trainer on one GPU: how much of its memory the engine may have, and how weights travel."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from pipelinerl.base.errors import ConfigError
from pipelinerl.config.compose import Composition
from pipelinerl.config.detect import nvidia_smi
from pipelinerl.config.machine import roles_of
from pipelinerl.launcher.checks.data import damaged_files, safetensors_problem

GIB = 2**30
UTILIZATION = "vllm_config.vllm_kwargs.gpu-memory-utilization"
TRANSPORT = "weights.transport"
TRAINER_BYTES_PER_PARAMETER = 16
"""float32 weights, gradients and AdamW's two moments."""
ACTIVATIONS = (4 * GIB, 0.12)
"""The trainer's activations: at least so much, and at least this share of the card."""
ENGINE_BYTES_PER_PARAMETER = 2.2
"""bfloat16 weights and what is laid out beside them."""
ENGINE_OTHER = 4 * GIB
"""CUDA context, graphs and the smallest useful KV cache."""
MOST = 0.9


@dataclass(frozen=True)
class CardMemory:
    """Bytes of one GPU."""

    total: int
    free: int


def card_memory(device: str) -> CardMemory | None:
    """What `nvidia-smi` says about a device, named as in `CUDA_VISIBLE_DEVICES`; None if it says nothing."""
    said = nvidia_smi("--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits", "-i", device)
    try:
        total, free = (int(part) * 2**20 for part in (said or "").split(","))
    except ValueError:
        return None
    return CardMemory(total, free)


def model_parameters(model: Path) -> int | None:
    """Parameters of a model folder, from the headers of its safetensors files; None if it has none.

    None as well if one of them is damaged.
    """
    count = 0
    try:
        for path in _weight_files(model):
            if safetensors_problem(path) is not None:
                return None
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            count += sum(math.prod(one["shape"]) for name, one in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return count or None


def _weight_files(model: Path) -> list[Path]:
    """Those that are loaded; a folder may hold the same weights again, as `consolidated.safetensors`."""
    index, whole = model / "model.safetensors.index.json", model / "model.safetensors"
    if index.is_file():
        return [model / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
    return [whole] if whole.is_file() else sorted(model.glob("*.safetensors"))


def engine_share(memory: CardMemory, parameters: int) -> float:
    """Share of the card for the engine, rounded down to hundredths, such that the trainer fits beside it.

    Raises ConfigError when both do not fit.
    """
    floor, share = ACTIVATIONS
    trainer = parameters * TRAINER_BYTES_PER_PARAMETER + max(floor, int(share * memory.total))
    fraction = int(min(MOST, (memory.free - trainer) / memory.total) * 100) / 100
    needed = parameters * ENGINE_BYTES_PER_PARAMETER + ENGINE_OTHER
    if fraction * memory.total < needed:
        raise ConfigError(
            f"world.share_device=true: trainer ({trainer / GIB:.0f} GiB) and engine ({needed / GIB:.0f} GiB) "
            f"do not fit into {memory.free / GIB:.0f} GiB free; use a smaller model or two GPUs"
        )
    return fraction


def share_one_device(
    composition: Composition,
    devices: Sequence[str],
    dry_run: bool = False,
    memory_of: Callable[[str], CardMemory | None] = card_memory,
) -> None:
    """On one GPU shared by engine and trainer, write into the tree what the user left open.

    Weights travel through files, because NCCL does not connect processes on one GPU. A dry run, perhaps on
    another machine, asks for no card's memory. Raises ConfigError when NCCL was asked for or the memory does
    not suffice.
    """
    tree, given = composition.tree, set(composition.user_keys)
    roles = roles_of(str(tree.debug.mode))
    shared = tree.hardware.kind == "gpu" and len(devices) == 1 and tree.world.share_device
    if not shared or not {"actor_llm", "finetune"} <= roles:
        return
    if TRANSPORT not in given:
        OmegaConf.update(tree, TRANSPORT, "file")
    elif tree.weights.transport == "nccl":
        raise ConfigError("weights.transport=nccl: NCCL does not connect processes on one GPU; set file")
    if UTILIZATION in given or dry_run:
        return
    memory = memory_of(devices[0])
    parameters = model_parameters(Path(str(tree.model_path)))
    if parameters is None and (damaged := list(damaged_files(Path(str(tree.model_path))))):
        raise ConfigError(damaged)
    if memory is None or parameters is None:
        unknown = "the card's memory" if memory is None else f"the size of {tree.model_path}"
        raise ConfigError(
            f"world.share_device=true: {unknown} cannot be read; set {UTILIZATION} (such as 0.3)"
        )
    tree.vllm_config.vllm_kwargs["gpu-memory-utilization"] = engine_share(memory, parameters)
