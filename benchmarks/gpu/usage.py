"""CPU time of an engine's processes, so that a rate explains itself."""

import re
import time
from collections.abc import Mapping, Sequence

import psutil

TITLE = re.compile(r"^VLLM::(\w+)")
ROOTS = {"vllm.entrypoints.cli": "parent", "vllm.entrypoints.openai": "APIServer"}
"""Of the first process, by what is in its command line; several front-ends have a parent."""
NUMBER = re.compile(r"_?\d+$")
Cpu = Mapping[tuple[str, int], float]
"""By role and process id: user and system time so far."""


def role_of(words: str, root: bool) -> str:
    """What a process of an engine is, by the title that vLLM gives it or by its command line."""
    if named := TITLE.match(words):
        return named[1]
    if root:
        return next((role for module, role in ROOTS.items() if module in words), "LLM")
    return "others"


def cpu_seconds(group: int) -> Cpu:
    """Of the process `group` and all below it."""
    found = {}
    root = psutil.Process(group)
    for process in (root, *root.children(recursive=True)):
        try:
            words, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found[role_of(words, process.pid == group), process.pid] = times.user + times.system
    return found


def shares(cpu_s: Sequence[float], tokens: int, seconds: float) -> dict[str, float]:
    """Of the processes of one role: how many, CPU per sampled token of all, cores that the busiest kept busy.

    `busiest` 1.0 is a thread of Python at its limit.
    """
    each = 1e6 * sum(cpu_s) / max(1, tokens)
    return {"processes": len(cpu_s), "us_per_token": each, "busiest": max(cpu_s) / seconds}


class Meter:
    """CPU time between its creation and `read`."""

    def __init__(self, group: int) -> None:
        self._group, self._begun, self._before = group, time.monotonic(), cpu_seconds(group)

    def read(self, tokens: int) -> dict[str, dict[str, float]]:
        """By role, for so many sampled tokens; `APIServer_0` and `APIServer_1` are one."""
        spent: dict[str, list[float]] = {}
        for (role, pid), total in cpu_seconds(self._group).items():
            spent.setdefault(NUMBER.sub("", role), []).append(total - self._before.get((role, pid), 0.0))
        seconds = time.monotonic() - self._begun
        return {role: shares(one, tokens, seconds) for role, one in spent.items()}
