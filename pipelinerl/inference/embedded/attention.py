"""Attention over preallocated KV slots, as an attention function that transformers models can call.

A step is one packed row of T tokens: first one token for each decoding sequence, then pieces of prompts.
Shapes: T tokens of the step, S slots, C tokens per slot, H query heads, K key heads, G = H / K, D head size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION_NAME = "pipelinerl_slots"
# Keyword arguments of attention functions that change the result and that this one does not compute.
_UNSUPPORTED = ("softcap", "s_aux", "sinks", "head_mask")


class SlotCache:
    """Keys and values of all slots, allocated once: per layer two tensors [S, K, C, D]."""

    def __init__(
        self, layers: int, slots: int, heads: int, capacity: int, head_size: int, dtype: torch.dtype
    ) -> None:
        shape = (slots, heads, capacity, head_size)
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(layers)]


@dataclass(slots=True)
class PrefillSegment:
    """Rows `begin` to `end` of the step are positions `start` to `stop` of the sequence in `slot`."""

    begin: int
    end: int
    slot: int
    start: int
    stop: int
    mask: torch.Tensor | None
    """Bool [end - begin, stop], None when the segment starts at position 0 (plain causal)."""


@dataclass(slots=True)
class StepBatch:
    """Where the T tokens of a step lie in the cache."""

    cache: SlotCache
    slots: torch.Tensor
    """int64 [T]"""
    positions: torch.Tensor
    """int64 [T]"""
    decode_count: int
    decode_span: int
    """Slots 0 to `decode_span` are attended together, also those without a decoding sequence (in vain)."""
    decode_slots: torch.Tensor | None
    """int64 [decode_count], None when the decoding sequences are exactly the slots of the span, in order."""
    decode_length: int
    decode_mask: torch.Tensor | None
    """Bool [span, 1, 1, decode_length]."""
    prefills: list[PrefillSegment]


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    step_batch: StepBatch | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Store the step's keys and values [1, K, T, D] and attend with `query` [1, H, T, D].

    Returns [1, T, H, D] and no attention weights.
    """
    if step_batch is None:
        raise ValueError(f"{type(module).__name__} does not hand keyword arguments to its attention function")
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ValueError(f"{type(module).__name__} needs attention with {name}, which is not supported")
    batch, layer = step_batch, module.layer_idx
    keys, values = batch.cache.keys[layer], batch.cache.values[layer]
    keys[batch.slots, :, batch.positions] = key[0].transpose(0, 1)
    values[batch.slots, :, batch.positions] = value[0].transpose(0, 1)
    query = query[0].transpose(0, 1)  # T H D
    parts = []
    if batch.decode_count:
        parts.append(_decode(query[: batch.decode_count], keys, values, batch, scaling))
    for segment in batch.prefills:
        parts.append(_prefill(query[segment.begin : segment.end], keys, values, segment, scaling))
    output = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output[None], None


def _decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: StepBatch, scaling: float | None
) -> torch.Tensor:
    """One query token per sequence, [n, H, D]; the G heads that share a key head act as G query positions."""
    _, heads, size = query.shape
    span, length = batch.decode_span, batch.decode_length
    if batch.decode_slots is not None:
        spread = query.new_zeros((span, heads, size))
        spread[batch.decode_slots] = query
        query = spread
    grouped = query.reshape(span, keys.shape[1], -1, size)
    output = scaled_dot_product_attention(
        grouped,
        keys[:span, :, :length],
        values[:span, :, :length],
        attn_mask=batch.decode_mask,
        scale=scaling,
    ).reshape(span, heads, size)
    return output if batch.decode_slots is None else output[batch.decode_slots]


def _prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    segment: PrefillSegment,
    scaling: float | None,
) -> torch.Tensor:
    """Causal attention of one piece of a prompt, [n, H, D], over everything its slot holds up to it."""
    output = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys[segment.slot, :, : segment.stop][None],
        values[segment.slot, :, : segment.stop][None],
        attn_mask=segment.mask,
        is_causal=segment.mask is None,
        scale=scaling,
        enable_gqa=True,
    )
    return output[0].transpose(0, 1)


AttentionInterface.register(ATTENTION_NAME, slot_attention)
