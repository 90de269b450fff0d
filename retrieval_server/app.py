"""The HTTP face of a `Store`: two searches, health with request counters, errors as JSON objects.

Searches and their JSON encoding run in worker threads, so the event loop only parses and forwards. Queries
are never logged: private ones belong to their task, web ones to the caller's audit log.
"""

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import web

from retrieval_server import __version__
from retrieval_server.access import Gate
from retrieval_server.board import ROUTES, Board, State
from retrieval_server.http_errors import Handler, answered, read_body
from retrieval_server.limits import (
    MAX_BODY_BYTES,
    RequestError,
    SearchQueue,
    parse_known,
    parse_local_search,
    parse_object,
    parse_web_search,
)
from retrieval_server.malformed import UNCOMPRESSED, log_one_line
from retrieval_server.store import Store, UnknownTask
from retrieval_server.world import HEADER, in_header

LOCAL_ROUTE, WEB_ROUTE, _ = ROUTES
OPEN_ROUTES = ("/health", "/ready")  # supervisors ask without a token
KNOWN_ROUTE = "/known"
PATHS = f"/health, {KNOWN_ROUTE}, {LOCAL_ROUTE} or {WEB_ROUTE}"


class RetrievalService:
    """State of one process of the server: the store once it is loaded, the queue, its row of the board."""

    def __init__(
        self,
        store: Store | None = None,
        fingerprint: str | None = None,
        queue: SearchQueue | None = None,
        threads: int = 2,
        token: str | None = None,
        board: Board | None = None,
        number: int = 0,
    ) -> None:
        self.fingerprint = fingerprint
        self.queue = queue or SearchQueue(threads)
        self.board = board or Board(1)
        self.row = self.board.row(number)
        self.row.begin()
        self._store: Store | None = None
        self._gate = Gate(token)
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="search")
        self._started = time.monotonic()
        if store is not None:
            self.store = store

    @property
    def store(self) -> Store | None:
        """What is searched; None until it is loaded."""
        return self._store

    @store.setter
    def store(self, store: Store) -> None:
        self._store = store
        self.row.state = State.OK

    @property
    def world(self) -> str | None:
        """What is served, as every answer tells it; None while data without a fingerprint are loaded."""
        if self.fingerprint is not None:
            return in_header(self.fingerprint)
        return None if self._store is None else self._store.digest

    async def health(self, request: web.Request) -> web.Response:
        """`GET /health`: state, sizes and counters of the whole server, also while it loads.

        Without the token of a server that has one, only the state is told, and that the token is missing.
        """
        body: dict[str, Any] = {"status": "ok" if self.board.all_ok else "loading", "version": __version__}
        if self._gate.admits(request.headers.get("Authorization")):
            body |= self._details()
        else:
            body["authorized"] = False
        return web.json_response(body)

    async def ready(self, _: web.Request) -> web.Response:
        """`GET /ready`: 200 once every process can search, 503 before."""
        if not self.board.all_ok:
            raise RequestError(503, "loading", "the index is loading; retry shortly", 1)
        return web.json_response({"status": "ok"})

    def _details(self) -> dict[str, Any]:
        store = self.store
        self.row.waiting = self.queue.waiting
        return {
            "fingerprint": self.fingerprint,
            "web_docs": store.web_docs if store else 0,
            "web_docs_skipped_empty": store.skipped_web_docs if store else 0,
            "tasks": len(store.task_ids) if store else 0,
            "index": store.backend if store else None,
            "max_hit_chars": store.bounds.hit_chars if store else None,
            "max_answer_chars": store.bounds.answer_chars if store else None,
            "uptime_s": round(time.monotonic() - self._started, 3),
            "waiting": self.board.waiting,
            "requests": self.board.requests(),
            "workers": self.board.describe(),
        }

    async def search_local(self, request: web.Request) -> web.Response:
        """`POST /local/search`: one task's private documents."""
        store = self._loaded_store()
        search = parse_local_search(parse_object(await read_body(request, MAX_BODY_BYTES)))
        try:
            return await self._answer(
                store.search_local,
                search.task_id,
                search.query,
                search.k,
                search.threshold,
                search.max_chars,
                search.max_answer_chars,
            )
        except UnknownTask as error:
            raise RequestError(404, "unknown_task", f"no task {search.task_id!r} is loaded") from error

    async def search_web(self, request: web.Request) -> web.Response:
        """`POST /browsecomp/search`: the public corpus."""
        store = self._loaded_store()
        search = parse_web_search(parse_object(await read_body(request, MAX_BODY_BYTES)))
        chars = search.max_chars, 0.0, search.max_answer_chars
        return await self._answer(store.search_web, search.query, search.k, *chars)

    async def known(self, request: web.Request) -> web.Response:
        """`POST /known`: which named tasks, pages and texts are not served, asked before a run starts."""
        store = self._loaded_store()
        tasks, pages, texts = parse_known(parse_object(await read_body(request, MAX_BODY_BYTES)))

        def missing() -> dict[str, Any]:
            return {
                "documents": store.documents(tasks),
                "missing_tasks": store.missing_tasks(tasks),
                "missing_pages": store.missing_pages(pages),
                "other_texts": store.other_texts(texts),
            }

        async with self.queue.slot():
            body = await asyncio.get_running_loop().run_in_executor(self._threads, missing)
        return web.json_response(body)

    def _loaded_store(self) -> Store:
        if self.store is None:
            raise RequestError(503, "loading", "the index is loading; retry shortly", 1)
        return self.store

    async def _answer(self, search: Callable[..., list[dict[str, Any]]], *arguments: Any) -> web.Response:
        def encoded() -> bytes:
            return json.dumps({"hits": search(*arguments)}).encode()

        async with self.queue.slot():
            body = await asyncio.get_running_loop().run_in_executor(self._threads, encoded)
        return web.Response(body=body, content_type="application/json")

    @web.middleware
    async def errors_as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count the request and turn every failure into `{"error": {"code", "message"}}`."""
        self.row.count_received(request.path)

        async def admitted(request: web.Request) -> web.StreamResponse:
            self._check_access(request)
            return await handler(request)

        response = await answered(request, admitted, PATHS, MAX_BODY_BYTES, self._gate.asks)
        if self.world is not None and self._gate.admits(request.headers.get("Authorization")):
            response.headers[HEADER] = self.world
        self.row.count_answered(request.path, response.status)
        self.row.waiting = self.queue.waiting
        return response

    def _check_access(self, request: web.Request) -> None:
        """Raises `RequestError` 401 without the token."""
        if request.path not in OPEN_ROUTES and not self._gate.admits(request.headers.get("Authorization")):
            raise RequestError(401, "unauthorized", "send the header Authorization: Bearer TOKEN")

    async def close(self, _: web.Application) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def build_app(service: RetrievalService) -> web.Application:
    """The aiohttp application around a service; the store may still be loading."""
    app = web.Application(
        middlewares=[service.errors_as_json], client_max_size=MAX_BODY_BYTES, handler_args=UNCOMPRESSED
    )
    app.router.add_get("/health", service.health)
    app.router.add_get("/ready", service.ready)
    app.router.add_post(KNOWN_ROUTE, service.known)
    app.router.add_post(LOCAL_ROUTE, service.search_local)
    app.router.add_post(WEB_ROUTE, service.search_web)
    app.on_cleanup.append(service.close)
    log_one_line()
    return app
