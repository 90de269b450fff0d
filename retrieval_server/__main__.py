"""Serve retrieval: `python -m retrieval_server --tasks DIR --web FILE --host 127.0.0.1 --port 8700`."""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from retrieval_server.app import RetrievalService, build_app
from retrieval_server.limits import DEFAULT_MAX_WAITING, SearchQueue
from retrieval_server.store import Store


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="retrieval_server", description=__doc__)
    parser.add_argument("--tasks", type=Path, help="folder of private task trees")
    parser.add_argument("--web", type=Path, help="public corpus, JSON lines {docid, url, text}")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--fingerprint", help="of the data, reported by /health")
    parser.add_argument("--max-waiting", type=int, default=DEFAULT_MAX_WAITING, help="then 429")
    parser.add_argument("--workers", type=int, default=2, help="searches at a time")
    arguments = parser.parse_args(argv)
    if arguments.tasks is None and arguments.web is None:
        parser.error("nothing to serve; pass --tasks DIR, --web FILE or both")
    if arguments.tasks is not None and not arguments.tasks.is_dir():
        parser.error(f"--tasks {arguments.tasks} is not a directory")
    if arguments.web is not None and not arguments.web.is_file():
        parser.error(f"--web {arguments.web} is not a file")
    return arguments


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


async def serve(arguments: argparse.Namespace) -> None:
    """Bind at once, load the index in a thread, serve until a signal. Raises what loading raises."""
    queue = SearchQueue(arguments.workers, arguments.max_waiting)
    service = RetrievalService(fingerprint=arguments.fingerprint, queue=queue, workers=arguments.workers)
    runner = web.AppRunner(build_app(service), access_log=None, shutdown_timeout=5)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await runner.setup()
    try:
        await web.TCPSite(runner, arguments.host, arguments.port, backlog=1024).start()
        loading = asyncio.ensure_future(_in_daemon_thread(Store.load, arguments.tasks, arguments.web))
        stopping = asyncio.ensure_future(stopped.wait())
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            service.store = store = loading.result()
            logging.info("serving %d web documents and %d tasks", store.web_docs, len(store.task_ids))
            await stopping
    finally:
        await runner.cleanup()


def main(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(serve(parse_arguments(argv)))
    except (OSError, ValueError) as error:
        print(f"retrieval_server: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
