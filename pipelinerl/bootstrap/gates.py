"""What a small model must be able to do before reinforcement learning may start, measured per skill."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from pipelinerl.bootstrap.demonstrations import MASKED, Demonstration, encode
from pipelinerl.finetune.model import hidden_states, output_head
from pipelinerl.finetune.segments import Segments
from pipelinerl.finetune.supervised import PackedBatch

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
) -> list[GateResult]:
    """Greedy exact match per kind, on demonstrations that have one right answer.

    An answer is the greedy one if each of its tokens is the most likely after the ones before it, so one
    forward pass decides without decoding. A kind in `minimums` that was never seen counts as accuracy 0.
    """
    right: dict[str, int] = defaultdict(int)
    seen: dict[str, int] = defaultdict(int)
    exact = [d for d in demonstrations if d.exact]
    for at in range(0, len(exact), _ROWS):
        batch = exact[at : at + _ROWS]
        for demonstration, hit in zip(batch, _greedy_hits(model, tokenizer, batch, max_length)):
            seen[demonstration.kind] += 1
            right[demonstration.kind] += hit
    kinds = sorted(set(seen) | set(minimums))
    return [GateResult(k, right[k] / max(seen[k], 1), seen[k], minimums.get(k)) for k in kinds]


@torch.no_grad()
def _greedy_hits(
    model: PreTrainedModel, tokenizer: Tokenizer, batch: list[Demonstration], max_length: int
) -> list[bool]:
    encoded = encode(tokenizer, batch, max_length, prompt_loss=0.0)
    packed = PackedBatch.from_texts([(e.input_ids, e.labels) for e in encoded])
    device = next(model.parameters()).device

    def move(array: object) -> torch.Tensor:
        return torch.as_tensor(array, device=device).long()

    segments = Segments.from_offsets(packed.offsets, device)
    hidden = hidden_states(model, move(packed.input_ids)[None], move(packed.position_ids)[None], segments)[0]
    labels = move(packed.labels)
    at = torch.nonzero(labels != MASKED)[:, 0]
    greedy = (hidden[at - 1].float() @ output_head(model)[0].float().T).argmax(-1)
    wrong = torch.zeros(len(labels), dtype=torch.bool, device=device)
    wrong[at] = greedy != labels[at]
    bounds = packed.offsets
    return [not bool(wrong[bounds[i] : bounds[i + 1]].any()) for i in range(len(batch))]
