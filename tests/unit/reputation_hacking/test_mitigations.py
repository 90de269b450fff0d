"""Reward variants: their formulas, their limits, and their effect on the plain game."""

import numpy as np
import pytest

from domains.reputation_hacking.game.batch import BatchEnv
from domains.reputation_hacking.game.dynamics import DO_NOTHING, SIGNAL, Tapes, played
from domains.reputation_hacking.game.env import ReputationEnv
from domains.reputation_hacking.game.mitigations import DESIGNS, NONE, EpisodeSums, Mitigation, Worker, settle
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import SCRIPTED, play

PARAMS = Params(c_signal=0.1, l0=50.0)


def sums(signals: int, effort: float = 40.0, chance: float = 0.5) -> EpisodeSums:
    count = np.array([signals])
    return EpisodeSums(
        effort=np.array([effort]),
        helps=np.array([0]),
        signals=count,
        counted_signals=np.minimum(count, 10),
        chance=np.array([chance]),
        effort_without=np.array([53.0]),
    )


def bias(name: str, signals: int, **kwargs: float) -> float:
    return float(settle(PARAMS, sums(signals, **kwargs), Worker.new(50.0), Mitigation.parse(name)).bias[0])


@pytest.mark.parametrize(("signals", "expected"), [(5, 3.160603), (50, 4.999773)])
def test_saturated_bias(signals: int, expected: float) -> None:
    assert bias("saturate", signals) == pytest.approx(expected, abs=1e-6)


def test_an_audit_by_chance_turns_the_bias_round() -> None:
    assert bias("audit", 4, chance=0.19) == -20.0
    assert bias("audit", 4, chance=0.2) == 4.0
    assert bias("audit:p=1,lam=2", 4) == -8.0


def test_a_window_counts_early_signals_only() -> None:
    tapes = Tapes.from_seeds(PARAMS, range(3))
    actions = np.zeros((50, 3), dtype=int)
    actions[5:20] = SIGNAL
    episodes = played(PARAMS, tapes, actions)
    result = settle(
        PARAMS, EpisodeSums.of(episodes, Mitigation("window")), Worker.new(50.0, 3), Mitigation("window")
    )
    assert result.bias.tolist() == [5.0] * 3
    assert (result.plain_rating - result.rating).tolist() == pytest.approx([10.0] * 3)
    assert (result.rating - result.reward).tolist() == pytest.approx([1.5] * 3)  # every SIGNAL is charged


def test_ten_caught_episodes_break_trust_and_honesty_mends_it() -> None:
    variant, worker = Mitigation("trust"), Worker.new(50.0)
    for _ in range(10):
        worker = settle(PARAMS, sums(50), worker, variant).memory
    assert worker.trust[0] == pytest.approx(0.8**10, abs=1e-12)
    assert worker.trust[0] == pytest.approx(0.107, abs=1e-3)
    after = settle(PARAMS, sums(0), worker, variant).memory
    assert after.trust[0] == pytest.approx(worker.trust[0] + 0.05 * (1 - worker.trust[0]), abs=1e-12)
    assert settle(PARAMS, sums(3), worker, variant).bias[0] == pytest.approx(3 * worker.trust[0])
    honest = settle(PARAMS, sums(3, effort=54.0), worker, variant).memory
    assert honest.trust[0] > worker.trust[0]


def test_the_penalty_takes_the_manipulation_back() -> None:
    result = settle(PARAMS, sums(7), Worker.new(50.0), Mitigation.parse("ms_penalty:w=2"))
    manipulation = result.rating[0] - (53.0 - 40.0)
    assert result.penalty[0] == pytest.approx(2 * manipulation)
    assert result.reward[0] == pytest.approx(result.rating[0] - 0.7 - result.penalty[0])


@pytest.mark.parametrize(
    ("signals", "chance", "penalty"),
    [(0, 0.09, 7.0), (0, 0.1, 0.0), (1, 0.79, 7.0), (50, 0.79, 7.0), (1, 0.8, 0.0)],
)
def test_a_monitor_takes_its_weight_once_and_errs_both_ways(
    signals: int, chance: float, penalty: float
) -> None:
    variant, worker = Mitigation.parse("monitor:hits=0.8,lam=7"), Worker.new(50.0)
    watched, plain = (settle(PARAMS, sums(signals, chance=chance), worker, one) for one in (variant, NONE))
    assert watched.penalty[0] == penalty
    assert watched.reward[0] == plain.reward[0] - penalty
    assert watched.rating[0] == plain.rating[0]


def test_control_rewards_exactly_the_true_impact() -> None:
    params, tapes = Params(), Tapes.from_seeds(Params(), range(50))
    episodes = play(params, tapes, SCRIPTED["random"])
    variant = Mitigation("control")
    result = settle(params, EpisodeSums.of(episodes, variant), Worker.new(50.0, 50), variant)
    impact = played(params, tapes, DO_NOTHING).effort - episodes.effort
    np.testing.assert_array_equal(result.reward, impact)
    assert (result.bias == 0.0).all()


def test_a_frozen_worker_learns_nothing() -> None:
    result = settle(PARAMS, sums(3), Worker.new(50.0), Mitigation("frozen_l"))
    assert result.memory.expected_effort[0] == 50.0
    assert result.rating[0] == 50.0 + 3.0 - 40.0


def test_none_is_the_plain_game_bit_for_bit() -> None:
    assert Mitigation.parse("none") == NONE
    result = settle(PARAMS, sums(7), Worker.new(50.0))
    np.testing.assert_array_equal(result.plain_rating, result.rating)


@pytest.mark.parametrize("name", DESIGNS)
def test_the_single_environment_agrees_with_the_batch(name: str) -> None:
    env, batch = ReputationEnv(PARAMS, name), BatchEnv(PARAMS, 1, mitigation=Mitigation(name))
    rng = np.random.default_rng(6)
    for seed in range(3):
        env.reset(seed=seed)
        batch.reset(seeds=[seed])
        for action in rng.integers(0, 3, 50):
            _, reward, _, _, info = env.step(int(action))
            _, rewards, _, infos = batch.step(np.array([action]))
        assert reward == rewards[0]
        assert info == {key: values[0].item() for key, values in infos.items()}


@pytest.mark.parametrize(
    "text", ["nothing", "audit:q=1", "audit:p=2", "audit:p", "window:m=x", "none:b=1", "saturate:b=0"]
)
def test_bad_variants_are_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="mitigation") as caught:
        Mitigation.parse(text)
    assert "\n" not in str(caught.value)


def test_a_variant_reads_as_it_was_written() -> None:
    for text in ("none", "audit:p=0.1", "trust:eta=0.5,eta0=0.1"):
        assert str(Mitigation.parse(text)) == text
