"""From the scheduler's plan to the tensors of one packed step, for `model` and the forwards."""

import numpy as np
import torch

from pipelinerl.inference.embedded.attention import PrefillSegment, SlotCache, StepBatch
from pipelinerl.inference.embedded.scheduler import Plan


def token_ids(plan: Plan) -> torch.Tensor:
    """int64 [T]: the tokens of a step, decodes first."""
    chunks = [*plan.decodes, *plan.prefills]
    return torch.from_numpy(np.concatenate([one.sequence.tokens[one.start : one.end] for one in chunks]))


def pack(plan: Plan, cache: SlotCache) -> StepBatch:
    """Positions, places and masks of one step."""
    chunks = [*plan.decodes, *plan.prefills]
    counts = [one.end - one.start for one in chunks]
    slots = np.repeat([one.sequence.slot for one in chunks], counts)
    positions = np.concatenate([np.arange(one.start, one.end) for one in chunks])
    batch = StepBatch(
        cache=cache,
        positions=torch.from_numpy(positions),
        places=torch.from_numpy(slots * cache.capacity + positions),
        decode_count=len(plan.decodes),
        decode_span=0,
        decode_slots=None,
        decode_length=0,
        decode_mask=None,
        prefills=[],
    )
    if plan.decodes:
        _pack_decodes(batch, slots[: len(plan.decodes)], positions[: len(plan.decodes)])
    row = len(plan.decodes)
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
    asked = [row for row in rows if row >= batch.decode_count]
    kept = list(range(batch.decode_count))
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


def _pack_decodes(batch: StepBatch, slots: np.ndarray, positions: np.ndarray) -> None:
    batch.decode_span = int(slots.max()) + 1
    batch.decode_length = int(positions.max()) + 1
    # Slots without a decode keep position 0: a row that may attend to nothing would be NaN.
    lasts = np.zeros(batch.decode_span, dtype=np.int64)
    lasts[slots] = positions
    mask = np.arange(batch.decode_length) <= lasts[:, None]
    batch.decode_mask = torch.from_numpy(mask)[:, None, None]
    # None where all slots decode, the usual step of a full engine: nothing is spread or gathered then.
    if not np.array_equal(slots, np.arange(batch.decode_span)):
        batch.decode_slots = torch.from_numpy(slots)
