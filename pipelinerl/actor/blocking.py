"""Requests of rollouts that are plain functions: made on the event loop, waited for in their thread."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp


class BlockingCalls:
    """What one rollout asks from threads; `close` ends it with the rollout.

    A thread cannot be cancelled, so the requests of a rollout that was given up would go on behind its back:
    taking tokens from an engine and, at the end of a run, outliving the session that carries them.
    """

    def __init__(self, session: aiohttp.ClientSession, deadline_s: float):
        """To be made on the event loop that owns `session`."""
        self._session, self._deadline_s = session, deadline_s
        self._loop, self._home = asyncio.get_running_loop(), threading.get_ident()
        self._lock = threading.Lock()
        self._open: set[concurrent.futures.Future[Any]] = set()
        self._closed = False

    def __call__(self, request: Callable[[aiohttp.ClientSession], Awaitable[Any]]) -> Any:
        """The request's answer. Raises RuntimeError on the loop's own thread, CancelledError once closed."""
        if threading.get_ident() == self._home:
            raise RuntimeError("a blocking call on the event loop; await llm_async_generate instead")

        async def asked() -> Any:
            return await request(self._session)

        # Under the lock, or a request could slip in between `close` cancelling the others and refusing more.
        with self._lock:
            if self._closed:
                raise concurrent.futures.CancelledError("the rollout was given up")
            future = asyncio.run_coroutine_threadsafe(asked(), self._loop)
            self._open.add(future)
        # The deadline is the rollout's: a request has its own, so this ends a wait for a loop that is gone.
        try:
            return future.result(self._deadline_s)
        finally:
            with self._lock:
                self._open.discard(future)

    def close(self) -> None:
        """Cancel what is under way and refuse what comes later."""
        with self._lock:
            self._closed, futures = True, list(self._open)
        for future in futures:
            future.cancel()
