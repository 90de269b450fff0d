"""Folders are rooms: none imports another in a circle, and neither do files, not even inside functions.

A file that lies directly in `pipelinerl/` or in a domain's folder is a room of its own: those are commands
and what others import by that name.
"""

import ast
from contextlib import nullcontext
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from pipelinerl.compat.import_names import EXTRAS
from tests.unit.launcher.conftest import ROOT

PACKAGES = ("pipelinerl", "domains", "retrieval_server", "benchmarks")
ROLES = ("pipelinerl/actor", "pipelinerl/preprocess", "pipelinerl/finetune")


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


def room(path: Path, root: Path) -> str:
    """The folder of a file; the file itself where it lies at the top of the package or of a domain."""
    parts = path.relative_to(root).parts
    at_top = len(parts) == 2 or (parts[0] == "domains" and len(parts) == 3)
    return str(path.relative_to(root)) if at_top else "/".join(parts[:-1])


@cache
def file_imports(root: Path) -> dict[str, set[str]]:
    known = modules(root)
    return {name: imported(path, known) for name, path in known.items()}


def room_imports(root: Path) -> dict[str, set[str]]:
    """Rooms, and the other rooms that any of their files import."""
    known = modules(root)
    found: dict[str, set[str]] = {}
    for name, others in file_imports(root).items():
        here = room(known[name], root)
        found.setdefault(here, set()).update({room(known[other], root) for other in others} - {here})
    return found


def check(imports: dict[str, set[str]]) -> None:
    """Raises AssertionError with the path of a circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError("a circle: " + " <- ".join(map(str, error.args[1]))) from None


def test_no_files_import_each_other() -> None:
    check(file_imports(ROOT))


def test_no_rooms_import_each_other() -> None:
    check(room_imports(ROOT))


def test_no_folders_directly_below_the_package_import_each_other() -> None:
    """A folder with all that lies in it; a file there is one of its own."""
    found: dict[str, set[str]] = {}
    for here, others in room_imports(ROOT).items():
        whole = "/".join(here.split("/")[:2])
        found.setdefault(whole, set()).update("/".join(other.split("/")[:2]) for other in others)
    check({here: others - {here} for here, others in found.items() if here.startswith("pipelinerl/")})


def test_the_core_imports_no_retrieval_server() -> None:
    importers = {
        name for name, others in file_imports(ROOT).items() if any(o.startswith("retrieval_") for o in others)
    }
    assert not [name for name in importers if name.startswith("pipelinerl.")]
    assert importers  # domains do


def test_a_room_of_extras_is_one_module_under_its_former_name() -> None:
    for name in EXTRAS:
        former = import_module(f"pipelinerl.{name}")
        assert former is import_module(f"pipelinerl.extras.{name}")
    assert import_module("pipelinerl.sandbox.host") is import_module("pipelinerl.extras.sandbox.host")


def test_the_twins_of_the_retrieval_server_are_alike() -> None:
    """That package imports nothing of the core, and the core nothing of it."""
    twins = [ROOT / folder / "malformed.py" for folder in ("pipelinerl/base", "retrieval_server")]
    first, second = (ast.parse(path.read_text(encoding="utf-8")).body[1:] for path in twins)
    assert [ast.dump(node) for node in first] == [ast.dump(node) for node in second]


@pytest.mark.parametrize("role", ROLES)
def test_no_role_imports_another(role: str) -> None:
    others = [other for other in ROLES if other != role]
    assert [found for found in room_imports(ROOT)[role] if found in others] == []


def test_the_objective_lies_below_every_role() -> None:
    rooms = room_imports(ROOT)
    below, todo = set[str](), ["pipelinerl/finetune/rl", "pipelinerl/finetune/rl/losses"]
    while todo:
        for other in rooms[todo.pop()] - below:
            below.add(other)
            todo.append(other)
    assert below.isdisjoint(ROLES)


@pytest.mark.parametrize("closes", ["", "import pipelinerl.one.a"])
def test_a_circle_is_named(tmp_path: Path, closes: str) -> None:
    """Of rooms whose files form none, and of files, with an import in a function on the way."""
    files = {
        "one/a.py": "from pipelinerl.two import b",
        "one/c.py": closes,
        "two/b.py": "def f():\n    import pipelinerl.three.d",
        "three/d.py": "import pipelinerl.one.c",
    }
    for name, text in files.items():
        (tmp_path / "pipelinerl" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pipelinerl" / name).write_text(text)
    with pytest.raises(AssertionError, match=r"pipelinerl/one <- .*pipelinerl/(two|three)"):
        check(room_imports(tmp_path))
    expected = pytest.raises(AssertionError, match=r"pipelinerl\.one\.a") if closes else nullcontext()
    with expected:
        check(file_imports(tmp_path))
