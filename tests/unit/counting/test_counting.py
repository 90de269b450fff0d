"""Counting: generated and local rows, upstream's answers and rewards, refusals in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from domains.counting import generate_counting_rollout, load_problems
from domains.counting.counting import answer_of, task_of
from tests.support.one_line import check_refusals, check_starts
from tests.support.text_domain import played, upstreams_file

NAME = "+domain=counting"
BOTH: dict[str, Any] = {"kinds": ["letters", "words"]}
ROW = {"letter": "r", "word": "strawberry", "count": 3}
CFG = OmegaConf.create({"actor": {}})


def test_generated_counts_are_right_and_the_same_for_the_same_name() -> None:
    for vocabulary in ("english", "made_up"):
        problems = load_problems(["train"], **BOTH, vocabulary=vocabulary, count=200)
        assert problems == load_problems(["train"], **BOTH, vocabulary=vocabulary, count=200)
        assert len(problems) == 400
        for problem in problems:
            text = problem.get("text")
            there = problem["word"].count(problem["letter"]) if text is None else None
            assert problem["count"] == (text.split().count(problem["word"]) if text else there)
        assert {problem["dataset"] for problem in problems} == {"train/letters", "train/words"}
        assert len({problem["count"] for problem in problems}) >= 4
    assert load_problems(["train"], count=9) != load_problems(["train_2"], count=9)


@pytest.mark.parametrize("held_out", [0.1, 0.5])
def test_no_question_of_the_evaluation_is_ever_trained(held_out: float) -> None:
    shared: dict[str, Any] = {**BOTH, "held_out": held_out, "count": 2000, "test_count": 300}
    test = {problem["task"] for problem in load_problems(["test_counting_problems"], **shared)}
    for name in ("train_counting_problems", "train_2"):
        assert not test & {problem["task"] for problem in load_problems([name], **shared)}


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("<answer>3</answer>", 3),
        ("r-r-r, so <answer>3</answer> and not <answer>4</answer>", 3),
        ("3", None),
        ("<answer>three</answer>", None),
        ("<answer> 3</answer>", None),
        ("<answer>\u0663</answer>", None),
        (f"<answer>{'9' * 5000}</answer>", None),
        ("", None),
    ],
)
def test_the_first_tag_with_a_number_is_the_answer(said: str, answer: int | None) -> None:
    assert answer_of(said) == answer


@pytest.mark.parametrize(
    ("said", "reward", "answered"),
    [("<answer>3</answer>", 1.0, True), ("<answer>2</answer>", 0.0, True), ("three", 0.0, False)],
)
async def test_the_rewards_are_upstreams(tmp_path: Path, said: str, reward: float, answered: bool) -> None:
    asked: list[str] = []
    problem = {**ROW, "dataset": "train_counting_problems"}
    result = await played(
        generate_counting_rollout, CFG, problem, tmp_path, lambda prompt: asked.append(prompt) or said
    )
    (text,), metrics = result.training_texts, result.metrics
    assert (text.reward, metrics.reward, metrics.success) == (reward, reward, reward == 1.0)
    assert (metrics.no_answer, metrics.no_error) == (not answered, answered)
    assert (result.domain, result.dataset_name) == ("counting", "train_counting_problems")
    assert "strawberry" in asked[0] and task_of(problem).endswith("<answer>number</answer>.")


def test_rows_in_upstreams_form_are_read_from_a_file(tmp_path: Path) -> None:
    words = {"word": "no", "text": "no no yes", "count": 2}
    (tmp_path / "mine.json").write_text(json.dumps([ROW, words]))
    letters, text = load_problems(["mine"], data_dir=str(tmp_path))
    assert letters.items() >= {**ROW, "kind": "letters", "dataset": "mine"}.items()
    assert text.items() >= {**words, "kind": "words"}.items()
    assert len(load_problems([str(tmp_path / "mine.json")])) == 2
    table = [{"text": None, **ROW}, {"letter": None, **words}]  # one table of both forms
    (tmp_path / "mine.json").write_text(json.dumps(table))
    assert load_problems(["mine"], data_dir=str(tmp_path)) == [letters, text]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"letter": "r", "word": "red"}, "mine.json, row 0: no 'count'"),
        ({"letter": "r", "word": "red", "count": "1"}, "mine.json, row 0: count '1': expected a number"),
        ({"letter": "", "word": "red", "count": 1}, "letter and word: expected texts"),
        ({**ROW, "text": "How many r are in it?"}, "mine.json, row 0: has 'letter' and 'text'"),
        (["r"], "a list, expected an object"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: Any, message: str) -> None:
    (tmp_path / "mine.json").write_text(json.dumps([row]))
    with pytest.raises(ValueError, match=r"mine\.json") as refused:
        load_problems(["mine"], data_dir=str(tmp_path))
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_wrong_keys_are_one_line_each(dry_run: Callable[..., Any]) -> None:
    check_starts(dry_run, NAME)
    check_refusals(
        dry_run,
        NAME,
        ("train_dataset_names=[letters]", "dataset 'letters': a name begins with train or test"),
        ("dataset_loader_params.kinds=[vowels]", "kinds=['vowels']: choose from letters, words"),
        ("dataset_loader_params.vocabulary=latin", "vocabulary=latin: choose from english, made_up"),
        ("dataset_loader_params.count=0", "count=0"),
        ("dataset_loader_params.data_dir=nowhere", "no file nowhere/train_counting_problems.jsonl"),
        ("actor.task_template=Count", "put {task} where the question goes"),
    )


FILE = """
defaults: [base, _self_]
finetune: {seq_length: 4000, gradient_accumulation_passes: 1024}
llm: {parameters: {max_tokens: 1000}}
test_llm: {parameters: {max_tokens: 1000}}
actor: {rollout_policy: pipelinerl.domains.counting.generate_counting_rollout}
environment: null
dataset_loader: pipelinerl.domains.counting.load_problems
train_dataset_names: [train_counting_problems]
test_dataset_names: [test_counting_problems]
"""


def test_upstreams_file_composes_and_its_names_are_generated(tmp_path: Path) -> None:
    tree, load = upstreams_file(tmp_path, "counting", FILE, generate_counting_rollout)
    train = load(tree.train_dataset_names, **(tree.dataset_loader_params or {}))
    assert len(train) == 1000 and {problem["kind"] for problem in train} == {"letters"}
