"""Processes that benchmarks start: servers that are waited for, and children that answer line by line.

Each is the leader of a process group, so that its end takes everything with it that it has started.
It is killed when the benchmark is, and what it started ends as it does when a launcher or a server is killed.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from pipelinerl.base.child import die_with_parent, wrapped
from pipelinerl.base.http import CallFailed, call

STOP_S = 20.0
END_S = 30.0


def launcher(out: Path, overrides: Sequence[str]) -> list[str]:
    """Command line of a run in `out`."""
    fixed = [f"output_dir={out}", "wandb.use_wandb=false"]
    return [sys.executable, "-m", "pipelinerl.launch", *fixed, *overrides]


def lead(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start the leader of a group, with `options` of Popen; it ends with the thread that starts it."""
    return subprocess.Popen(wrapped(command), start_new_session=True, **options)


def stop(*processes: subprocess.Popen[bytes], wait_s: float = STOP_S) -> None:
    """SIGTERM, after `wait_s` SIGKILL, to the whole group of each; one that is suspended is woken first."""
    for number, seconds in ((signal.SIGCONT, 0.0), (signal.SIGTERM, wait_s), (signal.SIGKILL, 10.0)):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        end = time.monotonic() + seconds
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))


class Logged:
    """A process whose output goes to `log`; without one, only its errors are shown."""

    def __init__(self, command: Sequence[str], log: Path | None, env: Mapping[str, str] | None) -> None:
        self.log = log or Path(os.devnull)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        errors = subprocess.STDOUT if log else None
        with self.log.open("ab") as out:
            self.process = lead(command, stdout=out, stderr=errors, env=env)

    def said(self, lines: int = 15) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Server(Logged):
    """A process that answers over HTTP once it has started."""

    def __init__(
        self, argv: Sequence[str], port: int, log: Path | None, env: Mapping[str, str] | None = None
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        # Otherwise one that an earlier call left there would answer in the name of this one.
        with suppress(CallFailed):
            call("GET", self.url, "/health", 2.0)
            raise SystemExit(f"{self.url} answers already: end what listens there, or choose another port")
        super().__init__(argv, log, env)

    def wait_ready(self, deadline_s: float = 300.0, path: str = "/health") -> None:
        """SystemExit, which says why, if it ends or is not ready by the deadline."""
        end = time.monotonic() + deadline_s
        while True:
            try:
                call("GET", self.url, path, 2.0)
                return
            except CallFailed:
                if self.process.poll() is not None:
                    problem = f"the server ended with status {self.process.returncode}"
                elif time.monotonic() > end:
                    problem = f"the server is not ready after {deadline_s:g} s"
                else:
                    time.sleep(0.2)
                    continue
            raise SystemExit(f"{problem} (log: {self.log})\n{self.said(5)}")


@contextmanager
def started(*servers: Server) -> Iterator[None]:
    """They and their workers are gone afterwards, all within the deadlines of one."""
    try:
        yield
    finally:
        stop(*(server.process for server in servers))


class Child:
    """Tell it something, expect a line that begins with a mark; `close` ends it and all it started."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        stderr: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
        self.process = lead(command, **pipes, text=True, env=env)

    def tell(self, line: str) -> None:
        """RuntimeError when the process is gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self.name} ended with status {self.process.wait(END_S)}") from None

    def expect(self, mark: str, deadline_s: float) -> str:
        """What follows `mark`; RuntimeError when the process ends, or says nothing until the deadline."""
        assert self.process.stdout is not None
        deadline = threading.Timer(deadline_s, self._kill)  # a pipe that ends is read to its end
        deadline.start()
        try:
            for line in self.process.stdout:
                if line.startswith(mark):
                    return line[len(mark) :].strip()
        finally:
            deadline.cancel()
        said = f"did not say {mark.strip()} before its end, or within {deadline_s:g} s"
        raise RuntimeError(f"{self.name} {said}")

    def close(self) -> None:
        """More than once does no harm."""
        self._kill()
        self.process.wait(END_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what it was told last is of no use to a process that has ended
                pipe.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@contextmanager
def function(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Run `target` in a process of its own, with one end of a pipe as its last argument; this is the other.

    Receiving raises EOFError when the process has ended. It does not outlive the block.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_begun, args=(os.getpid(), target, *arguments, theirs), daemon=True)
    process.start()
    theirs.close()  # otherwise the pipe would not end with the process
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def _begun(parent: int, target: Callable[..., None], *arguments: Any) -> None:
    die_with_parent(parent)
    target(*arguments)
