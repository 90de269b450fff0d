"""AdamW whose moments are kept in 8 bits: torchao's, laid out alike on every rank (Dettmers et al. 2022).

A moment in 8 bits is codes (uint8, one for each number), a scale for each block of 256 numbers (float32) and
the map from codes to numbers between -1 and 1 (float32 `[256]`). Moments of small tensors are float32.
`build_optimiser` makes it for `finetune.optim=adamw_8bit`.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from math import gcd
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torchao import optim
from torchao.optim.subclass_8bit import OptimState8bit

from pipelinerl.modeling.sharding import shard_like, whole

BLOCK = 256
LEAST = 4096
"""Tensors of fewer numbers have float32 moments."""


class AdamW8bit(optim.AdamW8bit):
    """torchao's AdamW8bit, whose states are saved as plain tensors and resumed on any number of ranks."""

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Compiled on a card, which has no room for what lies between operations; eager on a host."""
        on_host = all(p.device.type == "cpu" for group in self.param_groups for p in group["params"])
        with torch.compiler.set_stance("force_eager") if on_host else nullcontext():
            super().step(closure)

    def _new_buffer(self, p: torch.Tensor, signed: bool) -> torch.Tensor:
        """Zeros for a moment of `p`. torchao decides by the shard alone, in which ranks may disagree."""
        if not in_blocks(p):
            return torch.zeros_like(p)
        shape = p.to_local().shape if isinstance(p, DTensor) else p.shape
        return _shard_of(p, OptimState8bit.zeros(shape, signed, BLOCK, p.device, dtype=p.dtype))

    def plain_state(self, parameter: torch.Tensor, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The whole state of a parameter as plain tensors (collective if it is sharded)."""
        plain: dict[str, torch.Tensor] = {}
        for name, value in state.items():
            local = value.to_local() if isinstance(value, DTensor) else value
            if not isinstance(local, OptimState8bit):
                plain[name] = whole(value)
                continue
            plain[f"{name}.codes"] = whole(_shard_of(parameter, local.codes))
            plain[f"{name}.scale"] = whole(
                _shard_of(parameter, local.scale, _scales_shape(parameter))
            ).flatten()
            plain[f"{name}.qmap"] = local.qmap
        return plain

    def own_state(
        self, parameter: torch.Tensor, plain: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """This rank's state of a parameter from what `plain_state` gave on any number of ranks.

        Codes and scales are kept as they are. A moment that blocks divide on one number of ranks only is
        converted.
        """
        names = dict.fromkeys(key.partition(".")[0] for key in plain)
        return {name: self._own(parameter, name, plain) for name in names}

    def _own(self, parameter: torch.Tensor, name: str, plain: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if name in plain:
            value = shard_like(plain[name], parameter)
            if value.shape != parameter.shape or not in_blocks(parameter):
                return value
            return self._new_buffer(parameter, signed=name == "exp_avg").copy_(value.to(parameter.device))
        codes, scale, qmap = (plain[f"{name}.{part}"] for part in ("codes", "scale", "qmap"))
        if not in_blocks(parameter):
            numbers = qmap[codes.flatten().int()].view(-1, BLOCK) * scale[:, None]
            return shard_like(numbers.view(codes.shape), parameter)
        codes, scale = shard_like(codes, parameter), scale.view(_scales_shape(parameter))
        if isinstance(codes, DTensor):
            mesh, placements = codes.device_mesh, codes.placements
            scale = distribute_tensor(scale, mesh, placements, src_data_rank=None).to_local()
            codes = codes.to_local()
        parts = [part.to(parameter.device) for part in (codes, scale.flatten(), qmap)]
        signed = bool((qmap < 0).any())
        return _shard_of(parameter, OptimState8bit(*parts, signed, dtype=parameter.dtype))


def in_blocks(parameter: torch.Tensor) -> bool:
    """Whether its moments are kept in 8 bits: the shards of all ranks are whole blocks, and none is empty."""
    if parameter.numel() < LEAST:
        return False
    rows, row = parameter.shape[0], parameter.numel() // parameter.shape[0]
    ranks = parameter.device_mesh.size() if isinstance(parameter, DTensor) else 1
    most = -(-rows // ranks)  # of a shard; the last one is what is left
    last = rows - most * (ranks - 1)
    return last > 0 and most * row % BLOCK == 0 and last * row % BLOCK == 0


def _scales_shape(parameter: torch.Tensor) -> tuple[int, int]:
    """A shape for all scales of a parameter, whose rows are shared out over ranks as the parameter's are.

    So many rows of the parameter belong together as make whole blocks.
    """
    rows, row = parameter.shape[0], parameter.numel() // parameter.shape[0]
    together = BLOCK // gcd(row, BLOCK)
    return rows // together, together * row // BLOCK


def _shard_of(
    parameter: torch.Tensor, local: torch.Tensor, shape: tuple[int, ...] | None = None
) -> torch.Tensor:
    """This rank's part of a contiguous tensor that has `shape` or the parameter's, and is sharded like it."""
    whole_shape = torch.Size(shape or parameter.shape)
    if shape is not None:
        local = local.view(-1, *shape[1:])
    if not isinstance(parameter, DTensor):
        return local
    strides = torch.empty(whole_shape, device="meta").stride()
    mesh, placements = parameter.device_mesh, parameter.placements
    sharded = DTensor.from_local(local, mesh, placements, run_check=False, shape=whole_shape, stride=strides)
    return sharded.to(parameter.device)  # from_local moves it to the mesh's, which computes
