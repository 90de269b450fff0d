"""Requests in flight between the event loop and the engine thread: how many may be, and where results go.

Handlers of all routes wait here for the engine; everything in this file runs in the event loop.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from pipelinerl.engines.openai.protocol import BadRequest
from pipelinerl.engines.serving.sequence import Request, Result
from pipelinerl.engines.serving.thread import Engine


class QueueFull(RuntimeError):
    """As many sequences wait as may wait (HTTP 503)."""


class RequestFailed(RuntimeError):
    """The engine accepted the request and could not finish it (HTTP 500)."""


class PendingRequests:
    """Hands requests to the engine; `deliver` brings back what it says, in the event loop.

    No deadline here: the client's is the only one that knows what an answer is worth. A handler that is
    cancelled, because its connection was closed, aborts its requests.
    """

    def __init__(self, max_num_seqs: int, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._capacity = max_num_seqs + max_waiting
        self._sequences = 0
        self._results: dict[str, asyncio.Queue[Result]] = {}

    async def run(self, engine: Engine, requests: Sequence[Request]) -> None:
        """Wait for the end of all. Raises as `stream`."""
        async with aclosing(self.stream(engine, requests)) as results:
            async for _ in results:
                pass

    async def stream(self, engine: Engine, requests: Sequence[Request]) -> AsyncGenerator[Result]:
        """Pieces as they are sampled, and the end of each. Raises BadRequest, QueueFull or RequestFailed."""
        self._check(engine, requests)
        results: asyncio.Queue[Result] = asyncio.Queue()
        left = {one.request_id for one in requests}
        count = sum(len(request.sequences) for request in requests)
        self._results |= dict.fromkeys(left, results)
        self._sequences += count
        try:
            for request in requests:
                engine.submit(request)
            while left:
                request, piece = await results.get()
                # An id may be in use again while the end of the request that had it before is under way.
                if request not in requests:
                    continue
                if piece is None:
                    left.remove(request.request_id)
                if request.error:
                    raise RequestFailed(request.error)
                yield request, piece
        finally:
            # Nobody waits for these any more, and the engine still samples them.
            if left:
                engine.abort(list(left))
            self._sequences -= count
            for request in requests:
                del self._results[request.request_id]

    def deliver(self, results: Sequence[Result]) -> None:
        """What the engine says of requests, of which some may have been given up meanwhile."""
        for request, piece in results:
            if request.request_id in self._results:
                self._results[request.request_id].put_nowait((request, piece))

    def check_count(self, count: int) -> None:
        """Raises BadRequest for more sequences in one request than can ever fit, before they are made."""
        if count > self._capacity:
            raise BadRequest(f"{count} sequences in one request; at most {self._capacity} fit this engine")

    def _check(self, engine: Engine, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.request_id in self._results:
                raise BadRequest(
                    f"request_id {request.request_id!r} is in flight already; ids must be unique"
                )
        count = sum(len(request.sequences) for request in requests)
        # Before the queue is looked at: what can never fit is the caller's error (400), a full queue passes
        # (503).
        self.check_count(count)
        if not engine.healthy:
            raise QueueFull("the engine cannot generate any more")
        if self._sequences + count > self._capacity:
            raise QueueFull(f"{self._max_waiting} sequences are waiting already; try again later")
