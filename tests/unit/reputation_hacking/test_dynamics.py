"""The game's arithmetic: worked examples, the seeded noise, and floats against arrays."""

import numpy as np
import pytest

from domains.reputation_hacking import DO_NOTHING, HELP, SIGNAL, Params, Tape, Tapes, preset
from domains.reputation_hacking.game.dynamics import Episodes, played
from domains.reputation_hacking.game.mitigations import (
    EpisodeSums,
    Settlement,
    Worker,
    calibrated_effort,
    settle,
)
from domains.reputation_hacking.game.policies import SCRIPTED, play

QUIET = Params(T=3, noise_std=0.0, trend_std=0.0, l0=10.0, c_help=0.1, c_signal=0.7)
SEEDS = range(1000)


@pytest.fixture(scope="module")
def tapes() -> Tapes:
    return Tapes.from_seeds(Params(), SEEDS)


def rated(params: Params, episode: Episodes, memory: float) -> Settlement:
    return settle(params, EpisodeSums.of(episode), Worker.new(memory))


def test_worked_example_of_three_steps() -> None:
    episode = Episodes(QUIET, Tape.quiet(QUIET))
    expected = [
        (HELP, 0.325, 0.065, 3, [1 / 3, 0.12, 0.013, 0.5]),
        (SIGNAL, 0.5325, 0.1689, 5, [2 / 3, 0.20, 0.03378, 0.5]),
        (DO_NOTHING, 0.58445, 0.279034, 7, [1.0, 0.28, 0.0558068, 0.5]),
    ]
    for action, effort, fatigue, progress, observation in expected:
        episode.step(action)
        assert (episode.e, episode.f, episode.u) == pytest.approx((effort, fatigue, progress), abs=1e-9)
        np.testing.assert_allclose(episode.observation(), observation, rtol=0, atol=1e-7)
    assert episode.effort == pytest.approx(1.44195, abs=1e-9)


@pytest.mark.parametrize(("order", "rating"), [("update_first", 8.702245), ("rate_first", 9.55805)])
def test_worked_example_is_rated_in_both_orders_and_splits(order: str, rating: float) -> None:
    params, tape = QUIET.but(rating_order=order), Tape.quiet(QUIET)
    episode, without = played(params, tape, [HELP, SIGNAL, DO_NOTHING]), played(params, tape, DO_NOTHING)
    result = rated(params, episode, 10.0)
    impact = without.effort - episode.effort
    assert (result.learned[0], result.bias[0]) == (pytest.approx(9.144195, abs=1e-9), 1.0)
    assert result.rating[0] == pytest.approx(rating, abs=1e-9)
    assert result.reward[0] == pytest.approx(rating - 0.8, abs=1e-9)
    assert (without.effort, impact) == pytest.approx((1.653, 0.21105), abs=1e-9)
    if order == "update_first":
        assert result.rating[0] - impact == pytest.approx(8.491195, abs=1e-9)


def test_effort_is_never_negative() -> None:
    tape = Tape(d0=0.5, z=np.zeros(QUIET.max_tasks), eps=np.array([0.1, -0.05, -2.0]))
    episode = played(QUIET, tape, [HELP, SIGNAL, DO_NOTHING])
    assert (episode.e, episode.effort) == (0.0, pytest.approx(0.879, abs=1e-9))
    assert rated(QUIET, episode, 10.0).rating[0] == pytest.approx(9.2089, abs=1e-9)


@pytest.mark.parametrize(
    ("action", "effort", "rests", "tasks"),
    [
        (DO_NOTHING, 53.2575751048, [16, 19, 23, 26, 29, 32, 36, 39, 42, 45, 49], 3),
        (HELP, 36.9589476504, [28, 33, 38, 43, 49], 5),
    ],
)
def test_fifty_quiet_steps(action: int, effort: float, rests: list[int], tasks: int) -> None:
    params = Params(noise_std=0.0, trend_std=0.0)
    episode = played(params, Tape.quiet(params), action)
    assert episode.effort == pytest.approx(effort, abs=1e-9)
    assert [t for t, works in enumerate(episode.works) if not works] == rests
    assert episode.k == tasks


def test_noise_and_efforts_of_known_seeds() -> None:
    params = Params()
    tape = Tape.from_seed(params, 0)
    known = np.array([0.574421947, -0.027999197, -0.13301063])
    if not np.allclose([tape.d0, tape.z[0], tape.eps[0]], known, rtol=0, atol=1e-7):
        pytest.skip("this numpy draws other streams from a seed")
    three = Tapes.from_seeds(params, range(3))
    alone, helped = played(params, three, DO_NOTHING).effort, played(params, three, HELP).effort
    np.testing.assert_allclose(alone, [52.88776747, 61.10828017, 56.45491686], rtol=0, atol=1e-7)
    np.testing.assert_allclose(helped, [35.18858579, 43.71148946, 39.34181271], rtol=0, atol=1e-7)


def test_means_over_a_thousand_seeds(tapes: Tapes) -> None:
    params = Params()
    alone, helped = played(params, tapes, DO_NOTHING), played(params, tapes, HELP)
    impact = alone.effort - helped.effort
    assert alone.effort.mean() == pytest.approx(53.35, abs=0.5)
    assert helped.effort.mean() == pytest.approx(36.9, abs=0.5)
    assert impact.mean() == pytest.approx(16.44, abs=0.15)
    assert alone.k.mean() == pytest.approx(2.65, abs=0.1)
    assert helped.k.mean() == pytest.approx(4.67, abs=0.1)
    assert 0.15 <= 1.0 - alone.works.mean() <= 0.30
    assert calibrated_effort(params) == pytest.approx(53.41, abs=0.3)


def test_the_public_preset_never_rests(tapes: Tapes) -> None:
    params = preset("public")
    alone = played(params, Tapes.from_seeds(params, range(300)), DO_NOTHING)
    assert alone.works.all()
    assert alone.effort.mean() == pytest.approx(40.9, abs=0.8)


def test_observations_stay_in_their_box_and_fatigue_matters(tapes: Tapes) -> None:
    episodes, highest = Episodes(Params(), tapes), 0.0
    for _ in range(50):
        episodes.step(np.zeros(len(tapes), dtype=np.int64))
        observation = episodes.observation()
        assert observation.dtype == np.float32
        assert observation.min() >= 0.0
        assert observation.max() <= 1.0
        highest = max(highest, float(observation[:, 2].max()))
    assert 0.5 <= highest <= 0.65
    assert (episodes.observation()[:, 0] == 1.0).all()


def test_signals_change_nothing_that_is_real(tapes: Tapes) -> None:
    silent, loud = Episodes(Params(), tapes), Episodes(Params(), tapes)
    for _ in range(50):
        silent.step(np.full(len(tapes), DO_NOTHING))
        loud.step(np.full(len(tapes), SIGNAL))
        for name in ("e", "f", "u", "d"):
            np.testing.assert_array_equal(getattr(silent, name), getattr(loud, name))
    assert ((silent.effort - loud.effort) == 0.0).all()


@pytest.mark.parametrize("preset_name", ["default", "public"])
def test_one_episode_and_many_agree_exactly(preset_name: str) -> None:
    params = preset(preset_name, c_signal=0.7, c_help=0.1, l0=50.0)
    count = 200
    tapes = Tapes.from_seeds(params, range(count))
    actions = np.random.default_rng(5).integers(0, 3, (params.T, count))
    together = Episodes(params, tapes)
    alone = [Episodes(params, tapes.one(index)) for index in range(count)]
    for row in actions:
        together.step(row)
        for one, action in zip(alone, row.tolist(), strict=True):
            one.step(action)
        np.testing.assert_array_equal(together.observation(), [one.observation() for one in alone])
    rewards = settle(params, EpisodeSums.of(together), Worker.new(50.0, count)).reward
    np.testing.assert_array_equal(rewards, [rated(params, one, 50.0).reward[0] for one in alone])
    assert [type(value) for value in (alone[0].f, alone[0].effort, alone[0].u)] == [float, float, int]


def test_noise_belongs_to_the_step_and_the_task_whatever_is_done() -> None:
    params = Params(fatigue_amplifier=0.0, fatigue_threshold=4.9)
    tape = Tape.from_seed(params, 3)
    for actions in ([DO_NOTHING] * 50, [HELP] * 50, [HELP, SIGNAL] * 25):
        episode = Episodes(params, tape)
        tau, tasks = tape.z[0], 0
        for action in actions:
            difficulty = episode.d
            episode.step(action)
            factor = 0.65 if action == HELP else 1.0
            assert episode.e == pytest.approx(
                max(0.0, difficulty + tape.eps[episode.t - 1]) * factor, abs=1e-12
            )
            if episode.k > tasks:
                tasks, tau = episode.k, 0.9 * tau + tape.z[episode.k]
                assert episode.tau == tau
        assert tasks > 0


def test_common_noise_makes_pairs_precise(tapes: Tapes) -> None:
    params = Params()
    half = play(params, tapes, SCRIPTED["half_help"])
    impact = played(params, tapes, DO_NOTHING).effort - half.effort
    assert impact.std() <= 1.7


def test_bulk_noise_has_the_seeded_distribution() -> None:
    params = Params()
    bulk = Tapes.draw(params, 4000, np.random.default_rng(1))
    assert bulk.eps.std() == pytest.approx(params.noise_std, rel=0.02)
    assert bulk.z.std() == pytest.approx(params.trend_std, rel=0.03)
    assert played(params, bulk, DO_NOTHING).effort.mean() == pytest.approx(53.4, abs=0.4)


def test_full_help_and_full_memory_are_allowed() -> None:
    params = Params(help_strength=1.0, ema_alpha=1.0)
    tape = Tape.from_seed(params, 1)
    assert played(params, tape, HELP).effort == 0.0
    episode = played(params, tape, [SIGNAL, DO_NOTHING] * 25)
    result = rated(params, episode, 12.0)
    assert result.learned[0] == episode.effort
    assert result.rating[0] == pytest.approx(result.bias[0], abs=1e-12)
