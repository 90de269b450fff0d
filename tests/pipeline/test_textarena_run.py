"""Two games train end to end, all processes real, with figures for each game and each seat."""

import importlib.util

import pytest

from pipelinerl.observe.history import read_metrics
from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import Start
from tests.support.metric_tables import check_run

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
    run = start("+domain=textarena", "hardware=cpu", *SIZES)
    assert run.wait() == 0, run.err
    assert run.summary()["completed_steps"] == 1 and not run.children()
    counts = run.counts()
    assert counts.eval_started == 2 * 4 == counts.eval_ends[Outcome.EVAL_DONE]
    check_run(run.output_dir)
    records = read_metrics(run.output_dir, "actor")
    for game in ("GuessTheNumber-v0-train", "Nim-v0"):
        assert any(f"actor/test/{game}/reward_player_0_mean" in record for record in records), game
    assert any("actor/test/Nim-v0/reward_player_1_mean" in record for record in records)
    steps = read_metrics(run.output_dir, "finetune")
    assert any("rl/role/player_0/texts" in record for record in steps)
