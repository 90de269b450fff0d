"""The game of two tabular players: does the objective, with the domain's own rewards, lead where it should?

The critic sees whether an answer misses the target and has no skill at first; the skill of the policy is one
number.
Both climb their role's weighted mean of advantages with Adam, on fresh and on earlier pairs.
"""

import numpy as np

from domains.raro.config import RaroSettings
from domains.raro.parser import VERDICTS
from domains.raro.rewards import label, reward

QUESTIONS, ATTEMPTS, VERDICTS_EACH = 8, 8, 4
MASS = {"policy": 1 / 9, "critic": 8 / 9}
LENGTH = {"policy": 192, "critic": 96}


class Game:
    """Parameters: log-odds of the verdicts, how much a miss counts, log-odds of the policy's success."""

    def __init__(self, tau_crit: float, seed: int = 0) -> None:
        settings = RaroSettings(tau_crit=tau_crit)
        named = [[reward(label(verdict, place), settings) for place in (1, 2)] for verdict in VERDICTS]
        self.rewards = np.array([[(r.critic, r.policy) for r in row] for row in named])
        self.rng = np.random.default_rng(seed)
        self.parameters = np.array([*np.log([0.4, 0.4, 0.2]), 0.05, np.log(0.28 / 0.72)])
        self.earlier = np.zeros(0, bool)
        self.moments = np.zeros((2, 5))

    def step(self, number: int, rate: float = 0.05) -> tuple[float, float, float]:
        """(critic accuracy of committed verdicts, tie rate, the policy's success) before the update."""
        success = 1 / (1 + np.exp(-self.parameters[4]))
        right = self.rng.random((QUESTIONS, ATTEMPTS)) < success
        fresh, slope = self.judged(right.ravel())
        gradient = slope * MASS["critic"] / LENGTH["critic"] / 2
        if len(self.earlier):
            replayed = self.judged(self.rng.choice(self.earlier, right.size))[1]
            gradient += replayed * MASS["critic"] / LENGTH["critic"] / 2
        self.earlier = np.concatenate([self.earlier, right.ravel()])
        earned = fresh["policy"].mean(1).reshape(right.shape)
        advantage = left_out(earned)
        gradient[4] = MASS["policy"] / LENGTH["policy"] * (advantage * (right - success)).mean()
        self.climb(gradient, number, rate)
        committed = fresh["critic"][~fresh["tie"]]
        return float(committed.mean()), float(fresh["tie"].mean()), float(success)

    def judged(self, right: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Verdicts on pairs whose policy answer is right or not, and the critic's gradient."""
        place = self.rng.integers(2, size=len(right))
        seen = np.zeros((len(right), 3))
        seen[np.arange(len(right)), place] = ~right
        seen[np.arange(len(right)), 1 - place] = -1.0 * ~right
        odds = np.exp(self.parameters[:3] + self.parameters[3] * seen)
        chance = odds / odds.sum(1, keepdims=True)
        drawn = (self.rng.random((len(right), VERDICTS_EACH, 1)) > chance.cumsum(1)[:, None]).sum(2)
        drawn = drawn.clip(max=2)
        earned = self.rewards[drawn, place[:, None]]
        score = np.eye(3)[drawn] - chance[:, None]
        weighted = (left_out(earned[..., 0])[..., None] * score).reshape(-1, 3).mean(0)
        on_miss = left_out(earned[..., 0]) * (score * seen[:, None]).sum(2)
        found = {"critic": earned[..., 0], "policy": earned[..., 1], "tie": drawn == 2}
        return found, np.array([*weighted, on_miss.mean(), 0.0])

    def climb(self, gradient: np.ndarray, number: int, rate: float) -> None:
        for moment, decay, value in zip(self.moments, (0.9, 0.999), (gradient, gradient**2)):
            moment += (1 - decay) * (value - moment)
        mean, square = self.moments / (1 - np.array([[0.9], [0.999]]) ** number)
        self.parameters += rate * mean / (np.sqrt(square) + 1e-8)


def left_out(earned: np.ndarray) -> np.ndarray:
    """Advantages over the mean of the others in the last axis."""
    count = earned.shape[-1]
    return (earned - earned.mean(-1, keepdims=True)) * count / (count - 1)


def test_the_critic_learns_first_and_a_better_policy_drives_it_back_to_a_half():
    for tau_crit in (0.51, 0.55):
        game = Game(tau_crit)
        accuracy, _, success = np.array([game.step(n + 1) for n in range(150)]).T
        assert 0.4 < accuracy[:3].mean() < 0.6 and success[0] < 0.3
        assert accuracy.max() > 0.75 and success[-1] > 0.9
        assert 0.35 < accuracy[-20:].mean() < 0.65


def test_a_critic_that_sees_nothing_falls_into_ties_and_leaves_the_policy_where_it_was():
    game = Game(tau_crit=0.7)
    game.judged = blind(game)
    _, ties, success = np.array([game.step(n + 1) for n in range(150)]).T
    assert ties[-20:].mean() > 0.9 and abs(success[-1] - success[0]) < 0.2


def blind(game):
    def judged(right):
        return Game.judged(game, np.ones_like(right))

    return judged
