"""Rewards, order, parser and normaliser: the pure parts of the game."""

import random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from domains.raro.config import RaroSettings, context_problems
from domains.raro.countdown import verify
from domains.raro.expressions import ExpressionError, Number, Operation, parse, render, value
from domains.raro.normalize import Task, normalize
from domains.raro.parser import ANSWER_1, ANSWER_2, TIE, VERDICTS, extract_answer, parse_verdict
from domains.raro.prompts import critic_prompt, ordered, policy_prompt
from domains.raro.rewards import Label, label, reward
from tests.support.odd_texts import ended_after


@pytest.mark.parametrize(
    ("verdict", "position", "expected"),
    [
        (ANSWER_1, 1, (Label.EXPERT, 1.0, 0.0)),
        (ANSWER_1, 2, (Label.POLICY, 0.0, 1.0)),
        (ANSWER_2, 1, (Label.POLICY, 0.0, 1.0)),
        (ANSWER_2, 2, (Label.EXPERT, 1.0, 0.0)),
        (TIE, 1, (Label.TIE, 0.55, 0.6)),
        (TIE, 2, (Label.TIE, 0.55, 0.6)),
    ],
)
def test_the_reward_table(verdict, position, expected):
    found = label(verdict, position)
    assert (found, *reward(found, RaroSettings())) == expected
    if verdict == TIE:
        assert reward(found, RaroSettings(tau_crit=0.7, tau_pol=0.2)) == (0.7, 0.2)
    with pytest.raises(ValueError, match="expected 1 or 2"):
        label(verdict, 0)


@pytest.mark.parametrize("tau", [0.5, 1.01, 0.2, -1.0])
def test_a_tie_that_never_or_always_beats_a_guess_is_refused(tau):
    with pytest.raises(ValidationError, match="tau_crit"):
        RaroSettings(tau_crit=tau)
    assert RaroSettings(tau_crit=tau, allow_degenerate_tau=True).tau_crit == tau
    assert {RaroSettings(tau_crit=edge).tau_crit for edge in (0.51, 1.0)} == {0.51, 1.0}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Answer 1 is wrong. Judgment: [Answer 2]", ANSWER_2),
        ("[Tie] Answer 1 and Answer 2 look alike", TIE),
        ("I lean to [Answer 1].\nOn reflection:\n[Tie]", TIE),
        ("[Answer 1], [Answer 2], or [Tie]", None),
        ("[Tie]\n[Answer 1] [Answer 1]", ANSWER_1),
        ("These entities differ", None),
        ("[answer 1]", None),
        ("<think>[Tie]</think>", None),
        ("<think>[Tie]</think>[Answer 1]", ANSWER_1),
        ("[Answer 2]<think>[Tie]", ANSWER_2),
        ("<think>never closed\n[Answer 2]", None),
        ("", None),
    ],
)
def test_verdicts(text, verdict):
    assert parse_verdict(text) == verdict


_pieces = st.sampled_from(
    [*VERDICTS, "<think>", "</think>", "\n", "[", "<answer>", "</answer>", "ß", "\ud83d"]
)


@given(st.one_of(st.text(), st.lists(_pieces).map("".join)))
def test_any_text_gives_a_verdict_or_none_and_an_answer_or_none(text):
    assert parse_verdict(text) in (None, *VERDICTS)
    answer = extract_answer(text)
    assert answer is None or (answer.strip() and answer in text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("11-8=3;<answer>8*3</answer>", "8*3"),
        ("<answer>1</answer> no, <answer> 2 </answer>\n ", " 2 "),
        ("<answer>8*3</answer> is it", None),
        ("8*3</answer>", None),
        ("<answer>8*3", None),
        ("<answer> </answer>", None),
        ("<answer>1</answer></answer>", None),
        ("<answer>8 [Answer 1]</answer>", None),
        ("<answer>[Tie]</answer>", None),
    ],
)
def test_the_answer_is_what_stands_last(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize("position", [1, 2])
def test_the_expert_stands_where_the_prompt_says(position):
    shown = critic_prompt("tiny", "q", *ordered("EXPERT", "POLICY", position)).messages[0]["content"]
    assert f"{position}: EXPERT" in shown and f"{3 - position}: POLICY" in shown
    assert (shown.index("EXPERT") < shown.index("POLICY")) == (position == 1)


def test_full_prompts_have_a_system_part_and_leave_braces_and_dollars_alone():
    prompt = critic_prompt("full", "{x} $question", "$answer_2", "b")
    assert prompt.messages[0]["role"] == "system" and "[Tie]" in prompt.messages[0]["content"]
    assert prompt.messages[1]["content"] == "Question:\n{x} $question\n\nAnswer 1:\n$answer_2\n\nAnswer 2:\nb"
    assert [m["role"] for m in policy_prompt("full", "text", "q").messages] == ["system", "user"]


def test_written_answers_are_asked_for_as_such():
    """`answer_form` reaches the prompt: a result, a whole solution or a poem."""
    systems = {task: policy_prompt("full", task, "q").messages[0]["content"] for task in get_args(Task)}
    assert systems["text"] == systems["math"] == systems["countdown"]
    assert "only the final answer" in systems["math"]
    assert "complete solution" in systems["solution"] and r"\boxed{}" in systems["solution"]
    assert "only the poem" in systems["poetry"]
    assert all("`</answer>` and write nothing after it" in system for system in systems.values())
    assert [m["role"] for m in policy_prompt("tiny", "solution", "q").messages] == ["user"]


@pytest.mark.parametrize(
    ("task", "text", "expected"),
    [
        ("math", r" $\boxed{\frac{1}{2}}$. ", r"\frac{1}{2}"),
        ("math", r"\text{ blue  sky }", "blue sky"),
        ("math", r"\boxed{\boxed{7}}..", "7"),
        ("math", "$ $x^2$ $", "x^2"),
        ("solution", " first\r\n so  $x=1$. ", "first\nso $x=1$."),
        ("countdown", "(8 - 2) * 4", "(8-2)*4"),
        ("countdown", "8/(3-(8/3))", "8/(3-8/3)"),
        ("countdown", " 8 ÷ (3 − 1)", "8/(3-1)"),
        ("countdown", "2×(3+4)", "2*(3+4)"),
        ("countdown", "2 · 3 ⋅ 4 – 1", "2*3*4-1"),
        ("countdown", "((1+2))+(3+4)", "1+2+3+4"),
        ("countdown", "1-(2-3)", "1-(2-3)"),
        ("countdown", "1-(2+3)", "1-(2+3)"),
        ("countdown", "2 +", "2 +"),
        ("countdown", "007", "7"),
        ("text", " a \n\t b ", "a b"),
        ("poetry", " a  b \r\n\n c ", "a b\n\nc"),
        ("text", "e\u0301", "\u00e9"),
    ],
)
def test_normalised_answers(task, text, expected):
    assert normalize(task, text) == expected
    assert normalize(task, expected) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("." * 200_000, ""),
        ("x" + ". " * 100_000, "x"),
        ("$" * 200_000 + "x" + "$." * 100_000, "x"),
        ("a" + "$" * 200_000 + "b", "a" + "$" * 200_000 + "b"),
        (r"5\$" + "$" * 200_000 + ".", r"5\$"),
        ("e" + "\u0301\u0323" * 50_000, "\u1eb9" + "\u0323" * 49_999 + "\u0301" * 50_000),
    ],
)
def test_a_long_answer_is_normalised_in_time_linear_in_its_length(text, expected):
    """The square of these lengths takes minutes."""
    with ended_after(20):
        assert normalize("math", text) == expected


def test_the_normaliser_keeps_the_verifiers_verdict_on_random_expressions():
    rng, right = random.Random(3), 0
    for _ in range(1_000):
        numbers = tuple(rng.randint(1, 9) for _ in range(rng.randint(2, 4)))
        tree = _random_tree(numbers, rng)
        loose, result = _loosely(tree, rng), value(tree)
        target = rng.choice([24, 7 if result is None else int(result), 7])
        verdict = verify(loose, numbers, target)
        right += verdict
        assert verify(normalize("countdown", loose), numbers, target) == verdict
        assert parse(normalize("countdown", loose)) == parse(render(tree))
    assert 200 < right < 800


def _random_tree(numbers, rng):
    parts = [Number(n) for n in numbers]
    while len(parts) > 1:
        right, left = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
        parts.append(Operation(rng.choice("+-*+-*/"), left, right))
    return parts[0]


def _loosely(tree, rng):
    """Print with needless parentheses and blanks."""
    if isinstance(tree, Number):
        text = str(tree.value)
    else:
        assert isinstance(tree, Operation)
        text = f"({_loosely(tree.left, rng)}){rng.choice(['', ' '])}{tree.op} ({_loosely(tree.right, rng)})"
    return f"( {text})" if rng.random() < 0.2 else text


@pytest.mark.parametrize(
    "text", ["", "1+", "(1", "1)", "1**2", "1//2", "-1", "+1", "x", "1 2", "1.5", "1,2", "²"]
)
def test_what_is_no_expression(text):
    with pytest.raises(ExpressionError):
        parse(text)


def test_the_context_budget_names_the_largest_part():
    example = RaroSettings(
        max_answer_tokens=1024, policy={"max_tokens": 2048}, critic={"max_tokens": 1024}
    )  # critic 160 + 256 + 2 * 1024 + 1024, policy 120 + 256 + 2048
    assert list(context_problems(example, 3488, "engine.max_model_len")) == []
    (problem,) = context_problems(example, 3487, "engine.max_model_len")
    assert "3488" in problem and "lower raro.max_answer_tokens (2 * max_answer_tokens = 2048" in problem
    assert len(list(context_problems(example, 2423, "k"))) == 2
    assert list(context_problems(example.model_copy(update={"reward": "verifier"}), 2424, "k")) == []
