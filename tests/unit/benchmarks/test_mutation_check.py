"""Every known defect can be put back into the tree as it is, and names a test that exists."""

import ast
from pathlib import Path

import pytest

from benchmarks.mutation_check import DEFECTS, ROOT, Defect, put_back


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: str(defect.number))
def test_a_defect_can_be_put_back(tmp_path: Path, defect: Defect) -> None:
    text = (ROOT / defect.path).read_text()
    (tmp_path / defect.path).parent.mkdir(parents=True)
    (tmp_path / defect.path).write_text(text)
    assert put_back(tmp_path, defect) == text
    changed = (tmp_path / defect.path).read_text()
    assert changed != text
    if defect.path.endswith(".py"):
        ast.parse(changed)  # a test that fails for want of syntax shows nothing
    path, _, name = defect.test.rpartition("::")
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, functions)]
    assert name in names
