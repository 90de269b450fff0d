"""One serving process: bind at once, load in a thread, answer until a signal or the end of the parent."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web

from retrieval_server.app import RetrievalService, build_app
from retrieval_server.arguments import Arguments
from retrieval_server.board import Board, State
from retrieval_server.limits import SearchQueue
from retrieval_server.store import Store

BEAT_S = 1.0
_INDEX_POLL_S = 0.2
BACKLOG = 1024


async def serve(
    arguments: Arguments, listener: socket.socket, board: Board, number: int = 0, parent: int | None = None
) -> None:
    """Serve on a bound socket. `parent` is a pipe whose end of file says that the parent is gone.

    Raises what loading raises: `CorpusError`, `OSError`.
    """
    service = _service(arguments, board, number)
    runner = web.AppRunner(build_app(service), access_log=None, shutdown_timeout=5)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stopped.set)
    if parent is not None:
        loop.add_reader(parent, _stop_at_end_of_file, parent, stopped)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        beating = asyncio.ensure_future(_beat(service))
        loading = asyncio.ensure_future(_load(service, arguments))
        stopping = asyncio.ensure_future(stopped.wait())
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():  # its failure counts even when a signal came at the same moment
            service.store = store = loading.result()
            logging.info(
                "serving %d web documents (%s) and %d tasks",
                store.web_docs,
                store.backend,
                len(store.task_ids),
            )
            await stopping
        loading.cancel()
        beating.cancel()
    finally:
        await runner.cleanup()


def _service(arguments: Arguments, board: Board, number: int) -> RetrievalService:
    waiting = -(-arguments.max_waiting // arguments.workers)
    return RetrievalService(
        fingerprint=arguments.fingerprint,
        queue=SearchQueue(arguments.threads, waiting),
        threads=arguments.threads,
        token=arguments.token,
        board=board,
        number=number,
    )


def _stop_at_end_of_file(parent: int, stopped: asyncio.Event) -> None:
    if os.read(parent, 1) == b"":
        asyncio.get_running_loop().remove_reader(parent)
        stopped.set()


async def _beat(service: RetrievalService) -> None:
    while True:
        service.row.beat()
        await asyncio.sleep(BEAT_S)


async def _load(service: RetrievalService, arguments: Arguments) -> Store:
    """Wait for the parent to have the index built, whose own life bounds this wait; then load."""
    service.row.state = State.BUILDING
    while arguments.index is not None and not service.board.index_ready:  # noqa: ASYNC110 - another process
        await asyncio.sleep(_INDEX_POLL_S)
    service.row.state = State.LOADING
    return await _in_daemon_thread(
        Store.load, arguments.tasks, arguments.web, arguments.index, arguments.bounds
    )


async def _in_daemon_thread(function: Callable[..., Store], *arguments: Any) -> Store:
    """Run a function in a thread that does not keep the process alive after a signal."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Store] = loop.create_future()

    def settle(result: Store | None, error: Exception | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        elif result is not None:
            outcome.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = function(*arguments)
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed when a signal came first
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="load-index", daemon=True).start()
    return await outcome
