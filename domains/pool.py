"""Worker processes that judge answers under a deadline that nothing inside them can miss.

`math` and `reasoning_gym` ask it about what a model wrote. A signal does not interrupt a power of huge
integers, so a worker that is late is killed and replaced. Workers are forked from a server that has loaded
the judge's packages already, which makes a new one cheap.
"""

import asyncio
import json
import multiprocessing
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Self

from pipelinerl.base.child import die_with_parent
from pipelinerl.base.waits import WaitExpired

MEMORY_MB = 1024
DEADLINE_S = 2.0
START_DEADLINE_S = 120.0

Judge = Callable[..., Any]
"""A function of a module, so that a new process finds it by name; its arguments and result travel as JSON."""


def _work(connection: Connection, memory_mb: int, judge: Judge, first: Sequence[Any]) -> None:
    """The life of a worker: answer requests until the pool is gone."""
    die_with_parent(os.getppid())
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    judge(*first)
    connection.send_bytes(b"ready")
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(json.dumps(judge(*request)).encode())


def _main_module() -> list[str]:
    """The program's own module: each new process runs it again, which is quick if it is imported already."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return [] if spec is None or spec.name.endswith("__main__") else [spec.name]


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, memory_mb: int, judge: Judge, first: Sequence[Any], preload: Sequence[str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*preload, judge.__module__, *_main_module()])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, memory_mb, judge, first), daemon=True)
        self._process.start()
        theirs.close()

    async def receive(self, deadline_s: float) -> bytes:
        """The next message. Raises TimeoutError after `deadline_s`, EOFError when the process died."""
        loop, there = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pipe.fileno(), there.set)
        try:
            await asyncio.wait_for(there.wait(), deadline_s)
        finally:
            loop.remove_reader(self._pipe.fileno())
        try:
            return self._pipe.recv_bytes()
        except ConnectionError as error:
            raise EOFError(str(error)) from error

    async def ask(self, request: bytes, deadline_s: float) -> bytes:
        """One answer; errors as in `receive`."""
        try:
            self._pipe.send_bytes(request)
        except (BrokenPipeError, ConnectionError) as error:
            raise EOFError(str(error)) from error
        return await self.receive(deadline_s)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _unwanted(made: asyncio.Future[_Worker]) -> None:
    if made.exception() is None:
        made.result().kill()


class JudgePool:
    """Processes that call `judge` for one event loop; an async context manager.

    `first` are the arguments of the call with which a worker starts, so that it has loaded everything when
    its first deadline begins. `preload` names packages that the judge imports late; the first pool of a
    process decides what its workers find loaded. `deadline_s` is for one call once a worker has it,
    `memory_mb` bounds the address space of each worker.
    """

    def __init__(
        self,
        judge: Judge,
        first: Sequence[Any],
        preload: Sequence[str] = (),
        *,
        workers: int = 4,
        deadline_s: float = DEADLINE_S,
        memory_mb: int = MEMORY_MB,
    ) -> None:
        if workers < 1 or deadline_s <= 0 or memory_mb < 256:
            raise ValueError(
                f"workers={workers}, deadline_s={deadline_s}, memory_mb={memory_mb}: need at least one "
                "worker, a deadline above 0 and 256 MB"
            )
        self._judge, self._first, self._preload = judge, first, preload
        self.workers, self.deadline_s, self.memory_mb = workers, deadline_s, memory_mb
        self.counts: Counter[str] = Counter()
        """`timeouts` and `crashes` of workers, and what a subclass counts."""
        self._all: set[_Worker] = set()
        self._idle: asyncio.Queue[_Worker | None] = asyncio.Queue()
        for _ in range(workers):
            self._idle.put_nowait(None)

    async def ask(self, *request: Any) -> Any:
        """What the judge returns; None if it was late, needed too much memory or brought its worker down."""
        worker = await self._idle.get()
        keep: _Worker | None = None
        try:
            worker = worker or await self._started()
            answer = await worker.ask(json.dumps(request).encode(), self.deadline_s)
            keep = worker
            return json.loads(answer)
        except TimeoutError:
            self.counts["timeouts"] += 1
        except EOFError:
            self.counts["crashes"] += 1
        finally:
            # Also when this task is cancelled: an answer may still be on its way through the pipe.
            if keep is None and worker is not None:
                self._end(worker)
            self._idle.put_nowait(keep)
        return None

    async def _started(self) -> _Worker:
        # The first worker waits until the fork server has loaded the judge's packages, which takes seconds.
        arguments = self.memory_mb, self._judge, self._first, self._preload
        made = asyncio.ensure_future(asyncio.to_thread(_Worker, *arguments))
        try:
            worker = await asyncio.shield(made)
        except asyncio.CancelledError:
            made.add_done_callback(_unwanted)
            raise
        self._all.add(worker)
        try:
            await worker.receive(START_DEADLINE_S)
        except (TimeoutError, EOFError) as error:
            self._end(worker)
            detail = "it died" if isinstance(error, EOFError) else ""
            what = f"a worker of {self._judge.__module__} to start"
            raise WaitExpired(what, START_DEADLINE_S, detail) from error
        except asyncio.CancelledError:
            self._end(worker)
            raise
        return worker

    def _end(self, worker: _Worker) -> None:
        if worker in self._all:
            self._all.discard(worker)
            worker.kill()

    def close(self) -> None:
        """End every worker, also those that compute."""
        for worker in list(self._all):
            self._end(worker)

    async def __aenter__(self) -> Self:
        """Start one worker, so that a broken installation is found now."""
        await self._idle.get()
        self._idle.put_nowait(await self._started())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()
