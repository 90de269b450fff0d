"""A redis server of one's own for a short time: loopback only, data in a given folder, nothing saved.

Other users of the machine reach it unless it has a password, which is no argument that they could list.

It ends with the thread that started it, also where that is killed.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelinerl.base.child import wrapped
from pipelinerl.base.waits import Wait
from pipelinerl.streams.errors import StreamError

START_DEADLINE_S = 60.0


def answers(host: str, port: int) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


@contextmanager
def local_server(folder: Path, *options: str, password: str | None = None) -> Iterator[int]:
    """Starts a server with the data in `folder` and yields its port. Raises StreamError without a binary."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise StreamError("redis-server is not installed; install it (Debian: apt-get install redis-server)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    place = "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)
    argv = [binary, "-", *place, "--save", "", *options]
    server = subprocess.Popen(wrapped(argv), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert server.stdin is not None
    with server.stdin:
        server.stdin.write("" if password is None else f"requirepass {password}\n")
    try:
        with Wait(f"redis-server at port {port} to start", START_DEADLINE_S) as wait:
            while not answers("127.0.0.1", port):
                if server.poll() is not None:
                    raise StreamError(f"redis-server at port {port} ended with status {server.returncode}")
                wait.check()
                time.sleep(0.02)
        yield port
    finally:
        server.kill()
        server.wait()
