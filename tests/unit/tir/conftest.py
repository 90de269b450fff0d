"""math-verify is an extra, and a machine may have no sandbox; without either nothing here can run."""

from importlib.util import find_spec

import pytest

from tests.support.sandbox_needed import need_a_sandbox
from tests.unit.launcher.conftest import dry_run, model  # noqa: F401, fixtures of launches

collect_ignore_glob = [] if find_spec("math_verify") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def a_sandbox() -> None:
    need_a_sandbox()
