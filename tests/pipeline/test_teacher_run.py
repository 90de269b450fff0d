"""A run with a teacher, from the launcher to the metrics of preprocess and trainer."""

from pathlib import Path
from typing import Any

import pytest

from pipelinerl.observe.history import read_metrics
from tests.pipeline.conftest import Start, optimizer_steps
from tests.support.tiny_model import build_tokenizer, causal_lm


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """Other weights of the same shape, whose distributions are far from uniform."""
    folder, tokenizer = tmp_path / "teacher", build_tokenizer()
    tokenizer.save_pretrained(str(folder))
    shape: dict[str, Any] = {"hidden": 32, "positions": 1024, "spread": 0.15, "seed": 3}
    causal_lm(len(tokenizer), **shape, eos=tokenizer.eos_token_id).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_every_advantage_of_a_run_is_what_its_teacher_says(start: Start, model: Path, teacher: Path) -> None:
    words = ["+domain=guessing", f"model_path={model}", f"teacher.model_path={teacher}", "max_lag=32"]
    words += ["finetune.attempts=1", "finetune.max_train_steps=3", "preprocess.log_every_n_samples=16"]
    words += ["test_dataset_names=[]", "eval_every_n_versions=0"]
    words += ["dataset_loader_params={count: 6, max_guesses: 2}"]
    run = start(*words)
    run.trained(steps=3, evaluated=0)
    told = [
        row["teacher/default/reverse_kl"]
        for row in read_metrics(run.output_dir, "preprocess")
        if "teacher/default/reverse_kl" in row
    ]
    # A lone attempt would have no advantage from rewards, and this teacher differs from the policy.
    assert min(told) > 0.1
    for step in optimizer_steps(run.output_dir):
        assert step["rl/advantage"] < -0.1 and step["rl/max_advantage"] > 0 > step["rl/min_advantage"]
