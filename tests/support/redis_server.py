"""A redis server for tests: a process on a free port of this machine, with a temporary folder."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelinerl.streams.local_server import local_server

DEADLINE_S = 90.0


@contextmanager
def redis_server(folder: Path, *options: str, password: str | None = None) -> Iterator[int]:
    """Starts a server and yields its port; the test is skipped where the binary is missing."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    with local_server(folder, *options, password=password) as port:
        yield port
