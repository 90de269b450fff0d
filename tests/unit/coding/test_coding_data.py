"""Published forms of programming problems, what is said of those that cannot be read, and those made here."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from domains.coding import dataset
from domains.coding.dataset import load_problems
from domains.coding.formats import read_row
from domains.coding.tiny import FAMILIES, tasks

STD = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
FN = {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}
CASES = [{"input": "[1]\n2", "output": "3", "testtype": "functional"}]
PACKED = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(CASES)))).decode()
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "taco": (
        {"question": "Add.", "input_output": json.dumps(STD), "starter_code": "", "difficulty": "EASY"},
        {"call_type": "std", **STD},
    ),
    "apps": ({"question": "Add.", "input_output": json.dumps(FN)}, {"call_type": "fn", **FN}),
    "intellect3": (
        {"question": "Add.", "info": json.dumps({"source": "x", "tests": json.dumps(FN)})},
        {"call_type": "fn", **FN},
    ),
    "mixed": (
        {
            "prompt": [{"content": "Add."}],
            "reward_model": {"ground_truth": json.dumps({"call_type": "std", **STD})},
        },
        {"call_type": "std", **STD},
    ),
    "mixed with a system message": (  # as in Eurus-2-RL-Data
        {
            "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "Add."}],
            "reward_model": {"ground_truth": json.dumps(STD)},
        },
        {"call_type": "std", **STD},
    ),
    "mixed assertions": (
        {
            "prompt": [{"content": "Add."}],
            "reward_model": {
                "ground_truth": json.dumps(
                    {"call_type": "assert", "fn_name": "add", "assert_case": ["assert add(1, 2) == 3"]}
                )
            },
        },
        {"call_type": "assert", "tests": ["\nassert add(1, 2) == 3"], "functions": {"add": "add"}},
    ),
    "livecodebench": (
        {
            "question_content": "Add.",
            "public_test_cases": json.dumps(CASES),
            "private_test_cases": PACKED,
            "metadata": '{"func_name": "add"}',
            "starter_code": "",
        },
        {"call_type": "fn", "fn_name": "add", "inputs": ["[1]\n2"] * 2, "outputs": ["3", "3"]},
    ),
    "mbpp": (
        {
            "text": "Add.",
            "code": "import math\ndef helper(): pass\ndef add(a, b): return a + b",
            "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
            "test_setup_code": "import math",
        },
        {
            "call_type": "assert",
            "tests": ["import math\nassert add(1, 2) == 3", "import math\nassert add(0, 0) == 0"],
            "functions": {"add": "add"},
        },
    ),
}


@pytest.mark.parametrize("form", ROWS)
def test_a_row_of_a_published_form_is_read(form: str, tmp_path: Path) -> None:
    row, context = ROWS[form]
    task, found = read_row(row)
    assert task.startswith("Add.") and found == context
    name = form.split()[0]
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row))
    problems = load_problems([name], str(tmp_path), subset="all")
    assert [problem["id"] for problem in problems] == [f"{name}-0", f"{name}-1"]
    assert problems[0]["reward_context"] == context
    assert (problems[0]["dataset"], problems[0]["domain"]) == (name, "coding")


def test_a_row_of_humaneval_has_its_beginning_in_program_and_tests() -> None:
    prompt = "def helper(n):\n    return n\n\ndef twice(n):\n    '''Twice.'''\n"
    row = {
        "prompt": prompt,
        "entry_point": "twice",
        "test": "def check(f):\n    assert f(2) == 4",
        "task_id": "0",
    }
    task, context = read_row(row)
    assert prompt in task and context["functions"] == {"candidate": "twice"}
    assert context["tests"][0].endswith("check(candidate)\n") and context["prefix"] in context["tests"][0]
    compile(context["tests"][0], "tests", "exec")


@pytest.mark.parametrize(
    "row, said",
    [
        (3, "a int, expected an object"),
        ({"task": "x"}, "no problem with tests; columns are task; known are those of taco, apps"),
        ({"question": "x", "input_output": "{"}, "input_output: no JSON"),
        ({"question": "x", "input_output": "{}"}, "input_output: no inputs or no outputs"),
        ({"question": "x", "info": "[]"}, "info.tests: a NoneType, expected an object"),
        ({"prompt": "x", "reward_model": {}}, "prompt: expected a list of messages"),
        ({"text": "x", "code": "def (", "test_list": ["assert 1"]}, "code: no Python"),
        ({"text": "x", "code": "def f(): 1", "test_list": ["assert 1"]}, "tests none of the functions"),
        ({"question_content": "x", "public_test_cases": "[3]"}, "a list of objects with input and output"),
        ({"question_content": "x", "public_test_cases": "x!"}, "neither JSON nor packed JSON"),
        (
            {
                "prompt": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
                "reward_model": {1: 2},
            },
            "prompt: expected a list of messages in which a user asks once",
        ),
        # Rows that nothing can solve.
        (
            {"question": "q", "input_output": '{"inputs": ["1", "2", "3"], "outputs": ["1", "2"]}'},
            "input_output: 3 inputs and 2 outputs; leave the row out",
        ),
        (
            {"question": "q", "input_output": '{"inputs": [null], "outputs": ["1"]}'},
            "an input is None: is missing",
        ),
        (
            {"question": "q", "input_output": '{"inputs": ["3\\n1 2 3..."], "outputs": ["6"]}'},
            "an input ends with '3\\\\n1 2 3...': it was cut",
        ),
        (
            {"question": "q", "input_output": '{"inputs": ["3"], "outputs": ["1 2 \\u2026"]}'},
            "an output ends with",
        ),
        (
            {"question": "q", "input_output": '{"inputs": ["1"], "outputs": [NaN]}'},
            "an output is nan: is missing",
        ),
        (
            {"question": "q", "input_output": '{"inputs": [[1]], "outputs": [NaN], "fn_name": "f"}'},
            "an output is nan: is missing",
        ),
        (
            {"question": "q", "input_output": '{"inputs": ["1", "2", "1"], "outputs": ["1", "2", "3"]}'},
            "the input '1' has two outputs, '1' and '3', so that no program passes",
        ),
        (
            {"question": "q", "input_output": '{"inputs": [[1], [1]], "outputs": [1, 2], "fn_name": "f"}'},
            r"the input '\[1\]' has two outputs",
        ),
        (
            {"prompt": "p", "code": "def f(): return 1", "test_list": ["assert foo() == 1"]},
            "tests none of the functions",
        ),
        (
            {
                "text": "p",
                "code": "def f(): 1",
                "test_list": ["assert f() == 1"],
                "test_setup_code": "import (",
            },
            "test_setup_code: 'import \\(': no Python",
        ),
        (
            {"prompt": "def f(x:", "entry_point": "f", "test": "def check(candidate): assert candidate(1)"},
            "prompt: .*no Python",
        ),
        (
            {
                "question_content": "q",
                "public_test_cases": '[{"input": "1", "output": "1", "testtype": "stdin"}]',
                "metadata": "[]",
            },
            "metadata: a list, expected an object",
        ),
        (
            {"question": "q", "input_output": '{"inputs": [[1]], "outputs": [1], "fn_name": "no name"}'},
            "fn_name 'no name': is no name of a function",
        ),
        (
            {"prompt": "p", "code": "def f(): return 1", "test_list": ["assert f( == 1"]},
            r"test_list: 'assert f\( == 1': no Python",
        ),
        (
            {"prompt": "def g():", "entry_point": "f", "test": "def check(candidate): 1"},
            "defines no such function",
        ),
        ({"prompt": "def f():", "entry_point": "f", "test": "assert f()"}, r"defines no check\(candidate\)"),
        (
            {
                "question_content": "q",
                "public_test_cases": '[{"input": "1", "output": "1", "testtype": "functional"}]',
            },
            "metadata: no func_name",
        ),
    ],
)
def test_a_row_that_cannot_be_read_says_why(row: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_row(row)


def printed(*outputs: Any, **more: Any) -> dict[str, Any]:
    tests = {"inputs": [[str(at)] for at in range(len(outputs))], "outputs": list(outputs), **more}
    return {"question": "q", "input_output": json.dumps(tests)}


def asserted(*tests: str) -> dict[str, Any]:
    return {"prompt": "p", "code": "def f(): return 1", "test_list": list(tests)}


def checked(body: str) -> dict[str, Any]:
    return {"prompt": "def f():", "entry_point": "f", "test": f"def check(candidate):\n    {body}"}


@pytest.mark.parametrize(
    "row",
    [
        *(printed(""), printed("", " \n"), printed([]), printed([""], ""), printed(None, fn_name="f")),
        *(asserted("print(f())"), asserted("# assert f() == 1"), asserted("assert (f(), 1)", "f()")),
        *(checked("pass"), checked("return candidate() == 1"), checked("assert True")),
    ],
)
def test_a_row_that_everything_solves_is_refused(row: dict[str, Any]) -> None:
    """An empty program, or any at all, would be rewarded."""
    with pytest.raises(ValueError, match=r"so that (doing nothing|every program) passes"):
        read_row(row)


@pytest.mark.parametrize(
    "row",
    [
        *(printed("", "1"), printed("", fn_name="f"), printed([[]], fn_name="f"), printed(0)),
        {"question": "q", "input_output": '{"inputs": ["1", "1"], "outputs": ["2", "2.0 "]}'},
        *(printed("Wait...", "1 ... 2"), printed("1 2...", fn_name="f")),
        *(printed(None, 1, fn_name="f"), asserted("print(f())", "assert f() == 1")),
        *(checked("import math; math.isclose(1, 1) or exit(1)"), checked("self.assertEqual(1, candidate())")),
        checked("if candidate() != 1: raise ValueError"),
    ],
)
def test_a_row_that_something_fails_is_read(row: dict[str, Any]) -> None:
    assert read_row(row)


def test_packed_tests_that_would_run_something_are_refused() -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("unpickled",)

    packed = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    row = {"question_content": "x", "public_test_cases": "[]", "private_test_cases": packed}
    with pytest.raises(ValueError, match=r"packed JSON: names builtins\.print"):
        read_row(row)


def test_a_file_that_is_missing_is_named_with_its_columns() -> None:
    with pytest.raises(
        ValueError, match=r"'taco': no file data/taco\.jsonl, .*input_output .*BAAI/TACO"
    ) as error:
        load_problems(["taco"], "data")
    assert "\n" not in str(error.value) and "tiny_train" in str(error.value)
    with pytest.raises(ValueError, match="in one of the forms taco, apps, livecodebench"):
        load_problems(["others"])


def test_the_arguments_of_upstreams_configuration_do_what_they_say(tmp_path: Path) -> None:
    rows = [
        {"question": f"Q{index}", "input_output": STD, "difficulty": "HARD" if index % 2 else "EASY"}
        for index in range(40)
    ]
    (tmp_path / "taco_train.json").write_text(json.dumps(rows))
    folder = str(tmp_path)
    excluded = ["HARD", "VERY_HARD"]
    common = {
        "taco_split": "train",
        "apps_split": "train",
        "taco_excluded_difficulties": excluded,
        "seed": 42,
    }
    train = load_problems(["taco"], folder, huggingface_token=None, **common)
    test = load_problems(["taco"], folder, subset="test", **common)
    assert len(train) == 18 and len(test) == 2
    asked = {problem["task"] for problem in train}
    assert asked.isdisjoint(problem["task"] for problem in test)
    assert all(int(task[1:]) % 2 == 0 for task in asked)
    assert load_problems(["taco"], folder, **common | {"taco_excluded_difficulties": "HARD"}) == train
    few = load_problems(["taco"], folder, max_examples=3, max_tests_per_problem=1, **common)
    assert len(few) == 3 and few[0]["reward_context"]["inputs"] == ["1 2\n"]
    whole = load_problems(["taco"], folder, max_examples=3, max_tests_per_problem=0, **common)
    assert whole[0]["reward_context"]["inputs"] == STD["inputs"], "0 is no limit, as in upstream"
    assert load_problems(["taco", "apps"], folder, skip_apps=True, **common) == train, (
        "there is no file of it"
    )
    with pytest.raises(ValueError, match=r"subset='half', train_ratio=0\.9: train, test or all"):
        load_problems(["taco"], folder, subset="half")  # type: ignore[arg-type]


def test_difficult_rows_of_taco_are_left_out_unless_the_key_says_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """HARD and VERY_HARD, as by upstream's loader; null or an empty list keeps them."""
    levels = ("EASY", "HARD", "VERY_HARD", "UNKNOWN_DIFFICULTY")
    rows = [{"question": f"Q{n}", "input_output": STD, "difficulty": levels[n % 4]} for n in range(40)]
    (tmp_path / "taco.json").write_text(json.dumps(rows))
    caplog.set_level("INFO", "domains")
    found = load_problems(["taco"], str(tmp_path), subset="all")
    assert {int(problem["task"][1:]) % 4 for problem in found} == {0, 3} and len(found) == 20
    (said,) = caplog.messages
    assert said == (
        "dataset taco: 20 rows of the difficulties HARD, VERY_HARD left out; "
        "taco_excluded_difficulties=[] keeps them"
    )
    for kept in (None, []):
        everything = load_problems(["taco"], str(tmp_path), subset="all", taco_excluded_difficulties=kept)
        assert len(everything) == 40
    assert len(caplog.messages) == 1


def test_of_many_tests_of_livecodebench_half_are_public_and_the_others_drawn(tmp_path: Path) -> None:
    """By upstream's rule: at most half from the public ones, the others by `random.Random(42 + index)`."""

    def cases(letter: str, count: int) -> str:
        return json.dumps(
            [{"input": f"{letter}{n}", "output": f"{n}", "testtype": "stdin"} for n in range(count)]
        )

    row = {"question_content": "Q", "public_test_cases": cases("s", 3), "private_test_cases": cases("p", 6)}
    short = row | {"private_test_cases": cases("p", 2)}
    (tmp_path / "livecodebench_v5.json").write_text(json.dumps([row, row, short]))
    found = load_problems(["livecodebench_v5"], str(tmp_path), max_tests_per_problem=5)
    inputs = [problem["reward_context"]["inputs"] for problem in found]
    assert inputs == [
        ["s0", "s1", "p5", "p0", "p4"],
        ["s0", "s1", "p0", "p2", "p1"],
        ["s0", "s1", "s2", "p0", "p1"],
    ]
    assert found[0]["reward_context"]["outputs"] == ["0", "1", "5", "0", "4"]


def test_problems_made_here_are_the_same_for_a_name_and_never_shared_by_the_parts() -> None:
    train = load_problems(["tiny_train"], count=500)
    assert train == load_problems(["tiny_train"], count=500) != load_problems(["tiny_train_2"], count=500)
    assert len(load_problems(["tiny_train_contest"], count=70, test_count=7)) == 70
    test = load_problems(["tiny_test"], test_count=10_000)
    asked = {problem["task"] for problem in test}
    assert len(asked) == len(test) > 300 and asked.isdisjoint(problem["task"] for problem in train)
    assert {task.family for task in tasks()} == set(FAMILIES)
    with pytest.raises(ValueError, match="'tiny_more': a name begins with tiny_train or tiny_test"):
        load_problems(["tiny_more"])


def test_rows_that_are_wrong_for_their_own_program_are_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add = "def add(a, b): return a + b"
    rows = [
        {"text": "Add.", "code": add, "test_list": ["assert add(1, 2) == 3"]},
        {"text": "Wrong.", "code": add, "test_list": ["assert add(1, 2) == 3", "assert add(1, 2) == 4"]},
        {"text": "No value.", "code": "def f(): return f", "test_list": ["assert f() == f"]},
        {"text": "Inexact.", "code": add, "test_list": ["assert add(0.1, 0.2) == 0.3"]},
        {
            "prompt": "def g(x):\n",
            "entry_point": "g",
            "canonical_solution": "    return x\n",
            "test": "def check(g):\n    assert g(1) == 1",
        },
        {"question": "Add.", "input_output": json.dumps(FN), "solutions": json.dumps([add])},
        {"question": "Add.", "input_output": json.dumps(STD), "solutions": json.dumps(["print(3)"])},
        {"question": "No program.", "input_output": json.dumps(STD)},
        {"text": "Nothing asked.", "code": add, "test_list": ["def test():\n    assert add(1, 2) == 3"]},
    ]
    (tmp_path / "mbpp.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    everything = load_problems(["mbpp"], data_dir=str(tmp_path))
    assert [one["id"] for one in everything] == [f"mbpp-{number}" for number in range(9)]
    kept = load_problems(["mbpp"], data_dir=str(tmp_path), check_references=True)
    assert [one["id"] for one in kept] == ["mbpp-0", "mbpp-4", "mbpp-5", "mbpp-7"], "ids stay"
    (line,) = [record.getMessage() for record in caplog.records]
    assert "dataset mbpp: 5 of 8 rows are left out" in line and "\n" not in line
    assert caplog.records[0].__dict__["remark"], "the launcher prints it"
    for number, why in (
        (2, "failed"),
        (3, "runtime_error"),
        (4, "failed"),
        (7, "failed"),
        (9, "tests nothing"),
    ):
        assert f"mbpp.jsonl:{number} ({why})" in line
    assert "3 failed, 1 runtime_error, 1 tests nothing" in line
    (tmp_path / "bad.jsonl").write_text(json.dumps(rows[1]) + "\n")
    with pytest.raises(ValueError, match=r"^dataset 'bad': holds no problem$"):
        load_problems(["bad"], data_dir=str(tmp_path), check_references=True)


def test_what_references_leave_out_moves_no_row_to_the_other_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow machine may judge more of them wrong; its evaluation is not the training of another."""
    rows = [{"question": f"Q{n}", "input_output": STD, "solutions": json.dumps(["pass"])} for n in range(40)]
    (tmp_path / "taco.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = str(tmp_path)
    tests = {one["task"] for one in load_problems(["taco"], folder, subset="test")}
    wrong = frozenset(f"taco-{n}" for n in range(0, 40, 3))
    monkeypatch.setattr(dataset, "unsolvable", lambda *_: wrong)
    kept = {
        part: load_problems(["taco"], folder, subset=part, check_references=True)
        for part in ("train", "test")
    }
    assert {one["task"] for one in kept["test"]} == {f"Q{n}" for n in range(40) if n % 3} & tests
    assert not {one["task"] for one in kept["train"]} & tests and len(kept["train"]) + len(kept["test"]) == 26


def test_references_may_import_what_programs_may(tmp_path: Path) -> None:
    row = PLUS | {"canonical_solution": "    return 2 * x\n"}
    (tmp_path / "plus.jsonl").write_text(json.dumps(row) + "\n")
    kept = load_problems(["plus"], data_dir=str(tmp_path), check_references=True, packages=["numpy"])
    assert len(kept) == 1


PLUS = {
    "prompt": "def f(x):\n    'Twice.'\n",
    "entry_point": "f",
    "test": "import numpy as np\n\ndef check(candidate):\n    assert np.allclose(candidate(1), 2)",
}


@pytest.mark.parametrize(
    ("row", "package"),
    [
        (PLUS, "numpy"),
        (PLUS | {"test": PLUS["test"].replace("numpy", "numpy.linalg")}, "numpy"),
        (PLUS | {"test": "def check(f):\n    from scipy import linalg\n    assert f(1) == linalg"}, "scipy"),
        (PLUS | {"prompt": "import torch\n\n" + PLUS["prompt"]}, "numpy|torch"),
        ({"text": "Twice.", "code": "def f(x): return x", "test_imports": ["import pandas as pd"],
          "test_list": ["assert f(pd)"]}, "pandas"),
    ],
)  # fmt: skip
def test_tests_that_import_what_no_program_may_are_refused(
    tmp_path: Path, row: dict[str, Any], package: str
) -> None:
    """Those of HumanEval+ and MBPP+ import numpy: without it every program fails."""
    (tmp_path / "plus.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(
        ValueError, match=rf"plus\.jsonl:1: its tests import ({package}), .*packages=\[math,\1\]"
    ):
        load_problems(["plus"], data_dir=str(tmp_path), packages=["math"])
    every = ["numpy", "scipy", "torch", "pandas"]
    assert len(load_problems(["plus"], data_dir=str(tmp_path), packages=every)) == 1


def test_tests_may_import_the_library_and_try_more(tmp_path: Path) -> None:
    test = "import math, os.path\ntry:\n    import numpy\nexcept ImportError:\n    numpy = None\n"
    row = PLUS | {"test": f"{test}def check(f):\n    assert math.isclose(f(1), 2)"}
    (tmp_path / "plus.jsonl").write_text(json.dumps(row) + "\n")
    assert len(load_problems(["plus"], data_dir=str(tmp_path), packages=[])) == 1


def test_the_further_tests_of_mbpp_plus_count() -> None:
    row = {"prompt": "Add.", "code": "def add(a, b): return a + b", "test_imports": []}
    more = "inputs, results = [[1, 2], [5, 5]], [3, 10]\nfor x, y in zip(inputs, results):\n"
    more += "    assert add(*x) == y"
    _, context = read_row(row | {"test_list": ["assert add(1, 2) == 3"], "test": more})
    assert [test.strip() for test in context["tests"]] == ["assert add(1, 2) == 3", more]
    with pytest.raises(ValueError, match=r"^test: 'for': no Python"):
        read_row(row | {"test_list": ["assert add(1, 2) == 3"], "test": "for"})


def test_missing_values_of_tables_are_missing(tmp_path: Path) -> None:
    nan = float("nan")
    row = {"question": "Add.", "input_output": json.dumps(FN), "starter_code": nan, "difficulty": nan}
    other = {"text": "Add.", "code": "def f(): return 1", "test_list": ["assert f()"], "test_setup_code": nan}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(other)}\n")
    first, second = load_problems(["rows"], data_dir=str(tmp_path))
    assert first["task"] == "Add." and second["reward_context"]["tests"] == ["\nassert f()"]
    (tmp_path / "none.jsonl").write_text(json.dumps(row | {"question": nan}) + "\n")
    with pytest.raises(ValueError, match=r"none\.jsonl:1: no problem with tests"):
        load_problems(["none"], data_dir=str(tmp_path))
