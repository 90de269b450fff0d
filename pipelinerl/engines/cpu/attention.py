"""From the scheduler's plan to the tensors of one packed step, and attention over preallocated KV slots.

Used by `model` and the forwards. A step is one packed row of T tokens: first one token for each decoding
sequence, then pieces of prompts. A slot keeps all keys of its sequence; a sliding window masks those
before it.
Shapes: T tokens of the step, S slots, C tokens per slot, H query heads, K key heads, D head size.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from pipelinerl.engines.cpu.delta_net import Pieces, SlotStates
from pipelinerl.engines.cpu.prefixes import Copies
from pipelinerl.engines.cpu.scheduler import Plan
from pipelinerl.modeling.capped_attention import Rule, capped, capped_attention, with_sinks


class SlotCache:
    """Keys and values of all slots, allocated once: per layer two tensors [S, C, K, D].

    Of a mixture of experts that records them also the experts of each token, [S * C + pool, layers * active].

    Behind the slots, in the same memory, lies the pool of the prefix cache: `pool` rows [K, D].
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        capacity: int,
        heads: int,
        head_size: int,
        dtype: torch.dtype,
        pool: int = 0,
        routes: tuple[int, int, torch.dtype] | None = None,
    ) -> None:
        """`routes`: layers, active experts and type of the experts that are recorded."""
        # Keys stored transposed or by head, huge pages and blocks of slots were tried: none gave 5 % of a
        # step.
        shape = (slots, capacity, heads, head_size)
        rows = slots * capacity
        self.capacity = capacity
        # Zeros are pages that take memory only once they are written to.
        self._rows = [torch.zeros((rows + pool, heads, head_size), dtype=dtype) for _ in range(2 * layers)]
        self.keys = [one[:rows].view(shape) for one in self._rows[:layers]]
        self.values = [one[:rows].view(shape) for one in self._rows[layers:]]
        self.states: dict[int, SlotStates] = {}
        """Of layers that have a state instead; their keys and values are never written to."""
        self.routes: torch.Tensor | None = None
        if routes is not None:
            self.routes = torch.zeros((rows + pool, routes[0], routes[1]), dtype=routes[2])
            self._rows.append(self.routes)

    def store(self, layer: int, places: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write `keys` and `values` [T, K, D] to `places` (slot * C + position, int64 [T])."""
        self.keys[layer].flatten(0, 1).index_copy_(0, places, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, places, values)

    def copy(self, copies: Copies) -> None:
        """Copy rows, keys and values of all layers and experts, between slots and pool."""
        if not copies.sources:
            return
        sources, targets = map(torch.from_numpy, copies.rows())
        for one in self._rows:
            one.index_copy_(0, targets, one.index_select(0, sources))


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
class Decodes:
    """The sequences of a step that decode one token; they are attended as one block of the cache."""

    count: int
    span: int
    """Slots 0 to `span` are attended together, also those without a decoding sequence (in vain)."""
    slots: torch.Tensor | None
    """int64 [count], None when the decoding sequences are exactly the slots of the span, in order."""
    length: int
    """Positions that are attended to."""
    mask: torch.Tensor
    """Bool [span, 1, 1, length]."""


@dataclass(slots=True)
class StepBatch:
    """The T tokens of a step, where they lie in the cache, and which of them attend to what."""

    cache: SlotCache
    ids: torch.Tensor
    """int64 [T], decodes first"""
    positions: torch.Tensor
    """int64 [T]"""
    places: torch.Tensor
    """int64 [T], slot * C + position"""
    decodes: Decodes | None
    prefills: list[PrefillSegment]
    pieces: Pieces | None = None
    """Of a model that has states."""
    windows: dict[int, tuple[Decodes | None, list[PrefillSegment]]] = field(default_factory=dict)
    """Decodes and prefills with the masks of a window, made by the first layer that has it."""

    def within(self, window: int) -> tuple[Decodes | None, list[PrefillSegment]]:
        """Decodes and prefills of a layer that looks at `window` tokens, the one itself included."""
        if window not in self.windows:
            decodes = None if self.decodes is None else _decodes_within(self.decodes, window)
            self.windows[window] = decodes, [_prefill_within(one, window) for one in self.prefills]
        return self.windows[window]


def _decodes_within(decodes: Decodes, window: int) -> Decodes:
    if decodes.length <= window:
        return decodes
    last = decodes.mask.sum(-1, keepdim=True) - 1
    return replace(decodes, mask=decodes.mask & (torch.arange(decodes.length) > last - window))


def _prefill_within(segment: PrefillSegment, window: int) -> PrefillSegment:
    if segment.stop <= window:
        return segment
    count = segment.end - segment.begin
    first = segment.stop - count
    mask = torch.ones(count, segment.stop, dtype=torch.bool).tril_(first).triu_(first - window + 1)
    return replace(segment, mask=mask, causal=False)


def pack(plan: Plan, cache: SlotCache) -> StepBatch:
    """Ids, positions, places and masks of one step."""
    chunks = plan.chunks
    counts = [one.end - one.start for one in chunks]
    slots = np.repeat([one.sequence.slot for one in chunks], counts)
    positions = np.concatenate([np.arange(one.start, one.end) for one in chunks])
    row = len(plan.decodes)
    batch = StepBatch(
        cache=cache,
        ids=torch.from_numpy(np.concatenate([one.sequence.tokens[one.start : one.end] for one in chunks])),
        positions=torch.from_numpy(positions),
        places=torch.from_numpy(slots * cache.capacity + positions),
        decodes=_decodes(slots[:row], positions[:row]) if row else None,
        prefills=[],
        pieces=Pieces.of(plan.decodes, plan.prefills) if cache.states else None,
    )
    for chunk, count in zip(plan.prefills, counts[row:], strict=True):
        mask = None
        if chunk.start:
            # torch aligns `is_causal` at the top left, right only for a piece that begins at position 0.
            mask = torch.ones(count, chunk.end, dtype=torch.bool).tril_(chunk.start)
        slot = chunk.sequence.slot
        batch.prefills.append(PrefillSegment(row, row + count, slot, chunk.end, mask, chunk.start == 0))
        row += count
    return batch


def narrow(batch: StepBatch, rows: list[int]) -> tuple[list[PrefillSegment], torch.Tensor, torch.Tensor]:
    """What the last layer must compute so that packed `rows` come out right.

    Every decode stays; a prompt piece of which only the last row is asked for shrinks to that row, and one of
    which nothing is asked for goes. Returns the segments that stay, the packed rows that stay (int64 [n]) and
    the index of each of `rows` among them (int64 [len(rows)]).
    """
    decodes = 0 if batch.decodes is None else batch.decodes.count
    asked = [row for row in rows if row >= decodes]
    kept = list(range(decodes))
    segments = []
    for segment in batch.prefills:
        wanted = [row for row in asked if segment.begin <= row < segment.end]
        begin = len(kept)
        # The last row attends to all that is stored, so it needs no mask.
        if wanted == [segment.end - 1]:
            kept.append(segment.end - 1)
            segments.append(PrefillSegment(begin, begin + 1, segment.slot, segment.stop, None, causal=False))
        elif wanted:
            kept.extend(range(segment.begin, segment.end))
            end = len(kept)
            segments.append(
                PrefillSegment(begin, end, segment.slot, segment.stop, segment.mask, segment.causal)
            )
    place = {row: index for index, row in enumerate(kept)}
    return (
        segments,
        torch.tensor(kept, dtype=torch.int64),
        torch.tensor([place[row] for row in rows], dtype=torch.int64),
    )


def _decodes(slots: np.ndarray, positions: np.ndarray) -> Decodes:
    span, length = int(slots.max()) + 1, int(positions.max()) + 1
    # Slots without a decode keep position 0: a row that may attend to nothing would be NaN.
    lasts = np.zeros(span, dtype=np.int64)
    lasts[slots] = positions
    mask = np.arange(length) <= lasts[:, None]
    # None where all slots decode, the usual step of a full engine: nothing is spread or gathered then.
    scattered = not np.array_equal(slots, np.arange(span))
    mine = torch.from_numpy(slots) if scattered else None
    return Decodes(len(slots), span, mine, length, torch.from_numpy(mask)[:, None, None])


_CAUSAL_ONLY = Rule()


def attend(
    query: torch.Tensor,
    layer: int,
    batch: StepBatch,
    segments: list[PrefillSegment],
    scaling: float | None,
    rule: Rule = _CAUSAL_ONLY,
) -> torch.Tensor:
    """Attention of `query` [n, H, D], rows of the decodes first, then those of `segments`; same shape.

    With a window `segments` are all of the batch.
    """
    keys, values = batch.cache.keys[layer], batch.cache.values[layer]
    decodes = batch.decodes
    if rule.window is not None:
        decodes, segments = batch.within(rule.window)
    parts = []
    if decodes is not None:
        parts.append(_decode(query[: decodes.count], keys, values, decodes, scaling, rule))
    for segment in segments:
        parts.append(_prefill(query[segment.begin : segment.end], keys, values, segment, scaling, rule))
    # The last layer of a step that holds only inner pieces of prompts: no row is asked for.
    if not parts:
        return query
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    decodes: Decodes,
    scaling: float | None,
    rule: Rule,
) -> torch.Tensor:
    """One query token per sequence, [n, H, D]; the H / K heads of a key head act as query positions."""
    _, heads, size = query.shape
    span, length = decodes.span, decodes.length
    if decodes.slots is not None:
        # Slots are attended as one block of the cache, so that no key or value is copied. Slots in the block
        # that decode nothing get a query of zeros, and their rows are dropped below.
        spread = query.new_zeros((span, heads, size))
        spread[decodes.slots] = query
        query = spread
    # Query heads of a key head stand where a kernel expects query positions: keys are not repeated for them.
    grouped = query.reshape(span, keys.shape[2], -1, size)
    known, told = (one[:span, :length].transpose(1, 2) for one in (keys, values))
    if rule.has_kernel:
        output = scaled_dot_product_attention(grouped, known, told, attn_mask=decodes.mask, scale=scaling)
    else:
        output = _weighted(grouped, known, told, decodes.mask, scaling, rule)
    output = output.reshape(span, heads, size)
    return output if decodes.slots is None else output[decodes.slots]


def _weighted(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None,
    rule: Rule,
) -> torch.Tensor:
    """`_decode` where torch has no kernel: query [S, K, H / K, D], keys and values [S, K, C, D], as query."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = capped(query.float() @ keys.float().transpose(2, 3) * scale, rule.cap)
    scores = scores.masked_fill(~mask, -torch.inf)
    total = scores.logsumexp(-1)
    total = with_sinks(total.flatten(1)[..., None], rule.sinks).view_as(total)
    return ((scores - total[..., None]).exp() @ values.float()).to(query.dtype)


def _prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    segment: PrefillSegment,
    scaling: float | None,
    rule: Rule,
) -> torch.Tensor:
    """One piece of a prompt, [n, H, D], over everything its slot holds up to `stop`."""
    query = query.transpose(0, 1)[None]
    known, told = (one[segment.slot, : segment.stop].transpose(0, 1)[None] for one in (keys, values))
    if not rule.has_kernel:
        return capped_attention(query, known, told, scaling, *rule)[0].transpose(0, 1)
    output = scaled_dot_product_attention(
        query,
        known,
        told,
        attn_mask=segment.mask,
        is_causal=segment.causal,
        scale=scaling,
        enable_gqa=True,
    )
    return output[0].transpose(0, 1)
