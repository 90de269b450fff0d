"""Guarantees and answers to questions name tests that exist, and say which of them `make test` leaves out."""

import ast
import re
from functools import cache
from pathlib import Path

from benchmarks.mutation_check import DEFECTS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
QUESTIONS = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`( \*)?")


@cache
def slow_by_name(path: str) -> dict[str, bool]:
    """Tests of a file, and whether `make test` leaves them out altogether."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.name: any(ast.unparse(decorator) == "pytest.mark.slow" for decorator in node.decorator_list)
        for node in tree.body
        if isinstance(node, functions)
    }


def test_every_row_names_tests_that_exist() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(rows) > 50
    for row in rows:
        cell = row.rstrip("| ").rpartition(" | ")[2]
        named = TEST.findall(cell)
        assert named and len(named) == cell.count("::"), row
        for path, name, _ in named:
            assert (ROOT / path).is_file(), f"{row}: {path} does not exist"
            assert name in slow_by_name(path), f"{row}: {path} has no {name}"


def test_every_answer_names_tests_that_exist_and_where_a_run_shows_it() -> None:
    answers = re.split(r"^## ", QUESTIONS, flags=re.MULTILINE)[1:]
    assert answers
    for answer in answers:
        named = TEST.findall(answer)
        assert named and len(named) == answer.count("::") and "\n- In a run: " in answer, answer
        for path, name, _ in named:
            assert name in slow_by_name(path), f"{answer}: {path} has no {name}"


def test_each_number_of_a_defect_is_on_the_page_or_can_be_put_back() -> None:
    """Others refer to them by these numbers; none is in both places, and none is missing."""
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \| ", PAGE, re.MULTILINE)]
    assert numbers == sorted(numbers)
    assert sorted(numbers + [defect.number for defect in DEFECTS]) == list(range(1, 40))


def test_a_slow_test_is_marked() -> None:
    """Whoever runs `make test` must not believe that it held all of them."""
    for path, name, star in TEST.findall(PAGE + QUESTIONS):
        assert slow_by_name(path)[name] == bool(star), f"{path}::{name}"
