"""Attention over preallocated KV slots.

A step is one packed row of T tokens: first one token for each decoding sequence, then pieces of prompts.
Shapes: T tokens of the step, S slots, C tokens per slot, H query heads, K key heads, D head size.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention


class SlotCache:
    """Keys and values of all slots, allocated once: per layer two tensors [S, C, K, D]."""

    def __init__(
        self, layers: int, slots: int, capacity: int, heads: int, head_size: int, dtype: torch.dtype
    ) -> None:
        # Keys stored transposed or by head, huge pages and blocks of slots were tried: none gave 5 % of a
        # step (`docs/engine.md`).
        shape = (slots, capacity, heads, head_size)
        self.capacity = capacity
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(layers)]

    def store(self, layer: int, places: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write `keys` and `values` [T, K, D] to `places` (slot * C + position, int64 [T])."""
        self.keys[layer].flatten(0, 1).index_copy_(0, places, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, places, values)


@dataclass(slots=True)
class PrefillSegment:
    """Query rows `begin` to `end` of the step, the last of which is position `stop - 1` in `slot`."""

    begin: int
    end: int
    slot: int
    stop: int
    mask: torch.Tensor | None
    """Bool [end - begin, stop], None when plain causal attention or no mask at all is right."""
    causal: bool
    """True when the segment starts at position 0."""


@dataclass(slots=True)
class StepBatch:
    """Where the T tokens of a step lie in the cache, and which of them attend to what."""

    cache: SlotCache
    positions: torch.Tensor
    """int64 [T]"""
    places: torch.Tensor
    """int64 [T], slot * C + position"""
    decode_count: int
    decode_span: int
    """Slots 0 to `decode_span` are attended together, also those without a decoding sequence (in vain)."""
    decode_slots: torch.Tensor | None
    """int64 [decode_count], None when the decoding sequences are exactly the slots of the span, in order."""
    decode_length: int
    decode_mask: torch.Tensor | None
    """Bool [span, 1, 1, decode_length]."""
    prefills: list[PrefillSegment]


def attend(
    query: torch.Tensor, layer: int, batch: StepBatch, segments: list[PrefillSegment], scaling: float | None
) -> torch.Tensor:
    """Attention of `query` [n, H, D], rows of the decodes first, then those of `segments`; same shape."""
    keys, values = batch.cache.keys[layer], batch.cache.values[layer]
    parts = []
    if batch.decode_count:
        parts.append(_decode(query[: batch.decode_count], keys, values, batch, scaling))
    for segment in segments:
        parts.append(_prefill(query[segment.begin : segment.end], keys, values, segment, scaling))
    # The last layer of a step that holds only inner pieces of prompts: no row is asked for.
    if not parts:
        return query
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: StepBatch, scaling: float | None
) -> torch.Tensor:
    """One query token per sequence, [n, H, D]; the H / K heads of a key head act as query positions."""
    _, heads, size = query.shape
    span, length = batch.decode_span, batch.decode_length
    if batch.decode_slots is not None:
        # Slots are attended as one block of the cache, so that no key or value is copied. Slots in the block
        # that decode nothing get a query of zeros, and their rows are dropped below.
        spread = query.new_zeros((span, heads, size))
        spread[batch.decode_slots] = query
        query = spread
    output = scaled_dot_product_attention(
        # Query heads of a key head stand where a kernel expects query positions: keys are not repeated for
        # them.
        query.reshape(span, keys.shape[2], -1, size),
        keys[:span, :length].transpose(1, 2),
        values[:span, :length].transpose(1, 2),
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
    """One piece of a prompt, [n, H, D], over everything its slot holds up to `stop`."""
    output = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys[segment.slot, : segment.stop].transpose(0, 1)[None],
        values[segment.slot, : segment.stop].transpose(0, 1)[None],
        attn_mask=segment.mask,
        is_causal=segment.causal,
        scale=scaling,
        enable_gqa=True,
    )
    return output[0].transpose(0, 1)
