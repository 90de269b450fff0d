"""Several engines behind one `generate`: who is in rotation, who is least busy, and trying again elsewhere.

An engine leaves rotation when it fails a request, stalls, or is not healthy, and comes back when its health
check passes and its weights are not older than the version announced. A request that an engine lost starts
again from the prompt; its partial output is discarded.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import aiohttp
import numpy as np

from pipelinerl.engines.answers import Generation, LiveAnswer
from pipelinerl.engines.client import EngineClient
from pipelinerl.engines.engine_metrics import CacheWatch, StallWatch, StartWatch, running_and_tokens
from pipelinerl.engines.errors import AbortedCompletion, EngineError, EngineUnavailable
from pipelinerl.engines.requests import Deadlines, RequestCounts, SamplingParams

log = logging.getLogger(__name__)
# A request to an engine, with the seconds that are left.
Ask = Callable[[EngineClient, float], Coroutine[Any, Any, Generation]]
MAX_TRIES = 8
# First and longest pause before a request goes to an engine that was busy or aborted it.
BACKOFF_S = (0.05, 2.0)


class _Member:
    """One engine as the fleet sees it."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.in_rotation = False
        self.calls: set[asyncio.Task[Any]] = set()
        # Calls the watch ended because the engine stalled; others end with their caller or the fleet.
        self.given_up: set[asyncio.Task[Any]] = set()
        self.watch = StallWatch(client.deadlines.stall_s)
        self.start = StartWatch()
        self.cache = CacheWatch()
        # Why it is out of rotation, for messages.
        self.problem = "not checked yet"


class Fleet:
    """Spreads requests over engines; an async context manager."""

    def __init__(
        self,
        urls: Sequence[str],
        session: aiohttp.ClientSession,
        deadlines: Deadlines | None = None,
        *,
        announced_version: Callable[[], int | None] = lambda: None,
        announced_at: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`announced_version`: the newest version announced to this process, None before the first.

        `announced_at`: when the last announcement was made, in seconds since 1970.
        """
        if not urls:
            raise ValueError("a fleet needs at least one engine URL")
        self.counts = RequestCounts()
        self.deadlines = deadlines or Deadlines()
        self._announced, self._announced_at = announced_version, announced_at
        self._members = [
            _Member(
                EngineClient(
                    url,
                    session,
                    deadlines=self.deadlines,
                    counts=self.counts,
                    announced_version=announced_version,
                )
            )
            for url in urls
        ]
        self._changed = asyncio.Condition()
        self._monitor: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Fleet":
        # Every engine is checked once before the first request.
        await self._check_all()
        self._monitor = asyncio.create_task(self._watch(), name="engine health")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop watching; requests in flight are cancelled."""
        if self._monitor is not None:
            self._monitor.cancel()
            await asyncio.gather(self._monitor, return_exceptions=True)
            self._monitor = None
        calls = [call for member in self._members for call in member.calls]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    @property
    def in_rotation(self) -> list[str]:
        """URLs of the engines that take requests now."""
        return [member.client.base_url for member in self._members if member.in_rotation]

    async def wait_ready(self, deadline_s: float) -> None:
        """Until one engine is in rotation; EngineUnavailable with each engine's problem at the deadline."""
        await self._pick(time.monotonic() + deadline_s)

    async def generate(
        self,
        token_ids: Sequence[int] | np.ndarray,
        sampling: SamplingParams,
        *,
        prefer: str | None = None,
        live: LiveAnswer | None = None,
    ) -> Generation:
        """One continuation from the least busy engine; tries others, from the prompt, when one is lost.

        `prefer`: URL of the engine that is asked if it is in rotation, whoever is least busy.
        `live` gets the tokens as they are sampled; an answer of which it has some is not tried again.
        Raises EngineRequestError at once, EngineUnavailable or AbortedCompletion after the last try or when
        `generate_s` has passed.
        """

        def ask(client: EngineClient, left_s: float) -> Coroutine[Any, Any, Generation]:
            return client.generate(token_ids, sampling, deadline_s=left_s, live=live)

        return await self._ask(ask, prefer, live)

    async def chat(self, fields: Mapping[str, Any], *, prefer: str | None = None) -> Generation:
        """The same for a request to the chat route (`EngineLLM.chat_fields`)."""
        return await self._ask(lambda client, left_s: client.chat(fields, deadline_s=left_s), prefer)

    async def _ask(self, ask: Ask, prefer: str | None, live: LiveAnswer | None = None) -> Generation:
        """Errors and tries as `generate` says."""
        deadline = time.monotonic() + self.deadlines.generate_s
        tries, counted, pause = 0, 0, BACKOFF_S[0]
        while True:
            member = self._preferred(prefer) or await self._pick(deadline)
            tries += 1
            try:
                # aiohttp takes 0 for no deadline at all.
                remaining = max(0.001, deadline - time.monotonic())
                generation = await self._call(member, ask(member.client, remaining))
                generation.tries = tries
                return generation
            except (EngineUnavailable, AbortedCompletion) as error:
                reason = error.reason if isinstance(error, EngineUnavailable) else "abort"
                counted += reason != "busy"  # a full queue is no fault of the request
                if live is not None and live.begun:
                    if reason != "abort":
                        self._leave(member, str(error))
                    raise
                if counted >= MAX_TRIES or time.monotonic() >= deadline:
                    raise
                self.counts.retries[reason] += 1
                # These engines are sound: a queue is full, or a pause ended what was running. They stay in
                # rotation. With any other reason an engine has to pass its next check first.
                if reason in ("busy", "abort"):
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, BACKOFF_S[1])
                else:
                    self._leave(member, str(error))

    async def _call(self, member: _Member, request: Coroutine[Any, Any, Generation]) -> Generation:
        """One request as a task of its own, so that a stalled engine can be given up by the watch."""
        call = asyncio.create_task(request)
        member.calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            # The watch cancelled the call: a stall. Unless the caller was cancelled as well, or the fleet is
            # closing: then the cancellation must go on, or whoever waits for it (a timeout, a task group)
            # would not see its end.
            current = asyncio.current_task()
            if call not in member.given_up or (current is not None and current.cancelling()):
                raise
            raise EngineUnavailable(
                member.client.base_url, "stalled", f"no token for {self.deadlines.stall_s:g} s"
            ) from None
        finally:
            call.cancel()
            member.calls.discard(call)
            member.given_up.discard(call)

    def _preferred(self, url: str | None) -> _Member | None:
        return next((one for one in self._members if one.client.base_url == url and one.in_rotation), None)

    async def _pick(self, deadline: float) -> _Member:
        """The engine in rotation with the fewest requests; waits for one until `deadline`."""
        async with self._changed:
            try:
                # The deadline is one of `time.monotonic`; `timeout_at` wants one of the event loop's clock.
                async with asyncio.timeout_at(
                    deadline - time.monotonic() + asyncio.get_running_loop().time()
                ):
                    while not any(member.in_rotation for member in self._members):
                        await self._changed.wait()
            except TimeoutError:
                problems = "; ".join(f"{one.client.base_url}: {one.problem}" for one in self._members)
                raise EngineUnavailable(
                    "fleet", "no_engine", f"wait for an engine in rotation passed its deadline ({problems})"
                ) from None
        # By this fleet's own calls: what an engine says is as old as the last check, and a burst of requests
        # would go to one engine.
        return min((one for one in self._members if one.in_rotation), key=lambda one: len(one.calls))

    def _leave(self, member: _Member, problem: str) -> None:
        if member.in_rotation:
            log.warning("engine %s leaves rotation: %s", member.client.base_url, problem)
        member.in_rotation, member.problem = False, problem

    async def _enter(self, member: _Member) -> None:
        log.info("engine %s is in rotation", member.client.base_url)
        async with self._changed:
            member.in_rotation, member.problem = True, ""
            self._changed.notify_all()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.deadlines.health_interval_s)
            await self._check_all()

    async def _check_all(self) -> None:
        await asyncio.gather(*(self._check(member) for member in self._members))

    async def _check(self, member: _Member) -> None:
        """Move one engine in or out of rotation."""
        try:
            problem = await self._problem(member)
        except EngineError as error:
            problem = str(error)
        if problem:
            self._leave(member, problem)
        elif not member.in_rotation:
            await self._enter(member)

    async def _problem(self, member: _Member) -> str:
        client = member.client
        if not await client.health():
            return "health check failed"
        # Not at the start of the fleet: an engine may come up later than the actor.
        if client.max_model_len is None:
            await client.load_model_info()
        announced = self._announced()
        # Before the first announcement there is no version that an engine could be behind.
        version = await client.weight_version() if announced is not None else None
        if version is not None and announced is not None and version < announced:
            return f"has weights {version}, announced are {announced}"
        metrics = await client.metrics()
        started_at = member.start.started_at(metrics, time.time())
        queries, hits = member.cache.since_last(metrics)
        self.counts.cache_queries += queries
        self.counts.cache_hits += hits
        if version is None and announced is not None and started_at > self._announced_at():
            # vLLM 0.26 does not say which weights it has; a new process has those it loaded.
            return f"was started after version {announced} was announced"
        running, tokens = running_and_tokens(metrics)
        if not member.calls and tokens == member.watch.seen:  # nothing for others either
            running = 0.0  # whatever one of several HTTP processes has said last
        if member.in_rotation:
            # Engines that start or wait for weights have nothing to do for other reasons than a lack of
            # requests.
            self.counts.checks += 1
            self.counts.idle_checks += running == 0
            self.counts.running += running
        if member.watch.stalled(running, tokens, time.monotonic()):
            # In the pause of a weight update requests are running and no token comes: no stall.
            if await client.is_paused():
                member.watch.restart(time.monotonic())
                return ""
            # Noted before they are cancelled: by this `_call` tells a stall from a caller that went away.
            member.given_up |= member.calls
            for call in list(member.calls):
                call.cancel()
            return f"no new token for {self.deadlines.stall_s:g} s with {running:g} requests running"
        return ""
