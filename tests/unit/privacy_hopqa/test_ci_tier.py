"""The experiment with a policy of a few dozen logits: its texts, its gradient, its gates, one real run."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.privacy_ci.arena import Arena
from benchmarks.privacy_ci.experiment import gates, samples_to_target
from benchmarks.privacy_ci.policy import MALFORMED, RULES, TEMPLATES, Policy, Sampled
from benchmarks.privacy_ci.training import Recipe, arms, train
from benchmarks.privacy_ci_tier import main, run, table

TINY = Recipe(size="tiny", steps=2, groups=2, attempts=4, evaluate_every=2, final_attempts=1)


def test_a_gradient_step_moves_probability_to_what_was_better():
    policy = Policy.base()
    assert policy.size == 6 * len(TEMPLATES) + 3 * len(RULES) == 54
    name = "choose:tempting"
    before = policy.probabilities(name)
    good, bad = (Sampled(name, choice, 0.0, "", "") for choice in (1, 2))
    policy.step([(good, 0.5), (bad, -0.5)], rate=1.0)
    after = policy.probabilities(name)
    assert after[1] > before[1] and after[2] < before[2]
    assert after.sum() == pytest.approx(1.0)
    assert np.array_equal(policy.logits["choose:public"], Policy.base().logits["choose:public"])


def seed_result(leakage, success, to_target, logged=5):
    policies = {
        name: {
            "success": [success[name]] * 40,
            "leakage": [leakage[name]] * 40,
            "controls_are_zero": True,
            "requests_logged": logged,
            "requests_made": 5,
        }
        for name in ("base", "outcome", "situational", "penalty")
    }
    return {"policies": policies, "samples_to_target": to_target}


GOOD = {
    "leakage": {"base": 0.3, "outcome": 0.5, "situational": 0.5, "penalty": 0.1},
    "success": {"base": 0.3, "outcome": 0.6, "situational": 0.7, "penalty": 0.68},
    "to_target": {"outcome": 900, "situational": 300, "penalty": 300},
}


def verdicts(**changes):
    return [gate.holds for gate in gates([seed_result(**(GOOD | changes))])]


def test_the_published_order_passes_every_gate():
    assert all(verdicts())


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"success": GOOD["success"] | {"outcome": 0.3}}, [0]),
        ({"leakage": GOOD["leakage"] | {"outcome": 0.3}}, [1]),
        ({"to_target": {"outcome": 900, "situational": 900, "penalty": 1}}, [2]),
        ({"to_target": {"outcome": 900, "situational": None, "penalty": 1}}, [2]),
        ({"leakage": GOOD["leakage"] | {"penalty": 0.3}}, [3]),
        ({"success": GOOD["success"] | {"penalty": 0.66}}, [4]),
        ({"logged": 4}, [6]),
    ],
)
def test_each_gate_can_fail(changes, failing):
    assert [index for index, holds in enumerate(verdicts(**changes)) if not holds] == failing


def test_samples_to_target_are_those_of_the_first_point_that_reaches_it():
    curve = [{"samples": s, "success": v} for s, v in ((0, 0.1), (10, 0.5), (20, 0.6))]
    curves = {"outcome": curve, "situational": [{"samples": 4, "success": 0.6}], "penalty": curve[:2]}
    assert samples_to_target(curves) == {"outcome": 20, "situational": 4, "penalty": None}


@pytest.fixture(scope="module")
def arena():
    return Arena("tiny", 0)


def test_an_arm_trains_through_parsing_buckets_and_filter(arena, tmp_path):
    outcome, situational, _ = arms()
    for arm in (outcome, situational):
        training = train(arm, arena, TINY, 0, tmp_path / arm.name)
        assert training.rollouts == TINY.steps * TINY.groups * TINY.attempts
        assert training.samples > training.rollouts
        assert [point.samples for point in training.points] == sorted({p.samples for p in training.points})
        assert training.policy.as_dict() != Policy.base().as_dict()
    assert training.baseline_only > 0
    again = train(situational, arena, TINY, 0, tmp_path / "again")
    assert again.policy.as_dict() == training.policy.as_dict()


@pytest.mark.timeout(600)
def test_a_seed_that_is_kept_is_not_run_again(tmp_path, capsys, monkeypatch):
    out = tmp_path / "result.json"
    once = replace(TINY, steps=1, groups=1, attempts=2)
    run([0], once, out)
    first = json.loads(out.read_text())["seeds"][0]
    assert "proves the plumbing" in capsys.readouterr().out
    monkeypatch.setattr("benchmarks.privacy_ci_tier.run_seed", None)
    run([0], once, out)
    assert json.loads(out.read_text())["seeds"] == [first]
    assert MALFORMED not in "\n".join(table([first]))
    assert first["fingerprint"] and first["recipe"]["size"] == "tiny"
    assert all(found["requests_logged"] == found["requests_made"] for found in first["policies"].values())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_order_of_the_published_table_shows(tmp_path: Path):
    assert main(["--seeds", "0", "--out", str(tmp_path / "result.json")]) == 0
    (seed,) = json.loads((tmp_path / "result.json").read_text())["seeds"]
    assert seed["cpu_s"] <= 600
