"""Whether this machine has a sandbox; called by tests that run programs, which are skipped without one."""

from functools import cache

import pytest

from pipelinerl.extras.sandbox.host import SandboxUnavailable, mechanism


@cache
def refusal() -> str | None:
    """Why no program can be run apart from everything here, with the kernel's reasons; None where it can."""
    try:
        mechanism()
    except SandboxUnavailable as error:
        return str(error)
    return None


def need_a_sandbox() -> None:
    """Skip the test, or the module that calls this while it is imported."""
    if (reason := refusal()) is not None:
        pytest.skip(reason, allow_module_level=True)
