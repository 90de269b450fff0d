"""Requests in flight between the event loop and the engine thread: how many may be, and where results go.

Handlers of all routes wait here for the engine; everything in this file runs in the event loop.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pipelinerl.inference.embedded.engine import Engine
from pipelinerl.inference.embedded.protocol import BadRequest
from pipelinerl.inference.embedded.sequence import Piece, Request

# A token of a request, or its end.
StreamItem = tuple[Request, Piece | None]


class QueueFull(RuntimeError):
    """As many sequences wait as may wait (HTTP 503)."""


class RequestFailed(RuntimeError):
    """The engine accepted the request and could not finish it (HTTP 500)."""


class PendingRequests:
    """Hands requests to the engine; `finish` and `add_tokens` bring back what it says, in the event loop.

    No deadline here: the client's is the only one that knows what an answer is worth. A handler that is
    cancelled, because its connection was closed, aborts its requests.
    """

    def __init__(self, max_num_seqs: int, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._capacity = max_num_seqs + max_waiting
        self._sequences = 0
        self._ends: dict[str, asyncio.Future[Request]] = {}
        self._streams: dict[str, asyncio.Queue[StreamItem]] = {}

    async def run(self, engine: Engine, requests: Sequence[Request]) -> None:
        """Wait for the end of all. Raises BadRequest, QueueFull or RequestFailed."""
        with self._in_flight(engine, requests) as ends:
            await asyncio.gather(*ends)
        for request in requests:
            if request.error:
                raise RequestFailed(request.error)

    async def stream(self, engine: Engine, requests: Sequence[Request]) -> AsyncGenerator[StreamItem]:
        """Tokens of all as they are sampled, and the end of each. Raises as `run`."""
        items: asyncio.Queue[StreamItem] = asyncio.Queue()
        with self._in_flight(engine, requests, items) as ends:
            left = len(ends)
            while left:
                request, event = await items.get()
                if request.error:
                    raise RequestFailed(request.error)
                left -= event is None
                yield request, event

    def finish(self, requests: Sequence[Request]) -> None:
        """These requests ended."""
        for request in requests:
            future = self._ends.get(request.request_id)
            # Done already where the handler was cancelled while the result was on its way.
            if future is not None and not future.done():
                future.set_result(request)
            if request.request_id in self._streams:
                self._streams[request.request_id].put_nowait((request, None))

    def add_tokens(self, events: Sequence[tuple[Request, Piece]]) -> None:
        """These tokens were sampled."""
        for request, event in events:
            if request.request_id in self._streams:
                self._streams[request.request_id].put_nowait((request, event))

    @contextmanager
    def _in_flight(
        self,
        engine: Engine,
        requests: Sequence[Request],
        items: asyncio.Queue[StreamItem] | None = None,
    ) -> Iterator[list[asyncio.Future[Request]]]:
        self._check(engine, requests)
        loop = asyncio.get_running_loop()
        count = sum(len(request.sequences) for request in requests)
        ends: dict[str, asyncio.Future[Request]] = {one.request_id: loop.create_future() for one in requests}
        self._ends |= ends
        self._sequences += count
        if items is not None:
            self._streams |= dict.fromkeys(ends, items)
        try:
            for request in requests:
                engine.submit(request)
            yield list(ends.values())
        finally:
            # A cancelled `gather` cancels its futures: they are done, yet the engine still samples.
            left = [name for name, end in ends.items() if not end.done() or end.cancelled()]
            if left:
                engine.abort(left)
            self._sequences -= count
            for name in ends:
                del self._ends[name]
                self._streams.pop(name, None)

    def _check(self, engine: Engine, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.request_id in self._ends:
                raise BadRequest(
                    f"request_id {request.request_id!r} is in flight already; ids must be unique"
                )
        count = sum(len(request.sequences) for request in requests)
        # Before the queue is looked at: what can never fit is the caller's error (400), a full queue passes
        # (503).
        if count > self._capacity:
            raise BadRequest(f"{count} sequences in one request; at most {self._capacity} fit this engine")
        if not engine.healthy:
            raise QueueFull("the engine cannot generate any more")
        if self._sequences + count > self._capacity:
            raise QueueFull(f"{self._max_waiting} sequences are waiting already; try again later")


def error_body(error: BaseException, status: int, kind: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients expect it, on one line."""
    message = " ".join(str(error).split())
    return {
        "error": {"message": message, "type": kind or type(error).__name__, "param": None, "code": status}
    }
