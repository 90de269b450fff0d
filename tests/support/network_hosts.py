"""Hosts made of namespaces on one machine: own network, processes, name, shared memory and Ray's folder.

A bridge connects them; the file system is common, as the folder of a run must be. Needs root, `ip`,
`unshare`, `nsenter` and Ray.
"""

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import psutil

RAY_PORT = 6379
TOKEN = secrets.token_hex(32)
"""Without it Ray refuses; it would otherwise take one from the home of the user if it is there."""
START_S = 120.0
_numbers = itertools.count()


@cache
def why_not() -> str:
    """What hinders such hosts here; empty if nothing does."""
    if find_spec("ray") is None:
        return "Ray is not installed"
    if os.geteuid() != 0:
        return "namespaces need root"
    lacking = [name for name in ("ip", "unshare", "nsenter", "redis-server") if shutil.which(name) is None]
    if lacking:
        return f"there is no {lacking[0]}"
    tried = subprocess.run(["unshare", "--net", "--pid", "--fork", "ip", "link"], capture_output=True)
    return "" if tried.returncode == 0 else "namespaces are not allowed here"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=START_S)


class NetworkHost:
    """One host: `address` on the bridge, `pid` of its first process as this machine counts."""

    def __init__(
        self, network: str, number: int, address: str, ray_folder: str, cards: str | None = None
    ) -> None:
        """`cards` are the ids of the GPUs that its processes see; None: those that this process sees."""
        self.name, self.address = f"{network}{number}", address
        self._cards = [] if cards is None else [f"CUDA_VISIBLE_DEVICES={cards}"]
        self.link = f"{self.name}v"
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _run("ip", "link", "set", self.link, "master", network, "up")
        inside = ["ip", "-n", self.name]
        _run(*inside, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _run(*inside, "link", "set", device, "up")
        mounts = f"mount -t tmpfs none /dev/shm && mount -t tmpfs none {ray_folder}"
        first = f"hostname {self.name} && {mounts} && exec sleep infinity"
        kinds = ["--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        self._outer = subprocess.Popen(
            ["ip", "netns", "exec", self.name, "unshare", *kinds, "sh", "-c", first],
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + START_S
        while not (found := psutil.Process(self._outer.pid).children()) or found[0].name() != "sleep":
            assert time.monotonic() < end and self._outer.poll() is None, f"{self.name} does not start"
            time.sleep(0.02)
        self.pid = found[0].pid

    def command(self, *words: str) -> list[str]:
        """A command that runs there, in this folder."""
        kinds = ["--net", "--uts", "--ipc", "--mount", "--pid"]
        there = ["nsenter", "--target", str(self.pid), *kinds, f"--wd={os.getcwd()}"]
        token = ["RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN={TOKEN}"]
        return [*there, "env", *token, *self._cards, *words]

    def ray(self, *words: str) -> None:
        """`ray start` with this host's address."""
        own = [f"--node-ip-address={self.address}", "--num-cpus=4", "--disable-usage-stats"]
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", *own, *words]
        done = subprocess.run(self.command(*start), capture_output=True, text=True, timeout=START_S)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    def put(self, folder: Path, at: Path) -> None:
        """Let processes of this host see a folder at another one's path."""
        _run("nsenter", "--target", str(self.pid), "--mount", "mount", "--bind", str(folder), str(at))

    def kill(self) -> None:
        """End every process of the host at once, as a power cut does."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._outer.wait(timeout=START_S)

    def cut(self) -> None:
        """Let no packet in or out; nobody is told."""
        _run("ip", "link", "set", self.link, "nomaster")

    def processes(self) -> list[psutil.Process]:
        """Living processes of the host, without its first one."""
        own, found = os.readlink(f"/proc/{self.pid}/ns/pid"), []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if process.pid != self.pid and os.readlink(f"/proc/{process.pid}/ns/pid") == own:
                    found.append(process)
        return found

    def remove(self) -> None:
        self.kill()
        subprocess.run(["ip", "link", "delete", self.link], capture_output=True)
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True)


class NetworkHosts:
    """So many hosts in one Ray cluster, the first is its head; a context manager.

    `gpus` of each host are in Ray's books only, unless each of `cards` has the ids of a host's. Without `ray`
    they are only connected.
    """

    def __init__(self, count: int, gpus: int = 0, cards: Sequence[str | None] = (), ray: bool = True) -> None:
        self._gpus = f"--num-gpus={gpus}"
        self._cards, self._ray = cards or [None] * count, ray
        self._number = next(_numbers)
        self.network = f"pl{os.getpid() % 100000}x{self._number}"
        self._count = count
        self._ray_folder = f"/tmp/{self.network}"  # short, because Ray makes sockets below it
        self.hosts: list[NetworkHost] = []

    def __enter__(self) -> Self:
        part = (os.getpid() + self._number) % 250 + 1
        try:
            os.mkdir(self._ray_folder)  # each host mounts its own there
            _run("ip", "link", "add", self.network, "type", "bridge")
            _run("ip", "link", "set", self.network, "up")
            for number in range(self._count):
                address = f"10.231.{part}.{number + 1}"
                cards = self._cards[number]
                self.hosts.append(NetworkHost(self.network, number, address, self._ray_folder, cards))
            if self._ray:
                self._start_ray()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_ray(self) -> None:
        head = self.hosts[0]
        own = [f"--port={RAY_PORT}", f"--temp-dir={self._ray_folder}", "--include-dashboard=false"]
        head.ray("--head", *own, self._gpus)
        for host in self.hosts[1:]:
            host.ray(f"--address={head.address}:{RAY_PORT}", self._gpus)

    def __exit__(self, *exception: object) -> None:
        for host in self.hosts:
            host.remove()
        subprocess.run(["ip", "link", "delete", self.network], capture_output=True)
        with contextlib.suppress(OSError):
            os.rmdir(self._ray_folder)
