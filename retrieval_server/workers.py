"""Several processes behind one port: sockets, the builder of a missing index, restarts, an orderly end.

The parent holds one listening socket per worker (SO_REUSEPORT: the system spreads connections over them), so
connections to a worker that died wait for its successor. A worker that dies, or whose event loop has not run
for `STALL_S`, is started again, three times; one that cannot load its data ends the server.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Coroutine, Sequence
from typing import Any

from retrieval_server.arguments import Arguments
from retrieval_server.backends import start_deadline_s
from retrieval_server.board import Board, State
from retrieval_server.manifest import Manifest
from retrieval_server.serve import BACKLOG
from retrieval_server.status import REFUSED

MAX_RESTARTS = 3
BACKOFF_S = 0.5
STALL_S = 60.0
STOP_S = 15.0
_WATCH_S = 5.0


class ServerEnded(RuntimeError):
    """The server cannot go on; the message says which process and why."""


class ServerRefused(ServerEnded):
    """A process cannot serve what it was given and has said why; that line is to be the last one."""


def listeners(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` listening sockets on one address; port 0 lets the system choose. Raises `OSError`."""
    try:
        places = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        family, kind, proto, _, address = places[0]
        probe = _bound(family, kind, proto, address, shared=False)  # fails if somebody else listens there
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    if count == 1:
        probe.listen(BACKLOG)
        return [probe]
    address = probe.getsockname()
    probe.close()
    found = [_bound(family, kind, proto, address, shared=True) for _ in range(count)]
    for listener in found:
        listener.listen(BACKLOG)
    return found


def _bound(family: int, kind: int, proto: int, address: Any, shared: bool) -> socket.socket:
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _signal(child: Process, signum: signal.Signals) -> None:
    """Send a signal to a child that asyncio waits for.

    `Process.terminate` and `kill` look first whether the child has ended, and then collect its status, which
    asyncio's own wait misses: it warns of an unknown child and reports 255.
    """
    with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
        os.kill(child.pid, signum)


class Group:
    """The parent of the workers."""

    def __init__(self, arguments: Arguments, argv: Sequence[str], sockets: Sequence[socket.socket]) -> None:
        self._arguments = arguments
        self._argv = argv
        self._sockets = sockets
        self._board = Board(arguments.workers)
        self._alive, self._hold = os.pipe()  # its write end closes when this process ends, however it ends
        self._running: dict[str, Process] = {}

    async def run(self) -> None:
        """Until a signal. Raises `ServerEnded`, and `CorpusError` for an index of another corpus."""
        stopped = asyncio.Event()
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
        jobs: list[Coroutine[Any, Any, Any]] = [stopped.wait(), self._index(), self._watch()]
        jobs += [self._keep(number) for number in range(self._arguments.workers)]
        tasks = [asyncio.ensure_future(job) for job in jobs]
        try:
            pending = set(tasks)
            while not tasks[0].done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            await self._stop(tasks)

    async def _index(self) -> None:
        """Have a missing index built, then let the workers load."""
        index, web = self._arguments.index, self._arguments.web
        if index is not None and web is not None:
            if not index.exists():
                module = ("-m", "retrieval_server.index", "--web", str(web), "--index", str(index))
                wait = ("--wait-s", str(start_deadline_s(web)))  # servers that start together share one build
                builder = await self._start("builder", *module, *wait, "--parent", str(self._alive))
                if status := await builder.wait():
                    ended = f"{index} was not built: the builder ended with status {status}"
                    raise ServerRefused(ended) if status == REFUSED else ServerEnded(ended)
            else:
                await asyncio.to_thread(lambda: Manifest.read(index).check(index, web))
        self._board.index_ready = True

    async def _keep(self, number: int) -> None:
        """Start a worker, and again when it dies."""
        inherited = (self._sockets[number].fileno(), self._board.fd, self._alive)
        own = ("-m", "retrieval_server", *self._argv, "--worker", str(number), *map(str, inherited))
        name = f"worker {number}"
        for restart in range(MAX_RESTARTS + 1):
            status = await (await self._start(name, *own, inherited=inherited)).wait()
            self._board.row(number).state = State.STARTING
            if status == REFUSED:
                raise ServerRefused(f"{name} cannot serve")
            print(f"retrieval_server: {name} ended with status {status}", file=sys.stderr)
            await asyncio.sleep(BACKOFF_S * 2**restart)
        raise ServerEnded(f"{name} ended {MAX_RESTARTS + 1} times, last with status {status}")

    async def _start(self, name: str, *argv: str, inherited: Sequence[int] = ()) -> Process:
        started = await asyncio.create_subprocess_exec(
            sys.executable, *argv, pass_fds=(*inherited, self._alive), stdin=DEVNULL
        )
        self._running[name] = started
        return started

    async def _watch(self) -> None:
        """Kill workers whose event loop has not run for `STALL_S`; `_keep` starts them again."""
        while True:
            await asyncio.sleep(_WATCH_S)
            for number, row in enumerate(self._board):
                if row.state is not State.STARTING and row.beat_age_s > STALL_S:
                    print(
                        f"retrieval_server: worker {number} has not moved for {row.beat_age_s:.0f} s; killed",
                        file=sys.stderr,
                    )
                    _signal(self._running[f"worker {number}"], signal.SIGKILL)

    async def _stop(self, tasks: Sequence["asyncio.Future[Any]"]) -> None:
        """Ask all children to end, kill those that have not after `STOP_S` seconds."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        children = [child for child in self._running.values() if child.returncode is None]
        for child in children:
            _signal(child, signal.SIGTERM)
        ends = [asyncio.ensure_future(child.wait()) for child in children]
        if not ends:
            return
        await asyncio.wait(ends, timeout=STOP_S)
        for child in children:
            if child.returncode is None:
                _signal(child, signal.SIGKILL)
        await asyncio.wait(ends)
