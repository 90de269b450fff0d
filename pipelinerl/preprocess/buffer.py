"""Samples that are ready to be trained on, and the choice of exactly B of them for a step."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from pipelinerl.finetune.rl.sample import Sample


class SampleBuffer:
    """Samples that are ready, by rollout, oldest rollout first."""

    def __init__(self) -> None:
        self._rollouts: OrderedDict[str, list[Sample]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        return chain.from_iterable(self._rollouts.values())

    def add(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self._rollouts.setdefault(sample.rollout, []).append(sample)
            self._count += 1

    def remove(self, unwanted: Callable[[Sample], bool]) -> list[Sample]:
        """Take out and return the samples for which `unwanted` holds."""
        removed: list[Sample] = []
        kept: list[Sample] = []
        for sample in self:
            (removed if unwanted(sample) else kept).append(sample)
        self._rollouts.clear()
        self._count = 0
        self.add(kept)
        return removed

    def remove_oldest(self, limit: int) -> list[Sample]:
        """Take out the oldest rollouts until at most `limit` samples remain."""
        removed: list[Sample] = []
        while self._count > limit:
            _, samples = self._rollouts.popitem(last=False)
            removed += samples
            self._count -= len(samples)
        return removed

    def take(self, n: int) -> tuple[list[Sample], int]:
        """Exactly `n` samples, whole rollouts where that works out, and the number of rollouts cut.

        Oldest first; a rollout that no longer fits is passed over for a younger one that does, and only if
        none does the oldest left is cut. At least `n` samples must be here.
        """
        taken: list[Sample] = []
        for name in list(self._rollouts):
            samples = self._rollouts[name]
            if len(taken) + len(samples) <= n:
                taken += samples
                del self._rollouts[name]
            if len(taken) == n:
                break
        split = 0
        if len(taken) < n:
            name = next(iter(self._rollouts))
            missing = n - len(taken)
            taken += self._rollouts[name][:missing]
            self._rollouts[name] = self._rollouts[name][missing:]
            split = 1
        self._count -= n
        return taken, split
