"""Upstream's guessing game under upstream's names: its numbers, its limits and its one reward."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from domains.guessing import generate_guessing_rollout, load_problems
from pipelinerl.config.compose import compose
from pipelinerl.domain import resolve_dotted
from pipelinerl.rollouts import RolloutResult
from tests.support.text_domain import played

PROBLEM = {"answer": 600, "dataset": "train", "domain": "guessing"}


async def play(folder: Path, speak: Callable[[str], str]) -> RolloutResult:
    return await played(generate_guessing_rollout, None, PROBLEM, folder, speak)


def halving(prompt: str) -> str:
    lower = [int(told) for told in re.findall(r"(\d+) is lower", prompt)]
    higher = [int(told) for told in re.findall(r"(\d+) is higher", prompt)]
    return f"I say <answer>{(max(lower, default=0) + min(higher, default=1025)) // 2}</answer>"


def test_the_numbers_are_upstreams() -> None:
    train, test = load_problems(["train"]), load_problems(["test"])
    assert [problem["answer"] for problem in train[:4]] == [1, 383, 765, 123]
    assert [problem["answer"] for problem in test[:4]] == [192, 574, 956, 314]
    numbers = {problem["answer"] for problem in [*train, *test]}
    assert (len(train), len(test)) == (512, 512) and numbers == set(range(1, 1025))
    assert train[1] == {"answer": 383, "dataset": "train", "domain": "guessing"}
    with pytest.raises(ValueError, match="dataset 'numbers': this game has train and test"):
        load_problems(["numbers"])


async def test_every_text_has_the_one_reward_of_the_game(tmp_path: Path) -> None:
    result = await play(tmp_path, halving)
    guesses = len(result.training_texts)
    assert result.metrics.success and 1 < guesses <= 10
    assert (
        {text.reward for text in result.training_texts} == {result.metrics.reward} == {2 - (guesses - 1) / 10}
    )
    assert (result.domain, result.dataset_name) == ("guessing", "train")


async def test_an_answer_of_another_form_ends_the_game(tmp_path: Path) -> None:
    result = await play(
        tmp_path, lambda prompt: "no" if "lower than the number" in prompt.lower() else "<answer>5</answer>"
    )
    assert [text.reward for text in result.training_texts] == [-1.9, -1.9]
    assert (result.metrics.success, result.metrics.no_error, result.metrics.no_answer) == (False, False, True)


async def test_thirteen_wrong_guesses_earn_nothing(tmp_path: Path) -> None:
    result = await play(tmp_path, lambda prompt: "<answer>7</answer>")
    assert [text.reward for text in result.training_texts] == [0.0] * 13
    assert (result.metrics.success, result.metrics.no_error) == (False, True)


FILE = """
defaults: [base, _self_]
actor: {rollout_policy: pipelinerl.domains.guessing.generate_guessing_rollout}
dataset_loader: pipelinerl.domains.guessing.load_problems
train_dataset_names: [train]
test_dataset_names: [test]
"""


def test_a_file_with_upstreams_names_gets_upstreams_game_and_the_bundled_domain_its_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "guessing.yaml").write_text(FILE)
    theirs = compose(["hardware=cpu"], "guessing", tmp_path)
    ours = compose(["hardware=cpu"], "guessing")
    for made, highest, said in ((theirs, 1024, []), (ours, 100, ["--config-name=guessing: "])):
        load = resolve_dotted(made.tree.dataset_loader, "dataset_loader")
        problems = load(["train"], **(made.tree.dataset_loader_params or {}))
        assert max(problem["answer"] for problem in problems) > 0.9 * highest
        assert all(problem["answer"] <= highest for problem in problems)
        assert [notice[: len(start)] for notice, start in zip(made.notices, said, strict=True)] == said
    policy = resolve_dotted(theirs.tree.actor.rollout_policy, "actor.rollout_policy")
    assert policy is generate_guessing_rollout and not theirs.tree.finetune.rl.step_reward_advantages
