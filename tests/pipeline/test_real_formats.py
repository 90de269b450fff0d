"""A run on files in the real formats, as a user places them; its scoring server is killed on the way."""

import json
from pathlib import Path

import pytest

from domains.privacy_hopqa.leakage.__main__ import main
from pipelinerl.run_state.accounting import Outcome
from tests.pipeline.conftest import ROOT, Start

EXAMPLES = ROOT / "domains" / "privacy_hopqa" / "examples"
SCORER = "domains.privacy_hopqa.scorer"
RUN = [
    "+domain=privacy_hopqa",
    f"privacy_hopqa.final_train_dataset_path={EXAMPLES}/chains_train.jsonl",
    f"privacy_hopqa.final_val_dataset_path={EXAMPLES}/chains_val.jsonl",
    f"privacy_hopqa.task_data_root={EXAMPLES}/tasks",
    f"privacy_hopqa.web_corpus_path={EXAMPLES}/web.jsonl",
    "train_dataset_names=[train]",
    "test_dataset_names=[val]",
    "privacy_hopqa.scoring_server_options=[]",
    "privacy_hopqa.max_iterations=3",
    "finetune.max_train_steps=4",
]


@pytest.mark.slow
def test_it_trains_survives_the_death_of_the_scorer_and_can_be_evaluated(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(*RUN)
    run.until(lambda: run.steps() > 0, "the first step")
    (first,) = run.running(SCORER)
    first.kill()
    run.until(lambda: any(one.pid != first.pid for one in run.running(SCORER)), "another scoring server")
    assert run.wait() == 0, run.err
    assert "scoring: killed by SIGKILL; restart 1 of 3" in run.out
    assert run.counts()[Outcome.TRAINED] > 0
    assert main([str(run.output_dir)]) == 0
    content = json.loads((run.output_dir / "leakage.json").read_text())
    assert [Path(name).name for name in content["run"]["datasets"]] == [
        "chains_train.jsonl",
        "chains_val.jsonl",
    ]
    assert isinstance(content["run"]["seed"], int)
    groups = content["groups"]
    assert groups["evaluation val"]["chains"] == 3
    assert groups["training train"]["controls_are_zero"]
    assert "language model" not in capsys.readouterr().out
