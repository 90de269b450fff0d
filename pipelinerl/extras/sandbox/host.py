"""Run programs that nobody trusts, from asyncio: what domains with code in their answers use.

A `Sandbox` keeps one template process (`template.py`), of which each program is a fork with nothing in
common with another. What a program did is judged here, outside, by what came out of it.
"""

import asyncio
import contextlib
import functools
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from pipelinerl.extras.sandbox.values import decode, encode

MODES = ("namespaces", "landlock")
"""Tried in this order; the first has all guarantees, the second those of `docs/sandbox.md`."""
START_S = 60.0
PATIENCE_S = 15.0
"""Beyond a program's wall time, for a keeper on a busy machine."""
STDERR_BYTES = 16_384
REPORT_BYTES = 4_096
_ROOT = str(Path(__file__).resolve().parents[3])
_START = (
    "import sys; sys.path.append({root!r}); from pipelinerl.extras.sandbox import template; "
    "sys.path.remove({root!r}); template.main({control}, {mode!r}, {packages!r})"
)

Status = Literal["finished", "timeout", "output", "signal"]


class SandboxUnavailable(RuntimeError):
    """One line: what the kernel refuses, and what to do. There is no weaker way of running a program."""


@dataclass(frozen=True)
class Limits:
    """Of one program."""

    cpu_s: float = 5.0
    """Seconds of processor time, in whole ones and at least one."""
    wall_s: float = 10.0
    """Seconds from its start."""
    memory_mb: int = 512
    """Address space in MiB."""
    threads: int = 32
    """It can start no processes, only threads."""
    open_files: int = 64
    scratch_mb: int = 16
    """Of its folder and of one file, in MiB."""
    files: int = 256
    """In its folder."""
    output_bytes: int = 65_536
    """Of standard output, or of a value."""


@dataclass(frozen=True)
class Outcome:
    """How one program ended."""

    status: Status
    """`output`: it was ended because it wrote more than the limit; `signal`: it crashed."""
    exit_code: int
    """Minus the signal's number where one ended it."""
    stdout: str
    stderr: str
    wall_s: float
    cpu_s: float
    value: str | None = None
    """What a `call` sent back, as JSON that the program may have written itself; None if nothing came."""

    @property
    def ok(self) -> bool:
        """It ran to its end without an error."""
        return self.status == "finished" and self.exit_code == 0


def package_folder(name: str) -> str:
    """Where an installed package lies. Raises ValueError in one line."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"sandbox package {name!r}: not installed, or no package with a folder")
    return os.path.realpath(next(iter(spec.submodule_search_locations)))


class _Template:
    """The process, and the socket to it."""

    def __init__(self, mode: str, packages: dict[str, str]) -> None:
        self.mode = mode
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = _START.format(root=_ROOT, control=theirs.fileno(), mode=mode, packages=packages)
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", "-B", "-c", code],
            env={"PYTHONHASHSEED": "0"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def hello(self) -> str | None:
        """None where it is ready, else what the kernel refused. Waits for it.

        Raises ValueError for a package that cannot be imported.
        """
        self.control.settimeout(START_S)
        try:
            said = json.loads(self.control.recv(4096) or b"{}")
        except TimeoutError:
            said = {"failed": f"{self.mode}: not ready after {START_S:.0f} s"}
        finally:
            self.control.settimeout(None)
        if "mode" in said:
            return None
        if "package" in said:
            raise ValueError(said["package"])
        return str(said.get("failed", f"{self.mode}: the process ended at its start"))

    def close(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()


def _start(packages: dict[str, str], modes: Sequence[str]) -> _Template:
    refused = []
    for mode in modes:
        template = _Template(mode, packages)
        try:
            said = template.hello()
        except ValueError:
            template.close()
            raise
        if said is None:
            return template
        template.close()
        refused.append(" ".join(said.split()))
    raise SandboxUnavailable(
        f"no sandbox for programs here: {'; '.join(refused)}. Allow user namespaces, or use a kernel with "
        "Landlock and a container profile that allows its calls (docs/sandbox.md)"
    )


def mechanism(packages: Sequence[str] = ()) -> str:
    """The mode that this machine offers, by trying. Raises SandboxUnavailable, ValueError for a package."""
    template = _start({name: package_folder(name) for name in packages}, MODES)
    template.close()
    return template.mode


class Sandbox:
    """Runs programs for one event loop; an async context manager, or `close` it.

    `at_once` programs run at a time. `packages` are installed packages that programs may import besides the
    standard library, with those that these import. Raises ValueError for one that is not installed; at the
    first program, ValueError for one that cannot be imported and SandboxUnavailable where the kernel offers
    nothing.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        at_once: int = 4,
        packages: Sequence[str] = (),
        modes: Sequence[str] = MODES,
    ) -> None:
        if at_once < 1:
            raise ValueError(f"at_once={at_once}: at least one program runs at a time")
        self.limits = limits or Limits()
        self._packages = {name: package_folder(name) for name in packages}
        self._modes = modes
        self._places = asyncio.Semaphore(at_once)
        self._template: _Template | None = None

    @property
    def mode(self) -> str | None:
        """`namespaces` or `landlock` once started."""
        return self._template.mode if self._template else None

    def start(self) -> None:
        """Start the template, which takes a quarter of a second; `run` does so by itself.

        On this thread: the kernel ends the template with the thread that started it.
        """
        if self._template is not None and self._template.process.poll() is not None:
            self.close()
        if self._template is None:
            self._template = _start(self._packages, self._modes)

    def close(self) -> None:
        """End the template, and with it every program."""
        if self._template is not None:
            self._template.close()
            self._template = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    async def run(self, code: str, stdin: str = "", *, preamble: bool = False) -> Outcome:
        """Run a program as `python FILE` would. With `preamble` it finds common names imported."""
        async with self._places:
            return await self._one({"mode": "run", "code": code, "preamble": preamble}, stdin)

    async def call(
        self, code: str, name: str, arguments: Sequence[Any], *, preamble: bool = False
    ) -> tuple[Outcome, Any]:
        """What a function of a program returns, to be compared here.

        Where nothing readable came, `Outcome.value` is None too: a program may end before it has an answer.
        """
        request = {"mode": "call", "code": code, "preamble": preamble}
        request["call"] = {"name": name, "args": encode(list(arguments))}
        async with self._places:
            outcome = await self._one(request, "", valued=True)
        try:
            return outcome, decode(json.loads(outcome.value or "")["value"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return replace(outcome, value=None), None

    async def check(
        self,
        code: str,
        functions: Mapping[str, str] | Sequence[str],
        tests: str,
        *,
        classes: Sequence[str] = (),
        preamble: bool = False,
    ) -> tuple[Outcome, Outcome]:
        """(program, tests): tests pass where the second is `ok`. They run in another process, in which the
        program's `functions` are calls to its process, so that it cannot change what is compared. They are
        names, or names that the tests know them by and their own. Objects of its `classes`, which are among
        `functions` too, stay in its process: tests make them, ask for attributes, set them and pass them on.
        """
        named = functions if isinstance(functions, Mapping) else {name: name for name in functions}
        ours, theirs = socket.socketpair()
        program = {"mode": "serve", "code": code, "preamble": preamble, "classes": list(classes)}
        judge = {"mode": "judge", "code": tests, "preamble": True, "functions": dict(named)}
        async with self._places:
            found = await asyncio.gather(
                self._one(program, "", channel=ours), self._one(judge, "", channel=theirs)
            )
        return found[0], found[1]

    async def _one(
        self,
        request: dict[str, Any],
        stdin: str,
        *,
        valued: bool = False,
        channel: socket.socket | None = None,
    ) -> Outcome:
        """One process; the caller holds its place, and `channel` is given away."""
        with contextlib.ExitStack() as stack:
            pipes = [os.pipe() for _ in range(3 if valued else 2)]
            ends = [stack.enter_context(os.fdopen(read, "rb", buffering=0)) for read, _ in pipes]
            status, theirs = socket.socketpair()
            stack.enter_context(status)
            given = [theirs.detach(), _memory(json.dumps(request)), _memory(stdin), *(w for _, w in pipes)]
            if channel is not None:
                given.append(channel.detach())
            try:
                self.start()
                assert self._template is not None
                socket.send_fds(self._template.control, [json.dumps(asdict(self.limits)).encode()], given)
            finally:
                for descriptor in given:
                    os.close(descriptor)
            return await self._follow(status, [end.fileno() for end in ends])

    async def _follow(self, status: socket.socket, ends: list[int]) -> Outcome:
        """Collect what one program writes, and its keeper's report."""
        most, stop = self.limits.output_bytes, functools.partial(_hang_up, status)
        output, errors, *values = ends
        jobs = [
            _drained(output, most, stop),
            _drained(errors, STDERR_BYTES),
            _drained(status.fileno(), REPORT_BYTES),
        ]
        jobs += [_drained(one, most, stop) for one in values]
        try:
            async with asyncio.timeout(self.limits.wall_s + PATIENCE_S):
                stdout, stderr, (told, _), *sent = await asyncio.gather(*jobs)
        except TimeoutError:
            self.close()
            raise RuntimeError("sandbox: a keeper did not answer; its template was ended") from None
        if not told:
            raise RuntimeError("sandbox: a keeper ended without a report")
        report = json.loads(told)
        if report["trouble"]:
            raise RuntimeError(f"sandbox: a program was not started: {report['trouble']}")
        value = sent[0][0] if sent else b""
        return Outcome(
            status=self._status(report, flooded=any(over for _, over in (stdout, *sent))),
            exit_code=report["code"],
            stdout=stdout[0].decode(errors="replace"),
            stderr=stderr[0].decode(errors="replace"),
            wall_s=report["wall_s"],
            cpu_s=report["cpu_s"],
            value=value.decode(errors="replace") if value else None,
        )

    def _status(self, report: dict[str, Any], flooded: bool) -> Status:
        if flooded:
            return "output"
        # Nothing else sends SIGKILL to a program but its limit of processor time, which the kernel counts
        # a little ahead of what it reports.
        spent = report["code"] == -signal.SIGKILL and report["cpu_s"] > 0.7 * max(1, round(self.limits.cpu_s))
        if report["late"] or spent:
            return "timeout"
        return "signal" if report["code"] < 0 else "finished"


def _memory(text: str) -> int:
    """A file in memory that can be read from its start, and not be written."""
    writable = os.memfd_create("sandbox", os.MFD_CLOEXEC)
    try:
        with os.fdopen(writable, "wb", closefd=False) as file:
            file.write(text.encode(errors="surrogatepass"))
        return os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writable)


def _hang_up(status: socket.socket) -> None:
    """Tell the keeper that its program is to be ended; its report still comes."""
    with contextlib.suppress(OSError):
        status.shutdown(socket.SHUT_WR)


async def _drained(
    descriptor: int, most: int, overflow: Callable[[], None] | None = None
) -> tuple[bytes, bool]:
    """At most this many bytes until the other end closes, and whether there were more.

    `overflow` is called as soon as there are.
    """
    loop, kept, over = asyncio.get_running_loop(), bytearray(), False
    os.set_blocking(descriptor, False)
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            try:
                part = os.read(descriptor, 65_536)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                break
            if not part:
                break
            if len(kept) + len(part) > most and not over:
                over = True
                if overflow is not None:
                    overflow()
            kept += part[: most - len(kept)]
    finally:
        loop.remove_reader(descriptor)
    return bytes(kept), over
