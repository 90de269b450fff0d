"""Runs every attempt in one way of having a sandbox, in a process of its own, which prints JSON.

`root`: namespaces, started by root. `user`: namespaces, started by an ordinary user. `landlock`: an ordinary
user to whom a filter refuses namespaces. `root-landlock`: root in a container that refuses them. Started by
an ordinary user, only the two that need no root are there.
"""

import asyncio
import errno
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from pipelinerl.extras.sandbox import kernel
from pipelinerl.extras.sandbox.host import Limits, Sandbox, SandboxUnavailable
from tests.support.sandbox_attempts import ATTEMPTS

ROOT = Path(__file__).resolve().parents[2]
ORDINARY = 60_999
UNSHARE, CLONE, SETNS, MOUNT, LANDLOCK = 272, 56, 308, 165, 444
REFUSED = {
    "landlock": (UNSHARE, MOUNT),
    "root-landlock": (UNSHARE, MOUNT),
    "nothing": (UNSHARE, MOUNT, LANDLOCK),
}
WAYS = ("root", "user", "landlock", "root-landlock") if os.geteuid() == 0 else ("user", "landlock")
LIMITS = Limits(cpu_s=10, wall_s=100, memory_mb=256)
ENDLESS = ("endless loop", "sleep forever", "ignored signals")
"""Attempts that a limit of time ends; no other one may meet it, however busy the machine is."""
SHORT = replace(LIMITS, cpu_s=1, wall_s=2.5)
SECRET = "the secret of the test"


def in_way(
    way: str, *arguments: str, timeout: float = 600, module: str = "tests.support.sandbox_ways"
) -> Any:
    """What a module prints for a way, in an interpreter that ordinary users can reach."""
    env = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "SECRET": SECRET}
    found = subprocess.run(
        [sys.executable, "-P", "-m", module, way, *arguments],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout)


def enter(way: str) -> None:
    """Become the user of this way, under its refusals. Where the interpreter lies in a folder of root's it is
    mounted at its own path again, inside a root that others may enter; only this process sees that."""
    if os.geteuid() == 0 and way != "root":
        _open_the_way(Path(sys.base_prefix))
        if not way.startswith("root"):
            os.setgroups([])
            os.setresgid(ORDINARY, ORDINARY, ORDINARY)
            os.setresuid(ORDINARY, ORDINARY, ORDINARY)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    if way in REFUSED:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.set_filter(refusing(REFUSED[way]))


def refusing(numbers: tuple[int, ...]) -> bytes:
    """A filter of system calls that allows all but these: a kernel that offers less. Classic BPF."""
    load_number, equal, answer, allow, fail = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
    steps = [(load_number, 0, 0, 0)]
    for number in numbers:
        steps += [(equal, 0, 1, number), (answer, 0, 0, fail | errno.EPERM)]
    return b"".join(struct.pack("HBBI", *step) for step in [*steps, (answer, 0, 0, allow)])


def _open_the_way(folder: Path) -> None:
    closed = [parent for parent in folder.parents if not os.stat(parent).st_mode & 0o001]
    if not closed:
        return
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    kernel.mount("tmpfs", str(closed[-1]), "tmpfs", 0, "size=1m,mode=755")
    folder.mkdir(parents=True)
    kernel.mount(f"/proc/self/fd/{handle}", str(folder), None, kernel.MS_BIND)
    os.close(handle)


def places() -> tuple[dict[str, str], list[socket.socket]]:
    """What lies outside, for the attempts to reach."""
    folder = Path(tempfile.mkdtemp(prefix="sandbox-attempts-"))
    folder.chmod(0o777)
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o666)
    listening, abstract = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0sandbox-attempts-{os.getpid()}")
    abstract.listen()
    named = {
        "folder": str(folder),
        "secret": str(folder / "secret"),
        "home": os.path.expanduser("~"),
        "pid": str(os.getpid()),
        "port": str(listening.getsockname()[1]),
        "abstract": f"sandbox-attempts-{os.getpid()}",
    }
    return named, [listening, abstract]


async def attempts() -> dict[str, Any]:
    """Outcomes by name, and what is left of all that afterwards."""
    named, sockets = places()
    shared = set(os.listdir("/dev/shm"))
    async with Sandbox(LIMITS, at_once=2) as box:

        async def one(program: str) -> dict[str, Any]:
            text = textwrap.dedent(program)
            for name, value in named.items():
                text = text.replace("{{" + name + "}}", value)
            return asdict(await box.run(text, "first\nsecond\n"))

        found: dict[str, Any] = {}
        for box.limits, names in ((LIMITS, [*(ATTEMPTS.keys() - ENDLESS)]), (SHORT, [*ENDLESS])):
            found |= zip(names, await asyncio.gather(*(one(ATTEMPTS[name]) for name in names)))
        mode = box.mode
        # The template, and with namespaces the process that waits for it.
        processes = await _settled(1 if mode == "landlock" else 2)
    for listening in sockets:
        listening.setblocking(False)
        try:
            listening.accept()
            found["connected"] = True
        except BlockingIOError:
            pass
    folder = Path(named["folder"])
    left = {
        "mode": mode,
        "processes": processes,
        "after": await _settled(0),
        "folder": sorted(os.listdir(folder)),
        "secret": (folder / "secret").read_text(),
        "shm": sorted({"left", "new"} & (set(os.listdir("/dev/shm")) - shared)),
    }
    shutil.rmtree(folder)
    return found | {"left": left}


async def _settled(expected: int) -> int:
    """How many processes there are below this one; keepers end a moment after their report."""
    for _ in range(400):
        if count_below() <= expected:
            break
        await asyncio.sleep(0.05)
    return count_below()


def count_below() -> int:
    """Processes below this one that still run."""
    count = 0
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            count += one.status() != psutil.STATUS_ZOMBIE
    return count


def refusal() -> dict[str, str]:
    async def ask() -> str:
        try:
            async with Sandbox() as box:
                return f"a sandbox by {box.mode}"
        except SandboxUnavailable as error:
            return str(error)

    return {"said": asyncio.run(ask())}


if __name__ == "__main__":
    enter(sys.argv[1])
    print(json.dumps(refusal() if sys.argv[2:] == ["start"] else asyncio.run(attempts())))
