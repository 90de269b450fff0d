"""Two games train end to end, all processes real, with figures for each game and each seat."""

import importlib.util

import pytest

from tests.pipeline.conftest import Start

SIZES = [
    "dataset_loader_params={count: 8, test_count: 2}",
    "dataset_loader_params.games={TicTacToe-v0-train: null}",
    "finetune.max_train_steps=1",
    "max_lag=64",
]


@pytest.mark.skipif(
    importlib.util.find_spec("textarena") is None, reason="pip install 'pipelinerl[textarena]'"
)
def test_games_train_and_every_seat_has_its_figures(start: Start) -> None:
    names = start("+domain=textarena", "hardware=cpu", *SIZES).trained(steps=1, evaluated=4)
    seats = ("GuessTheNumber-v0-train/reward_player_0", "Nim-v0/reward_player_0", "Nim-v0/reward_player_1")
    wanted = {f"actor/test/{seat}_mean" for seat in seats} | {"rl/role/player_0/texts"}
    assert wanted <= names, sorted(names)
