"""Which problem comes next. The n-th draw depends on the seed and n alone, so the state is one number."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from pipelinerl.domain_sampling import DomainWeightedSampler


def derived_seed(*parts: int | str) -> int:
    """A 31-bit seed that depends on all parts."""
    return random.Random(":".join(map(str, parts))).getrandbits(31)


class ProblemSampler:
    """Draws training problems uniformly with replacement, or by `domain_mix`."""

    def __init__(
        self, problems: Sequence[dict[str, Any]], seed: int, domain_mix: Mapping[str, float] | None = None
    ):
        self.problems, self.seed, self.drawn = problems, seed, 0
        self.mixture = None
        if domain_mix and problems:  # none where nothing is trained, and so nothing drawn
            self.mixture = DomainWeightedSampler(problems, domain_mix, random.Random())

    def draw(self) -> int:
        """Index of the next problem."""
        # A generator for each draw: a resumed run needs the number of draws and no generator's state.
        rng = random.Random(f"draw:{self.seed}:{self.drawn}")
        self.drawn += 1
        # With replacement, as upstream: a draw does not depend on which rollouts have come back.
        if self.mixture is None:
            return rng.randrange(len(self.problems))
        self.mixture.rng = rng
        return self.mixture.sample_index()

    def record_completion(self, problem: int) -> None:
        """A group of the problem with this index is complete, whatever became of it."""
        if self.mixture is not None:
            self.mixture.record_completion(str(self.problems[problem]["domain"]))

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"seed": self.seed, "drawn": self.drawn}
        if self.mixture is not None:
            state["mixture"] = self.mixture.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError if the state belongs to another seed, since the draws would not continue."""
        if state["seed"] != self.seed:
            raise ValueError(
                f"the snapshot was drawn with seed {state['seed']}, the configuration says {self.seed}"
            )
        self.drawn = int(state["drawn"])
        # Without it the snapshot is from before `domain_mix` was set: the shares are counted from now on.
        if self.mixture is not None and "mixture" in state:
            self.mixture.load_state_dict(state["mixture"])
