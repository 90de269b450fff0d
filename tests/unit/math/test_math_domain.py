"""The domain's configurations: composed, placed, and refused in one line."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domains import math
from domains.math.answers import verify_answer
from pipelinerl.config import load
from pipelinerl.config.compose import compose
from tests.support.one_line import check_refusals

MATH = "+domain=math"
GROUPS = ("base", "format", "pure_success", "success", "success_and_format")


def test_the_domain_is_composed_with_its_server(dry_run: Callable[..., Any], tmp_path: Path) -> None:
    status, out, err = dry_run(MATH)
    assert (status, err) == (0, "") and "math: 1 server" in out
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


@pytest.mark.parametrize("by_length", [False, True])
def test_demonstrations_box_the_right_result_of_questions_that_no_evaluation_asks(by_length: bool) -> None:
    params = [f"dataset_loader_params.by_length={by_length}", "dataset_loader_params.highest=9"]
    tree = compose([MATH, "hardware=cpu", "actor.system_prompt=", *params]).tree
    shown = list(math.MathDomain().demonstrations(tree, 3, "imitate"))
    asked = {one["task"] for one in math.load_problems(["arithmetic_test"], **tree.dataset_loader_params)}
    assert len(shown) > 100 and not asked & {one.prompt for one in shown}
    assert {one.kind for one in shown} == set("+-*/") and all(one.exact for one in shown)
    for one in shown[:50]:
        gold = str(int(eval(one.prompt.removeprefix("What is ").removesuffix("?"))))
        assert verify_answer(one.completion, gold) == "correct"


def test_careless_demonstrations_are_wrong_as_often_as_their_operator_says() -> None:
    tree = compose([MATH, "hardware=cpu", "actor.system_prompt="]).tree
    shown = list(math.MathDomain().demonstrations(tree, 3, "careless"))
    right: dict[str, list[bool]] = {operator: [] for operator in "+-*/"}
    for one in shown:
        gold = str(int(eval(one.prompt.removeprefix("What is ").removesuffix("?"))))
        right[one.kind].append(verify_answer(one.completion, gold) == "correct")
    assert all(right["+"]) and not any(one.exact for one in shown)
    for operator, share in (("-", 0.5), ("*", 0.25), ("/", 0.1)):
        assert sum(right[operator]) / len(right[operator]) == pytest.approx(share, abs=0.12), operator


def test_demonstrations_are_of_bare_questions() -> None:
    with pytest.raises(ValueError, match="demonstrations of math are of bare questions"):
        list(math.MathDomain().demonstrations(compose([MATH, "hardware=cpu"]).tree, 1, "imitate"))
