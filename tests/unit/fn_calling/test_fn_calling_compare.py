"""Calls read from completions, and compared as BFCL compares them, over its whole data where it is there."""

import json
import os
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domains.fn_calling.calls import LONGEST, Call, Unreadable, read_calls
from domains.fn_calling.compare import is_call, matched, same_text
from domains.fn_calling.domain import answer_of, mistaken
from domains.fn_calling.problems import CATEGORIES, make
from domains.fn_calling.rollouts import remark_notation
from domains.fn_calling.verifier_api import verify_fn_calling_answer
from tests.support import bfcl

DATA = os.environ.get("BFCL_DATA")
"""The wheel `bfcl-eval` or its folder of data; null: the installed package."""
FUNCTION: dict[str, Any] = {
    "name": "shop.order",
    "parameters": {
        "type": "dict",
        "properties": {
            "item": {"type": "string"},
            "count": {"type": "integer"},
            "price": {"type": "float"},
            "gift": {"type": "boolean"},
            "sizes": {"type": "array", "items": {"type": "integer"}},
            "to": {"type": "dict"},
        },
        "required": ["item"],
    },
}
WANTED: dict[str, Any] = {
    "shop.order": {
        "item": ["Red Shoe", "shoe"],
        "count": [2],
        "price": [10.0, ""],
        "gift": [True, ""],
        "sizes": [[1, 2], ""],
        "to": [{"city": ["Bern", "Berne"], "street": ["", "Mill Rd."]}, ""],
    }
}


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"item": "red-shoe", "count": 2}, True),
        ({"item": "red shoe", "count": 2, "price": 10, "gift": True}, True),
        ({"item": "shoe", "count": 2, "sizes": [1, 2], "to": {"city": "berne"}}, True),
        ({"item": "shoe", "count": 2, "to": {"city": "Bern", "street": "mill rd"}}, True),
        ({"count": 2}, False),
        ({"item": "shoe"}, False),
        ({"item": "shoes", "count": 2}, False),
        ({"item": "shoe", "count": 2.0}, False),
        ({"item": "shoe", "count": "2"}, False),
        ({"item": "shoe", "count": True}, False),
        ({"item": "shoe", "count": 2, "gift": 1}, False),
        ({"item": "shoe", "count": 2, "price": 11}, False),
        ({"item": "shoe", "count": 2, "sizes": [2, 1]}, False),
        ({"item": "shoe", "count": 2, "sizes": [1.0, 2]}, False),
        ({"item": "shoe", "count": 2, "sizes": [1, 2, 3]}, False),
        ({"item": "shoe", "count": 2, "to": {"street": "Mill Rd."}}, False),
        ({"item": "shoe", "count": 2, "to": {"city": "Bern", "zip": 1}}, False),
        ({"item": "shoe", "count": 2, "colour": "red"}, False),
    ],
)
def test_a_call_has_allowed_values_of_its_types(arguments: dict[str, Any], right: bool) -> None:
    for name in ("shop.order", "shop_order"):
        assert is_call(Call(name, arguments), WANTED, [FUNCTION]) is right
    assert not is_call(Call("order", arguments), WANTED, [FUNCTION])


def test_texts_are_compared_without_case_blanks_and_marks() -> None:
    assert same_text("April 1, 2024") == same_text("april 1 2024") != same_text("april 2 2024")


def test_each_call_counts_for_one_entry_in_whatever_order() -> None:
    def function(*allowed: int) -> dict[str, Any]:
        return {"f": {"x": list(allowed)}}

    schema = {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}}
    calls = [Call("f", {"x": 1}), Call("f", {"x": 2})]
    # Greedily the first entry would take the only call that fits the second one.
    assert matched(calls, [function(1, 2), function(1)], [schema]) == 2
    assert matched(calls, [function(1), function(1)], [schema]) == 1
    assert matched(calls[:1] * 2, [function(1), function(2)], [schema]) == 1


@pytest.mark.parametrize(
    "said",
    [
        '<tool_calls>[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]</tool_calls>',
        "So: <tool_calls>[]</tool_calls><TOOL_CALLS>\n[f(x=1), g()]\n</TOOL_CALLS><tool_calls></tool_calls>",
        '[{"f": {"x": 1}}, {"g": {}}]',
        '[{"function": {"name": "f", "arguments": "{\\"x\\": 1}"}}, {"name": "g", "parameters": {}}]',
        "f(x=1)\ng()",
        # What engines leave of Command's, whose marks are special tokens.
        '[{"tool_call_id": "0", "tool_name": "f", "parameters": {"x": 1}}, {"tool_name": "g"}]',
        "```python\n[f(x=1), g()]\n```",
        # As Hermes, Qwen and others write several calls.
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><tool_call>{"name": "g"}</tool_call>',
        'So <tool_call>{"f": {"x": 1}}</tool_call> and <TOOL_CALL>g()</TOOL_CALL> <tool_call></tool_call>',
        "<tool_calls>\n<tool_call>f(x=1)</tool_call><tool_call>[g()]</tool_call></tool_calls>",
        "<tool_calls>[g()]</tool_calls> no: <tool_call>f(x=1)</tool_call><tool_call>g()</tool_call>",
        "<tool_call>g()</tool_call> no: <tool_calls>f(x=1)\ng()</tool_calls>",
        '<tool_call>{"name": "f", "arguments": {"x": 1}}\n{"name": "g"}</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n<tool_call>\ng()\n</tool_call>',
        '<tool_call>f(x=1)</tool_call>\n<tool_call>\n{"name": "g"}\n',
        '<tool_call>\r\n```json\r\n[{"f": {"x": 1}}, {"name": "g"}]\r\n```\r\n</tool_call>',
        "~~~python\n[f(x=1), g()]\n~~~",
        "```f(x=1), g()```",
        '{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}',
        # As Mistral and Llama write them, as far as their marks are left in the text.
        '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]</s>',
        'I look.\n[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}',
        '[TOOL_CALLS]f[CALL_ID]a1B2c3d4e[ARGS]{"x": 1}[TOOL_CALLS]g[CALL_ID]a1B2c3d4f[ARGS]{}</s>',
        '[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]g{}',
        '<|python_tag|>{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}<|eom_id|>',
        "<|python_tag|>f(x=1)\ng()<|eot_id|>",
        '<function=f>{"x": 1}</function>\n<function=g>{}</function>',
        'I call it:\n<function=f>{"x": 1}</function><function=g>{}</function>',
    ],
)
def test_calls_are_read_in_each_form(said: str) -> None:
    assert read_calls(said) == [Call("f", {"x": 1}), Call("g")]
    structured = [{"id": "1", "function": {"name": "h", "arguments": '{"y": [1, null]}'}}]
    assert read_calls(said, structured) == [Call("h", {"y": [1, None]})]


def test_names_before_arguments_are_calls_where_the_functions_are_known() -> None:
    """What an engine leaves of Mistral's newer notation, whose marks are special tokens."""
    known = [{"name": name, "parameters": {"type": "object", "properties": {}}} for name in "fg"]
    assert read_calls('f{"x": 1}g{}', functions=known) == [Call("f", {"x": 1}), Call("g")]
    assert read_calls('f{"x": 1}h{}', functions=known) == []
    assert read_calls('f{"x": 1}', functions=()) == []


@pytest.mark.parametrize(
    "said",
    [
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}",
        '<|tool_call|>[{"name": "f", "arguments": {}}]',
        '<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>',
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
        '<function_calls><invoke name="f"></invoke></function_calls>',
        "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value></tool_call>",
        '[TOOL_CALLS]f[ARGS]{"x": ',
        "[TOOL_CALLS] [{]",
        "<|tool_call_start|>[f(x=1)]<|tool_call_end|>",
        '<functioncall> {"name": "f", "arguments": \'{"x": 1}\'}',
        '<function_call>{"name": "f", "arguments": {}}</function_call>',
        "<tool_use><name>f</name><arguments>{}</arguments></tool_use>",
        'Thought: f helps.\nAction: f\nAction Input: {"x": 1}',
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">',
        'analysisIt helps.assistantcommentary to=functions.f json{"x": 1}',  # without special tokens
        "<|python_start|>[f(x=1)]<|python_end|>",
        'functools[{"name": "f", "arguments": {"x": 1}}]',
        'Action: ```json\n[{"tool_name": "f", "parameters": {"x": 1}}]\n```',
        "<|tool_call>call:f{x:1}<tool_call|>",
        "call:f{x:1}",
        '<|tools_prefix|>[{"f": {"x": 1}}]<|tools_suffix|>',
        '✿FUNCTION✿: f\n✿ARGS✿: {"x": 1}',
        '<longcat_tool_call>{"name": "f", "arguments": {}}</longcat_tool_call>',
        "<|tool_calls|><|tool_call:begin|>1<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|>",
    ],
)
def test_calls_that_cannot_be_read_are_no_refusal(said: str) -> None:
    none = {"category": "irrelevance", "function": [FUNCTION], "ground_truth": []}
    assert verify_fn_calling_answer(said, none)["answer_status"] == "unparsable"
    assert verify_fn_calling_answer(f"<think>{said}</think>No.", none)["answer_status"] == "correct"


def test_a_whole_row_of_answers_is_read_as_upstreams_loader_gives_it() -> None:
    context = {"category": "simple", "function": [FUNCTION | {"name": "f"}]}
    truth = {"id": "simple_1", "ground_truth": [{"f": {"item": ["tea"]}}]}
    for item, status in (("tea", "correct"), ("milk", "wrong")):
        said = f'<tool_calls>[{{"name": "f", "arguments": {{"item": "{item}"}}}}]</tool_calls>'
        assert verify_fn_calling_answer(said, context | {"ground_truth": truth})["answer_status"] == status


@pytest.mark.parametrize(
    "said", ["f(1)", "[f(1)]", "[f(x=1)].", '{"name": "f", "arguments": {"x": 1}', '[{"f": {}}', "[f(x="]
)
def test_a_text_that_begins_as_a_call_of_a_known_function_is_no_refusal(said: str) -> None:
    none: dict[str, Any] = {"category": "irrelevance", "function": [FUNCTION], "ground_truth": []}
    known, unknown = ({**none, "function": [FUNCTION | {"name": name}]} for name in ("f", "other"))
    assert verify_fn_calling_answer(said, known)["answer_status"] == "unparsable"
    assert verify_fn_calling_answer(said, unknown)["answer_status"] == "correct", "words in brackets"


SPOKEN = [
    'Here is the call:\n```json\n[{"name": "shop.order", "arguments": {"item": "shoe"}}]\n```',
    'Sure: {"name": "shop.order", "arguments": {"item": "shoe"}}',
    "I will call shop.order(item='shoe') for you.",
    "**shop_order(item='shoe')**",
    "```python\nresult = shop.order(item='shoe')\nprint(result)\n```",
    '{"tool": "shop.order", "arguments": {"item": "shoe"}}',
    '{"action": "shop.order", "action_input": {"item": "shoe"}}',
    '<tools>{"name": "shop.order", "arguments": {"item": "shoe"}}</tools>',
    "<shop_order><item>shoe</item></shop_order>",
    '<function name="shop.order">{"item": "shoe"}</function>',
    'commentary to=shop.order json{"item": "shoe"}',
    'It is {"shop.order": {"item": "shoe"}}.',
    'I use `shop.order` with {"item": "shoe"}.',
    'Function: shop.order\nArguments: {"item": "shoe"}',
    'Tool: `shop.order("shoe")`',
]


@pytest.mark.parametrize("said", SPOKEN)
def test_a_call_among_words_or_under_another_name_is_no_refusal(said: str) -> None:
    none: dict[str, Any] = {"category": "irrelevance", "function": [FUNCTION], "ground_truth": []}
    assert verify_fn_calling_answer(said, none)["answer_status"] == "unparsable"
    assert verify_fn_calling_answer(f"{said}</think>No function helps.", none)["answer_status"] == "correct"
    other = none | {"function": [FUNCTION | {"name": "weather"}]}
    assert verify_fn_calling_answer(said, other)["answer_status"] == "correct", "no function of the problem"


@pytest.mark.parametrize(
    "said",
    [
        "shop.order only orders things, so it does not help.",
        "The function `shop.order(item)` needs an item, which you have not named.",
        'None of the functions, such as "shop.order", helps.',
        "I can order with shop_order: name an item.",
        "I have no tool for that; shop.order() is for orders.",
        "I cannot call shop.order(item=...) because you name none.",
        'A call such as shop.order(item="...") needs an item.',
        "It would be `shop.order(item=<what you want>)`.",
        'To use shop.order, I need {"item": ...}.',
        'The form is shop.order: {"item": "<item>"}.',
    ],
)
def test_a_refusal_may_name_a_function(said: str) -> None:
    none = {"category": "irrelevance", "function": [FUNCTION], "ground_truth": []}
    assert verify_fn_calling_answer(said, none)["answer_status"] == "correct"


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "f", "params": {"x": 1}}',
        '{"name": "f", "kwargs": {"x": 1}}',
        '{"name": "f", "x": 1}',
        '{"name": "f", "id": "1", "tool_input": {"x": 1}}',
    ],
)
def test_arguments_under_an_unknown_name_are_not_left_out(call: str) -> None:
    """The call of `f` without arguments may be the right one."""
    schema = {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}, "required": []}}
    context = {"category": "simple", "function": [schema], "ground_truth": [{"f": {"x": [2, ""]}}]}
    assert verify_fn_calling_answer('{"name": "f", "id": "1"}', context)["answer_status"] == "correct"
    for said in (call, f"[{call}]", f"<tool_call>{call}</tool_call>"):
        assert verify_fn_calling_answer(said, context)["answer_status"] == "unparsable"


@pytest.mark.parametrize("key", ["arguments", "parameters", "args", "input"])
def test_arguments_are_read_under_each_of_their_names(key: str) -> None:
    call = f'{{"name": "f", "{key}": {{"x": 1}}}}'
    for said in (call, f"<tool_call>{call}</tool_call>", f'{{"tool_calls": [{call}]}}'):
        assert read_calls(said) == [Call("f", {"x": 1})]


def test_a_notation_that_is_not_read_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for said in ("Well: <TOOLCALL>[]", "<TOOLCALL>", "`<|tool_call|>` helps nobody", "<|python_tag|>f()"):
        remark_notation(said)
    (record,) = caplog.records
    line = record.getMessage()
    assert getattr(record, "remark", False) and "behind <TOOLCALL>," in line and "<tool_calls>[...]" in line


def test_every_block_of_parallel_calls_is_judged() -> None:
    def one(x: int) -> str:
        return f'<tool_call>{{"name": "f", "arguments": {{"x": {x}}}}}</tool_call>'

    schema = {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}}
    wanted = [{"f": {"x": [x]}} for x in (1, 2)]
    context = {"category": "parallel", "function": [schema], "ground_truth": wanted}
    verdicts = {
        one(2) + one(1): ("correct", 1.0),
        one(2): ("wrong", 0.5),
        one(1) + one(2) + one(3): ("wrong", 2 / 3),
        one(1) + "<tool_call>{</tool_call>" + one(2): ("unparsable", 0.0),
    }
    for said, (status, share) in verdicts.items():
        found = verify_fn_calling_answer(said, context)
        assert (found["answer_status"], found["partial_score"]) == (status, share)


def test_calls_in_tags_are_judged_by_the_types_of_the_schema() -> None:
    """Qwen3-Coder writes a number as text between tags; BFCL names its types as Python does."""
    types = {
        "n": "integer",
        "x": "float",
        "s": "string",
        "l": "array",
        "t": "tuple",
        "d": "dict",
        "b": "boolean",
    }
    properties = {name: {"type": kind} for name, kind in types.items()}
    schema = {"name": "m.f", "parameters": {"properties": properties, "required": ["n"]}}
    wanted = {
        "n": [5],
        "x": [2.5, 3.0],
        "s": ["5"],
        "l": [[1, 2]],
        "t": [[1, "a"]],
        "d": [{"k": [1]}],
        "b": [False],
    }
    values = {"n": "5", "x": "3", "s": "5", "l": "[1, 2]", "t": "(1, 'a')", "d": '{"k": 1}', "b": "False"}
    context = {"category": "simple", "function": [schema], "ground_truth": [{"m.f": wanted}]}

    def said(name: str = "m.f", blank: str = "\n", **changed: str) -> str:
        inside = "\n".join(
            f"<parameter={k}>{blank}{v}{blank}</parameter>" for k, v in (values | changed).items()
        )
        return f"<function={name}>\n{inside}\n</function>"

    def status(completion: str) -> str:
        return str(verify_fn_calling_answer(completion, context)["answer_status"])

    for right in (f"So:\n<tool_call>\n{said()}\n</tool_call>", said(blank=""), f"<tool_call>{said('m_f')}"):
        assert status(right) == "correct"
    for name, other in {
        "n": "6",
        "x": "nan",
        "s": "6",
        "l": "[1]",
        "t": "()",
        "d": "{}",
        "b": "true",
    }.items():
        assert status(f"<tool_call>{said(**{name: other})}</tool_call>") == "wrong", name
    assert status(f"I look it up.\n{said()}\n") == "correct"
    assert status(f"It is written {said()}") == "no_answer", "in words"
    assert status("<function=m.f>\n" * 20_000 + "</function>") == "no_answer", "in linear time"
    assert status("<tool_call><function=m.f>n=5</function></tool_call>") == "unparsable"
    assert status(f"<think><tool_call>{said()}</tool_call></think>no") == "no_answer"


def test_values_of_python_calls_are_literals_or_what_is_written() -> None:
    said = "a.b(x=-1.5, y=(1, 'two', [True]), z={'k': None, 2: name}, f=lambda q: q + 1, g=open('/x'))"
    (call,) = read_calls(said)
    assert call.name == "a.b" and call.arguments == {
        "x": -1.5,
        "y": [1, "two", [True]],
        "z": {"k": None, "2": "name"},
        "f": "lambda q: q + 1",
        "g": "open('/x')",
    }


@pytest.mark.parametrize(
    "said", ["", "No function helps.", "I think (maybe) so.", "[1] says so", "{", "f(1)"]
)
def test_words_are_no_calls(said: str) -> None:
    assert read_calls(said) == []


@pytest.mark.parametrize(
    "inside",
    [
        "no",
        "[1]",
        '{"name": 3, "arguments": {}}',
        '{"name": "f", "arguments": "{"}',
        "f(1)",
        "f(**x)",
        "x = f(a=1)",
        "[" * 3000,
        "-" * 15_000 + "1",
        f"f(x={'9' * 5000})",
        "f(x=" + "(" * 300 + ")" * 300 + ")",
        f"f(x='{'a' * LONGEST}')",
        '{"name": ' + "[" * 900 + "]" * 900 + ', "arguments": "{"}',
        '{"name": "f"} and {"name": "g"}',
    ],
)
def test_a_block_without_calls_is_unreadable(inside: str) -> None:
    with pytest.raises(Unreadable):
        read_calls(f"<tool_calls>{inside}</tool_calls>")
    context = {"category": "irrelevance", "function": [FUNCTION], "ground_truth": []}
    assert (
        verify_fn_calling_answer(f"<tool_calls>{inside}</tool_calls>", context)["answer_status"]
        == "unparsable"
    )


def test_a_call_that_is_cut_off_is_no_refusal_and_a_quoted_tag_is_no_call() -> None:
    none = {"category": "irrelevance", "function": [], "ground_truth": []}
    for said in ('<tool_call>\n{"name": "f", "argu', "<tool_calls>[f(x=", "So <tool_call>f(x=1"):
        assert verify_fn_calling_answer(said, none)["answer_status"] == "unparsable"
    for said in ("No [TOOL_CALLS] here.", "`<|python_tag|>` {", "[TOOL_CALLS]"):
        assert verify_fn_calling_answer(said, none)["answer_status"] == "correct"
    for said in ("A `<tool_call>` would not help.", "No <tool_call> or <tool_call> helps.", "<tool_call>\n"):
        assert verify_fn_calling_answer(said, none)["answer_status"] == "correct"
    for said in ("<think>None of them", "Well. <think>f(x=1)?", "a</think><think>b"):
        assert verify_fn_calling_answer(said, none)["answer_status"] == "no_answer"
    assert verify_fn_calling_answer("<think>f(x=1)?</think>No.", none)["answer_status"] == "correct"
    for tag in ("<tool_call>", "</tool_call>", "</tool_calls>", "<think>"):
        (call,) = read_calls(f'<tool_call>{{"name": "f", "arguments": {{"x": "{tag}"}}}}</tool_call>')
        assert call.arguments == {"x": tag}


@pytest.mark.parametrize(
    "unit",
    [
        "[TOOL_CALLS]",
        "<|python_tag|> ",
        "</s>",
        "f{}",
        "<function=f>{}",
        "<tool_calls>",
        "<tool_call>",
        "</tool_calls>",
        "[",
        "f(",
        "``` ",
        "```",
        '"<tool_call>"',
    ],
)
def test_a_hostile_completion_is_read_in_linear_time(unit: str) -> None:
    assert read_calls(unit * 20_000) == []


@settings(max_examples=100)
@given(st.text(max_size=80), st.booleans())
def test_any_text_has_a_verdict(text: str, block: bool) -> None:
    said = f"<tool_calls>{text}</tool_calls>" if block else text
    context = {"category": "simple", "function": [FUNCTION], "ground_truth": [WANTED]}
    found = verify_fn_calling_answer(said, context)
    assert found["answer_status"] in ("wrong", "no_answer", "unparsable") and found["partial_score"] == 0.0


@pytest.mark.parametrize("category", CATEGORIES)
@settings(max_examples=50)
@given(seed=st.integers(0, 10**9))
def test_a_generated_problem_has_right_and_wrong_answers(category: Any, seed: int) -> None:
    rng = random.Random(seed)
    row = make(rng, category)
    assert verify_fn_calling_answer(answer_of(row), row) == {"answer_status": "correct", "partial_score": 1.0}
    wrong = verify_fn_calling_answer(mistaken(rng, row), row)
    assert wrong["answer_status"] in ("wrong", "no_answer")
    assert wrong["partial_score"] == (0.5 if "parallel" in category else 0.0)
    json.dumps(row)


@pytest.fixture(scope="module")
def references() -> list[dict[str, Any]]:
    if DATA is None and find_spec("bfcl_eval") is None:
        pytest.skip("pip install --no-deps bfcl-eval, or BFCL_DATA=WHEEL")
    return bfcl.problems_of(None if DATA is None else Path(DATA))


def test_every_reference_answer_of_bfcl_is_right_and_every_changed_one_wrong(
    references: list[dict[str, Any]],
) -> None:
    table = bfcl.judged(references)
    assert sum(row["problems"] for row in table.values()) == len(references) > 2000
    assert sum(row["defects"] for row in table.values()) == len(bfcl.DEFECTS)
    for category, row in table.items():
        assert row["json right"] == row["problems"] - row["defects"], category
        assert row["python right"] == row["python"] - row["defects"], category
        assert row["tags right"] == row["tags"] - row["defects"] >= 0.99 * row["problems"] - 4, category
        assert row["changed wrong"] == row["changed"] > 5 * row["problems"], category
