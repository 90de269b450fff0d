"""Scripted play of the guessing game for a small model to imitate: sensible, but not the best.

The player mostly guesses somewhere in the range that is left, sometimes repeats itself or forgets what it
heard. A model that imitates it wins some games and can learn to halve the range.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig

from domains.guessing.stepwise import narrow, question
from pipelinerl.domain import BaseDomain, ReportFocus
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

GAMES_PER_SEED = 200
FORGETS = 0.1
"""Probability of a guess that ignores what was heard."""
HALVES = 0.3
"""Probability of a guess near the middle of the range that is left."""


def demonstrations(seed: int, n: int, highest: int = 100, max_guesses: int = 8) -> Iterator[tuple[str, str]]:
    """(prompt, completion) of every guess in `n` games; equal arguments give equal play."""
    rng = random.Random(f"guessing demonstrations {seed}")
    for _ in range(n):
        answer = rng.randint(1, highest)
        low, high = 1, highest
        for _ in range(max_guesses):
            guess = _guess(rng, low, high, highest)
            yield question(highest, low, high), str(guess)
            if guess == answer:
                break
            low, high = narrow(low, high, guess, answer)


def _guess(rng: random.Random, lowest_left: int, highest_left: int, highest: int) -> int:
    kind = rng.random()
    if kind < FORGETS:
        return rng.randint(1, highest)
    if kind < FORGETS + HALVES:
        middle, spread = (lowest_left + highest_left) / 2, (highest_left - lowest_left) / 8
        return min(highest_left, max(lowest_left, round(rng.gauss(middle, spread))))
    return rng.randint(lowest_left, highest_left)


class GuessingDomain(BaseDomain):
    """Hooks of the guessing game: demonstrations for `python -m pipelinerl.bootstrap +domain=guessing`."""

    policy_keys = ()
    report_focus = ReportFocus(headline=("success", "reward", "guesses", "no_answer"))

    def first_messages(self, cfg: DictConfig, problem: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The question before the first guess."""
        if not {"highest", "max_guesses"} <= problem.keys():
            return None
        return [{"role": "user", "content": question(problem["highest"], 1, problem["highest"])}]

    def demonstrations(self, cfg: DictConfig, seed: int, phase: str) -> Iterator[Demonstration]:
        """Imperfect play, whatever the phase; no answer is the only right one."""
        game: dict[str, Any] = {
            key: cfg.dataset_loader_params[key]
            for key in ("highest", "max_guesses")
            if key in cfg.dataset_loader_params
        }
        for prompt, completion in demonstrations(seed, GAMES_PER_SEED, **game):
            yield Demonstration("guess", prompt, completion, exact=False)
