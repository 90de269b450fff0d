"""Engine and trainer on one GPU where the model's layers are not known: its size is read from its weights."""

import json
import math
from pathlib import Path

from pipelinerl.base.errors import ConfigError
from pipelinerl.launcher.cards import GIB, Card
from pipelinerl.launcher.checks.data import damaged_files, header

TRAINER_BYTES_PER_PARAMETER = 16
"""float32 weights, gradients and AdamW's two moments."""
ACTIVATIONS = (4 * GIB, 0.12)
"""The trainer's activations: at least so much, and at least this share of the card."""
ENGINE_BYTES_PER_PARAMETER = 2.2
"""bfloat16 weights and what is laid out beside them."""
ENGINE_OTHER = 4 * GIB
"""CUDA context, graphs and the smallest useful KV cache."""
MOST = 0.9


def model_parameters(model: Path) -> int | None:
    """Parameters of a model folder, from the headers of its safetensors files; None if it has none.

    None as well if one of them is damaged.
    """
    count = 0
    try:
        for path in _weight_files(model):
            tensors = header(path).items()
            count += sum(math.prod(one["shape"]) for name, one in tensors if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return count or None


def _weight_files(model: Path) -> list[Path]:
    """Those that are loaded; a folder may hold the same weights again, as `consolidated.safetensors`."""
    index, whole = model / "model.safetensors.index.json", model / "model.safetensors"
    if index.is_file():
        return [model / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
    return [whole] if whole.is_file() else sorted(model.glob("*.safetensors"))


def without_sizes(unknown: str) -> ConfigError:
    """What is said of a shared card whose engine's share cannot be planned."""
    key = "vllm_config.vllm_kwargs.gpu-memory-utilization"
    return ConfigError(f"world.share_device=true: {unknown} cannot be read; set {key} (such as 0.3)")


def equal_share(engines: int, missing: str | None) -> float:
    """Share of a card for each of its engines where no plan can be made, rounded down to hundredths.

    Raises ConfigError where `missing` names the key that says how large their caches are.
    """
    if missing is not None:
        unknown = "the sizes of model or card are not known"
        raise ConfigError(f"engine.per_card={engines}: {unknown}; set {missing}, or engine.per_card=1")
    return int(100 * MOST / engines) / 100


def engine_share(card: Card, model: Path) -> float:
    """Share of the card for the engine, rounded down to hundredths, such that the trainer fits beside it.

    Raises ConfigError when both do not fit, and for weights that are damaged or cannot be counted.
    """
    parameters = model_parameters(model)
    if parameters is None:
        if damaged := list(damaged_files(model)):
            raise ConfigError(damaged)
        raise without_sizes(f"the size of {model}")
    floor, share = ACTIVATIONS
    trainer = parameters * TRAINER_BYTES_PER_PARAMETER + max(floor, int(share * card.total))
    fraction = int(min(MOST, (card.free - trainer) / card.total) * 100) / 100
    needed = parameters * ENGINE_BYTES_PER_PARAMETER + ENGINE_OTHER
    if fraction * card.total < needed:
        raise ConfigError(
            f"world.share_device=true: trainer ({trainer / GIB:.0f} GiB) and engine ({needed / GIB:.0f} GiB) "
            f"do not fit into {card.free / GIB:.0f} GiB free; use a smaller model or two GPUs"
        )
    return fraction
