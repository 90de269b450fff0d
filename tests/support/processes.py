"""What tests of real processes ask: a free port, whether something is alive, and waiting until it is so."""

import socket
import time
from collections.abc import Callable
from typing import Any

import psutil

DEADLINE_S = 200.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], what: str) -> Any:
    """What the condition returns, once that is true."""
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {DEADLINE_S} s"
        time.sleep(0.02)
    return found


def command_line(process: psutil.Process) -> list[str]:
    """Its words; none of one that has ended since it was found."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
