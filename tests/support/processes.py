"""What tests of real processes ask: a free port, whether something is alive, and waiting until it is so."""

import random
import time
from collections.abc import Callable
from typing import Any

import psutil

from pipelinerl.base.child import wrapped
from pipelinerl.base.ports import is_free

DEADLINE_S = 200.0
_draw = random.SystemRandom()


def free_port() -> int:
    """One that the kernel does not give to whoever asks for any port, as servers of other tests do."""
    while not is_free(port := _draw.randrange(22_000, 32_000)):
        pass
    return port


def bound(*words: str) -> list[str]:
    """A command that is killed when the tests are, so that it does not hold up those that come next."""
    return wrapped(words)


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
