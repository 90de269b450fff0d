"""Launches without a start; without a sandbox on this machine nothing here can run."""

import pytest

from tests.support.sandbox_needed import need_a_sandbox
from tests.unit.launcher.conftest import dry_run, model  # noqa: F401, fixtures of launches


@pytest.fixture(scope="session", autouse=True)
def a_sandbox() -> None:
    need_a_sandbox()
