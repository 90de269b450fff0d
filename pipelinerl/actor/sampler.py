"""Which problem comes next. The n-th draw depends on the seed and n alone, so the state is one number.

With `actor.domain_mix` a draw also depends on how many groups of each domain are complete, and with
`actor.sampling=difficulty` on how often their problems were solved (`known_rates.py`). The state has both.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from pipelinerl.actor.known_rates import DifficultySampler, Draw, Known
from pipelinerl.config.roles import DifficultyConfig
from pipelinerl.domain_sampling import DomainWeightedSampler

ALL = "all"
"""Name of the problems of a run without `domain_mix`."""


def derived_seed(*parts: int | str) -> int:
    """A 31-bit seed that depends on all parts."""
    return random.Random(":".join(map(str, parts))).getrandbits(31)


class ProblemSampler:
    """Draws training problems uniformly with replacement, by `domain_mix`, by difficulty, or by both."""

    def __init__(
        self,
        problems: Sequence[dict[str, Any]],
        seed: int,
        domain_mix: Mapping[str, float] | None = None,
        difficulty: DifficultyConfig | None = None,
    ):
        """`difficulty` is None where problems, or those of a domain, are drawn alike."""
        self.problems, self.seed, self.drawn = problems, seed, 0
        self.mixture = None
        if domain_mix and problems:  # none where nothing is trained, and so nothing drawn
            self.mixture = DomainWeightedSampler(problems, domain_mix, random.Random())
        self.difficulty: dict[str, DifficultySampler] = {}
        """By domain of the mixture, or for all problems; empty where they are drawn alike."""
        if difficulty is not None and problems:
            members: dict[str, Sequence[int]] = {ALL: range(len(problems))}
            if self.mixture is not None:
                members = {name: self.mixture.members[name] for name in self.mixture.targets}
            self.difficulty = {
                name: DifficultySampler(of, f"pass:{seed}:{name}", difficulty) for name, of in members.items()
            }

    def draw(self) -> Draw:
        """The next problem."""
        # A generator for each draw: a resumed run needs the number of draws and no generator's state.
        rng = random.Random(f"draw:{self.seed}:{self.drawn}")
        self.drawn += 1
        # With replacement, as upstream: a draw does not depend on which rollouts have come back.
        if self.mixture is None:
            pool = self.difficulty.get(ALL)
            return pool.draw(rng) if pool is not None else Draw(rng.randrange(len(self.problems)))
        self.mixture.rng = rng
        if self.difficulty:
            return self.difficulty[self.mixture.sample_domain()].draw(rng)
        return Draw(self.mixture.sample_index())

    def record_completion(self, problem: int, rate: float | None = None) -> None:
        """A group of the problem with this index is complete, whatever became of it.

        `rate`: mean of the metric of `actor.difficulty` in it, None where no rollout has it.
        """
        if self.mixture is not None:
            self.mixture.record_completion(str(self.problems[problem]["domain"]))
        if (pool := self._pool(problem)) is not None:
            pool.record(problem, rate)

    def _pool(self, problem: int) -> DifficultySampler | None:
        name = ALL if self.mixture is None else str(self.problems[problem]["domain"])
        # None too for a domain that the mixture had when the problem was drawn, and a resume took out of it.
        return self.difficulty.get(name)

    def known(self, problem: int) -> Known | None:
        """What is known of a problem; None if problems are drawn alike, or this one was not yet."""
        pool = self._pool(problem)
        return None if pool is None else pool.known.get(problem)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"seed": self.seed, "drawn": self.drawn}
        if self.mixture is not None:
            state["mixture"] = self.mixture.state_dict()
        if self.difficulty:
            state["difficulty"] = {name: pool.state_dict() for name, pool in self.difficulty.items()}
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
        # Likewise for rates: a pool that the snapshot does not have begins with nothing known.
        for name, pool in self.difficulty.items():
            if name in (saved := state.get("difficulty", {})):
                pool.load_state_dict(saved[name])
