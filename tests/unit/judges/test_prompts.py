"""The user message that domains with one question send."""

import pytest
from omegaconf import DictConfig, OmegaConf

from domains.prompts import question_messages


def tree(**actor: object) -> DictConfig:
    return OmegaConf.create({"actor": actor})


@pytest.mark.parametrize(
    ("template", "sent"),
    [
        # Upstream's policies send `task_template.format(task=...)`.
        ("{task}\nPut it within \\boxed{{}}.", "2 {+} 2?\nPut it within \\boxed{}."),
        ('{{"q": "{task}"}}', '{"q": "2 {+} 2?"}'),
        ("{task} {task}", "2 {+} 2? 2 {+} 2?"),
        # With these braces `format` raises, so that no file of upstream has them.
        ("{task}\nPut it within \\boxed{}.", "2 {+} 2?\nPut it within \\boxed{}."),
        ('{task} as {"a": {"b": 1}}', '2 {+} 2? as {"a": {"b": 1}}'),
        ("{task} {", "2 {+} 2? {"),
    ],
)
def test_double_braces_of_a_template_stand_for_single_ones(template: str, sent: str) -> None:
    (message,) = question_messages(tree(task_template=template), "2 {+} 2?")
    assert message == {"role": "user", "content": sent}


def test_a_system_prompt_of_the_domain_stands_in_for_none() -> None:
    prompts = {"domain_system_prompts": {"coding": "Write Python.", "math": ""}}

    def system(domain: str, **actor: object) -> list[str]:
        messages = question_messages(tree(**prompts, **actor), "?", domain)
        return [message["content"] for message in messages if message["role"] == "system"]

    assert system("coding") == system("coding", system_prompt="") == ["Write Python."]
    assert system("coding", system_prompt="Be brief.") == ["Be brief."]
    assert system("math") == system("logic") == []


@pytest.mark.parametrize("template", ["{question}", "Solve it.", "{}", "{tasks}"])
def test_a_template_that_leaves_the_question_out_asks_nothing(template: str) -> None:
    with pytest.raises(ValueError, match=r"put \{task\} where the question goes"):
        question_messages(tree(task_template=template), "1 + 1?")


@pytest.mark.parametrize("template", ["", "{task}", "{task!s:>9}", r"\boxed{} {task}", "a{{b}} {task}"])
def test_a_template_with_the_question_asks_it(template: str) -> None:
    assert "1 + 1?" in question_messages(tree(task_template=template), "1 + 1?")[0]["content"]
