"""The domain's configurations: composed, upstream's too, and refused in one line; and one rollout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from domains.coding.domain import CodingDomain
from domains.coding.rollouts import generate_coding_rollout, task_of
from domains.coding.settings import settings_of
from domains.coding.tiny import training
from pipelinerl.config.compose import compose
from pipelinerl.extras.sandbox import host
from tests.support.fake_engine import FakeEngine, rolled_out
from tests.support.one_line import check_refusals, check_starts
from tests.support.tiny_model import build_tokenizer

CODING = "+domain=coding"
MORE = "`()=+_,*"


def test_it_starts_on_both_kinds_of_hardware(dry_run: Callable[..., Any]) -> None:
    check_starts(dry_run, CODING)


def test_what_is_missing_or_wrong_is_one_line_each(
    dry_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"question": "q", "input_output": "{}"}) + "\n")
    plus = tmp_path / "plus.jsonl"
    test = "import numpy\ndef check(f):\n    assert f(1) == numpy.ones(1)"
    plus.write_text(json.dumps({"prompt": "def f(x):\n", "entry_point": "f", "test": test}) + "\n")
    check_refusals(
        dry_run,
        CODING,
        (f"train_dataset_names=[{plus}]", "plus.jsonl:1: its tests import numpy, which no program may"),
        (f"train_dataset_names=[{bad}]", "bad.jsonl:1: input_output: no inputs or no outputs"),
        ("train_dataset_names=[taco,apps]", "dataset 'taco': no file taco.jsonl"),
        ("test_dataset_names=[livecodebench_v5]", "with columns question_content, public_test_cases"),
        ("dataset_loader_params.subset=half", "subset='half'"),
        ("actor.task_template=Solve", "put {task} where the question goes"),
        ("coding.timeout_s=0", "coding.timeout_s=0: input should be greater than 0"),
        ("coding.timeout=1", "did you mean coding.timeout_s?"),
        ("coding.packages=[no_such]", "sandbox package 'no_such': not installed"),
    )
    monkeypatch.setattr(host._Template, "hello", lambda self: f"{self.mode}: refused")
    status, _, err = dry_run(CODING)
    assert status == 2 and "no sandbox for programs here: namespaces: refused; landlock: refused." in err
    assert len(err.splitlines()) == 1


def test_upstreams_keys_go_before_the_block() -> None:
    cfg = compose([CODING, "hardware=cpu", "coding.timeout_s=3"]).tree
    assert (settings_of(cfg).timeout_s, settings_of(cfg).max_tests) == (3.0, 5)
    more = OmegaConf.create(
        {"sandbox_timeout": 7.5, "max_tests_per_problem": 2, "sandbox_endpoint": "http://a"}
    )
    OmegaConf.set_struct(cfg, False)
    found = settings_of(OmegaConf.merge(cfg, more))  # type: ignore[arg-type]
    assert (found.timeout_s, found.max_tests) == (7.5, 2)
    bare = settings_of(OmegaConf.create({"sandbox_timeout": 1}))
    assert (bare.timeout_s, bare.max_tests) == (1.0, 5)


def test_demonstrations_are_of_training_questions_and_often_wrong() -> None:
    cfg = compose([CODING, "hardware=cpu", "coding.timeout_s=50"]).tree
    shown = list(CodingDomain().demonstrations(cfg, 1, "imitate"))
    known = {task.question: task for tasks in training().values() for task in tasks}
    right = [f"```python\n{known[one.prompt].program()}\n```" == one.completion for one in shown]
    assert not any(one.exact for one in shown) and 0.4 < sum(right) / len(right) < 0.8
    assert shown == list(CodingDomain().demonstrations(cfg, 1, "imitate"))


@pytest.mark.parametrize(
    "code, reward, passed",
    [("def solve(n): return n + 2", 1.0, 2), ("def solve(n): return 3", 0.0, 1), ("def solve(", 0.0, 0)],
)
async def test_a_rollout_is_rewarded_for_passing_all_tests(
    tmp_path: Path, code: str, reward: float, passed: int
) -> None:
    tokenizer = build_tokenizer(MORE)
    tokenizer.save_pretrained(str(tmp_path))
    said = f"```python\n{code}\n```"
    ids = [*tokenizer.convert_tokens_to_ids(list(said)), tokenizer.eos_token_id]
    cfg = compose([CODING, "hardware=cpu", "coding.timeout_s=50"]).tree
    context = {"call_type": "fn", "fn_name": "solve", "inputs": [[1], [5]], "outputs": [[3], [7]]}
    problem = {"task": "Add 2.", "reward_context": context, "dataset": "d", "id": "d-0"}
    assert task_of(problem) == "Add 2.\n\nYour function should be named `solve`."
    with FakeEngine(lambda prompt: ids) as engine:
        result = await rolled_out(
            generate_coding_rollout, cfg, problem, engine, tmp_path, parameters={"max_tokens": 200}
        )
    text, metrics = result.training_texts[0], result.metrics.model_dump()
    assert text.reward == reward == metrics["reward"] and result.dataset_name == "d"
    assert list(text.input_ids[text.prompt_tokens :]) == ids == list(text.labels[text.prompt_tokens :])
    assert set(text.labels[: text.prompt_tokens]) == {-100}
    assert (metrics["passed"], metrics["total"], metrics["success"]) == (passed, 2, reward == 1.0)
    assert metrics["compile_error"] == (code == "def solve(") == (not metrics["no_error"])
    assert text.metadata["coding"]["passed"] == passed
