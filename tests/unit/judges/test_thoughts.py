"""Every judge reads what stands behind the thoughts: whichever of the two tags a completion holds."""

from collections.abc import Callable

import pytest

from domains.coding.verifier_api import extract_code
from domains.counting.counting import answer_of
from domains.fn_calling.calls import read_calls
from domains.ifeval.rollouts import judged_part
from domains.ifeval.verifier_api import verify_answer as verify_instructions
from domains.logic.published import judge_row
from domains.math.answers import verify_answer
from domains.privacy_hopqa.data.json_extract import extract
from domains.raro.parser import extract_answer, parse_verdict
from domains.reasoning_gym.answers import extract_answer as extract_in_format
from domains.tir.tool import program_of
from pipelinerl.base.thoughts import answer_part, thoughts_are_open
from pipelinerl.engines.openai.chat import read_tool_calls


@pytest.mark.parametrize(
    ("completion", "answer", "still_open"),
    [
        ("a", "a", False),
        (" a\n", " a\n", False),
        ("", "", False),
        ("t</think>a", "a", False),
        ("t</think>\n\n a\n", "a\n", False),
        ("<think>t</think>a", "a", False),
        ("<think>t<think>u</think>a", "a", False),
        ("<think>t</think>a<think>u</think>b", "b", False),
        ("t</think>u</think>a", "a", False),
        ("<think>t", "", True),
        ("a<think>t", "a", True),
        ("t</think>a<think>u", "a", True),
        ("t</think>", "", False),
        ("It writes `<think>` first. a", "It writes `<think>` first. a", False),
        ("<think>as '</think>'</think>x.split('</think>')[0]", "x.split('</think>')[0]", False),
        ('</think>"a"', '"a"', False),
        ('t"</think>a', "a", False),
        ('{"x": "<think>"}', '{"x": "<think>"}', False),
        ("t</think>a`<think>`<think>u", "a`<think>`", True),
    ],
)
def test_the_answer_stands_behind_the_last_thought(completion: str, answer: str, still_open: bool) -> None:
    assert answer_part(completion) == answer
    assert thoughts_are_open(completion) is still_open


CALL = '<tool_call>{{"name": "f", "arguments": {{"x": {}}}}}</tool_call>'
NO_COMMA = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
COUNT = '{"question": "q", "answer": "2", "metadata": {}}'


def _engine_calls(text: str) -> str:
    return read_tool_calls(text)[1][0]["function"]["arguments"]


# What a judge reads; a text that says `1`, one that says `2`; what is read of the second alone.
READERS: list[tuple[str, Callable[[str], object], str, str, object]] = [
    ("math", lambda text: verify_answer(text, "2"), r"\boxed{1}", r"\boxed{2}", "correct"),
    ("coding", extract_code, "```python\n1\n```", "```python\n2\n```", "2"),
    ("tir", program_of, "```python\n1\n```", "```python\n2\n```", "2"),
    ("fn_calling", lambda text: [call.arguments["x"] for call in read_calls(text)], CALL.format(1),
     CALL.format(2), [2]),
    ("fn_calling alone", lambda text: [call.arguments["x"] for call in read_calls(text)], CALL.format(1),
     "[f(x=2)]", [2]),
    ("engine", _engine_calls, CALL.format(1), CALL.format(2), '{"x": 2}'),
    ("ifeval", lambda text: verify_instructions(text, NO_COMMA)["answer_status"], "a, b", "a b", "correct"),
    ("ifeval final", judged_part, "[BEGIN FINAL RESPONSE]1[END FINAL RESPONSE]",
     "[BEGIN FINAL RESPONSE]2[END FINAL RESPONSE]", "2"),
    ("logic", lambda text: judge_row("object_counting", COUNT, text), r"\boxed{1}", r"\boxed{2}", "correct"),
    ("raro answer", extract_answer, "<answer>1</answer>", "<answer>2</answer>", "2"),
    ("raro verdict", parse_verdict, "[Answer 1]", "[Answer 2]", "[Answer 2]"),
    ("privacy_hopqa", lambda text: extract(text, "array").value, '[{"q": 1}]', '[{"q": 2}]', [{"q": 2}]),
    ("reasoning_gym", lambda text: extract_in_format(text, "last_number"), "1", "2", "2"),
    ("reasoning_gym text", lambda text: extract_in_format(text, "text"), "1", "2", "2"),
    ("counting", answer_of, "<answer>1</answer>", "<answer>2</answer>", 2),
]  # fmt: skip


@pytest.mark.parametrize(("read", "first", "second", "found"), [one[1:] for one in READERS],
                         ids=[one[0] for one in READERS])  # fmt: skip
def test_a_judge_reads_what_follows_the_thoughts(
    read: Callable[[str], object], first: str, second: str, found: object
) -> None:
    assert read(second) == found, "a completion without thoughts"
    for thoughts in (f"maybe {first}</think>\n", f"<think>maybe {first}</think>\n\n",
                     f"<think>{first}<think>{first}</think>or {first}</think>"):  # fmt: skip
        assert read(thoughts + second) == found


@pytest.mark.parametrize(
    ("read", "nothing"),
    [
        (lambda text: verify_answer(text, "2"), "no_answer"),
        (extract_code, ""),
        (program_of, None),
        (read_calls, []),
        (lambda text: verify_instructions(text, NO_COMMA)["answer_status"], "no_answer"),
        (extract_answer, None),
        (parse_verdict, None),
        (answer_of, None),
        (lambda text: extract_in_format(text, "last_number"), None),
        (lambda text: read_tool_calls(text)[1], []),
    ],
)
def test_thoughts_alone_are_no_answer(read: Callable[[str], object], nothing: object) -> None:
    said = "\n".join((r"\boxed{2}", "```python\n2\n```", CALL.format(2), "[Answer 2]", "<answer>2</answer>"))
    assert read(f"{said}</think>") == read(f"<think>{said}</think>\n") == read(f"<think>{said}") == nothing


def test_an_engine_shows_a_call_in_thoughts_as_text() -> None:
    text, calls = read_tool_calls(f"{CALL.format(1)}</think>\nI look. {CALL.format(2)}")
    assert text == f"{CALL.format(1)}</think>\nI look." and len(calls) == 1
    quoted = f"<think>{CALL.format(1)}</think> No call is needed."
    assert read_tool_calls(quoted) == (quoted, [])
