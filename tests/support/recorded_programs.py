"""Where programs from PyPI are that the project does not depend on, and whether one is there."""

import os
import subprocess
import sys

import pytest

PYTHON = os.environ.get("RECORDED_PYTHON", sys.executable)
"""The interpreter that runs them, that of an environment of their own."""


def need(package: str) -> None:
    """Skip where the interpreter has no such package."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    if subprocess.run([PYTHON, "-c", look], timeout=300, check=False).returncode:
        pytest.skip(f"RECORDED_PYTHON names no interpreter that has the package {package}")
