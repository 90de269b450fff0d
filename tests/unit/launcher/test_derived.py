"""What follows from keys and placement is computed once, so that every role has the same numbers."""

from pathlib import Path

import pytest

from pipelinerl.actor.budget import LagBudget
from pipelinerl.config import Config, ConfigError, DerivedConfig, Job
from pipelinerl.launcher.placement import derive
from tests.unit.launcher.conftest import ON_GPUS, Placed, Refused

THREE_RANKS = (*ON_GPUS, "hardware.devices=4", "world.actor_fraction=1", "world.finetune_fraction=3")


@pytest.mark.parametrize(
    ("texts", "interval", "gpus", "expected"),
    [
        (1024, 1, [], (1, 1024, 1024)),
        (1024, 1, [1, 2, 3], (3, 1026, 1026)),
        (1024, 1025, [0], (1, 1024, 2048)),
        (1024, 1027, [1, 2, 3], (3, 1026, 2052)),
    ],
)
def test_steps_are_whole_for_every_rank_and_updates_are_whole_steps(
    texts: int, interval: int, gpus: list[int], expected: tuple[int, int, int]
) -> None:
    keys = {"gradient_accumulation_passes": texts, "weight_update_interval": interval}
    cfg = Config.model_validate({"finetune": keys})
    ranks, step, update = expected
    derived = DerivedConfig(trainer_ranks=ranks, texts_per_step=step, texts_per_update=update)
    assert derive(cfg, [Job(kind="finetune", idx=0, gpus=gpus)]) == derived


def test_without_lag_as_much_is_admitted_as_a_step_of_three_ranks_needs(placed: Placed) -> None:
    cfg, out = placed(*THREE_RANKS, "max_lag=0", "finetune.gradient_accumulation_passes=1024")
    assert "1026 samples" in out
    budget, admitted = LagBudget(cfg.staleness.admitted, 0, [1.0]), 0
    while budget.admits(0, 0):
        budget.group_started(1)
        admitted += 1
    assert admitted == cfg.derived.texts_per_step == 1026


def test_a_buffer_is_measured_in_the_steps_of_all_ranks(refused: Refused) -> None:
    buffer = ("preprocess.dataset_buffer_size=1024", "preprocess.ring_buffer_size=1024", "max_lag=2048")
    said = refused(*THREE_RANKS, *buffer, "finetune.gradient_accumulation_passes=1024")
    assert "not a multiple of the 1026 samples of a step" in said


def test_a_placement_that_cannot_be_is_found_before_anything_is_written(
    refused: Refused, tmp_path: Path
) -> None:
    assert "set world.share_device=true" in refused(*ON_GPUS, "hardware.devices=1", "validate=true")
    assert not (tmp_path / "run").exists()


def test_a_tree_that_was_not_placed_has_nothing_derived() -> None:
    with pytest.raises(ConfigError, match="derived: missing; start the run again"):
        Config().derived  # noqa: B018
