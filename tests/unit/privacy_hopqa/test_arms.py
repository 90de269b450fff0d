"""What the comparison of rewards concludes from curves, and that it does not mix up runs."""

import json
from pathlib import Path

import pytest

from benchmarks import arms
from benchmarks._figures import command_line
from benchmarks._gates import Change, Gate
from benchmarks._runs import launch
from benchmarks.arms import ARMS, METRICS, Run, gates, shared_texts

CHAINS = 40


def run(*success: float, leak: float = 0.0) -> Run:
    """Evaluations every 100 texts with these shares of successful chains."""
    values = []
    for share in success:
        right = [float(i < share * CHAINS) for i in range(CHAINS)]
        leaks = [float(i < leak * CHAINS) for i in range(CHAINS)]
        values.append(dict.fromkeys(METRICS, right) | {"leak": leaks})
    return Run([100 * i for i in range(len(success))], values)


def by_seed(gate: Gate) -> list[float]:
    assert not isinstance(gate.figures, Change)
    return [*gate.figures.by_seed]


def test_padding_is_an_arm_on_demand_and_differs_from_situational_in_one_key() -> None:
    named = command_line(arms.__doc__, ["--arms", "situational", "padded"], arms=ARMS).arms
    assert named == ["situational", "padded"] and "padded" not in command_line(arms.__doc__, []).arms
    key = "finetune.rl.pad_step_rewards_for_advantage=true"
    assert {*ARMS["padded"]} - {*ARMS["situational"]} == {key}
    assert len(ARMS["padded"]) == len(ARMS["situational"]) + 1


def test_padding_is_compared_with_the_same_rewards_without_it() -> None:
    found = gates({"situational": {0: run(0.2, 0.4)}, "padded": {0: run(0.2, 0.8)}})
    assert found["padding raises success"].holds is True
    assert by_seed(found["padding raises success"]) == pytest.approx([0.4])
    assert found["padding raises leak"].holds is False


def test_texts_are_interpolated_and_never_reached_is_infinite() -> None:
    one = run(0.2, 0.4, 0.8)
    assert one.texts_to(0.6) == pytest.approx(150) and one.texts_to(0.1) == 0
    assert one.texts_to(0.9) == float("inf")


def test_runs_of_different_length_are_compared_at_what_they_share() -> None:
    assert run(0.2, 0.4, 0.8).until(150).curves()["texts"] == [0, 100]
    assert run(0.2, 0.4, 0.8).until(200).texts_to(0.6) == pytest.approx(150)


def test_situational_is_faster_only_where_it_reaches_the_same_success_earlier() -> None:
    outcome = run(0.2, 0.4, 0.8)
    for other, holds in ((run(0.2, 0.8, 0.8), True), (run(0.2, 0.3, 0.7), False)):
        found = gates({"outcome": {0: outcome}, "situational": {0: other}})
        assert found["O3 situational needs fewer texts, every seed"].holds is holds


def test_how_soon_is_not_decided_of_runs_without_an_evaluation_on_the_way() -> None:
    """Between start and end alone, every success would be reached on a straight line."""
    found = gates({"outcome": {0: run(0.2, 0.4, 0.8)}, "situational": {0: run(0.2, 0.8)}})
    assert not [name for name in found if name.startswith("O3")] and "O1 outcome raises success" in found


def test_a_curve_is_drawn_where_its_runs_were_evaluated() -> None:
    """A marker says that somebody looked there."""
    assert shared_texts([run(0.2, 0.8)]) == [0, 100]
    late = Run([100, 150, 300], run(0.2, 0.4, 0.8).values)
    assert shared_texts([run(0.2, 0.4, 0.8), late]) == [100, 200]
    assert shared_texts([late, run(0.2, 0.4, 0.8)]) == [100, 150, 200]


def test_a_run_that_gained_nothing_is_no_measure_of_speed() -> None:
    found = gates({"outcome": {0: run(0.5, 0.6, 0.5)}, "situational": {0: run(0.5, 0.7, 0.8)}})
    assert found["O3 situational needs fewer texts, every seed"].holds is False
    assert found["O1 outcome raises success"].holds is False


def test_a_finished_run_with_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "completed.json").write_text("{}")
    (tmp_path / "launcher" / "asked.json").write_text(json.dumps(["seed=0", "finetune.max_train_steps=80"]))
    launch(tmp_path, ["seed=0", "finetune.max_train_steps=80"])
    with pytest.raises(RuntimeError, match=r"finished with other settings \(.*max_train_steps=160"):
        launch(tmp_path, ["seed=0", "finetune.max_train_steps=160"])


def test_differences_are_also_said_by_seed() -> None:
    """Pooled over chains, one seed can carry a difference that the others do not have."""
    outcome = {0: run(0.2, 0.4, leak=0.5), 1: run(0.2, 0.6)}
    outcome[0].values[0]["leak"] = [0.0] * CHAINS
    gate = gates({"outcome": outcome})["O2 outcome raises leakage"]
    assert gate.holds and by_seed(gate) == [0.5, 0.0]


def test_two_arms_are_compared_over_the_seeds_that_both_have() -> None:
    penalty = {0: run(0.2, 0.4), 1: run(0.2, 1.0)}
    found = gates({"penalty": penalty, "situational": {0: run(0.2, 0.6)}})
    assert by_seed(found["O5 at most 3 points below situational"]) == pytest.approx([-0.2])
    assert by_seed(found["O5 penalty raises success"]) == pytest.approx([0.2, 0.8])
    with pytest.raises(KeyError):
        arms.at_point({"penalty": penalty}, "penalty", -1, [2])
    missing = {
        "outcome": {0: run(0.2, 0.4, 0.8), 1: run(0.2, 0.4, 0.8)},
        "situational": {1: run(0.2, 0.8, 0.8)},
    }
    assert gates(missing)["O3 situational needs fewer texts, every seed"].holds is True


def test_arms_without_a_common_seed_are_not_compared() -> None:
    names = ("penalty", "situational", "padded")
    found = gates({arm: {seed: run(0.2, 0.4, 0.8)} for seed, arm in enumerate(names)})
    assert {name[:2] for name in found} == {"O4", "O5"} and "O5 penalty raises success" in found
    assert not [name for name in found if "situational" in name or "padding" in name]


def test_the_best_other_arm_is_that_of_the_common_seeds() -> None:
    arms_of = {"penalty": {0: run(0.2, 0.4)}, "situational": {0: run(0.2, 0.5)}}
    found = gates(arms_of | {"outcome": {0: run(0.2, 0.45), 1: run(0.2, 1.0)}})
    assert "O5 goal: not 5 points below situational" in found
