"""The process that every program is forked from; it never sees one, and holds nothing worth reading.

Started by `host.py` with an empty environment and one descriptor. It takes away from itself what the kernel
lets it, says whether that was enough, and then forks a keeper for each request. The keeper gives one program
a view of its own, waits for it, kills it when it is late or no longer wanted, and tells how it ended.
"""

import _sitebuiltins
import builtins
import errno
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

from pipelinerl.base.child import die_with_parent
from pipelinerl.extras.sandbox import kernel, landlock, program, rooms, seccomp

PRELOADED = (
    *("hashlib", "ctypes", "bz2", "lzma", "zlib", "decimal", "fractions", "uuid", "struct", "array"),
    *("dataclasses", "enum", "queue", "inspect", "textwrap", "numbers", "cmath", "asyncio", "contextlib"),
    *("sqlite3", "readline"),
)
"""Loaded before anything is taken away: fast for programs, and shared libraries need not be reachable."""
FIRST_USER, USERS = 61_000, 4_000
"""Users that programs of a template started by root run as; nobody else should."""
STACK_BYTES = 64 << 20


class Refused(Exception):
    """The kernel does not offer what the mode needs."""


class NotImported(Exception):
    """A named package cannot be imported; one line."""


def main(control: int, mode: str, packages: dict[str, str]) -> None:
    """Set up, report on `control`, serve until it is closed."""
    os.environ.clear()
    die_with_parent()
    connection = socket.socket(fileno=control)
    connection.set_inheritable(False)
    try:
        template = Template(connection, mode, packages)
        template.take_away()
    except NotImported as error:
        connection.send(json.dumps({"package": str(error)}).encode())
        return
    except (OSError, Refused) as error:
        reason = getattr(error, "strerror", None) or error
        connection.send(json.dumps({"failed": f"{mode}: {reason}"}).encode())
        return
    connection.send(json.dumps({"mode": mode}).encode())
    template.serve()


class Template:
    """State that keepers inherit."""

    def __init__(self, connection: socket.socket, mode: str, packages: dict[str, str]) -> None:
        if os.uname().machine != "x86_64":
            raise Refused(f"seccomp filters are written for x86_64, this is {os.uname().machine}")
        self.connection, self.mode, self.packages = connection, mode, packages
        self.scratch = ""
        self.names = program.preamble()
        for name in PRELOADED:
            with suppress(ImportError):
                importlib.import_module(name)
        rooms.Packages(packages).install()
        for name in packages:
            _import(name)
        for name in ("exit", "quit"):  # those of the module site, which is not loaded
            setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
        kernel.one_arena()
        self.as_root = os.geteuid() == 0
        self.served = int.from_bytes(os.urandom(2)) % USERS
        self.thread_slack = 0

    def take_away(self) -> None:
        """Raises OSError or Refused that says what is missing."""
        if self.mode == "namespaces":
            self._namespaces()
        else:
            self._landlock()
        self._try_filter()
        self._try_user()
        # Programs of an ordinary user share its id: none may open what another, or its keeper, has open.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        gc.collect()
        gc.freeze()

    def _namespaces(self) -> None:
        flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET
        flags |= kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
        if self.as_root:
            kernel.unshare(flags)
        else:
            user, group = os.geteuid(), os.getegid()
            kernel.unshare(flags | kernel.CLONE_NEWUSER)
            for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1")):
                _write(f"/proc/self/{name}", text)
            _write("/proc/self/gid_map", f"{group} {group} 1")
        child = os.fork()
        if child:
            self.connection.close()
            os.waitpid(child, 0)
            os._exit(0)
        die_with_parent()
        self.scratch = rooms.build(sorted(self.packages.values()))

    def _landlock(self) -> None:
        try:
            landlock.version()
        except OSError as error:
            raise Refused(f"Landlock: {error.strerror or error} (it needs Linux 5.13 or later)") from None
        self.thread_slack = 0 if self.as_root else _threads_of(os.getuid())
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        rooms.grant(sorted(self.packages.values()))

    def _try_filter(self) -> None:
        """A filter is for ever, so a child tries it."""

        def attempt() -> None:
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            kernel.set_filter(seccomp.program_filter(os.getpid()))

        _try("seccomp", attempt)

    def _try_user(self) -> None:
        def attempt() -> None:
            self.become_nobody(FIRST_USER)
            rooms.check_readable()

        _try(f"{os.__file__} as the user of programs", attempt)

    def become_nobody(self, user: int) -> None:
        """No privileges, and a count of processes that no other program shares."""
        if self.as_root:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        elif self.mode == "namespaces":
            kernel.unshare(kernel.CLONE_NEWUSER)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.drop_capabilities()

    def serve(self) -> None:
        """Fork a keeper for each request; ends with the process that asks."""
        for name in [name for name in sys.modules if name.split(".")[0] in ("pipelinerl", "__main__")]:
            del sys.modules[name]  # a program could not import them either
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(self.connection, 4096, 8)
            except InterruptedError:
                continue
            if not message:
                return
            self.served += 1
            keeper = os.fork()
            if keeper == 0:
                try:
                    self.connection.close()
                    _keep(self, json.loads(message), descriptors)
                finally:
                    os._exit(1)
            for descriptor in descriptors:
                os.close(descriptor)


def _import(name: str) -> None:
    """Raises NotImported, as where a package that it imports was not named."""
    try:
        importlib.import_module(name)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        missing = isinstance(error, ImportError)
        hint = "; name the packages that it imports as well" if missing else ""
        raise NotImported(f"sandbox package {name!r} cannot be imported here: {said}{hint}") from error


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _try(what: str, attempt: Any) -> None:
    """Raises Refused with what happened in a child of this process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attempt()
            os.write(write, b"ok")
        except OSError as error:
            os.write(write, (error.strerror or str(error)).encode())
        finally:
            os._exit(0)
    os.close(write)
    said = os.read(read, 200).decode()
    os.close(read)
    os.waitpid(child, 0)
    if said != "ok":
        raise Refused(f"{what}: {said or 'the process that tried it was killed'}")


def _threads_of(user: int) -> int:
    """Threads of this user on the machine: the kernel counts them together with a program's.

    The folder of a process that may not be looked into, such as a program, is root's; its status tells.
    """
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            with open(f"/proc/{name}/status", encoding="utf-8") as file:
                said = dict(line.split(":", 1) for line in file)
            if int(said["Uid"].split()[0]) == user:
                count += int(said["Threads"])
    return count + 1024


def _keep(template: Template, limits: dict[str, Any], descriptors: list[int]) -> None:
    """The life of a keeper: start a program, wait, report on the descriptor `status`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent()
    status, *given = descriptors
    if template.mode == "namespaces":
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
        rooms.mount_scratch(template.scratch, limits["scratch_mb"], limits["files"])
    trouble, trouble_end = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(trouble)
        _become(template, limits, given, trouble_end)
    for descriptor in (*given, trouble_end):
        os.close(descriptor)
    late = _wait(child, status, limits["wall_s"])
    _, code, used = os.wait4(child, 0)
    report = {
        "code": os.waitstatus_to_exitcode(code),
        "late": late,
        "wall_s": time.monotonic() - started,
        "cpu_s": used.ru_utime + used.ru_stime,
        "trouble": os.read(trouble, 500).decode(errors="replace"),
    }
    with suppress(OSError):
        os.write(status, json.dumps(report).encode())
    os._exit(0)


def _wait(child: int, status: int, wall_s: float) -> bool:
    """Until the program ends; it is killed when it is late, or when nobody wants its result any more."""
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(status, select.POLLHUP | select.POLLRDHUP)
    ready = [descriptor for descriptor, _ in poll.poll(wall_s * 1000)]
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    return not ready


def _become(template: Template, limits: dict[str, Any], given: list[int], trouble: int) -> NoReturn:
    """Turn this process into the program: nothing open, nothing allowed, then its first line."""
    try:
        os.setsid()
        request = _read(given[0])
        _arrange(given[1:], trouble)
        _limit(limits)
        user = FIRST_USER + template.served % USERS
        template.become_nobody(user)
        _limit_threads(limits["threads"] + template.thread_slack)
        die_with_parent()
        if template.mode == "landlock":
            landlock.separate()
        _open_streams()
        kernel.set_filter(seccomp.program_filter(os.getpid()))
        os.close(_TROUBLE)
        program.main(request, template.names)
    except BaseException as error:
        with suppress(OSError):
            os.write(_TROUBLE, f"{type(error).__name__}: {error}"[:500].encode())
    finally:
        os._exit(1)


_TROUBLE = 4


def _open_streams() -> None:
    given = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), "utf-8", "replace")
    output = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), "utf-8", "replace")
    errors = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w")), "utf-8", "replace", line_buffering=True)
    for name, stream in (("stdin", given), ("stdout", output), ("stderr", errors)):
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _read(descriptor: int) -> dict[str, Any]:
    with os.fdopen(descriptor, "rb") as file:
        request: dict[str, Any] = json.load(file)
    return request


def _arrange(given: list[int], trouble: int) -> None:
    """Standard streams at 0, 1, 2, the channel at 3 if there is one, `trouble` at 4, nothing else open."""
    import fcntl

    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in (*given, trouble)]
    places = [*range(len(given)), _TROUBLE]
    for descriptor, place in zip(high, places, strict=True):
        os.dup2(descriptor, place)
    if len(given) == program.CHANNEL:
        with suppress(OSError):
            os.close(program.CHANNEL)
    os.closerange(_TROUBLE + 1, 1 << 20)


def _limit(limits: dict[str, Any]) -> None:
    seconds, memory = max(1, round(limits["cpu_s"])), int(limits["memory_mb"]) << 20
    wanted = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: int(limits["scratch_mb"]) << 20,
        resource.RLIMIT_NOFILE: int(limits["open_files"]),
        resource.RLIMIT_STACK: STACK_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 0,  # counted for all programs of a user together
    }
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


def _limit_threads(most: int) -> None:
    """After the change of user: the count of another user must not stop it."""
    try:
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    except ValueError as error:
        raise OSError(errno.EPERM, f"RLIMIT_NPROC: {error}") from None
