"""Which block of a completion is its program, whatever other blocks stand around it."""

import pytest

from domains.coding.verifier_api import extract_code
from domains.fences import fenced
from domains.fn_calling.calls import Call, read_calls
from domains.privacy_hopqa.data.json_extract import extract as json_extract
from domains.tir.tool import program_of

RIGHT = "def f(x):\n    if x > 0:\n        return 1\n    return 2"


def block(info: str, text: str = RIGHT, fence: str = "```") -> str:
    return f"{fence}{info}\n{text}\n{fence}"


def indented(text: str, by: str) -> str:
    return "\n".join(by + line for line in text.split("\n"))


OTHERS = [
    *(block("text", "plan: f"), block("bash", "pip install x"), block("cpp", "int f() { return 1; }")),
    *(block("c++", "int f();"), block("json", "{}"), block("output", "1"), block("pycon", ">>> f(1)\n1")),
    *(block("console", "$ python f.py"), block("", "1\n2"), block("", "[1, 2]"), block("python-repl", "f")),
]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    "info",
    [
        "python",
        "py",
        "Python3",
        "python3.11",
        " python",
        "{.python}",
        "python title=f",
        "ipython",
        "{python .numberLines startFrom=1}",
        "python:main.py",
        "src/main.py",
        "pypy3",
        "python-3.11",
    ],
)
def test_blocks_before_and_behind_the_program_do_not_run(other: str, info: str) -> None:
    for completion in (f"{other}\nSo:\n{block(info)}", f"{block(info)}\nIt prints:\n{other}\nDone.",
                       f"{other}\n{block(info)}\n{other}"):  # fmt: skip
        assert extract_code(completion) == RIGHT
        assert program_of(completion) == RIGHT


@pytest.mark.parametrize("other", OTHERS)
def test_a_block_without_a_name_is_the_program_if_no_other_is(other: str) -> None:
    assert extract_code(f"{other}\nSo:\n{block('')}\nIt prints:\n{other}") == RIGHT


@pytest.mark.parametrize(
    "completion",
    [
        f"1. Write:\n\n{indented(block('python'), '   ')}\n2. Run it.",
        f"- Write:\n{indented(block('python'), '  ')}",
        f"1. {block('python')[:10]}\n{indented(RIGHT, '   ')}\n   ```",
        f"1. ```python\n{RIGHT}\n   ```",
        indented(block("python"), "\t"),
        f"So:{block('python')}",
        block("python", fence="~~~"),
        block("python", fence="````"),
        f"```python\n{RIGHT}```",
        f"```python\n{RIGHT}```\nor\n{block('bash', 'ls')}",
        block("python").replace("\n", "\r\n"),
        indented(block("python"), "> "),
        f"> 1. {block('python')[:10]}\n{indented(RIGHT, '>    ')}\n>    ```\n\nSo.",
        f"Use `f` here: {block('python')}",
        f"{block('python')} is the program.",
        f"{block('python')} Done",
        f"{block('python')} Output\n3\n\nI checked it.",
        f"{block('python')} Done\n\nIt prints:\n{block('text', '1')}",
        f"{block('', RIGHT)}\nIt prints:\n{block('', 'x = 3')}",
        f"{block('', RIGHT)}\nIt is:\n{block('', 'Point(1, 2)')}",
    ],
)
def test_a_fence_may_be_indented_long_or_at_the_end_of_a_line(completion: str) -> None:
    assert extract_code(completion).replace("\r", "") == RIGHT


@pytest.mark.parametrize(
    "shown", ["# Output: 4", "4", '{"a": 1}', "# Time: O(n)\n# Space: O(1)", "[1, 2]\n-3"]
)
def test_output_that_is_called_python_is_not_the_program(shown: str) -> None:
    assert extract_code(f"{block('python')}\nIt prints:\n{block('python', shown)}") == RIGHT
    assert extract_code(block("python", shown)) == shown
    broken = f"{block('python')}\nBetter:\n{block('python', 'def f(:')}"
    assert extract_code(broken) == "def f(:", "the last program counts, also one that cannot run"


@pytest.mark.parametrize(
    "shown", ["Output: 3", "Input: 1 2\nOutput: 3", "1 2", "3 4\n\n[1, 2]", "# Output: 3"]
)
def test_a_sample_that_is_called_python_is_no_program(shown: str) -> None:
    assert extract_code(f"{block('python')}\nIt prints:\n{block('python', shown)}") == RIGHT
    assert extract_code(block("python", shown)) == shown
    assert extract_code(f"{block('python', 'x = 1')}\n{block('python', 'x: int = 2')}") == "x: int = 2"
    assert extract_code(f"{block('python', 'x = 1')}\n{block('python', 'x = (')}") == "x = (", (
        "a program with an error"
    )


@pytest.mark.parametrize(
    "declared",
    [
        "def f(x): ...",
        "def f(x: int) -> int:\n    pass",
        'from typing import List\n\ndef f(x: List[int]) -> int:\n    """Counts."""',
        "def f(x: int) -> int:",
        "class Solution:\n    def f(self, x):\n        pass",
    ],
)
def test_a_declaration_behind_the_program_does_not_replace_it(declared: str) -> None:
    said = f"{block('python')}\nIts form is:\n{block('python', declared)}"
    assert extract_code(said, {"fn_name": "f"}) == RIGHT
    assert extract_code(said) == RIGHT, "also where tests call nothing, but read what is printed"
    assert extract_code(f"{block('')}\n{block('', declared)}") == RIGHT
    assert extract_code(block("python", declared), {"fn_name": "f"}) == declared
    assert extract_code(f"{block('python', declared)}\n{block('python', '1 2')}") == declared
    assert extract_code(f"{block('python', declared)}\n{block('python')}", {"fn_name": "f"}) == RIGHT
    for other in ("def f(x):\n    return 1", "f = len", "def f(x"):
        assert extract_code(f"{block('python')}\n{block('python', other)}", {"fn_name": "f"}) == other


DOCUMENTED = 'def f(x):\n    """Doubles.\n\n    >>> f(2)\n    4\n    """\n    return 2 * x'


@pytest.mark.parametrize(
    "behind",
    [
        block("python", "print(f(2))"),
        block("python", ">>> f(2)\n4"),
        block("python", "# Try it:\n\n>>> f(2)\n4"),
        block("python", "from solution import f\n\ndef test():\n    assert f(2) == 4"),
        block("", "4"),
    ],
)
def test_a_prompt_in_a_docstring_makes_no_session(behind: str) -> None:
    """Models repeat the examples that HumanEval has in its docstrings."""
    said = f"{block('python', DOCUMENTED)}\nFor example:\n{behind}"
    assert extract_code(said, {"fn_name": "f"}) == DOCUMENTED
    session = block("python", ">>> f(2)\n4")
    assert extract_code(f"{block('', DOCUMENTED)}\n{session}") == DOCUMENTED
    assert extract_code(f"{session}\n{block('python', DOCUMENTED)}\n{session}") == DOCUMENTED


@pytest.mark.parametrize("language", ["python", "Python3", "py "])
def test_a_language_may_stand_below_the_fence(language: str) -> None:
    said = f"```\n{language}\n{RIGHT}\n```"
    assert extract_code(f"{block('', '1')}\n{said}\n{block('', 'x = 3')}") == RIGHT
    assert program_of(said) == RIGHT
    assert extract_code(block("", "python")) == "python", "a word of output"
    assert extract_code(block("", "python = 3\nprint(python)")) == "python = 3\nprint(python)"


def test_a_longer_fence_holds_shorter_ones() -> None:
    text = 'def f():\n    """\n```\nf()\n```\n    """'
    assert extract_code(block("python", text, "````")) == text
    assert extract_code(block("markdown", block("python", "no()"), "````") + "\n" + block("python")) == RIGHT


@pytest.mark.parametrize("language", ["", "python"])
def test_a_fence_in_a_docstring_ends_nothing(language: str) -> None:
    text = f'def f():\n    """Such as\n\n    ```{language}\n    f()\n    ```\n    """\n    return 1'
    for completion in (block("python", text), f"1. So:\n{indented(block('python', text), '   ')}"):
        assert extract_code(completion) == program_of(completion) == text


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("", ""),
        ("```", ""),
        ("inline ```f()``` code", ""),
        (f"```python\n{RIGHT}", ""),  # cut off
        (f"{block('python')}\nor\n```python\ndef f(", RIGHT),
        (block("text"), ""),
        (block("python", "  ") + "\n" + block("text"), ""),
        (f"{block('python', 'a = 1')}\n{block('python', 'b = 2')}", "b = 2"),
        (f"{block('', 'a = 1')}\n{block('', 'b = ')}", "a = 1"),
        (block("", "b = "), "b = "),
    ],
)
def test_what_is_no_program(completion: str, code: str) -> None:
    assert extract_code(completion) == code


def test_a_result_behind_the_program_ends_the_dialogue_and_one_before_it_does_not() -> None:
    assert program_of(f"\\boxed{{1}}\n{block('python')}") == RIGHT
    assert program_of(f"{block('python')}\n{block('output', '1')}\n\\boxed{{1}}") is None
    assert program_of(block("")) is None, "only what says that it is Python is a call of the tool"


def test_where_a_block_ends() -> None:
    text = f"a\n{block('python', 'b')}\nc"
    (one,) = fenced(text)
    assert (one.info, one.text, text[one.end :]) == ("python", "b", "c")


ENDS = ("\r", "\r\n", "\v", "\f", "\x85", "\u2028", "\u2029")


@pytest.mark.parametrize("end", ENDS)
def test_every_line_end_of_unicode_ends_a_line_at_a_fence(end: str) -> None:
    said = f"So:\n{block('python')}\nIt returns:\n{block('', '1')}\nDone."
    assert extract_code(said.replace("\n", end)) == RIGHT
    # Around fences only, as where a model's tokenizer or a transport has changed what joins paragraphs.
    for only in (f"So:{end}{block('python')}{end}Done.", f"So:{end}```python{end}{RIGHT}{end}```{end}"):
        assert extract_code(only) == RIGHT and program_of(only) == RIGHT
    assert json_extract(f"So:{end}```json{end}[1]{end}```{end}", "array").value == [1]
    assert read_calls(f'```json{end}[{{"name": "f"}}]{end}```') == [Call("f")]


@pytest.mark.parametrize("end", ENDS[2:])
def test_a_line_end_that_python_does_not_know_stays_in_its_string(end: str) -> None:
    program = f'x = "a{end}b"\nprint(len(x))'
    (found,) = fenced(block("python", program))
    assert found.text == program
