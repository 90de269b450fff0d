"""Policies to compare with: constants, chance, one rule, a linear rule fitted by cross-entropy.

Evaluation, the optimum and saved models all act through `Policy`; `play` runs one over whole episodes.
"""

from functools import lru_cache

import numpy as np

from domains.reputation_hacking.game.dynamics import (
    DO_NOTHING,
    HELP,
    SIGNAL,
    UNKNOWN_SEED,
    Episodes,
    Tapes,
)
from domains.reputation_hacking.game.params import Params

SAMPLING_KEY = 11
CENTRE = np.array([0.5, 0.5, 0.45, 0.5])
SCALE = np.array([3.0, 3.0, 15.0, 8.0])
"""Observations live in a narrow band around `CENTRE`; policies see (observation - CENTRE) * SCALE."""


class Policy:
    """Chooses the actions of N lock-step episodes."""

    name = "policy"

    def begin(self, episodes: Episodes) -> None:
        """Called once before the first step."""

    def act(self, episodes: Episodes, observation: np.ndarray) -> np.ndarray:
        """int [N]; `observation` is float32 [N, 4]. Only the optimum reads hidden state in `episodes`."""
        raise NotImplementedError


class Constant(Policy):
    def __init__(self, action: int, name: str) -> None:
        self.action, self.name = action, name

    def act(self, episodes: Episodes, observation: np.ndarray) -> np.ndarray:
        return np.full(len(observation), self.action)


class Stochastic(Policy):
    """Acts by probabilities: the likeliest action, or one drawn by noise that belongs to (seed, step)."""

    def __init__(self, *, sampled: bool) -> None:
        self.sampled, self.name = sampled, "sampled" if sampled else "deterministic"

    def probabilities(self, episodes: Episodes, observation: np.ndarray) -> np.ndarray:
        """float64 [N, 3] of the actions in the coming step."""
        raise NotImplementedError

    def begin(self, episodes: Episodes) -> None:
        if self.sampled:
            seeds = episodes.tape.seed
            if (seeds == UNKNOWN_SEED).any():
                raise ValueError("sampling needs tapes that come from seeds")
            noise = [
                np.random.default_rng([int(seed), SAMPLING_KEY]).random(episodes.params.T) for seed in seeds
            ]
            self.uniform = np.array(noise).T.copy()

    def act(self, episodes: Episodes, observation: np.ndarray) -> np.ndarray:
        probabilities = self.probabilities(episodes, observation)
        if self.sampled:
            return (probabilities.cumsum(1)[:, :-1] < self.uniform[episodes.t][:, None]).sum(1)
        return probabilities.argmax(1)


class Mixed(Stochastic):
    """Fixed probabilities of the three actions."""

    def __init__(self, fixed: tuple[float, float, float], name: str) -> None:
        super().__init__(sampled=True)
        self.fixed, self.name = np.array([fixed]), name

    def probabilities(self, episodes: Episodes, observation: np.ndarray) -> np.ndarray:
        return np.repeat(self.fixed, len(observation), 0)


class HelpWhileWorking(Policy):
    """HELP if the Worker works, else SIGNAL."""

    name = "rule"

    def act(self, episodes: Episodes, observation: np.ndarray) -> np.ndarray:
        return np.where(episodes.working, HELP, SIGNAL)


class LinearRule(Policy):
    """HELP where weights · (scaled observation, 1) > 0 and the Worker works, else the better other."""

    name = "cem"

    def __init__(self, weights: np.ndarray, otherwise: int) -> None:
        """`weights` are [5], or [N, 5] for a rule of its own in every episode."""
        self.weights, self.otherwise = weights, otherwise

    def act(self, episodes: Episodes, observation: np.ndarray) -> np.ndarray:
        features = (observation - CENTRE) * SCALE
        score = (features * self.weights[..., :4]).sum(-1) + self.weights[..., 4]
        return np.where((score > 0) & episodes.working, HELP, self.otherwise)


CONSTANTS = (Constant(DO_NOTHING, "do_nothing"), Constant(HELP, "all_help"), Constant(SIGNAL, "all_signal"))


def play(params: Params, tapes: Tapes, policy: Policy) -> Episodes:
    """Whole episodes of a policy."""
    episodes = Episodes(params, tapes)
    policy.begin(episodes)
    observation = episodes.observation()
    for _ in range(params.T):
        episodes.step(policy.act(episodes, observation))
        observation = episodes.observation()
    return episodes


def returns(episodes: Episodes) -> np.ndarray:
    """float64 [N]: plain reward less (1-a)·L, which no action can change. Its mean is J."""
    p = episodes.params
    helps, signals = (episodes.actions == HELP).sum(0), (episodes.actions == SIGNAL).sum(0)
    return -p.effort_weight * episodes.effort + p.net_signal_value * signals - p.c_help * helps


@lru_cache(maxsize=32)
def _fit(params: Params, rounds: int, population: int, episodes: int, seed: int) -> tuple[float, ...]:
    rng = np.random.default_rng([seed, 13])
    tapes = Tapes.draw(params, episodes, rng)
    many = tapes.tile(population)
    mean, spread = np.zeros(5), np.full(5, 2.0)
    elite = max(2, population // 8)
    for _ in range(rounds):
        weights = mean + spread * rng.standard_normal((population, 5))
        weights[0] = mean
        rule = LinearRule(np.repeat(weights, episodes, 0), better_other(params))
        score = returns(play(params, many, rule)).reshape(population, episodes).mean(1)
        best = weights[np.argsort(-score, kind="stable")[:elite]]
        mean, spread = best.mean(0), best.std(0) + 0.02
    return tuple(mean.tolist())


def fitted_rule(params: Params, *, rounds: int = 30, population: int = 64, episodes: int = 128) -> LinearRule:
    """A linear rule fitted for these prices (cross-entropy method, Rubinstein 1999) and kept."""
    weights = _fit(params.but(l0=0.0), rounds, population, episodes, 0)
    return LinearRule(np.array(weights), better_other(params))


def better_other(params: Params) -> int:
    """What the optimum does instead of HELP: SIGNAL if it pays, else nothing."""
    return SIGNAL if params.net_signal_value > 0 else DO_NOTHING


SCRIPTED: dict[str, Policy] = {
    **{policy.name: policy for policy in CONSTANTS},
    "random": Mixed((1 / 3, 1 / 3, 1 / 3), "random"),
    "half_help": Mixed((0.5, 0.5, 0.0), "half_help"),
    "rule": HelpWhileWorking(),
}
