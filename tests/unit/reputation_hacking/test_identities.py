"""What holds exactly, whatever the noise and the actions."""

import numpy as np
import pytest

from domains.reputation_hacking.game.batch import BatchEnv
from domains.reputation_hacking.game.dynamics import HELP, SIGNAL
from domains.reputation_hacking.game.env import ReputationEnv
from domains.reputation_hacking.game.mitigations import (
    DESIGNS,
    EpisodeSums,
    Mitigation,
    Worker,
    calibrated_effort,
    settle,
)
from domains.reputation_hacking.game.params import RATING_ORDERS, Params
from domains.reputation_hacking.game.policies import SCRIPTED
from domains.reputation_hacking.ppo.paired import paired
from domains.reputation_hacking.ppo.report import columns

EXACT = 1e-9
EPISODES = 5


def telescoped(params: Params, first: np.ndarray, last: np.ndarray, bias: np.ndarray) -> np.ndarray:
    a = params.ema_alpha
    factor = (1.0 - a) / a if params.rating_order == "update_first" else 1.0 / a
    return factor * (first - last) + bias


def sums_over_episodes(env: ReputationEnv | BatchEnv, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Ratings and effective biases of random play, [count], over consecutive episodes."""
    rng, ratings, bias = np.random.default_rng(3), np.zeros(count), np.zeros(count)
    for _ in range(EPISODES):
        env.reset()
        ended, info = False, {}
        while not ended:
            actions = rng.integers(0, 3, count)
            _, _, ended, *_, info = env.step(actions if isinstance(env, BatchEnv) else int(actions[0]))
        ratings, bias = ratings + info["peer_rating"], bias + info["signal_bias"]
    return ratings, bias


@pytest.mark.parametrize("alpha", [0.1, 0.37, 1.0])
@pytest.mark.parametrize("order", RATING_ORDERS)
@pytest.mark.parametrize("name", [name for name in DESIGNS if name not in ("control", "frozen_l")])
def test_ratings_telescope_alone_and_in_the_batch_under_every_bias(
    alpha: float, order: str, name: str
) -> None:
    params = Params(ema_alpha=alpha, rating_order=order, l0=50.0)
    alone, batch = ReputationEnv(params, name), BatchEnv(params, 4, mitigation=Mitigation(name), seed=0)
    alone.reset(seed=0)
    for env, count in ((batch, 4), (alone, 1)):
        ratings, bias = sums_over_episodes(env, count)  # type: ignore[arg-type]
        expected = telescoped(params, np.full(count, 50.0), env.worker.expected_effort, bias)  # type: ignore[attr-defined]
        np.testing.assert_allclose(ratings, expected, rtol=0, atol=EXACT)


def test_two_episodes_of_one_worker_by_hand() -> None:
    params, worker, ratings = Params(), Worker.new(50.0), []
    for effort, signals in ((40.0, 2), (45.0, 0)):
        count = np.array([signals])
        sums = EpisodeSums(
            effort=np.array([effort]), helps=count, signals=count, counted_signals=count, chance=np.zeros(1)
        )
        result = settle(params, sums, worker)
        worker = result.memory
        ratings.append(float(result.rating[0]))
    assert ratings == pytest.approx([11.0, 3.6], abs=1e-12)
    assert worker.expected_effort[0] == pytest.approx(48.6, abs=1e-12)
    assert sum(ratings) == pytest.approx(9 * (50 - 48.6) + 2, abs=1e-12)


@pytest.mark.parametrize("order", RATING_ORDERS)
def test_reward_accrues_step_by_step(order: str) -> None:
    params = Params(c_signal=0.7, c_help=0.2, rating_order=order, l0=47.0)
    env = ReputationEnv(params)
    rng = np.random.default_rng(4)
    for seed in range(EPISODES):
        env.reset(seed=seed, options={"worker_memory": 47.0})
        total, ended, reward = params.effort_weight * 47.0, False, 0.0
        while not ended:
            action = int(rng.integers(3))
            _, reward, ended, _, _ = env.step(action)
            assert env.episode is not None
            total += -params.effort_weight * env.episode.e
            total += params.net_signal_value * (action == SIGNAL) - params.c_help * (action == HELP)
        assert reward == pytest.approx(total, abs=EXACT)


@pytest.mark.parametrize("mode", ["calibrated", "chained"])
@pytest.mark.parametrize("order", RATING_ORDERS)
def test_manipulation_splits_and_silence_takes_the_bias_away(mode: str, order: str) -> None:
    params = Params(c_signal=0.4, rating_order=order)
    for name in ("random", "rule", "all_signal"):
        result = paired(params, SCRIPTED[name], range(120), 53.0, mode=mode, burn_in=30)  # type: ignore[arg-type]
        np.testing.assert_allclose(result.manipulation, result.bias + result.memory_part, rtol=0, atol=EXACT)
        if mode == "calibrated":
            silenced = result.silenced.settlement.rating
            np.testing.assert_allclose(result.rating - silenced, result.bias, rtol=0, atol=EXACT)
            np.testing.assert_array_equal(result.acting.episodes.effort, result.silenced.episodes.effort)


def test_without_manipulation_the_score_is_small_and_known() -> None:
    params = Params()
    start = calibrated_effort(params)
    nothing = columns(paired(params, SCRIPTED["do_nothing"], range(1000), start))
    helped = columns(paired(params, SCRIPTED["all_help"], range(1000), start))
    assert nothing["manipulation_score"].mean() == pytest.approx(0.0, abs=0.3)
    expected = -params.ema_alpha * helped["true_impact"].mean()
    assert helped["manipulation_score"].mean() == pytest.approx(expected, abs=0.3)
    assert columns(paired(params, SCRIPTED["all_help"], range(50), start))["reward"].mean() > 0


def test_learning_before_rating_is_not_what_makes_signals_pay() -> None:
    tapes = range(200)
    rewards = {}
    for order in RATING_ORDERS:
        params = Params(rating_order=order)
        for name in ("all_help", "all_signal"):
            result = columns(paired(params, SCRIPTED[name], tapes, calibrated_effort(params)))
            rewards[order, name] = result["reward"].mean()
    assert rewards["rate_first", "all_help"] > rewards["update_first", "all_help"] > 14.0
    assert rewards["rate_first", "all_signal"] == pytest.approx(
        rewards["update_first", "all_signal"], abs=0.5
    )
