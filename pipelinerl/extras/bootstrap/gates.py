"""What a small model must be able to do before reinforcement learning may start, measured per skill."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from pipelinerl.extras.bootstrap.demonstrations import Demonstration, Encoded, encode
from pipelinerl.extras.bootstrap.formats import SMALL_CHAT, ChatFormat
from pipelinerl.extras.bootstrap.model import precision
from pipelinerl.extras.bootstrap.packs import joined
from pipelinerl.modeling.model import hidden_states, output_head
from pipelinerl.modeling.segments import Segments
from pipelinerl.modeling.tensors import to_device
from pipelinerl.rollouts import MASKED_TOKEN_ID

_ROWS = 64


@dataclass(frozen=True, slots=True)
class GateResult:
    """Share of held-out demonstrations of one kind whose whole answer is the model's greedy answer."""

    kind: str
    accuracy: float
    count: int
    minimum: float | None

    @property
    def passed(self) -> bool:
        """True where no minimum is asked for, or it is reached."""
        return self.minimum is None or self.accuracy >= self.minimum


def measure(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    demonstrations: Iterable[Demonstration],
    minimums: Mapping[str, float],
    max_length: int,
    chat: ChatFormat = SMALL_CHAT,
) -> list[GateResult]:
    """Greedy exact match per kind, on demonstrations that have one right answer.

    An answer is the greedy one if each of its tokens is the most likely after the ones before it, so one
    forward pass decides without decoding. Of an answer with a fixed beginning that one counts. A kind in
    `minimums` that was never seen counts as accuracy 0.
    """
    right: dict[str, int] = defaultdict(int)
    seen: dict[str, int] = defaultdict(int)
    exact = [d for d in demonstrations if d.exact]
    for at in range(0, len(exact), _ROWS):
        batch = exact[at : at + _ROWS]
        for demonstration, hit in zip(batch, _greedy_hits(model, tokenizer, batch, max_length, chat)):
            seen[demonstration.kind] += 1
            right[demonstration.kind] += hit
    kinds = sorted(set(seen) | set(minimums))
    return [GateResult(k, right[k] / max(seen[k], 1), seen[k], minimums.get(k)) for k in kinds]


def measured(
    tokenizer: Tokenizer, batch: list[Demonstration], max_length: int, chat: ChatFormat = SMALL_CHAT
) -> list[Encoded]:
    """What has to be so of each demonstration: its answer and the end, or the fixed beginning alone."""
    whole = [d if d.fixed is None else replace(d, completion=d.fixed) for d in batch]
    encoded = list(encode(tokenizer, whole, max_length, 0.0, chat))
    for demonstration, one in zip(batch, encoded):
        if demonstration.fixed is not None:
            one.labels[-1] = MASKED_TOKEN_ID  # the end that encoding adds
    return encoded


@torch.no_grad()
def _greedy_hits(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    batch: list[Demonstration],
    max_length: int,
    chat: ChatFormat,
) -> list[bool]:
    packed = joined(measured(tokenizer, batch, max_length, chat))
    bounds = packed.offsets()
    device = next(model.parameters()).device

    ids, positions, labels = (
        to_device(column.astype(np.int64), device)
        for column in (packed.input_ids, packed.position_ids(), packed.labels)
    )
    segments = Segments.from_offsets(bounds, device)
    with precision(device):
        hidden = hidden_states(model, ids[None], positions[None], segments)[0]
    at = torch.nonzero(labels != MASKED_TOKEN_ID)[:, 0]
    greedy = (hidden[at - 1].float() @ output_head(model)[0].float().T).argmax(-1)
    wrong = torch.zeros(len(labels), dtype=torch.bool, device=device)
    wrong[at] = greedy != labels[at]
    return [not bool(wrong[bounds[i] : bounds[i + 1]].any()) for i in range(len(batch))]
