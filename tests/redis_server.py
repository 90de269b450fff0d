"""A redis server for tests: a process on a free port of this machine, with a temporary folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DEADLINE_S = 30.0


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[int]:
    """Starts a server and yields its port; the test is skipped where the binary is missing."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    argv = [binary, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", "", *options]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        wait_for_port(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"redis-server does not answer at port {port} (exit {process.poll()})")
            time.sleep(0.02)
