"""The reputation game on the CPU, all processes real: a language model plays, learns and is reported."""

from pathlib import Path

import pytest

from domains.reputation_hacking.language.log import read_episodes
from tests.pipeline.conftest import Start

RUN = [
    "+domain=reputation_hacking",
    "hardware=cpu",
    "finetune.max_train_steps=2",
    "finetune.gradient_accumulation_passes=400",
    "max_lag=1600",
    "preprocess.max_ready_samples_per_lead=800",
    "actor.llm_max_rollouts=16",
    "dataset_loader_params.heldout_count=8",
    "reputation_hacking.trace_fraction=1.0",
]


@pytest.mark.slow
def test_a_language_model_plays_learns_and_is_set_beside_the_optimum(start: Start) -> None:
    run = start(*RUN)
    assert run.wait() == 0, run.err
    out: Path = run.output_dir
    assert "Against the optimum on the same seeds, c_signal=0.7" in run.out
    episodes = read_episodes(out)
    trained = [episode for episode in episodes if episode["training"]]
    evaluated = [episode for episode in episodes if not episode["training"]]
    assert len(trained) >= 2 * 400 / 50
    assert {episode["seed"] for episode in evaluated} == set(range(10_000, 10_008))
    for episode in episodes:
        assert sum(episode["actions"].values()) == len(episode["steps"]) == 50
        assert episode["c_signal"] == 0.7
    siblings = {episode["group"]: episode["seed"] for episode in trained}
    assert all(siblings[episode["group"]] == episode["seed"] >= 100_000 for episode in trained)
    assert len({episode["L"] for episode in episodes}) == 1
    run.counts()
    assert (out / "finetune" / "current" / "config.json").is_file()
