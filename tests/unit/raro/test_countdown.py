"""Solver, verifier, generator and files."""

import hashlib
import json
import sys
from dataclasses import astuple

import pytest

from domains.raro.countdown import multisets, solutions, solvable, verify
from domains.raro.data import load_problems
from domains.raro.generator import CountdownSpec, generate, split_of


def test_known_counts_for_target_24():
    small = multisets(4, 1, 13)
    assert len(small) == 1820
    assert solvable(small, 24, integer_only=False).sum() == 1362
    assert solvable(small, 24).sum() == 1346


@pytest.mark.slow
def test_known_counts_for_numbers_to_50():
    large = multisets(4, 1, 50)
    assert len(large) == 292_825 and solvable(large, 24).sum() == 100_977


def test_the_array_solver_and_the_one_that_writes_solutions_agree():
    rows = multisets(3, 0, 6)
    for target in (0, 5, 24):
        for integer_only in (True, False):
            found = solvable(rows, target, integer_only)
            for row, good in zip(rows.tolist(), found.tolist()):
                assert bool(solutions(row, target, integer_only)) == good, (row, target, integer_only)


@pytest.mark.parametrize("numbers", [[3, 3, 8, 8], [1, 5, 5, 5]])
def test_some_need_fractions(numbers):
    assert solutions(numbers, 24) == []
    found = solutions(numbers, 24, integer_only=False)
    assert found and all(verify(text, numbers, 24) for text in found)


def test_solutions_are_distinct_and_in_both_operand_orders():
    found = solutions([3, 8, 11], 24)
    assert {"3*8*(11-8)"}.isdisjoint(found) and len(found) == len(set(found))
    assert {"8*(11-8)", "(11-8)*8"} <= set(solutions([8, 8, 11], 24))


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("8/(3-8/3)", True),
        ("8 / ( 3 - 8/3 )", True),
        ("8*3", False),
        ("8*3*3/3", False),
        ("8/(3-8/3)+0", False),
        ("8/(3-8/4)", False),
        ("3**8", False),
        ("8//3", False),
        ("8/(3-8/x)", False),
        ("-8/(8/3-3)", False),
        ("+8/(3-8/3)", False),
        ("8/(3-3)*8", False),
        ("", False),
    ],
)
def test_the_verifier(answer, right):
    assert verify(answer, [3, 3, 8, 8], 24) is right


def test_the_verifier_reads_200_characters():
    padded = "8/(3-8/3)"
    assert verify(padded + " " * (200 - len(padded)), [3, 3, 8, 8], 24)
    assert not verify(padded + " " * (201 - len(padded)), [3, 3, 8, 8], 24)
    assert not verify("(" * 100 + "24" + ")" * 100, [24], 24)


SPEC = CountdownSpec(
    n_numbers=3, number_range=(1, 9), target=(10, 30), sizes={"train": 60, "val": 5, "test": 20}
)


def test_every_expert_answer_passes_the_verifier_and_splits_share_no_numbers():
    seen = {}
    for split in SPEC.sizes:
        for item in generate(SPEC, split):
            assert verify(item.expert_answer, item.numbers, item.target)
            assert seen.setdefault(item.numbers, split) == split
            assert split_of(SPEC, list(item.numbers)) == split


def test_the_questions_of_a_salt_stay_what_they_are():
    """Committed results and models trained from demonstrations depend on them."""
    digests = [
        hashlib.sha256(repr([astuple(item) for item in generate(spec, "train")]).encode()).hexdigest()[:12]
        for spec in (SPEC, SPEC.model_copy(update={"integer_only": False, "split_by": "instance"}))
    ]
    assert digests == ["81f8a94eeebc", "68a895f06b33"]


def test_a_larger_size_only_adds_questions():
    larger = SPEC.model_copy(update={"sizes": {"train": 120, "val": 5, "test": 20}})
    assert generate(larger, "train")[:60] == generate(SPEC, "train")


def test_the_expert_is_no_fixed_solution():
    chosen = [
        solutions(item.numbers, item.target).index(item.expert_answer)
        for item in generate(SPEC, "train")
        if len(solutions(item.numbers, item.target)) > 3
    ]
    assert len(set(chosen)) > 4


def test_too_many_questions_are_refused():
    with pytest.raises(ValueError, match=r"sizes.test=100000: only \d+ questions are solvable"):
        generate(SPEC.model_copy(update={"sizes": {"test": 100_000}}), "test")
    with pytest.raises(ValueError, match="split 'dev' is unknown"):
        generate(SPEC, "dev")


def test_instances_may_share_numbers():
    spec = SPEC.model_copy(update={"split_by": "instance"})
    train = {item.numbers for item in generate(spec, "train")}
    assert train & {item.numbers for item in generate(spec, "test")}


def test_problems_have_the_fields_of_every_loader():
    data = {"countdown": SPEC.model_dump()}
    problem = load_problems(["test"], data)[0]
    assert set(problem) == {
        "id", "question", "expert_answer", "task", "split", "dataset", "domain", "numbers", "target",
    }  # fmt: skip
    assert problem["split"] == "test" and problem["domain"] == "raro"


def written(tmp_path, *records, name="data.jsonl"):
    path = tmp_path / name
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records) + "\n")
    return path


def test_any_questions_and_answers_from_a_file(tmp_path):
    path = written(
        tmp_path, {"question": "q", "expert_answer": " a  b "}, {"question": "r", "expert_answer": 4}
    )
    problems = load_problems(["train"], {"source": "jsonl", "files": {"train": str(path)}})
    assert [p["expert_answer"] for p in problems] == ["a b", "4"]
    again = load_problems(["train"], {"source": "jsonl", "files": {"train": str(path)}})
    assert [p["id"] for p in again] == [p["id"] for p in problems] and len(problems[0]["id"]) == 16
    assert problems[0]["task"] == "text" and problems[0]["split"] == "train"


def test_several_answers_to_one_question_are_problems_of_their_own(tmp_path):
    poems = [{"question": "the sea", "expert_answer": f"poem {n}\nline"} for n in range(3)]
    alone = {"question": "a rose", "expert_answer": "red"}
    files = {"train": str(written(tmp_path, *poems, alone, poems[0], poems[2]))}
    problems = load_problems(["train"], {"source": "poetry", "files": files})
    assert [p["expert_answer"] for p in problems] == ["poem 0\nline", "poem 1\nline", "poem 2\nline", "red"]
    assert len({p["id"] for p in problems}) == 4
    by_question = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in ("the sea", "a rose")]
    assert [problems[0]["id"], problems[3]["id"]] == by_question  # as in the buffers of earlier runs


@pytest.mark.parametrize(
    ("again", "what"),
    [
        ({"question": "r", "expert_answer": "4"}, "question"),
        ({"question": "q", "expert_answer": "5"}, "expert_answer"),
    ],
)
def test_an_id_that_comes_again_with_other_content_is_refused(tmp_path, again, what):
    first = {"id": 7, "question": "q", "expert_answer": "4"}
    path = written(tmp_path, first, first, {"id": 7, **again})
    with pytest.raises(ValueError, match=rf"data\.jsonl:3: id '7' already names another {what}"):
        load_problems(["train"], {"source": "jsonl", "files": {"train": str(path)}})


def test_a_column_of_ids_that_no_row_has_is_refused(tmp_path):
    path = written(tmp_path, {"question": "q", "expert_answer": "4", "uid": "first"})
    data = {"source": "jsonl", "files": {"train": str(path)}}
    (problem,) = load_problems(["train"], {**data, "fields": {"id": "uid"}})
    assert problem["id"] == "first"
    with pytest.raises(ValueError, match=r"raro\.data\.fields\.id=nope: no row of .* has it; leave it out"):
        load_problems(["train"], {**data, "fields": {"id": "nope"}})


def test_deepmath_and_poems_name_their_columns_and_say_what_an_answer_is(tmp_path):
    path = written(tmp_path, {"prompt": "a rose", "poem": "two  roses\r\n\r\nred"})
    data = {
        "source": "poetry",
        "files": {"train": str(path)},
        "fields": {"question": "prompt", "expert_answer": "poem"},
        "answer_form": "solution",
    }
    (problem,) = load_problems(["train"], data)
    assert problem["expert_answer"] == "two roses\n\nred" and problem["task"] == "poetry"
    del data["answer_form"]  # a poem is written
    assert load_problems(["train"], data) == [problem]


def deepmath(tmp_path, form, *records, **fields):
    names = {"question": "question", "expert_answer": "final_answer", **fields}
    path = written(tmp_path, *records)
    data = {"source": "deepmath", "files": {"train": str(path)}, "fields": names, "answer_form": form}
    return load_problems(["train"], {key: value for key, value in data.items() if value is not None})


def test_results_of_deepmath_are_bare_and_compared(tmp_path):
    row = {"question": "q", "final_answer": r"$\dfrac{1}{2}$."}
    (problem,) = deepmath(tmp_path, "result", row)
    assert (problem["task"], problem["expert_answer"]) == ("math", r"\dfrac{1}{2}") and problem["id"]
    assert problem["result"] == problem["expert_answer"]
    for bad, message in ((None, "say what an answer of deepmath is"), ("proof", "answer_form")):
        with pytest.raises(ValueError, match=message):
            deepmath(tmp_path, bad, row)
    with pytest.raises(ValueError, match=r"data.jsonl:1: final_answer is '\$\$', expected a result"):
        deepmath(tmp_path, "result", {"question": "q", "final_answer": "$$"})
    (told,) = deepmath(tmp_path, "result", {"question": "q", "final_answer": "3 more is 5\n#### 5"})
    assert told["result"] == told["expert_answer"] == "5"
    for nothing in ("nan", "see solution", "<p>5</p>", r"\frac{1}{2"):
        with pytest.raises(ValueError, match=r"data.jsonl:1: .*(missing|holds|braces)"):
            deepmath(tmp_path, "result", {"question": "q", "final_answer": nothing})


def test_solutions_of_deepmath_keep_their_lines_and_know_their_result(tmp_path):
    solution = {"question": "q", "r1": "Halve it.\nSo \\boxed{0.5}.", "final_answer": "1/2"}
    (boxed,) = deepmath(tmp_path, "solution", solution, expert_answer="r1")
    assert boxed["task"] == "solution" and boxed["expert_answer"] == "Halve it.\nSo \\boxed{0.5}."
    assert boxed["result"] == "0.5"
    (named,) = deepmath(tmp_path, "solution", solution, expert_answer="r1", result="final_answer")
    assert named["result"] == "1/2"
    for fields, message in (({}, "r1 holds no result"), ({"result": "none"}, "none is None")):
        with pytest.raises(ValueError, match=f"data.jsonl:1: {message}"):
            deepmath(tmp_path, "solution", {"question": "q", "r1": "so"}, expert_answer="r1", **fields)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "poetry", "answer_form": "result"}, "an answer of poetry is a solution"),
        ({"source": "countdown", "answer_form": "solution"}, "an answer of countdown is a result"),
        ({"source": "jsonl", "fields": {"result": "r"}}, "fields.result: only solutions of deepmath"),
    ],
)
def test_an_answer_form_that_a_source_cannot_have_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        load_problems([], settings)


def test_written_solutions_from_any_file_have_no_result(tmp_path):
    path = written(tmp_path, {"question": "q", "expert_answer": "a\nb"})
    data = {"source": "jsonl", "files": {"train": str(path)}, "answer_form": "solution"}
    (problem,) = load_problems(["train"], data)
    assert (problem["task"], problem["expert_answer"]) == ("solution", "a\nb") and "result" not in problem


def test_parquet_needs_its_extra_and_gives_the_same_problems(tmp_path, monkeypatch):
    path = tmp_path / "data.parquet"
    data = {"source": "jsonl", "files": {"train": str(path)}}
    rows = [
        {"id": "a", "question": "q", "expert_answer": "x"},
        {"id": "b", "question": "r", "expert_answer": "y"},
    ]
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        path.write_bytes(b"PAR1")
        with pytest.raises(
            ValueError, match=r"data.parquet: parquet needs pyarrow; pip install 'pipelinerl\[p"
        ):
            load_problems(["train"], data)
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    lines = written(tmp_path, *rows)
    assert load_problems(["train"], data) == load_problems(["train"], data | {"files": {"train": str(lines)}})
    parquet.write_table(pyarrow.Table.from_pylist([rows[0], {"question": "r"}]), path)
    with pytest.raises(ValueError, match=r"data\.parquet, row 1: expert_answer is None"):
        load_problems(["train"], data)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{", "no JSON"),
        ("[1]", "expected an object"),
        ({"question": "", "expert_answer": "a"}, "question is ''"),
        ({"question": "q"}, "expert_answer is None"),
        ({"question": "q", "expert_answer": "N/A"}, "expert_answer 'N/A': is missing in the data"),
        ({"question": "NaN", "expert_answer": "a"}, "question 'NaN': is missing in the data"),
        ({"question": "q", "expert_answer": "a\ud83d"}, "expert_answer holds half an emoji"),
        ({"question": "q", "expert_answer": "2 + 3 = 5\n#### 5"}, "compared with raro.data.source=deepmath"),
        ({"question": "q", "expert_answer": "\\boxed{5}"}, "as a text it equals no answer"),
        ({"question": "q", "expert_answer": "[Tie]"}, "verdict tag"),
        ({"question": "q", "expert_answer": "<answer>1"}, "holds <answer>"),
        ({"question": "q", "expert_answer": "x" * 100}, "max_answer_chars is 50"),
        ({"id": "one", "question": "other", "expert_answer": "a"}, "already names another question"),
    ],
)
def test_bad_records_are_named_by_file_and_line(tmp_path, second, message):
    path = written(tmp_path, {"id": "one", "question": "q", "expert_answer": "a"}, second)
    data = {"source": "jsonl", "files": {"train": str(path)}, "max_answer_chars": 50}
    with pytest.raises(ValueError, match=message) as error:
        load_problems(["train"], data)
    assert f"{path}:2" in str(error.value)


def test_missing_files_and_splits(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        load_problems(["train"], {"source": "jsonl", "files": {"train": str(tmp_path / "none")}})
    with pytest.raises(ValueError, match="no file for this split"):
        load_problems(["test"], {"source": "jsonl", "files": {"train": "x"}})
    with pytest.raises(ValueError, match=r"raro\.data\.sauce"):
        load_problems(["test"], {"sauce": "jsonl"})
