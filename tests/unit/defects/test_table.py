"""Every row of `docs/defects.md`, and every promise in `docs/inference.md`, names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
PROMISE = re.compile(r"^\| (.+) \| (`tests/.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


def check(row: str, cell: str) -> None:
    named = TEST.findall(cell)
    assert named and len(named) == cell.count("`") // 2, f"{row}: {cell}"
    for path, name in named:
        assert (ROOT / path).is_file(), f"{row}: {path} does not exist"
        assert name in names_in(path), f"{row}: {path} has no {name}"


def test_each_of_the_39_defects_has_a_row_with_tests_that_exist() -> None:
    rows = ROW.findall((ROOT / "docs" / "defects.md").read_text())
    assert [int(number) for number, *_ in rows] == list(range(1, 40))
    for number, *_, cell in rows:
        check(f"row {number}", cell)


def test_each_promise_of_an_engine_has_tests_that_exist() -> None:
    table = (ROOT / "docs" / "inference.md").read_text().partition("| promise | tests |\n| --- | --- |\n")[2]
    rows = PROMISE.findall(table)
    assert len(rows) > 15
    for promise, cell in rows:
        check(promise, cell)
