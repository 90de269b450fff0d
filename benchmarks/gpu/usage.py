"""CPU time of an engine's processes, so that a rate explains itself."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

from pipelinerl.engines.vllm.options import SERVE_MODULE, SERVER_MODULE

TITLE = re.compile(r"^VLLM::(\w+)")
SERVER, SERVERS = "APIServer", (SERVE_MODULE, SERVER_MODULE)
NUMBER = re.compile(r"_?\d+$")
Cpu = Mapping[tuple[str, int], float]
"""By role and process id: user and system time so far."""


def roles(words: Mapping[int, str], root: int) -> dict[int, str]:
    """What each process of an engine is, by the title that vLLM gives it or by its command line."""
    titles = {pid: TITLE.match(one) for pid, one in words.items()}
    found = {pid: one[1] if one else "others" for pid, one in titles.items()}
    if found[root] == "others":
        # `vllm serve` answers requests itself, or is the parent of several processes that do.
        several = any(one.startswith(SERVER) for one in found.values())
        served = "parent" if several else SERVER
        found[root] = served if any(one in words[root] for one in SERVERS) else "LLM"
    return found


def cpu_seconds(group: int) -> Cpu:
    """Of the process `group` and all below it."""
    words, spent = {}, {}
    root = psutil.Process(group)
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            words[process.pid] = " ".join(process.cmdline())
            spent[process.pid] = times.user + times.system
    return {(role, pid): spent[pid] for pid, role in roles(words, group).items()}


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
