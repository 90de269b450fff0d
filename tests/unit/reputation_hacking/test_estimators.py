"""How fast each estimator of advantages learns a table of action probabilities, at equal step sizes."""

import numpy as np
import pytest

from domains.reputation_hacking.game.dynamics import HELP, SIGNAL, Episodes, Tapes
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import returns
from domains.reputation_hacking.language.prompts import SITUATIONS, situations
from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.advantages import compute_advantages
from tests.support.reputation_decisions import table_of

GROUPS, ATTEMPTS, STEP_SIZE, SMOOTHED, RUNS = 8, 8, 1.5, 5, 4
TARGET = {0.5: 24.0, 0.7: 16.0}
MEMORY = 0.9 * 53.41


def update(logits: np.ndarray, params: Params, estimator: str, rng: np.random.Generator) -> float:
    """One update in place; returns the mean reward of its rollouts from calibrated memory."""
    if estimator == "random":
        tapes = Tapes.draw(params, GROUPS * ATTEMPTS, rng)
    else:
        once = vars(Tapes.draw(params, GROUPS, rng))
        tapes = Tapes(**{name: np.repeat(values, ATTEMPTS, axis=-1) for name, values in once.items()})
    episodes = Episodes(params, tapes)
    chosen, seen, gains, shares = [], [], [], []
    while episodes.t < params.T:
        seen.append(situations(episodes))
        weights = np.exp(logits[seen[-1]] - logits[seen[-1]].max(1, keepdims=True))
        shares.append(weights / weights.sum(1, keepdims=True))
        drawn = rng.random((len(episodes), 1))
        chosen.append((shares[-1].cumsum(1)[:, :2] < drawn).sum(1))
        episodes.step(chosen[-1])
        gains.append(-0.9 * episodes.e + params.net_signal_value * (chosen[-1] == SIGNAL))
    total = returns(episodes)
    situation, action = np.array(seen), np.array(chosen)
    reward = np.broadcast_to(total, action.shape)
    if estimator == "to_go":
        reward = np.cumsum(np.array(gains)[::-1], axis=0)[::-1]
    table = table_of(reward, ATTEMPTS, situation if estimator == "situation" else None)
    by_step = estimator in ("situation", "to_go")
    advantage = compute_advantages(table, RLConfig(step_reward_advantages=by_step)).advantage
    advantage = advantage / (advantage.std() + 1e-12)
    score = np.eye(3)[action.ravel()] - np.array(shares).reshape(-1, 3)
    sums, visits = np.zeros((SITUATIONS, 3)), np.bincount(situation.ravel(), minlength=SITUATIONS)
    np.add.at(sums, situation.ravel(), advantage[:, None] * score)
    logits += STEP_SIZE * sums / np.maximum(visits, 1)[:, None]
    return float(total.mean()) + MEMORY


def updates_needed(price: float, estimator: str, limit: int) -> float:
    """Mean over runs of the updates until the smoothed reward reaches its target, at most `limit`."""
    needed = []
    for run in range(RUNS):
        rng, logits, rewards = np.random.default_rng([run, 5]), np.zeros((SITUATIONS, 3)), list[float]()
        params = Params(c_signal=price, l0=0.0)
        while len(rewards) < limit:
            rewards.append(update(logits, params, estimator, rng))
            if len(rewards) >= SMOOTHED and np.mean(rewards[-SMOOTHED:]) >= TARGET[price]:
                break
        needed.append(len(rewards))
    return float(np.mean(needed))


@pytest.mark.slow
@pytest.mark.parametrize("price", TARGET)
def test_shared_noise_is_the_large_gain_and_no_estimator_loses(price: float) -> None:
    rollout = updates_needed(price, "rollout", 120)
    assert rollout <= 0.65 * updates_needed(price, "random", 120)
    assert updates_needed(price, "situation", 120) == pytest.approx(rollout, rel=0.15)
    assert updates_needed(price, "to_go", 120) <= rollout


def test_a_table_learns_from_situational_advantages() -> None:
    rng, logits = np.random.default_rng(0), np.zeros((SITUATIONS, 3))
    params = Params(c_signal=0.0, l0=0.0)
    rewards = [update(logits, params, "situation", rng) for _ in range(15)]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 5.0
    assert logits[:18, SIGNAL].mean() > max(logits[:18, HELP].mean(), logits[:18, 0].mean())
