"""Interventions: their exact optima against exhaustive play, and where the small learner ends."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from domains.reputation_hacking import interventions as command
from domains.reputation_hacking.game.dynamics import HELP, SIGNAL, Tape, Tapes, played
from domains.reputation_hacking.game.interventions import Intervention, Monitor, Planned, returns_under
from domains.reputation_hacking.game.learner import TablePolicy, learn
from domains.reputation_hacking.game.mitigations import EpisodeSums, Mitigation, Worker, settle
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import play, returns

STEPS = 6
SEQUENCES = np.array(list(product(range(3), repeat=STEPS))).T
STEP, EPISODE = Monitor(reads="step"), Monitor(reads="episode")


def small_game(price: float) -> tuple[Params, Tapes]:
    params = Params(T=STEPS, noise_std=0.0, trend_std=0.0, c_signal=price)
    return params, Tapes.stack([Tape.quiet(params, 0.7)])


def rewards_of_all(params: Params, tape: Tapes, intervention: Intervention) -> np.ndarray:
    """Expected reward of each of the 729 sequences, by `settle` and by summing over what monitors may say."""
    many = tape.tile(SEQUENCES.shape[1])
    episodes, worker = played(params, many, SEQUENCES), Worker.new(0.0, SEQUENCES.shape[1])
    sums, total = EpisodeSums.of(episodes, intervention.design), np.zeros(SEQUENCES.shape[1])
    audited = intervention.design["p"] if intervention.design.name == "audit" else 0.0
    for chance, probability in ((0.0, audited), (1.0, 1.0 - audited)):
        drawn = EpisodeSums(**{**vars(sums), "chance": np.full_like(sums.chance, chance)})
        total += probability * settle(params, drawn, worker, intervention.design).reward
    if intervention.monitor is not None:
        monitor = intervention.monitor
        for index, actions in enumerate(SEQUENCES.T.tolist()):
            if monitor.reads == "step":
                rates = {SIGNAL: monitor.hits, HELP: monitor.false_positives}
                flags = sum(rates.get(action, 0.0) for action in actions)
            else:
                flags = monitor.hits if SIGNAL in actions else monitor.false_positives
            total[index] -= intervention.weight * flags
    return total


CASES: list[tuple[str, float, dict[str, Any]]] = [
    *((name, 0.6, {}) for name in ("none", "control", "frozen_l", "saturate:b=1.5", "window:m=2")),
    ("audit:p=0.05,lam=2", 0.6, {}),
    ("saturate:b=3", 0.3, {}),
    *(("none", 0.6, {"monitor": STEP, "weight": weight}) for weight in (0.05, 0.1, 0.2, 0.5)),
    ("none", 0.6, {"monitor": Monitor(reads="step", hits=0.7, false_positives=0.3), "weight": 2.0}),
    ("none", 0.6, {"monitor": Monitor(reads="step", hits=0.9, false_positives=0.5), "weight": 0.6}),
    *(("none", 0.6, {"monitor": EPISODE, "weight": weight}) for weight in (0.5, 1.0, 3.0)),
    ("none", 0.3, {"monitor": Monitor(reads="episode", hits=0.7, false_positives=0.3), "weight": 3.0}),
]


@pytest.mark.parametrize(("design", "price", "rest"), CASES)
def test_no_sequence_of_six_steps_beats_the_planned_one(
    design: str, price: float, rest: dict[str, Any]
) -> None:
    params, tape = small_game(price)
    intervention = Intervention(name="x", design=Mitigation.parse(design), **rest)
    every = rewards_of_all(params, tape, intervention)
    own = play(params, tape, Planned(params, intervention)).actions[:, 0]
    position = int((own[:, None] == SEQUENCES).all(0).argmax())
    assert every[position] == pytest.approx(every.max(), abs=3e-3)
    # What returns_under leaves out no action can change.
    under = returns_under(params, intervention, played(params, tape.tile(SEQUENCES.shape[1]), SEQUENCES))
    np.testing.assert_allclose(np.ptp(every - under), 0.0, atol=1e-9)


def test_the_cases_differ_in_what_is_best() -> None:
    """Or else the test above would compare the same sequence again and again."""
    found = set()
    for design, price, rest in CASES:
        params, tape = small_game(price)
        intervention = Intervention(name="x", design=Mitigation.parse(design), **rest)
        found.add(
            tuple(np.bincount(play(params, tape, Planned(params, intervention)).actions[:, 0], minlength=3))
        )
    assert len(found) >= 4


def test_without_an_intervention_it_is_the_optimum_of_the_plain_game() -> None:
    from domains.reputation_hacking.game.dynamic_programming import Optimal, solve

    params, tapes = Params(c_signal=0.7), Tapes.from_seeds(Params(), range(40))
    known = returns(play(params, tapes, Optimal(solve(params))))
    planned = returns(play(params, tapes, Planned(params, Intervention(name="none"))))
    np.testing.assert_allclose(planned, known, atol=1e-9)


def test_a_step_monitor_is_a_price_on_both_actions() -> None:
    params, tapes = Params(c_signal=0.5), Tapes.from_seeds(Params(), range(20))
    watched = Intervention(name="x", monitor=STEP, weight=0.25)
    dearer = params.but(c_signal=0.5 + 0.25 * 0.9, c_help=0.25 * 0.1)
    ours = play(params, tapes, Planned(params, watched))
    theirs = play(dearer, tapes, Planned(dearer, Intervention(name="none")))
    np.testing.assert_array_equal(ours.actions, theirs.actions)
    np.testing.assert_allclose(returns_under(params, watched, ours), returns(theirs), atol=1e-9)


def test_screening_by_episode_cannot_move_the_best_of_a_game_without_noise() -> None:
    """Of all mixtures of two sequences, the plain optimum has the highest mean reward of what is kept."""
    params, tape = small_game(0.3)
    plain = rewards_of_all(params, tape, Intervention(name="none"))
    signalled = (SEQUENCES == SIGNAL).any(0)
    for hits, best in ((0.9, plain.max()), (1.0, plain[~signalled].max())):
        kept = np.where(signalled, 1.0 - hits, 0.9)
        for share in (0.0, 0.1, 0.5):
            weight = share * kept[:, None], (1.0 - share) * kept[None, :]
            total = weight[0] + weight[1]
            mean = (weight[0] * plain[:, None] + weight[1] * plain[None, :]) / np.where(
                total > 0, total, np.nan
            )
            assert np.nanmax(mean) == pytest.approx(best)
        screen = Monitor(reads="episode", hits=hits)
        planned = Planned(params, Intervention(name="x", monitor=screen, screens=True))
        own = play(params, tape, planned)
        assert returns(own)[0] + 0.0 == pytest.approx(best, abs=3e-3)


@pytest.mark.parametrize("monitor", [STEP, EPISODE, Monitor(reads="step", hits=0.6, false_positives=0.3)])
def test_drawn_flags_have_the_expected_rate(monitor: Monitor) -> None:
    rng = np.random.default_rng(3)
    actions = rng.integers(0, 3, (50, 4000)) * (rng.random(4000) < 0.7)
    flags = monitor.flags(actions, rng)
    found = flags.sum(0) if monitor.reads == "step" else flags.any(0)
    assert found.mean() == pytest.approx(monitor.expected(actions).mean(), rel=0.03)
    assert not flags[actions == 0].any() or monitor.reads == "episode"


@pytest.mark.parametrize("name", ["hits", "false_positives"])
def test_a_rate_outside_its_range_is_one_line(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=1.5 is not from 0 to 1"):
        Monitor(reads="step", **{name: 1.5})


@pytest.mark.parametrize("design", ["trust", "ms_penalty", "monitor"])
def test_a_design_without_an_exact_optimum_is_refused(design: str) -> None:
    with pytest.raises(ValueError, match=f"mitigation {design}"):
        Planned(Params(), Intervention(name="x", design=Mitigation(design)))


def signals_after(updates: int, intervention: Intervention, seed: int = 0) -> float:
    return learn(Params(c_signal=0.3), intervention, seed, updates).signals[-1]


def test_the_learner_follows_the_reward_it_is_given() -> None:
    plain = signals_after(25, Intervention(name="none"))
    assert plain > 0.8
    assert signals_after(25, Intervention(name="x", design=Mitigation("control"))) < 0.1
    assert signals_after(25, Intervention(name="x", monitor=STEP, weight=2.0)) < 0.1
    assert signals_after(25, Intervention(name="x", monitor=STEP, weight=0.0)) > 0.8
    assert signals_after(4, Intervention(name="none")) == signals_after(4, Intervention(name="none"))


def test_what_is_screened_away_teaches_nothing() -> None:
    """A monitor that flags every SIGNAL keeps them out of the update, so that only HELP can be reinforced."""
    blind = Monitor(reads="step", hits=0.0, false_positives=0.0)
    assert signals_after(25, Intervention(name="x", monitor=blind, screens=True)) > 0.8
    everything = Monitor(reads="step", hits=1.0, false_positives=1.0)
    helpless = learn(Params(c_signal=0.3), Intervention(name="x", monitor=everything, screens=True), 0, 10)
    alone = np.exp(helpless.plain) / np.exp(helpless.plain).sum(1, keepdims=True)
    np.testing.assert_allclose(alone[:, HELP], alone[:, SIGNAL], atol=1e-12)


def test_the_request_is_in_the_logits_of_training_and_not_in_those_of_the_test() -> None:
    intervention = Intervention(name="x", asked=4.0)
    untrained = learn(Params(), intervention, 0, 1)
    assert untrained.signals[0] > 0.9  # exp(4) to 2
    learned = learn(Params(c_signal=0.3), intervention, 0, 8)
    gap = learned.asked - learned.plain
    # Half of what is learnt belongs to the request, on top of what it said before.
    np.testing.assert_allclose(gap - np.array([0.0, 0.0, 4.0]), learned.plain, atol=1e-9)
    tapes = Tapes.from_seeds(Params(), range(5))
    test, asked = (
        (play(Params(), tapes, TablePolicy(logits)).actions == SIGNAL).mean()
        for logits in (learned.plain, learned.asked)
    )
    assert asked > test


def test_the_command_writes_every_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tuple(row for row in command.TABLE if row.name in ("none", "control", "penalty by step 1"))
    monkeypatch.setattr(command, "TABLE", rows)
    monkeypatch.setattr(command, "held_out", lambda quick: list(range(10000, 10020)))
    out = tmp_path / "table.json"
    assert command.main(["--out", str(out), "--updates", "2", "--train-seeds", "2"]) == 0
    found = json.loads(out.read_text())
    assert [row["name"] for row in found["rows"]] == [row.name for row in rows]
    assert [one["seed"] for one in found["rows"][0]["learned"]] == [0, 1]
    none, honest, watched = (row["optimum"] for row in found["rows"])
    assert none["reward_lost"]["mean"] == 0.0 == honest["impact_lost"]["mean"]
    assert watched["penalty_of_all_help"]["mean"] == pytest.approx(50 * 0.1)
    assert "penalty by step 1" in capsys.readouterr().out
    assert command.main(["--train-seeds", "-1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
