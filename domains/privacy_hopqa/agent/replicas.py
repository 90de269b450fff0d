"""Several retrieval servers over the same data, asked as if they were one; made once per rollout worker.

A request goes to the server with the fewest requests of this process. A server that does not answer is left
out: the request goes to another one at once, and the server is asked for its health, at growing intervals,
until it may serve again. Which server answers is of no consequence: they hold no state, and all rank alike.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from domains.privacy_hopqa.agent.transport import Check, JsonClient, Retries, Unavailable, with_retries

HEALTH_DEADLINE_S = 5.0
"""A server that does not tell its health within this time is left out."""
WATCH_S = 10.0
"""So long may a request last before its server is asked for its health, and again each time it passes."""
LEAVE_OUT_S = (1.0, 2.0, 5.0, 10.0)
"""Before a server that is left out is asked again; the last one is repeated."""
GONE = frozenset({502, 503, 504})
"""Answers of a server that loads, or of a proxy whose server is gone; 429 and 500 are of the request."""

Admit = Callable[[JsonClient], Awaitable[Any]]
"""Asks a server for its health. Raises Unavailable, or ValueError if it serves something else."""
logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Replica:
    """One server, as this process knows it."""

    url: str
    serves: bool = False
    in_flight: int = 0
    failures: int = 0
    """Since it last answered a request."""
    trouble: str = "not asked yet"
    wrong: ValueError | None = None
    ask_at: float = 0.0
    """When it may be asked for its health again, by `time.monotonic`."""
    asking: "asyncio.Task[None] | None" = None


class Replicas:
    """Who serves, and who is left out until when."""

    def __init__(self, urls: Sequence[str], admit: Admit, check: Check | None = None) -> None:
        self.all = [Replica(url) for url in urls]
        self._admit = admit
        self.check = check
        """Sees the headers of every answer; a server that it refuses is left out."""

    def client(
        self,
        session: aiohttp.ClientSession,
        timeout_s: float,
        retries: Retries,
        headers: Mapping[str, str] | None = None,
    ) -> "ReplicatedClient":
        """A client for one rollout; all clients of a process share what is known of the servers."""
        return ReplicatedClient(self, session, timeout_s, retries, headers)

    def least_busy(self) -> Replica | None:
        """A server with the fewest requests of this process; None if all are left out."""
        serving = [replica for replica in self.all if replica.serves]
        fewest = min((replica.in_flight for replica in serving), default=0)
        idle = [replica for replica in serving if replica.in_flight == fewest]
        return random.choice(idle) if idle else None

    def leave_out(self, replica: Replica, trouble: str) -> None:
        """`replica` gets no requests until it has told that it is well."""
        wait_s = LEAVE_OUT_S[min(replica.failures, len(LEAVE_OUT_S) - 1)]
        replica.failures += 1
        replica.trouble, replica.ask_at = trouble, time.monotonic() + wait_s
        if replica.serves:
            replica.serves = False
            left = sum(other.serves for other in self.all)
            logger.warning("%s; left out, %d of %d retrieval servers serve", trouble, left, len(self.all))

    def ask(self, replica: Replica, client: JsonClient) -> "asyncio.Task[None]":
        """A task that asks for the health of `replica`; requests that need it at the same time share it."""
        if replica.asking is None or replica.asking.done():
            replica.asking = asyncio.create_task(self._ask(replica, client))
        return replica.asking

    async def _ask(self, replica: Replica, client: JsonClient) -> None:
        try:
            await self._admit(client)
        except (Unavailable, ValueError) as error:
            replica.wrong = error if isinstance(error, ValueError) else None
            self.leave_out(replica, str(error))
            return
        if not replica.serves and replica.failures:
            logger.warning("%s answers again", replica.url)
        replica.serves, replica.wrong = True, None

    def outage(self) -> Exception:
        """Why no server can be asked, in one line: what is wrong with each of them."""
        said = f"none of {len(self.all)} retrieval servers can be asked: "
        said += "; ".join(replica.trouble for replica in self.all)
        return ValueError(said) if all(replica.wrong for replica in self.all) else Unavailable(said)


class ReplicatedClient:
    """Asks one of several servers, as `JsonClient` asks one."""

    def __init__(
        self,
        replicas: Replicas,
        session: aiohttp.ClientSession,
        timeout_s: float,
        retries: Retries,
        headers: Mapping[str, str] | None,
    ) -> None:
        self.retries = retries
        self._replicas = replicas
        self._session, self._timeout_s, self._headers = session, timeout_s, headers

    async def post(self, path: str, body: object) -> Any:
        """The answer's JSON. Raises RequestRefused or TransportFailure."""
        return await with_retries(lambda: self.once("POST", path, body), self.retries)

    async def once(self, method: str, path: str, body: object = None) -> Any:
        """One attempt at one server. Raises RequestRefused, Unavailable, or ValueError for foreign data.

        It is never repeated here, so that a caller who logs each attempt logs each request that leaves;
        `Unavailable.elsewhere` says that another server can be asked at once.
        """
        replica = await self._serving()
        replica.in_flight += 1
        try:
            answer = await self._watched(replica, method, path, body)
        except Unavailable as error:
            if error.status is not None and error.status not in GONE:
                raise
            if replica.serves:  # else the watch, or another request, has left it out already
                self._replicas.leave_out(replica, str(error))
            error.elsewhere = self._replicas.least_busy() is not None
            raise
        except ValueError as error:
            replica.wrong = error
            self._replicas.leave_out(replica, str(error))
            wrong = Unavailable(str(error))
            wrong.elsewhere = self._replicas.least_busy() is not None
            raise wrong from None
        finally:
            replica.in_flight -= 1
        replica.failures = 0
        return answer

    async def _serving(self) -> Replica:
        """A server to ask. With none, all are asked for their health, and the first that is well is taken."""
        now = time.monotonic()
        for replica in self._replicas.all:
            if not replica.serves and replica.ask_at <= now:
                self._ask(replica)
        found = self._replicas.least_busy()
        if found is None:
            asked: set[asyncio.Task[None]] = {self._ask(replica) for replica in self._replicas.all}
            while asked and (found := self._replicas.least_busy()) is None:
                _, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            found = self._replicas.least_busy()
        if found is None:
            raise self._replicas.outage()
        return found

    def _ask(self, replica: Replica) -> "asyncio.Task[None]":
        return self._replicas.ask(replica, self._to(replica, HEALTH_DEADLINE_S))

    def _to(self, replica: Replica, timeout_s: float) -> JsonClient:
        check = self._replicas.check
        return JsonClient(replica.url, self._session, timeout_s, self.retries, self._headers, check=check)

    async def _watched(self, replica: Replica, method: str, path: str, body: object) -> Any:
        """The answer, unless the server stops telling its health meanwhile: a host whose link is cut says
        nothing, and a search may take as long as `helper_timeout_s`."""
        asking = asyncio.ensure_future(self._to(replica, self._timeout_s).once(method, path, body))
        try:
            while not (await asyncio.wait({asking}, timeout=WATCH_S))[0]:
                await asyncio.wait({self._ask(replica)})
                if not replica.serves:
                    raise Unavailable(f"{path} waited {WATCH_S:g} s or more for {replica.trouble}")
            return asking.result()
        finally:
            asking.cancel()
