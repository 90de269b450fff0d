"""Every row of `docs/defects.md`, and every promise in `docs/inference.md`, names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
PROMISE = re.compile(r"^\| (.+) \| (`tests/.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
MARKED = re.compile(TEST.pattern + r"( \*)?")


@cache
def slow_tests(path: str) -> frozenset[str]:
    """Tests of a file that `make test` leaves out altogether."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) == "pytest.mark.slow" for decorator in node.decorator_list)
    )


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


def test_each_of_the_39_defects_has_a_row() -> None:
    rows = ROW.findall((ROOT / "docs" / "defects.md").read_text())
    assert [int(number) for number, *_ in rows] == list(range(1, 40))


@pytest.mark.parametrize("document", ["defects.md", "guarantees.md"])
def test_every_row_names_tests_that_exist(document: str) -> None:
    rows = [line for line in (ROOT / "docs" / document).read_text().splitlines() if "tests/" in line]
    for row in (line for line in rows if line.startswith("| ")):
        cell = row.rstrip("| ").rpartition(" | ")[2]
        named = TEST.findall(cell)
        assert named and len(named) == cell.count("::"), row
        for path, name in named:
            assert (ROOT / path).is_file(), f"{row}: {path} does not exist"
            assert name in names_in(path), f"{row}: {path} has no {name}"


def test_a_slow_test_is_marked_in_the_guarantees() -> None:
    """Whoever runs `make test` must not believe that it held all of them."""
    for path, name, star in MARKED.findall((ROOT / "docs" / "guarantees.md").read_text()):
        assert (name in slow_tests(path)) == bool(star), f"{path}::{name}"
