"""Names of low-rank adapters, and the weights that they make of those below them; torch alone.

The trainer merges through `modeling/lora.py`. An engine that is sent adapters alone computes the same sum
from the weights that it was started with: `engines/serving/module_weights.py`, and in vLLM's workers, whose
environment need not have peft, `engines/vllm/receive_adapters.py`. D outputs, E inputs and R the rank of a
layer with an adapter.
"""

from collections.abc import Mapping

import torch

PREFIX = "base_model.model."
"""Before the names of peft's files."""
PARTS = (".lora_A.", ".lora_B.")
Pairs = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""`down` [R, E] and `up` [D, R] by the name of the weight that their product is added to."""


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return any(part in f".{name}" for part in PARTS)


def adapted(
    weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float, transposed: bool
) -> torch.Tensor:
    """`weight` `[D, E]`, or `[E, D]` if `transposed`, plus the scaled product of `up` `[D, R]` and `down`
    `[R, E]`; summed in float32."""
    product = up.float() @ down.float() * scale
    return (weight.float() + (product.T if transposed else product)).to(weight.dtype)


def adapter_pairs(tensors: Mapping[str, torch.Tensor]) -> Pairs:
    """The pairs of a version that is adapters alone (`lora.adapter_tensors`).

    Raises ValueError for a tensor that is half of no pair.
    """
    found = {}
    down, up = PARTS
    for name in sorted(tensors):
        other = name.replace(down, up) if down in name else name.replace(up, down)
        if other == name or other not in tensors:
            raise ValueError(f"{name} is half of no adapter")
        if down in name:
            found[name.removeprefix(PREFIX).replace(down, ".")] = tensors[name], tensors[other]
    return found


def check_pair(name: str, expected: tuple[int, ...], down: torch.Tensor, up: torch.Tensor) -> None:
    """Raises ValueError unless both are float32 and their product has the shape of weight `name`."""
    shape = (up.shape[0], down.shape[1])
    if shape != expected or up.shape[1] != down.shape[0] or {up.dtype, down.dtype} != {torch.float32}:
        raise ValueError(
            f"{name} of shape {expected} has adapters {up.dtype} {tuple(up.shape)} and {down.dtype} "
            f"{tuple(down.shape)}"
        )
