"""The domain's configurations and deals: composed, equal for equal names, and refused in one line."""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from domains.textarena.data import load_problems
from pipelinerl.config.compose import compose
from tests.support.one_line import check_refusals, check_starts

NAME = "+domain=textarena"
GAMES = "dataset_loader_params.games"
TWO: dict[str, Any] = {"Nim-v0": {}, "Poker-v0": {"num_rounds": 3}, "Tak-v0": None}


def test_equal_names_give_equal_deals_and_other_names_others() -> None:
    train, test = load_problems(["train"], TWO, count=30), load_problems(["test"], TWO, test_count=4)
    assert load_problems(["train", "test"], TWO, count=30, test_count=4) == [*train, *test]
    assert Counter(one["dataset"] for one in train) == {"train/Nim-v0": 30, "train/Poker-v0": 30}
    seeds = [one["seed"] for one in [*train, *test, *load_problems(["train_2"], TWO, count=30)]]
    assert len(seeds) == len(set(seeds)) and train[-1]["options"] == '{"num_rounds": 3}'


@pytest.mark.usefixtures("arena")
def test_the_default_games_start_on_both_kinds_of_hardware(dry_run: Callable[..., Any]) -> None:
    check_starts(dry_run, NAME)


@pytest.mark.usefixtures("arena")
def test_wrong_games_options_and_settings_are_one_line_each(dry_run: Callable[..., Any]) -> None:
    check_refusals(
        dry_run,
        NAME,
        (f"{GAMES}={{TicTacToe-v1: {{}}}}", "games.TicTacToe-v1: no game that is played here; did you mean"),
        (f"{GAMES}={{Nim-v0: {{pile: 3}}}}", "unexpected keyword argument 'pile'"),
        (f"{GAMES}={{Nim-v0: 3}}", "options are a mapping; write Nim-v0: {}"),
        ("dataset_loader_params.count=0", "count=0"),
        ("train_dataset_names=[games]", "a name begins with train or test"),
        ("actor.task_template=Play", "put {task} where the question goes"),
        ("textarena.max_turns=0", "textarena.max_turns"),
        ("textarena.deadline=1", "did you mean textarena.deadline_s?"),
    )


def test_no_game_at_all_is_one_line() -> None:
    with pytest.raises(ValueError, match="games names no game"):
        load_problems(["train"], {"Nim-v0": None})
    assert set(
        compose([NAME, "hardware=cpu", f"{GAMES}={{Nim-v0: null}}"]).tree.dataset_loader_params.games
    ) == {*("GuessTheNumber-v0-train", "Nim-v0", "TicTacToe-v0-train")}


def test_the_missing_package_is_one_line(
    dry_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "textarena", None)
    status, _, err = dry_run(NAME)
    assert status == 2 and err.strip().endswith("pip install 'pipelinerl[textarena]'")
    assert len(err.splitlines()) == 1
