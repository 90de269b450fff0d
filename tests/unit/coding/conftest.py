"""Launches without a start; without a sandbox on this machine nothing here can run."""

import pytest

from pipelinerl.sandbox.host import SandboxUnavailable, mechanism
from tests.unit.launcher.conftest import dry_run, model  # noqa: F401, fixtures of launches


@pytest.fixture(scope="session", autouse=True)
def a_sandbox() -> None:
    try:
        mechanism()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
