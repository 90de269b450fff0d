"""The page that follows a key and a sample says what the code does: functions, calls, and their order."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
HOP = re.compile(r"^(?P<path>[\w/]+\.py)::(?P<name>\w+)(?: → (?P<calls>\w+(?:, \w+)*))?$", re.MULTILINE)
KEY, SAMPLE = "One key", "One sample"
MOST_FILES, MOST_FILES_OF_A_KEY = 30, 16
FIRST = "domains/guessing/stepwise.py"
BY_NAME = {
    "generate_guessing_rollout": "conf/domain/guessing.yaml",
    "situation": "pipelinerl/config/finetune.py",
}
"""What is called by a name in the configuration, and the file that holds the name."""


@dataclass(frozen=True)
class Hop:
    """One line of the page; `first` of its process."""

    path: str
    name: str
    calls: tuple[str, ...]
    first: bool


def hops(title: str) -> list[Hop]:
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    found = []
    for process in section.split("\n```text\n")[1:]:
        block = process.partition("\n```")[0]
        assert len(block.splitlines()) == len(HOP.findall(block)), block
        for number, line in enumerate(HOP.finditer(block)):
            calls = tuple(re.findall(r"\w+", line["calls"] or ""))
            found.append(Hop(line["path"], line["name"], calls, first=number == 0))
    return found


def functions(path: str) -> dict[str, set[str]]:
    """What is called in each function of a file; methods of one name count together."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = [inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call)]
            names = {call.attr for call in calls if isinstance(call, ast.Attribute)}
            names |= {call.id for call in calls if isinstance(call, ast.Name)}
            found.setdefault(node.name, set()).update(names)
        elif isinstance(node, ast.ClassDef):  # who calls it makes an object
            found.setdefault(node.name, set()).add("__init__")
    return found


def leads_to(hop: Hop) -> set[str]:
    """What the function calls, also through others of its file."""
    here = functions(hop.path)
    found, todo = set[str](), {hop.name}
    while todo:
        calls = here.get(todo.pop(), set()) - found
        found |= calls
        todo |= calls
    return found


def is_called(hop: Hop, known: set[str]) -> bool:
    """Whether a known call leads to the function. `publish` leads to `_publish`: so are callbacks named."""
    entries = [name for name in functions(hop.path) if name in known or name.removeprefix("_") in known]
    if any(name == hop.name or hop.name in leads_to(Hop(hop.path, name, (), False)) for name in entries):
        return True
    name = Path(hop.path).stem if hop.name == "__call__" else hop.name  # an object is named like its file
    return name in BY_NAME and name in (ROOT / BY_NAME[name]).read_text(encoding="utf-8")


@pytest.mark.parametrize("hop", [*hops(KEY), *hops(SAMPLE)], ids=lambda hop: f"{hop.path}::{hop.name}")
def test_each_function_is_there_and_calls_what_the_page_says(hop: Hop) -> None:
    here = functions(hop.path)
    assert hop.name in here, f"{hop.path} has no function {hop.name}"
    assert set(hop.calls) - here[hop.name] == set()


@pytest.mark.parametrize("title", [KEY, SAMPLE])
def test_each_function_is_called_by_an_earlier_one_of_its_process(title: str) -> None:
    known: set[str] = set()
    for hop in hops(title):
        if hop.first:
            known = set()
        assert hop.first or is_called(hop, known), f"nothing before {hop.path}::{hop.name} calls it"
        known |= leads_to(hop)


def test_the_way_from_a_domain_to_a_gradient_is_short() -> None:
    paths = [hop.path for hop in hops(SAMPLE)]
    files = dict.fromkeys(paths[paths.index(FIRST) :])
    assert len(paths) >= 20 and paths[-1].startswith("pipelinerl/finetune/")
    assert len(files) <= MOST_FILES, sorted(files)


def test_the_way_of_a_key_is_short() -> None:
    assert 5 <= len(dict.fromkeys(hop.path for hop in hops(KEY))) <= MOST_FILES_OF_A_KEY
