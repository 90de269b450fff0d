"""JSON over HTTP with bounded retries, deadlines and typed failures.

The only HTTP client of the domain: searches, privacy scores and the leakage evaluation's language models go
through it, so that a refusal is told from passing trouble in one way.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import aiohttp

from domains.privacy_hopqa.agent.errors import TransportFailure

MAX_RETRY_AFTER_S = 30.0
T = TypeVar("T")


class RequestRefused(Exception):
    """The service will not answer this request (3xx, 4xx but 429, no JSON); trying again is useless."""

    def __init__(self, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.status = status

    @property
    def of_request(self) -> bool:
        """Whether the body is at fault (a query that is too long), and not what the service serves."""
        return self.status in (400, 413, 422)


class Unavailable(Exception):
    """This attempt failed for a reason that may pass; `retry_after_s` is what the service asked for.

    `status` is that of its answer, None without one; `elsewhere`: another server can be asked at once.
    """

    def __init__(self, message: str, retry_after_s: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s, self.status = retry_after_s, status
        self.elsewhere = False


@dataclass(frozen=True, slots=True)
class Retries:
    """Waits between attempts, in seconds; their number is the number of retries.

    While the trouble has lasted less than `outage_s` seconds, the last wait is repeated.
    """

    backoff_s: tuple[float, ...] = (0.5, 1.0, 2.0)
    jitter: float = 0.25
    outage_s: float = 0.0

    def wait_s(self, attempt: int, retry_after_s: float | None) -> float:
        """Before the retry that follows attempt `attempt` (0-based)."""
        wait = self.backoff_s[min(attempt, len(self.backoff_s) - 1)]
        if retry_after_s is not None:
            wait = max(wait, min(retry_after_s, MAX_RETRY_AFTER_S))
        return wait * (1 + self.jitter * random.random())


async def with_retries(attempt_once: Callable[[], Awaitable[T]], retries: Retries) -> T:
    """Call until it does not raise Unavailable. Raises TransportFailure once the retries are spent."""
    start, attempt = time.monotonic(), 0
    while True:
        try:
            return await attempt_once()
        except Unavailable as error:
            if error.elsewhere:
                continue
            lasted_s = time.monotonic() - start
            if attempt >= len(retries.backoff_s) and lasted_s >= retries.outage_s:
                raise TransportFailure(f"{error} ({attempt + 1} attempts)") from None
            await asyncio.sleep(retries.wait_s(attempt, error.retry_after_s))
            attempt += 1


class Client(Protocol):
    """Who asks a service: `JsonClient`, or `ReplicatedClient` where several servers are one service."""

    retries: Retries

    async def post(self, path: str, body: object) -> Any: ...

    async def once(self, method: str, path: str, body: object = None) -> Any: ...


Check = Callable[[str, Mapping[str, str]], None]
"""Gets a service's address and the headers of its answer. Raises ValueError for one that must not count."""


class JsonClient:
    """Asks one service.

    A refusal is told by its status alone, because its text may quote queries and private facts and failures
    of rollouts are logged; `quote_refusals` adds the text. `check` sees the headers of every good answer.
    """

    def __init__(
        self,
        base_url: str,
        session: aiohttp.ClientSession,
        timeout_s: float,
        retries: Retries | None = None,
        headers: Mapping[str, str] | None = None,
        quote_refusals: bool = False,
        check: Check | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._session = session
        self._timeout_s = timeout_s
        self._headers = headers
        self._quote_refusals = quote_refusals
        self._check = check
        self.retries = retries or Retries()

    async def post(self, path: str, body: object) -> Any:
        """The answer's JSON. Raises RequestRefused or TransportFailure."""
        return await with_retries(lambda: self.once("POST", path, body), self.retries)

    async def once(self, method: str, path: str, body: object = None) -> Any:
        """One attempt. Raises RequestRefused or Unavailable, and what `check` raises."""
        url = self.base_url + path
        try:
            async with asyncio.timeout(self._timeout_s):
                # A redirect would carry queries and keys to an address that nobody named or audited.
                async with self._session.request(
                    method, url, json=body, headers=self._headers, allow_redirects=False
                ) as response:
                    return await self._answer(url, response)
        except TimeoutError:
            raise Unavailable(f"{url} did not answer within {self._timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            raise Unavailable(f"{url}: {type(error).__name__}: {error}") from None

    async def _answer(self, url: str, response: aiohttp.ClientResponse) -> Any:
        if response.status == 429 or response.status >= 500:
            said = f"{url} answered {response.status}"
            raise Unavailable(said, _retry_after_s(response), response.status)
        if response.status != 200:
            text = f": {(await response.text())[:200]}" if self._quote_refusals else ""
            raise RequestRefused(f"{url} answered {response.status}{text}", response.status)
        if self._check is not None:
            self._check(self.base_url, response.headers)
        try:
            return await response.json(content_type=None)
        except (ValueError, RecursionError):
            raise RequestRefused(f"{url} answered 200 without JSON") from None


def _retry_after_s(response: aiohttp.ClientResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None
