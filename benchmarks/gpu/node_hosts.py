"""Ray nodes at loopback addresses of one machine, each with cards of its own: hosts in the launcher's eyes.

Unlike those of `tests/support/network_hosts.py` they need no namespaces and share name, shared memory and
processes, so that NCCL connects their cards directly.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

import psutil

from tests.support.network_hosts import RAY_PORT, START_S, TOKEN

INTERFACE = "lo"
WORKER_PORTS = 100
FIRST_WORKER_PORT = 21_000


class NodeHost:
    """One node; `cards` are ids of GPUs, or None without any."""

    def __init__(self, address: str, cards: str | None) -> None:
        self.address, self._cards = address, cards

    def command(self, *words: str) -> list[str]:
        """A command that runs with this node's cards."""
        cards = "" if self._cards is None else self._cards
        token = ["RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN={TOKEN}"]
        return ["env", *token, f"CUDA_VISIBLE_DEVICES={cards}", *words]


class NodeHosts:
    """A Ray cluster with a node for each of `cards`, the first is its head; a context manager."""

    def __init__(self, cards: Sequence[str | None], ray: bool = True) -> None:
        self.hosts = [NodeHost(f"127.0.0.{2 + index}", one) for index, one in enumerate(cards)]
        self._gpus = [0 if one is None else len(one.split(",")) for one in cards]
        self._ray = ray
        self._folder = tempfile.mkdtemp(prefix="plnodes", dir="/tmp")  # short: Ray makes sockets below it

    def __enter__(self) -> Self:
        try:
            for index in range(len(self.hosts) if self._ray else 0):
                self._start(index)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, index: int) -> None:
        host, head = self.hosts[index], self.hosts[0]
        first_port = FIRST_WORKER_PORT + WORKER_PORTS * index
        words = [f"--node-ip-address={host.address}", "--num-cpus=4", f"--num-gpus={self._gpus[index]}"]
        words += [f"--min-worker-port={first_port}", f"--max-worker-port={first_port + WORKER_PORTS - 1}"]
        words += ["--disable-usage-stats"]
        if index:
            words += [f"--address={head.address}:{RAY_PORT}"]
        else:
            words += ["--head", f"--port={RAY_PORT}", f"--temp-dir={self._folder}"]
            words += ["--include-dashboard=false"]
        start = host.command(sys.executable, "-m", "ray.scripts.scripts", "start", *words)
        done = subprocess.run(start, capture_output=True, text=True, timeout=START_S)
        if done.returncode:
            raise RuntimeError(f"ray start at {host.address}: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def __exit__(self, *exception: object) -> None:
        """Ends what has the folder in its command line; Ray's workers end with their raylet."""
        ended = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and any(self._folder in word for word in process.cmdline()):
                    process.kill()
                    ended.append(process)
        psutil.wait_procs(ended, timeout=START_S)
        shutil.rmtree(self._folder, ignore_errors=True)
