"""No two files import each other, directly or around a corner, not even inside functions."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("pipelinerl", "domains", "retrieval_server", "benchmarks")


def modules(root: Path) -> dict[str, Path]:
    """Files by dotted name."""
    files = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files
    }


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Which of the known modules a file names in any import."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # From a package either a module of it or a name of its face.
            names |= {
                f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in known else node.module
                for a in node.names
            }
    return names & known.keys()


def check(root: Path) -> None:
    known = modules(root)
    TopologicalSorter({name: imported(path, known) for name, path in known.items()}).prepare()


def test_no_files_import_each_other() -> None:
    check(ROOT)


def test_a_circle_would_be_noticed(tmp_path: Path) -> None:
    for name, text in {
        "a": "from pipelinerl import b",
        "b": "def f():\n    import pipelinerl.c",
        "c": "import pipelinerl.a",
    }.items():
        (tmp_path / "pipelinerl").mkdir(exist_ok=True)
        (tmp_path / "pipelinerl" / f"{name}.py").write_text(text)
    with pytest.raises(CycleError, match=r"pipelinerl\.a"):
        check(tmp_path)
