"""Modules of tests are imported before xdist's workers are forked, except those that refuse."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.forked import import_tests

FILES = {
    "conftest.py": "",
    "test_whole.py": "IMPORTED = True",
    "test_without_a_package.py": "import pytest; pytest.importorskip('no_such_package')",
    "test_broken.py": "IMPORTED = 1 / 0",
    "left_out/test_ignored.py": "",
    "no_test.py": "",
}


def test_modules_that_are_whole_stay_imported_and_no_others(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    config: Any = SimpleNamespace(
        args=[f"{tmp_path}/test_whole.py::test_a_thing", str(tmp_path)],
        invocation_params=SimpleNamespace(dir=tmp_path),
        rootpath=tmp_path,
        getoption=lambda name: [f"{tmp_path}/left_out"],
    )
    before = {*sys.modules}
    import_tests(config)
    added = {*sys.modules} - before
    for name in added:
        del sys.modules[name]
    assert added == {"conftest", "test_whole"}
