"""Puts known defects back, one at a time, into a copy of the tree, and shows the test that fails.

`python -m benchmarks.mutation_check [NUMBER ...]`; numbers and what is replaced are in mutation_check.yaml.
Every test must pass in the untouched copy and fail with the defect; exit status 1 if one does not.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks._figures import RESULTS, ROOT, command_line, write_json

COPIED = ("pipelinerl", "domains", "retrieval_server", "conf", "tests", "benchmarks", "docs")
FILES = ("pyproject.toml", "setup.py", "README.md")
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Defect:
    """`number` is put back by `new` in place of `old` in `path`; `test` must then fail."""

    number: int
    what: str
    path: str
    old: str
    new: str
    test: str


DEFECTS = tuple(Defect(**row) for row in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()))


def copy_tree(folder: Path) -> None:
    """The files that the tests need; the copy is imported because tests run inside it."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in FILES:
        shutil.copy2(ROOT / name, folder / name)


def put_back(folder: Path, defect: Defect) -> str:
    """Replace the line; returns the file as it was. Raises ValueError when the code has changed meanwhile."""
    path = folder / defect.path
    text = path.read_text()
    if (found := text.count(defect.old)) != 1:
        raise ValueError(
            f"defect {defect.number}: {defect.path} holds {found} times {defect.old!r}, expected 1"
        )
    path.write_text(text.replace(defect.old, defect.new))
    return text


def failure(folder: Path, tests: Sequence[str]) -> str:
    """What pytest says of these tests in the copy, empty if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(tests)}: pytest ended with {done.returncode}: {done.stdout[-500:]}")
    return done.stdout[-2000:] if done.returncode else ""


def main() -> int:
    wanted = set(map(int, command_line(__doc__).words))
    chosen = [defect for defect in DEFECTS if not wanted or defect.number in wanted]
    kept = RESULTS / "mutation_check.json"
    verdicts = {row["number"]: row for row in (json.loads(kept.read_text()) if kept.exists() else [])}
    missed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy_tree(folder)
        if said := failure(folder, sorted({defect.test for defect in chosen})):
            print(f"{said}\na test fails already without any defect; mend it first")
            return 1
        for defect in chosen:
            before = put_back(folder, defect)
            caught = bool(failure(folder, [defect.test]))
            (folder / defect.path).write_text(before)
            missed += not caught
            name = defect.test.rpartition("::")[2]
            verdict = "caught" if caught else "MISSED"
            print(f"{defect.number:>3}  {verdict} {defect.what}: {name}", flush=True)
            row = {"number": defect.number, "defect": defect.what, "test": defect.test, "caught": caught}
            verdicts[defect.number] = row
            write_json(kept, [verdicts[number] for number in sorted(verdicts)])
    print(f"{len(chosen) - missed} of {len(chosen)} defects are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
