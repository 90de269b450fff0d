"""The domain's configurations: composed, placed, and refused in one line."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domains import math
from pipelinerl.config import load
from pipelinerl.config.compose import compose
from tests.support.one_line import check_refusals

MATH = "+domain=math"
GROUPS = ("base", "format", "pure_success", "success", "success_and_format")


def test_the_domain_is_composed_with_its_server(dry_run: Callable[..., Any], tmp_path: Path) -> None:
    status, out, err = dry_run(MATH)
    assert (status, err) == (0, "") and "math: 1 servers" in out
    assert (tmp_path / "run/environment_0/start.sh").is_file()
    assert load(tmp_path / "run").jobs_of("environment")[0].environment_key == "math"
    assert dry_run(MATH, "world.environment_mode=embedded", "force_restart=true")[0] == 0
    assert load(tmp_path / "run").jobs_of("environment") == []


def test_the_gpu_profile_leaves_the_model_to_the_user(dry_run: Callable[..., Any]) -> None:
    status, _, err = dry_run(MATH, "hardware=gpu", "model_path=owner/model")
    assert (status, err) == (0, "")


@pytest.mark.parametrize("group", GROUPS)
def test_a_reward_group_is_a_whole_table(group: str) -> None:
    tree = compose(["+domain=math", f"rewards={group}", "hardware=cpu"]).tree
    table = math.RewardTable(**dict(tree.rewards))
    best = math.get_reward("correct", True, table)
    assert best == 1.0 == max(getattr(table, n) for n in type(table).model_fields if n != "buffer_tokens")


def test_missing_packages_files_and_placeholders_are_one_line_each(
    dry_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"question": "q"}) + "\n")
    check_refusals(
        dry_run,
        MATH,
        (f"train_dataset_names=[{bad}]", "bad.jsonl:1: no answer"),
        ("train_dataset_names=[gsm8k_train]", "dataset 'gsm8k_train': no file gsm8k_train.jsonl"),
        ("actor.task_template='Solve it.'", "put {task} where the question goes"),
        ("dataset_loader_params.highest=1", "highest=1: numbers of generated arithmetic"),
        ("environment._target_=domains.math.MathEnviroment", "has no MathEnviroment"),
    )
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "domains.math.domain.find_spec", lambda name: None if name == "math_verify" else found(name)
    )
    status, _, err = dry_run(MATH)
    assert status == 2 and err.strip().endswith("pip install 'pipelinerl[math]'")
