"""Rooms and modules of the domain import each other in one direction."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import domains.reputation_hacking as package

ROOT = Path(package.__file__).parent


def imported(path: Path) -> set[str]:
    """What a file imports of this domain, inside functions too: `game.params`, `settings`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package.__name__):
            module = (node.module or "").removeprefix(package.__name__).removeprefix(".")
            for name in (alias.name for alias in node.names):
                inner = (ROOT / module.replace(".", "/") / f"{name}.py").is_file()
                found.add(f"{module}.{name}".removeprefix(".") if inner else module or "__init__")
    return found


def imports(depth: int) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Who imports whom: rooms and loose files at depth 1, modules at depth 2."""
    graph = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).with_suffix("").parts[:depth]
        graph[name] |= {tuple(other.split("."))[:depth] for other in imported(path)} - {name}
    return graph


def test_rooms_import_what_lies_below_them() -> None:
    rooms = imports(1)
    assert rooms["game",] == set()
    assert rooms["ppo",] == {("game",)}
    assert rooms["language",] == {("game",), ("settings",)}
    for graph in (rooms, imports(2)):
        TopologicalSorter(graph).prepare()  # raises CycleError
