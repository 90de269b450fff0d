"""Which sequences run in the next step: slots, a waiting queue, first come first served. No torch here.

Invariants: a slot belongs to at most one sequence; a sequence is waiting, running or gone; a finished slot
is offered again before the next step; every running sequence that needs one token gets it in every step,
prompts share `max_prefill_tokens` in order of arrival.

With a prefix cache a sequence loads what it begins with from the pool (`prefixes`). If an earlier running one
is still computing a beginning of both, it waits for that. Who waits does so for an earlier one, and the first
has nobody to wait for, so in every step somebody computes.
"""

from dataclasses import dataclass, field

import numpy as np

from pipelinerl.engines.cpu.prefixes import BLOCK, Copies, PrefixIndex
from pipelinerl.engines.serving.backend import Queue
from pipelinerl.engines.serving.sequence import NO_SLOT, Sequence
from pipelinerl.modeling.prefixes import common_prefix


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
    saves: Copies = field(default_factory=Copies)
    """Into the pool, before anything else."""
    loads: Copies = field(default_factory=Copies)
    """From the pool into slots, before the chunks are computed."""

    @property
    def chunks(self) -> list[Chunk]:
        """In the order in which a step is packed."""
        return [*self.decodes, *self.prefills]


class Scheduler(Queue):
    """Owns the slots; `plan` is called once before each step."""

    def __init__(
        self, max_num_seqs: int, max_prefill_tokens: int, capacity: int = 0, pool_rows: int = 0
    ) -> None:
        """`capacity` tokens per slot; a pool of `pool_rows` rows behind the slots, 0 for no prefix cache."""
        # Slots in use lie together, and attention covers a prefix of the cache.
        super().__init__(max_num_seqs)
        self.max_prefill_tokens = max_prefill_tokens
        self._capacity = capacity
        self._index = PrefixIndex(max_num_seqs * capacity, pool_rows) if pool_rows else None

    def remove(self, sequence: Sequence) -> None:
        if sequence.slot != NO_SLOT:
            self.save_prefix(sequence)
        super().remove(sequence)

    def forget_computed(self) -> None:
        super().forget_computed()
        for sequence in self.running:
            sequence.shareable, sequence.looked_up, sequence.leader = True, False, None

    def save_prefix(self, sequence: Sequence) -> None:
        """Keep what is computed of a running sequence for those that begin likewise."""
        if self._index is not None and sequence.shareable:
            row = sequence.slot * self._capacity
            self._index.save(sequence.tokens[: sequence.computed], sequence.request.cache_salt, row)

    def clear_prefixes(self) -> None:
        if self._index is not None:
            self._index.clear()

    def weights_changed(self) -> None:
        self.clear_prefixes()
        for sequence in self.running:
            # It goes on with keys of both weights, which are nobody else's. Without any it starts afresh.
            if sequence.computed:
                sequence.shareable, sequence.leader = False, None

    def plan(self, *, admit: bool = True) -> Plan:
        """The next step; `admit=False` leaves the waiting sequences where they are."""
        if admit:
            self.admit()
        loads = Copies()
        if self._index is not None:
            for sequence in self.running:
                self._share(sequence, self._index, loads)
        decodes, prefills = [], []
        budget = self.max_prefill_tokens
        for sequence in self.running:
            if sequence.leader is not None:
                continue
            # Also the last token of a prompt, which is computed like any other single one.
            if sequence.remaining == 1:
                decodes.append(Chunk(sequence, sequence.computed, sequence.length))
            # `running` is in order of arrival, so the oldest prompts get the budget.
            elif budget > 0:
                count = min(sequence.remaining, budget)
                prefills.append(Chunk(sequence, sequence.computed, sequence.computed + count))
                budget -= count
        decodes.sort(key=lambda one: one.sequence.slot)  # attention covers the slots in order
        plan = Plan(decodes, prefills, loads=loads)
        # Without chunks nothing is run, and what is to be saved stays where it is until the next step.
        if self._index is not None and (decodes or prefills):
            plan.saves = self._index.take_saves()
        return plan

    def _share(self, sequence: Sequence, index: PrefixIndex, loads: Copies) -> None:
        """Load what is there of the sequence's beginning, and decide whether to wait for more of it."""
        leader, request = sequence.leader, sequence.request
        if leader is None and sequence.looked_up:
            return
        if leader is not None and _computes(leader) and leader.computed < sequence.shared:
            return
        # Prompts that are scored need every row computed (vLLM does not look them up either).
        if request.sampling.prompt_logprobs is not None:
            sequence.looked_up = True
            return
        if not sequence.looked_up:
            self.prefix_queries += sequence.length
        sequence.looked_up = True
        # All but the last token: that one has to be computed for its logits.
        wanted = sequence.tokens[: sequence.length - 1]
        rows = index.find(wanted, request.cache_salt)
        slot = sequence.slot * self._capacity
        for number in range(sequence.computed // BLOCK, len(rows)):
            loads.sources.append(rows[number])
            loads.targets.append(slot + number * BLOCK)
        found = max(sequence.computed, len(rows) * BLOCK)
        self.prefix_hits += found - sequence.computed
        sequence.computed = found
        sequence.leader, sequence.shared = self._leader(sequence, wanted)

    def _leader(self, sequence: Sequence, wanted: np.ndarray) -> tuple[Sequence | None, int]:
        """The earlier sequence that is computing most of `wanted`, and how much of it; None if nobody is."""
        leader, most = None, sequence.computed
        for other in self.running:
            if other is sequence:
                break
            if not _computes(other) or other.request.cache_salt != sequence.request.cache_salt:
                continue
            shared = common_prefix(wanted, other.tokens[: other.length]) // BLOCK * BLOCK
            if shared > max(most, other.computed):
                leader, most = other, shared
        return leader, most


def _computes(sequence: Sequence) -> bool:
    """Whether a sequence is on its way through a prompt that others may share."""
    return sequence.slot != NO_SLOT and sequence.shareable and sequence.remaining > 1
