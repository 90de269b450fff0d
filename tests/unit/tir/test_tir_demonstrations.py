"""Dialogues to imitate: they are what a rollout plays, most end wrong, and the tool writes what they show."""

from collections import Counter

import pytest

from domains.math.answers import verify_answer
from domains.math.data import arithmetic
from domains.tir.demonstrations import KINDS, demonstrations
from domains.tir.domain import TirDomain
from domains.tir.settings import TirSettings
from domains.tir.tool import program_of, use
from pipelinerl.base.tokenizing import load_tokenizer, render_chat
from pipelinerl.config.compose import compose
from pipelinerl.extras.bootstrap.demonstrations import Demonstration
from pipelinerl.extras.bootstrap.formats import ASSISTANT, END, USER

HIGHEST = 30
"""Few questions, so that data sets meet by chance."""


def messages(one: Demonstration) -> list[dict[str, str]]:
    """The dialogue that a demonstration goes on with."""
    first, *rest = one.prompt.split(ASSISTANT)
    found = [{"role": "user", "content": first}]
    for turn in rest:
        answer, _, result = turn.partition(f"{END}{USER}")
        found += [{"role": "assistant", "content": answer}, {"role": "user", "content": result}]
    return found


def test_no_question_of_the_evaluation_is_shown() -> None:
    asked = {question for question, _ in arithmetic("arithmetic_test", HIGHEST)}
    free, kept = (
        {one.prompt for one in demonstrations(1, HIGHEST, names)} for names in ([], ["arithmetic_test"])
    )
    assert free & asked and not kept & asked


def test_most_dialogues_end_wrong_and_every_kind_is_played() -> None:
    shown = list(TirDomain().demonstrations(compose(["+domain=tir", "hardware=cpu"]).tree, 3, "imitate"))
    gold = dict(arithmetic("arithmetic_demonstrations_3", 999))
    last = [one for one in shown if program_of(one.completion) is None]
    questions = [messages(one)[0]["content"] for one in last]
    right = Counter(
        one.kind
        for one, question in zip(last, questions, strict=True)
        if verify_answer(one.completion, gold[question]) == "correct"
    )
    assert 0.2 < right.total() / len(last) < 0.5 and set(right) <= {"right", "repaired", "another operator"}
    assert {one.kind for one in shown} == {"by head", *KINDS} and not any(one.exact for one in shown)


async def test_the_tool_writes_what_is_shown() -> None:
    box, ran = TirSettings(timeout_s=50).sandbox(), set()
    for one in demonstrations(3, 999, []):
        dialogue = messages(one)
        if len(dialogue) > 1 and one.kind not in ran:
            ran.add(one.kind)
            for answer, result in zip(dialogue[1::2], dialogue[2::2], strict=True):
                program = program_of(answer["content"])
                assert program is not None and (await use(box, program, 2000))[0] == result["content"]
    assert ran == set(KINDS)


def test_dialogues_are_those_of_the_bundled_models_template() -> None:
    tokenizer = load_tokenizer("domains/tir/checkpoint")
    for one in demonstrations(3, 999, []):
        assert render_chat(tokenizer, messages(one)) == f"{USER}{one.prompt}{ASSISTANT}"


def test_a_system_prompt_is_refused() -> None:
    cfg = compose(["+domain=tir", "hardware=cpu", "actor.system_prompt=Think."]).tree
    with pytest.raises(ValueError, match="demonstrations of tir are of bare questions"):
        TirDomain().demonstrations(cfg, 1, "imitate")
