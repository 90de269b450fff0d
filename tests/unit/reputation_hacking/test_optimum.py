"""The optimum against known values, exhaustive play and every other policy."""

from itertools import pairwise, product

import numpy as np
import pytest

from domains.reputation_hacking.game.dynamic_programming import Grid, Optimal, solve
from domains.reputation_hacking.game.dynamics import Tape, Tapes, played
from domains.reputation_hacking.game.optimum import Yardstick, horizons, optimum_row
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import SCRIPTED, fitted_rule, play, returns
from domains.reputation_hacking.ppo.paired import HELD_OUT

# c_signal: (HELP, TrueImpact, reward, ManipulationScore, J, J of the best constant)
KNOWN = {
    0.0: (0.0, 0.0, 50.15, 50.2, 2.083, 2.083),
    0.5: (1.19, 0.84, 25.31, 48.9, -22.757, -22.917),
    0.6: (3.78, 2.17, 20.59, 46.2, -27.479, -27.917),
    0.65: (12.3, 5.69, 18.46, 37.3, -29.609, -30.417),
    0.7: (30.4, 12.25, 17.04, 18.5, -31.026, -32.917),
    0.75: (41.9, 15.84, 16.43, 6.7, -31.640, -33.113),
    0.9: (44.7, 16.51, 15.55, 3.9, -32.519, -33.113),
    1.0: (45.1, 16.53, 15.03, -1.5, -33.038, -33.113),
}


@pytest.fixture(scope="module")
def held_out() -> Tapes:
    return Tapes.from_seeds(Params(), HELD_OUT)


@pytest.fixture(scope="module")
def rows(held_out: Tapes) -> dict[float, dict[str, float]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tapes, "from_seeds", lambda *_: held_out)  # of every price the same
        return {price: optimum_row(Params(c_signal=price), HELD_OUT) for price in KNOWN}


@pytest.mark.parametrize("price", KNOWN)
def test_known_values(rows: dict[float, dict[str, float]], price: float) -> None:
    row = rows[price]
    helped, impact, reward, manipulation, best, constant = KNOWN[price]
    assert row["help"] == pytest.approx(helped, abs=0.6)
    assert row["true_impact"] == pytest.approx(impact, abs=0.3)
    assert row["reward"] == pytest.approx(reward, abs=0.3)
    assert row["manipulation_score"] == pytest.approx(manipulation, abs=0.8)
    assert row["J_optimum"] == pytest.approx(best, abs=0.15)
    assert row["J_constant"] == pytest.approx(constant, abs=0.15)


def test_value_falls_and_help_rises_with_the_price(rows: dict[float, dict[str, float]]) -> None:
    ordered = [rows[price] for price in sorted(rows)]
    for cheap, dear in pairwise(ordered):
        assert dear["J_optimum"] <= cheap["J_optimum"]
        assert dear["help"] / 50 >= cheap["help"] / 50 - 0.01


@pytest.mark.parametrize("price", [0.5, 0.7, 0.9])
def test_nothing_beats_it(price: float, held_out: Tapes) -> None:
    params = Params(c_signal=price)
    best = returns(play(params, held_out, Optimal(solve(params)))).mean()
    rule = fitted_rule(params, rounds=20, population=32, episodes=64)
    for policy in [*SCRIPTED.values(), rule]:
        assert returns(play(params, held_out, policy)).mean() <= best + 0.1


def test_a_finer_grid_changes_little(held_out: Tapes) -> None:
    params = Params(c_signal=0.7)
    coarse, fine = (
        returns(play(params, held_out, Optimal(solve(params, grid)))).mean()
        for grid in (Grid(), Grid(97, 17, 9))
    )
    assert fine == pytest.approx(coarse, abs=0.1)


@pytest.mark.parametrize(
    ("difficulty", "price", "best"),
    [(0.5, 0.7, -2.623101), (0.6, 0.7, -3.450891), (0.7, 0.7, -4.059743), (0.7, 0.6, -3.810019)],
)
def test_all_sequences_of_eight_steps(difficulty: float, price: float, best: float) -> None:
    params = Params(T=8, noise_std=0.0, trend_std=0.0, c_signal=price)
    tape = Tapes.stack([Tape.quiet(params, difficulty)])
    sequences = np.array(list(product(range(3), repeat=8))).T
    exhaustive = returns(played(params, tape.tile(sequences.shape[1]), sequences)).max()
    assert exhaustive == pytest.approx(best, abs=1e-6)
    assert returns(play(params, tape, Optimal(solve(params))))[0] == pytest.approx(best, abs=3e-3)


def test_the_four_observations_suffice(rows: dict[float, dict[str, float]]) -> None:
    assert rows[0.7]["observed_only_share"] > 0.95


def test_only_the_sum_of_prices_matters_for_help() -> None:
    first, second = Params(c_signal=0.7), Params(c_signal=0.8, c_help=0.1)
    assert solve(first) is solve(second)
    tapes = Tapes.from_seeds(first, range(100))
    a, b = (play(p, tapes, Optimal(solve(p))).actions for p in (first, second))
    np.testing.assert_array_equal(a == 1, b == 1)


def test_no_share_of_a_margin_that_is_nothing() -> None:
    assert Yardstick(Params(c_signal=0.0), range(50)).share(1.0) is None


def test_looking_ahead_makes_signals_worth_more(held_out: Tapes) -> None:
    known = {1: 0.296, 5: 0.243, 10: 0.193, 20: 0.129, 50: 0.059, 200: 0.015}
    assert dict(horizons(Params(), held_out)) == pytest.approx(known, abs=0.002)
    with pytest.raises(ValueError, match="horizon"):
        horizons(Params(), held_out, [0])
