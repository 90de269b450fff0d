"""Tasksets of verifiers, unchanged: seats, rewards and metrics by name, and the ids that were recorded."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from domains.verifiers import load_problems
from domains.verifiers.traces import TraceMismatch, texts_of
from pipelinerl.engines.errors import EngineUnavailable
from tests.unit.verifiers.conftest import TOKENIZER, Play

pytestmark = [pytest.mark.usefixtures("tasksets")]

EXAMPLES = Path(__file__).resolve().parents[3] / "docs/examples/verifiers"


def problem(taskset: str, index: int = 0, **options: Any) -> dict[str, Any]:
    env = {"taskset": {"id": taskset}, **options}
    return load_problems(["test"], env, test_count=index + 1)[index]


async def test_one_turn_is_one_text_with_the_weighted_reward_and_all_scores_by_name(play: Play) -> None:
    result = await play(problem("numbers_v1", 3), lambda prompt: "3")
    (text,) = result.training_texts
    assert (text.reward, text.role, text.situation, text.finished) == (3.0, "agent", "agent", True)
    assert (text.output_text, text.labels[-2:].tolist()) == ("3<|end|>", text.input_ids[-2:].tolist())
    assert text.prompt_text.endswith("Which number is 3?<|end|><|start|>assistant\n")
    assert text.logprobs.tolist() == [-0.5, -0.5] and text.weight_versions == [(0, 0, 2)]
    assert text.metadata["reward_is_number"] == text.metadata["reward_is_right"] == 1.0
    assert text.metadata["stop_condition"] == "agent_completed"
    assert result.metrics.model_dump() == {
        "reward": 3.0,
        "success": True,
        "no_error": True,
        "no_answer": False,
        "truncated": False,
        "turns": 1,
        "reward_is_number": [1.0],
        "reward_is_right": [1.0],
        "metric_length": [1.0],
    }
    assert result.dataset_name is None or result.dataset_name == "test/numbers_v1"


@pytest.mark.parametrize(
    "words, said, reward",
    [
        (False, "5", True),
        (False, "It is 5.", False),
        (True, "From 3 to 8 it is 5.", True),
        (True, "none", False),
        (True, "5 or 900", False),
    ],
)
async def test_the_example_reads_a_number_out_of_a_sentence_only_where_it_asks_in_words(
    play: Play, monkeypatch: pytest.MonkeyPatch, words: bool, said: str, reward: bool
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    env = {"taskset": {"id": "halving", "highest": 9, "words": words}}
    tasks = load_problems(["test"], env, test_count=50)
    asked = next(one for one in tasks if json.loads(one["task"])["low"] < 5 < json.loads(one["task"])["high"])
    assert ("Name one whole number" in json.loads(asked["task"])["prompt"]) == words
    result = await play(asked, lambda prompt: said)
    assert result.failed is None and (result.metrics.reward > 0) == reward
    assert result.metrics.metric_inside == [float(reward)]


async def test_a_dialogue_is_one_text_with_every_turn_learnt(play: Play) -> None:
    def halve(prompt: str) -> str:
        return "48657"[prompt.count("assistant\n") - 1]

    result = await play(problem("dialogue_v1", 6), halve)
    (text,) = result.training_texts
    assert (text.role, text.reward) == ("player", 1.0)
    learnt = text.input_ids[text.labels != -100].tolist()
    assert TOKENIZER.decode(learnt) == "4<|end|>8<|end|>6<|end|>"
    assert text.text.count("A game.") == 1 and "higher<|end|>" in text.text
    assert result.metrics.metric_guesses == [3.0] and result.metrics.turns == 3


async def test_tools_are_called_where_the_renderer_can_read_calls(play: Play) -> None:
    def say(prompt: str) -> str:
        called = '<tool_call>{"name": "adding_add", "arguments": {"a": 3, "b": 2}}</tool_call>'
        return "It is 5." if re.search(r"\n5\n?<", prompt) else called

    sums = problem("tools_v1", 3)
    for renderer in ({"name": "default", "tool_parser": "qwen3"}, "qwen3"):
        result = await play(sums, say, renderer=renderer)
        assert result.failed is None and result.metrics.reward == 1.0, renderer
        assert result.metrics.metric_called == [1.0] and result.metrics.turns == 2
        learnt = "".join(TOKENIZER.decode(one.input_ids[one.labels != -100]) for one in result.training_texts)
        assert "adding_add" in learnt and "It is 5." in learnt
        assert {text.reward for text in result.training_texts} == {1.0}
    refused = await play(sums, say)
    assert "DefaultRenderer does not support tools" in refused.failed and "\n" not in refused.failed


async def test_each_seat_has_its_name_and_its_reward_and_the_judge_is_not_trained(play: Play) -> None:
    def say(prompt: str) -> str:
        return "ab" if " or " in prompt else "ab" if len(seen) == 1 else "cd"

    seen: list[str] = []
    result = await play(problem("debate_v1"), lambda prompt: (seen.append(prompt), say(prompt))[1])
    assert [(text.role, text.reward) for text in result.training_texts] == [("left", 1.0), ("right", 0.0)]
    assert len(seen) == 3 and "ab or cd?" in seen[2]
    assert result.metrics.left_reward_won == [1.0] and result.metrics.right_reward_won == [0.0]
    assert result.metrics.judge_reward_won == [1.0] and result.metrics.reward == 0.5
    # A seat may ask for fewer tokens than the run.
    assert [text.finish_reason for text in result.training_texts] == ["stop", "stop"]


async def test_sampling_that_an_environment_asks_for_is_refused_or_replaced(play: Play) -> None:
    hot = problem("numbers_v1", agent={"sampling": {"temperature": 0.3}})
    refused = await play(hot, lambda prompt: "1")
    assert "temperature" in refused.failed and "\n" not in refused.failed
    taken = await play(hot, lambda prompt: "1", override=True)
    (text,) = taken.training_texts
    assert text.metadata["overridden"] == {"temperature": 0.3}


async def test_what_fails_is_a_failure_by_name(play: Play) -> None:
    zero = await play(problem("numbers_v1"), lambda prompt: "0")
    assert zero.failed.startswith("TaskError: ") and "zero was not to be named" in zero.failed
    late = await play(problem("numbers_v1"), lambda prompt: "1", delay_s=2, deadline_s=0.5)
    assert late.failed == "timeout: verifiers.deadline_s=0.5 passed"
    for result in (zero, late):
        assert not result.training_texts


async def test_a_trace_with_other_ids_than_the_recorded_ones_fails_the_rollout(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    from domains.verifiers import rollouts

    def altered(episode: Any, recorded: Any) -> Any:
        recorded[0].input_ids = recorded[0].input_ids + (recorded[0].labels != -100)
        return texts_of(episode, recorded)

    monkeypatch.setattr(rollouts, "texts_of", altered)
    result = await play(problem("numbers_v1"), lambda prompt: "12")
    behind = "a message of 3 tokens behind"
    assert result.failed.startswith(f"trace_mismatch: seat agent: {behind}") and not result.training_texts
    with pytest.raises(TraceMismatch):
        raise TraceMismatch(result.failed)


async def test_engines_that_do_not_answer_are_the_schedulers_business(tasksets: None, folder: Path) -> None:
    from domains.verifiers import generate_verifiers_rollout
    from pipelinerl.config.compose import compose
    from pipelinerl.extras import recorder
    from tests.support.fake_engine import FakeEngine, rolled_out

    tree = compose(["+domain=verifiers", "hardware=cpu"]).tree
    with FakeEngine(lambda ids: ids, max_model_len=4096) as engine:
        engine.always = 503
        fields = {"parameters": {"max_tokens": 8}, "context_size": 4096, "max_retries": 0}
        with pytest.raises(EngineUnavailable):
            await rolled_out(
                generate_verifiers_rollout, tree, problem("numbers_v1"), engine, folder, **fields
            )
    await recorder.close()
