"""Which sequences run in the next step: slots, a waiting queue, first come first served. No torch here.

Invariants: a slot belongs to at most one sequence; a sequence is waiting, running or gone; a finished slot
is offered again before the next step; every running sequence that needs one token gets it in every step,
prompts share `max_prefill_tokens` in order of arrival.
"""

import heapq
from collections import deque
from dataclasses import dataclass

from pipelinerl.inference.embedded.sequence import NO_SLOT, Sequence


@dataclass(slots=True)
class Chunk:
    """Tokens `start` to `end` of a sequence, computed in one step."""

    sequence: Sequence
    start: int
    end: int

    @property
    def samples(self) -> bool:
        """True when the chunk reaches the last known token, so that the next one is sampled."""
        return self.end == self.sequence.length


@dataclass(slots=True)
class Plan:
    """One step: sequences that decode one token, and pieces of prompts."""

    decodes: list[Chunk]
    prefills: list[Chunk]

    @property
    def chunks(self) -> list[Chunk]:
        """In the order in which a step is packed."""
        return [*self.decodes, *self.prefills]


class Scheduler:
    """Owns the slots; `plan` is called once before each step."""

    def __init__(self, max_num_seqs: int, max_prefill_tokens: int) -> None:
        self.max_prefill_tokens = max_prefill_tokens
        # Whoever adds a sequence puts it behind all earlier ones.
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        # The lowest free slot first keeps the used ones together, and attention covers a prefix of the cache.
        self._free = list(range(max_num_seqs))

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free its slot; does nothing for one that is unknown."""
        if sequence.slot != NO_SLOT:
            self.running.remove(sequence)
            heapq.heappush(self._free, sequence.slot)
            sequence.slot = NO_SLOT
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def forget_computed(self) -> None:
        """Every running sequence computes its keys and values again, prompt and output."""
        for sequence in self.running:
            sequence.computed = 0
        self.preemptions += len(self.running)

    def plan(self, *, admit: bool = True) -> Plan:
        """The next step; `admit=False` leaves the waiting sequences where they are."""
        if admit:
            self._admit()
        decodes, prefills = [], []
        budget = self.max_prefill_tokens
        for sequence in self.running:
            # Also the last token of a prompt, which is computed like any other single one.
            if sequence.remaining == 1:
                decodes.append(Chunk(sequence, sequence.computed, sequence.length))
            # `running` is in order of arrival, so the oldest prompts get the budget.
            elif budget > 0:
                count = min(sequence.remaining, budget)
                prefills.append(Chunk(sequence, sequence.computed, sequence.computed + count))
                budget -= count
        decodes.sort(key=lambda one: one.sequence.slot)  # attention covers the slots in order
        return Plan(decodes, prefills)

    def _admit(self) -> None:
        while self.waiting and self._free:
            sequence = self.waiting.popleft()
            sequence.slot = heapq.heappop(self._free)
            self.running.append(sequence)
