"""The domain's modules import each other in one direction."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import domains.reputation_hacking as package

ROOT = Path(package.__file__).parent


def imported(path: Path, names: set[str]) -> set[str]:
    """Modules of this domain that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            head, _, module = node.module.removeprefix(package.__name__).rpartition(".")
            if node.module == package.__name__:
                found |= {alias.name for alias in node.names} & names
            elif not head and module in names:
                found.add(module)
    return found


def test_no_circle() -> None:
    names = {path.stem for path in ROOT.glob("*.py")}
    graph = {name: imported(ROOT / f"{name}.py", names) for name in names}
    assert "dynamics" in graph["dynamic_programming"]
    assert "policies" in graph["report"]
    TopologicalSorter(graph).prepare()  # raises CycleError
