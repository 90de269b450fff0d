"""A process that a benchmark talks to line by line, each answer with a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO

END_S = 30.0


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
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=env,
            start_new_session=True,
        )

    def tell(self, line: str) -> None:
        """RuntimeError when the process is gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self.name} ended with status {self.process.wait(END_S)}") from None

    def no_more(self) -> None:
        """Close its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

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
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what it was told last is of no use to a process that has ended

    def _kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
