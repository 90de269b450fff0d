"""Rows in the forms that people have, and one line about every other."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from domains.math.data import load_problems, read_row
from domains.math.load_datasets import load_datasets

FORMS = {
    "gsm8k": ({"question": "q", "answer": "1 + 1 = <<1+1=2>>2\n#### 1,200"}, ("q", "1200")),
    "gsm8k list": ({"question": "q", "answer": "It is\n#### 3, 4"}, ("q", "3, 4")),
    "gsm8k point": ({"question": "q", "answer": "It is\n#### (3,4)"}, ("q", "(3,4)")),
    "gsm8k money": ({"question": "q", "answer": "It is\n#### $12,345.50"}, ("q", "$12345.50")),
    "math": ({"problem": "q", "solution": r"so \boxed{\frac{1}{2}}", "level": 5}, ("q", r"\frac{1}{2}")),
    "deepscaler": ({"problem": "q", "answer": "7", "solution": ""}, ("q", "7")),
    "boxed answer": ({"problem": "q", "answer": r"\boxed{7}"}, ("q", "7")),
    "bare box": ({"problem": "q", "solution": r"so $x=\boxed 5$, done."}, ("q", "5")),
    "two boxes": ({"problem": "q", "solution": r"$\boxed{2}$ and $\boxed{-3}$."}, ("q", "2, -3")),
    "boxes": (
        {"problem": "q", "solution": r"\[\boxed{1},\quad\boxed{2},\text{ and }\boxed{1}\]"},
        ("q", "1, 2"),
    ),
    "another box before": ({"problem": "q", "solution": r"\boxed{1} it is, so \boxed{7}"}, ("q", "7")),
    "task and prompt": ({"task": "gsm8k", "prompt": "q", "answer": 5}, ("q", "5")),
    "two columns": ({"question": "q", "answer": "So\n#### 5", "final_answer": "$5$"}, ("q", "5")),
    "framed box": ({"problem": "q", "solution": r"so \fbox{-5} it is"}, ("q", "-5")),
    "percent": ({"question": "q", "answer": "1\n#### 60%"}, ("q", "60%")),
    "number": ({"task": "q", "answer": 3.5}, ("q", "3.5")),
    "matrix": (
        {"problem": "q", "answer": "\\begin{pmatrix}\n1 \\\\\n2\n\\end{pmatrix}"},
        ("q", "\\begin{pmatrix}\n1 \\\\\n2\n\\end{pmatrix}"),
    ),
    "sentence": ({"problem": "q", "answer": "Yes, it is."}, ("q", "Yes, it is.")),
    "zero": ({"task": "q", "answer": 0}, ("q", "0")),
    "open reasoner": (
        [{"from": "human", "value": "q"}, {"from": "assistant", "ground_truth": {"value": "7"}}],
        ("q", "7"),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_known_form_gives_question_and_result(form: str) -> None:
    row, expected = FORMS[form]
    assert read_row(row) == expected


@pytest.mark.parametrize(
    ("said", "bare"),
    [
        ("<answer>5</answer>", "5"),
        ("Answer: 5", "5"),
        ("The answer is 5.", "5"),
        (r"Final Answer: \\frac{1}{2}", r"\\frac{1}{2}"),
        ("Option B", "B"),
        ("B)", "B"),
        # Bare results that look like one of these.
        ("(A) 5", "(A) 5"),
        ("1/2", "1/2"),
        (r"\\{1, 2\\}", r"\\{1, 2\\}"),
        ("[]", "[]"),
        ("\u2205", "\u2205"),
        ("-5", "-5"),
        ("0.5.", "0.5."),
        ("undefined", "undefined"),
        ("not enough information is given", "not enough information is given"),
        (r"x < 3 \\text{ or } x > 5", r"x < 3 \\text{ or } x > 5"),
    ],
)
def test_an_answer_that_is_said_is_read_bare(said: str, bare: str) -> None:
    assert read_row({"question": "q", "answer": said}) == ("q", bare)


BAD_ROWS: list[tuple[Any, str]] = [
    (5, "a int, expected an object"),
    ("text", "a str, expected an object"),
    ({}, "no question; columns are none"),
    ({"text": "q"}, "no question; columns are text, expected one of question"),
    ({"question": ""}, "no question; columns are question"),
    ({"question": "q"}, "no answer; columns are question"),
    ({"question": "q", "answer": ""}, "no answer; columns are question, answer"),
    ({"question": "q", "solution": "no box"}, "no answer; columns are question, solution"),
    ({"question": ["q"], "answer": "1"}, r"question \"\['q'\]\": expected a text"),
    ({"question": "q", "answer": [1]}, r"answer '\[1\]': expected a text or a number"),
    ({"question": "q", "answer": True}, "answer 'True': expected a text or a number"),
    ({"question": "q", "answer": float("nan")}, "no answer; columns are question, answer"),
    ({"question": float("nan"), "answer": "1"}, "no question; columns are question, answer"),
    ({"question": "q", "answer": "NaN"}, "answer 'NaN': is missing in the data"),
    ({"question": "q", "answer": "<NA>"}, "answer '<NA>': is missing in the data"),
    ({"problem": "q", "solution": r"$\boxed{null}$"}, "answer 'null': is missing in the data"),
    ({"question": "nan", "answer": "1"}, "question 'nan': is missing in the data"),
    ({"question": "q", "answer": float("inf")}, "answer inf: is no number that can be compared"),
    ([{"value": "q"}, {"ground_truth": {"value": float("nan")}}], "answer 'nan': is missing in the data"),
    ({"question": "q", "answer": "#### "}, "answer '#### ': holds no result"),
    ({"question": "q", "answer": r"\boxed{ }"}, r"answer .*boxed.*: holds no result"),
    (
        {"question": "q", "answer": "She has 3 more. So the answer is 5."},
        "answer 'She has 3 more.*a solution with",
    ),
    (
        {"question": "q", "answer": "3 and 2 make five apples\nand one is six"},
        "answer '3 and 2.*put it behind ####",
    ),
    ({"question": "q", "answer": r"\text{nan}"}, "answer 'nan': is missing in the data"),
    ({"question": "q", "answer": "N.A."}, "answer 'N.A': is missing in the data"),
    *(
        ({"question": "q", "answer": said}, "answer .*: is missing in the data")
        for said in (
            "See solution.",
            r"\text{(see figure)}",
            "Answers may vary",
            "Q.E.D.",
            "#REF!",
            "[answer]",
        )
    ),
    ({"question": "q", "answer": "5\ufffd"}, "answer .*: holds \ufffd, which no answer has"),
    ({"question": "q", "answer": "?"}, "answer '\\?': holds no result"),
    ({"question": "q", "answer": "$-$"}, "answer .*: holds no result"),
    ({"question": "q", "answer": "5<|im_end|>"}, "answer '5<.im_end.>': holds <.im_end.>"),
    ({"question": "q", "answer": "<p>5</p>"}, "answer '<p>5</p>': holds </p>"),
    ({"question": "q", "answer": "<pad>"}, "answer '<pad>': holds <pad"),
    ({"question": "q", "answer": "x &gt; 5"}, "answer 'x &gt; 5': holds &gt;, which no answer has"),
    ({"question": "q", "answer": "![figure](a.png)"}, r"answer .*: holds !\[figure\]\("),
    ({"question": "q", "answer": "https://a.b/c.png"}, "answer .*: holds https://"),
    ({"question": "q", "answer": "[asy] draw(a--b); [/asy]"}, r"answer .*: holds \[asy\]"),
    ({"question": "q", "answer": r"\frac{1}{2"}, "answer .*: its braces do not match"),
    ({"question": "q", "answer": r"\boxed{5"}, "answer .*: its braces do not match"),
    ({"problem": "q", "answer": "proof"}, "answer 'proof': is missing in the data"),
    ({"question": "q", "choices": ["a", "b"], "answer": 1}, "choices: a question is asked without them"),
    ({"question": "q", "options": {"A": "x"}, "answer": "A"}, "options: a question is asked without them"),
    ({"problem": "<image>Find x.", "answer": "5"}, "<image>: a question is asked without its picture"),
    (
        {"problem": "Find x.", "images": [{"bytes": "x"}], "answer": "5"},
        "images: a question is asked without",
    ),
    *(
        ({"problem": f"{picture} Find x.", "answer": "5"}, ".*: a question is asked without its picture")
        for picture in ("![](https://a.b/c.png)", r"\includegraphics[width=3cm]{a}", '<img src="a.png">')
    ),
    ({"question": "q", "answer": "9", "gold": "8"}, "answer and gold differ, '9' and '8'; keep one"),
    ({"question": "q", "answer": "5 + 3 = 8", "final_answer": 8}, "answer and final_answer differ, '5"),
    ({"question": "q", "answer": "Unknown"}, "answer 'Unknown': is missing in the data"),
    ({"question": "q", "answer": "1" * 20001}, "answer of 20001 characters"),
    ([{"value": "q"}], "a list that is not"),
    ([], "a list that is not"),
]


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_another_row_is_named_by_file_and_line(tmp_path: Path, row: Any, message: str) -> None:
    good = json.dumps({"question": "q", "answer": "1"})
    (tmp_path / "bad.jsonl").write_text(f"{good}\n\n{json.dumps(row)}\n")
    with pytest.raises(ValueError, match=rf"bad\.jsonl:3: {message}") as caught:
        load_problems(["bad"], data_dir=str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"{not json}", "a.jsonl:1: no JSON"),
        ("a.jsonl", b"\xff\xfe", "a.jsonl:1: no JSON"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1: no JSON"),
        ("a.json", b'{"question": "q"}', "a.json: holds a dict, expected a list of rows"),
        ("a.json", b"", "a.json: no JSON"),
        ("a.json", b"[1]", "a.json, row 0: a int"),
        ("a.jsonl", rb'{"question": "q\ud83d", "answer": "1"}', "a.jsonl:1: question holds half an emoji"),
        ("a.jsonl", b'{"question": "q\xed\xa0\xbd", "answer": "1"}', "a.jsonl:1: question holds half an"),
        ("a.json", rb'[{"question": [{"x": "\ude00"}]}]', r"row 0: question\[0\]\.x holds half an emoji"),
        ("a.json", rb'["\ude00"]', "row 0: the row holds half an emoji, which no tokenizer takes; repair it"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_problems([str(tmp_path / name)])


def test_names_are_looked_up_and_a_missing_one_says_where(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps({"question": "q", "answer": "1"}) + "\n")
    (tmp_path / "two.json").write_text(json.dumps([{"problem": "p", "answer": "2"}] * 3))
    problems = load_problems(["two", "one"], data_dir=str(tmp_path), max_problems=2)
    assert [problem["id"] for problem in problems] == ["two-0", "two-1", "one-0"]
    assert problems[-1] == {"id": "one-0", "task": "q", "answer": "1", "dataset": "one", "domain": "math"}
    with pytest.raises(ValueError, match=r"dataset 'three': no file .*three\.jsonl, .*three\.parquet; give"):
        load_problems(["three"], data_dir=str(tmp_path))
    (tmp_path / "four.jsonl.gz").write_bytes(b"packed")  # it is there, and no line says otherwise
    with pytest.raises(
        ValueError, match=r"four\.jsonl\.gz is none of \.jsonl, \.json, \.parquet; convert it"
    ):
        load_problems(["four.jsonl.gz"], data_dir=str(tmp_path))


def test_contests_and_unverified_rows_are_those_that_upstream_asks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    years = [{"problem": f"q{year}", "answer": "1", "url": f"https://x/{year}_AIME"} for year in (2023, 2024)]
    checked = [
        {"problem": str(one), "answer": "1", "correctness_math_verify": one} for one in ([True], [False])
    ]
    for name, rows in {
        "aime_2024": years,
        "aime_2024_original": years,
        "r1": checked,
        "amc_2022": years,
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    caplog.set_level("INFO")
    names = ["aime_2024", "aime_2024_original", "r1"]
    found = load_problems(names, data_dir=str(tmp_path), max_problems=9)
    assert [problem["task"] for problem in found] == ["q2024", "q2024", "[True]"]
    left_out = "1 of 2 rows left out, as upstream's loader does"
    assert caplog.messages == [
        "dataset aime_2024: each question is asked once, and 16 times by upstream's loader",
        *(f"dataset {name}: {left_out}" for name in names),
    ]
    with pytest.raises(ValueError, match=r"amc_2022\.json: all 2 rows are of another year in url"):
        load_problems(["amc_2022"], data_dir=str(tmp_path))


def test_parquet_rows_are_read_like_the_others(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"question": ["q"], "answer": ["#### 7"]}), tmp_path / "a.parquet")
    assert [p["answer"] for p in load_problems([str(tmp_path / "a.parquet")])] == ["7"]
    (tmp_path / "b.parquet").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"b\.parquet: no parquet file"):
        load_problems([str(tmp_path / "b.parquet")])


def test_generated_arithmetic_is_right_and_the_same_every_time() -> None:
    problems = load_problems(["arithmetic_train", "arithmetic_test"], max_problems=50, highest=20)
    assert problems == load_problems(["arithmetic_train", "arithmetic_test"], max_problems=50, highest=20)
    assert problems[0]["task"] != problems[50]["task"]
    for problem in problems:
        question = problem["task"].removeprefix("What is ").removesuffix("?")
        assert eval(question) == int(problem["answer"])
    with pytest.raises(ValueError, match="highest=1: numbers of generated arithmetic"):
        load_problems(["arithmetic_train"], highest=1)


def test_numbers_of_each_length_are_alike_and_the_evaluation_has_its_own_questions() -> None:
    params = {"highest": 250, "by_length": True}
    problems = load_problems(["arithmetic_train", "arithmetic_2"], **params)
    lengths = Counter(len(problem["task"].removesuffix("?").split()[4]) for problem in problems)
    assert set(lengths) == {1, 2, 3} and min(lengths.values()) > 500  # each is a third of 2,000
    assert all(eval(p["task"][len("What is ") : -1]) == int(p["answer"]) for p in problems)
    assert max(int(p["task"].removesuffix("?").split()[4]) for p in problems) <= 250
    held_out = {problem["task"] for problem in load_problems(["arithmetic_test"], **params)}
    assert not held_out & {problem["task"] for problem in problems}
    alike = {problem["task"] for problem in load_problems(["arithmetic_train"], highest=9)}
    assert alike & {problem["task"] for problem in load_problems(["arithmetic_test"], highest=9)}


def test_upstreams_callers_may_give_one_name_none_or_a_seed() -> None:
    plain = load_problems(["arithmetic_a"], max_problems=20)
    assert load_datasets("arithmetic_a", max_problems=20) == plain and load_datasets(None, seed=1) == []
    shuffled = load_datasets(["arithmetic_a", "arithmetic_b"], seed=1, max_problems=20)
    assert shuffled == load_datasets(["arithmetic_a", "arithmetic_b"], seed=1, max_problems=20)
    assert shuffled[:20] != plain and sorted(p["id"] for p in shuffled[:20]) == sorted(p["id"] for p in plain)
