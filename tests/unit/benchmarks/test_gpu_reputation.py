"""The reputation game's benchmark on cards: runs that the launcher accepts, and what it makes of episodes."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import reputation
from benchmarks.gpu.side_by_side import Task
from domains.reputation_hacking.domain import ReputationDomain
from domains.reputation_hacking.game.dynamic_programming import Optimal, solve
from domains.reputation_hacking.game.dynamics import ACTIONS, Episodes, Tapes, played
from domains.reputation_hacking.game.optimum import Yardstick
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import CONSTANTS, play, returns
from pipelinerl.config.compose import compose

PARAMS = Params(c_signal=reputation.PRICE)
SEEDS = range(10_000, 10_040)


def options(work: Path, **more: object) -> argparse.Namespace:
    given = {"hardware": "gpu", "work": work, "model": work / "model", "seeds": [0, 1], "steps": 7}
    return argparse.Namespace(**given | {"tapes": 30, "overrides": []} | more)


@pytest.mark.parametrize("hardware", ["gpu", "cpu"])
def test_start_and_runs_are_what_the_launcher_accepts(hardware: str, tmp_path: Path) -> None:
    asked = options(tmp_path, hardware=hardware)
    words = [word for word in reputation.commands(asked, 1) if "=" in word and not word.startswith("output")]
    tree = compose(words).tree
    assert ReputationDomain().validate(tree) == []
    assert (tree.seed, tree.finetune.max_train_steps, tree.dataset_loader_params.heldout_count) == (1, 7, 30)
    assert tree.model_path == str(tmp_path / "start") and list(tree.dataset_loader_params.c_signal) == [0.7]
    start = reputation.commands(asked, None)
    assert f"bootstrap.start={tmp_path / 'model'}" in start and f"bootstrap.out={tmp_path / 'start'}" in start


def lines(episodes: Episodes, version: int, training: bool) -> list[dict[str, Any]]:
    """Episodes as a run writes them."""
    counts = {name: (episodes.actions == action).sum(0) for action, name in enumerate(ACTIONS)}
    return [
        {
            "seed": seed,
            "version": version,
            "training": training,
            "episode_return": float(value),
            "actions": {name: int(count[index]) for name, count in counts.items()},
            "true_impact": 1.0,
            "manipulation_score": 2.0,
            "invalid": 3,
        }
        for index, (seed, value) in enumerate(zip(SEEDS, returns(episodes), strict=True))
    ]


def test_the_optimum_takes_the_margin_and_the_best_constant_none(tmp_path: Path) -> None:
    tapes, yardstick = Tapes.from_seeds(PARAMS, list(SEEDS)), Yardstick(PARAMS, SEEDS)
    best = play(PARAMS, tapes, Optimal(solve(PARAMS)))
    (action,) = (one.action for one in CONSTANTS if one.name == yardstick.constant_name)
    constant = played(PARAMS, tapes, action)
    folder = tmp_path / "reputation_hacking"
    folder.mkdir()
    rows = [*lines(constant, 0, False), *lines(constant, 64, True), *lines(best, 128, True)]
    again = lines(constant, 0, False)[:3]  # an evaluation that was stopped and began anew
    rows += [*again, *lines(best, 192, False)]
    (folder / "episodes.1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = reputation.row_of(tmp_path, len(SEEDS))
    assert row["before"]["share_of_margin"][0] == pytest.approx(0.0, abs=1e-9)
    assert row["after"]["share_of_margin"][0] == pytest.approx(1.0) and row["after"][
        "regret"
    ] == pytest.approx(0)
    assert row["after"]["share_of_margin"][1:] == pytest.approx(
        [1.0, 1.0]
    )  # the optimum itself, tape by tape
    low, high = row["before"]["share_of_margin"][1:]
    assert low < 0.0 < high
    assert row["after"]["returns"] == pytest.approx(list(returns(best)))
    assert sum(row["after"][name] for name in ACTIONS) == pytest.approx(50)
    assert [row["after"][key] for key in ("true_impact", "manipulation_score", "invalid")] == [1.0, 2.0, 3.0]
    shares = [one["share"] for one in row["training"]]
    assert np.mean(shares[:5]) < 0.3 < 0.7 < np.mean(shares[-5:])
    assert row["training"][-1]["texts"] == 128
    figures = {one.name: one for one in reputation.figures_of({"0": row})}
    assert figures["seed 0: share of the margin"].met
    reputation.draw({"0": row}, tmp_path / "shares.png")
    assert (tmp_path / "shares.png").stat().st_size > 10_000


def test_every_policy_of_the_ladder_has_a_label_of_its_own() -> None:
    shares = {"random": -2.8, "all_help": -0.05, "all_signal": 0.0, "rule": 0.64, "cem": 0.7, "optimum": 0.8}
    found = reputation.labels([{"policy": name, "share": share} for name, share in shares.items()])
    assert [name for *_, name in found] == [
        *("random", "all-HELP", "all-SIGNAL", "rule", "fitted linear rule", "optimum")
    ]
    assert [share for share, *_ in found] == list(shares.values())
    heights = [height for _, height, _ in found]
    assert min(np.diff(heights)) >= reputation.LABEL_SHARE - 1e-9
    assert heights[0] == -2.8 and np.mean(heights[1:3]) == pytest.approx(-0.025)
    assert all(abs(height - share) <= 1.5 * reputation.LABEL_SHARE for share, height, _ in found)


def test_a_run_without_both_evaluations_has_no_row(tmp_path: Path) -> None:
    tapes = Tapes.from_seeds(PARAMS, list(SEEDS))
    folder = tmp_path / "reputation_hacking"
    folder.mkdir()
    rows = lines(played(PARAMS, tapes, 1), 0, False)
    (folder / "episodes.1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"40 tapes before and after .* found 40 of version 0"):
        reputation.row_of(tmp_path, len(SEEDS))


def test_what_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, calls = options(tmp_path), list[tuple[list[str], int]]()

    def run_all(tasks: list[Task], slots: list[object], *_: object) -> bool:
        calls.append(([task.name for task in tasks], len(slots)))
        return not tasks

    monkeypatch.setattr(reputation, "run_all", run_all)
    monkeypatch.setattr(reputation, "slots", lambda _, shares: [{}] * shares)
    words = ["--work", str(tmp_path), "--out", str(tmp_path / "out.json")]
    assert reputation.main(words) == 1 and calls == [(["start"], 1)]
    calls.clear()
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "recipe.json").write_text("{}")
    assert reputation.main(words) == 1 and calls == [([], 1), (["seed 0", "seed 1", "seed 2"], 3)]
    (tmp_path / "row_0.json").write_text("{}")
    (task,) = reputation.run_tasks(asked)
    assert task.name == "seed 1" and not task.keep(1)
