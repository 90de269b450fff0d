"""Gated DeltaNets over slots: a sequence has a state there, and the last inputs of its convolution.

Used by `model` and `attention.pack`. A state is that of all tokens up to `computed`, so a sequence that is at
position 0, new in its slot or computed again, begins with zeros. A slot has the state of its last token only,
so such models have no prefix cache. S slots; other letters as in `modeling.delta_net`.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pipelinerl.engines.cpu.scheduler import Chunk
from pipelinerl.modeling.delta_net import (
    Delta,
    activated,
    convolution_weight,
    delta_nets,
    delta_of,
    finish,
    gated_delta,
    gated_delta_step,
    mix,
    replace_forward,
)


@dataclass(slots=True)
class SlotStates:
    """Of one layer: last inputs of the convolution `[S, W - 1, M]`, float32 matrices `[S, H, K, V]`."""

    inputs: torch.Tensor
    matrices: torch.Tensor


@dataclass(slots=True)
class Pieces:
    """What a step computes of each sequence, those that decode first."""

    slots: torch.Tensor
    """int64 [n]"""
    fresh: torch.Tensor
    """Bool [n]: begins at position 0."""
    lengths: list[int]
    decodes: int
    """How many of them are one token."""

    @classmethod
    def of(cls, decodes: SequenceOf[Chunk], prefills: SequenceOf[Chunk]) -> "Pieces":
        chunks = [*decodes, *prefills]
        return cls(
            torch.from_numpy(np.array([one.sequence.slot for one in chunks], np.int64)),
            torch.from_numpy(np.array([one.start == 0 for one in chunks])),
            [one.end - one.start for one in chunks],
            len(decodes),
        )


def slot_states(module: torch.nn.Module, slots: int) -> dict[int, SlotStates]:
    """Zeros for each gated DeltaNet of a model, by layer."""
    found = {}
    for one in delta_nets(module):
        net: Any = one
        weight = net.conv1d.weight
        inputs = torch.zeros((slots, weight.shape[-1] - 1, weight.shape[0]), dtype=weight.dtype)
        shape = (slots, net.num_v_heads, net.head_k_dim, net.head_v_dim)
        found[net.layer_idx] = SlotStates(inputs, torch.zeros(shape))
    return found


def use_slot_delta_nets(module: torch.nn.Module) -> None:
    """Let all gated DeltaNets of a model go on from the states of the slots, in place."""
    replace_forward(module, _slot_forward)


def _slot_forward(module: Any, hidden_states: torch.Tensor, step_batch: Any = None, **_: Any) -> torch.Tensor:
    """Forward for transformers, `[1, T, D]` to the same, of an `attention.StepBatch`."""
    if step_batch is None or step_batch.pieces is None:
        raise ValueError(f"{type(module).__name__} does not get the keyword arguments of the model")
    pieces, states = step_batch.pieces, step_batch.cache.states[module.layer_idx]
    mixed = mix(module, hidden_states[0])
    convolved = activated(module, _convolve(module, mixed.channels, pieces, states))
    given = delta_of(module, convolved.to(mixed.channels.dtype), mixed)
    before = states.matrices[pieces.slots]
    before[pieces.fresh] = 0.0
    count, parts = pieces.decodes, []
    if count:
        parts.append(gated_delta_step(Delta(*(one[:count] for one in given)), before[:count]))
    if count < len(pieces.lengths):
        rest = Delta(*(one[count:] for one in given))
        parts.append(gated_delta(rest, pieces.lengths[count:], before[count:]))
    states.matrices[pieces.slots] = torch.cat([after for _, after in parts])
    return finish(module, torch.cat([out for out, _ in parts]), mixed.gate)[None]


def _convolve(module: Any, channels: torch.Tensor, pieces: Pieces, states: SlotStates) -> torch.Tensor:
    """Sums over each token `[T, M]` and the ones before it, also of earlier steps; keeps the last ones."""
    weight = convolution_weight(module)
    width = weight.shape[1]
    before = states.inputs[pieces.slots]
    before[pieces.fresh] = 0.0
    count = pieces.decodes
    windows = torch.cat([before[:count], channels[:count, None]], 1)
    out, kept = [torch.einsum("nwm,mw->nm", windows.to(weight.dtype), weight)], [windows[:, 1:]]
    for earlier, new in zip(before[count:], channels[count:].split(pieces.lengths[count:]), strict=True):
        rows = torch.cat([earlier, new])
        wide = rows.to(weight.dtype)
        out.append(sum(wide[back : back + len(new)] * weight[:, back] for back in range(width)))
        kept.append(rows[None, len(new) :])
    states.inputs[pieces.slots] = torch.cat(kept)
    return torch.cat(out)
