"""What a request may ask for, and how many may wait: typed requests, errors as values, a bounded queue."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from retrieval_server.corpus import TASK_ID

MAX_BODY_BYTES = 256 * 1024
MAX_QUERY_CHARS = 2000
MAX_K = 50
DEFAULT_K = 5
DEFAULT_MAX_WAITING = 512
QUEUE_DEADLINE_S = 60.0


class RequestError(Exception):
    """An answer other than 200: HTTP status, machine-readable code, one line for people."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class LocalSearch:
    """A search of one task's private documents."""

    task_id: str
    query: str
    k: int
    threshold: float
    max_chars: int
    max_answer_chars: int


@dataclass(frozen=True, slots=True)
class WebSearch:
    """A search of the public corpus; `max_chars` None means 8,000, 0 as much as the server gives."""

    query: str
    k: int
    max_chars: int | None
    max_answer_chars: int


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request body. Raises `RequestError` 400."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "bad_json", "the body is not valid JSON; send one object") from error
    if not isinstance(value, dict):
        raise RequestError(400, "wrong_type", f"the body is a {type(value).__name__}; send one object")
    return value


def parse_local_search(fields: dict[str, Any]) -> LocalSearch:
    """Raises `RequestError` 400 that names the field, its value and what is allowed."""
    task_id = string_field(fields, "task_id")
    if not TASK_ID.fullmatch(task_id):
        raise RequestError(400, "out_of_range", f"task_id must match ^{TASK_ID.pattern}$")
    threshold = fields.get("threshold", 0.0)
    if isinstance(threshold, bool) or not isinstance(threshold, int | float):
        raise wrong_type("threshold", threshold, "a number")
    if not abs(threshold) <= sys.float_info.max:  # also true of NaN, and of integers that no double holds
        raise RequestError(400, "out_of_range", "threshold must be a finite double")
    chars = _chars(fields, "max_chars"), _chars(fields, "max_answer_chars")
    return LocalSearch(task_id, _query(fields), _k(fields), float(threshold), *chars)


def parse_web_search(fields: dict[str, Any]) -> WebSearch:
    """Raises `RequestError` 400. `task_id` is checked and has no effect: all tasks share the web index."""
    if fields.get("task_id") is not None:
        string_field(fields, "task_id")
    max_chars = None if fields.get("max_chars") is None else _chars(fields, "max_chars")
    return WebSearch(_query(fields), _k(fields), max_chars, _chars(fields, "max_answer_chars"))


def parse_known(fields: dict[str, Any]) -> tuple[list[str], list[str], dict[str, str]]:
    """Ids of tasks and of pages, and digests of texts by id, asked for. Raises `RequestError` 400."""
    names = ("tasks", "pages", "texts")
    if unknown := [name for name in fields if name not in names]:
        raise RequestError(400, "unknown", f"{unknown[0][:60]!r} is unknown; send some of {', '.join(names)}")
    found = []
    for name in ("tasks", "pages"):
        ids = fields.get(name, [])
        if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
            raise wrong_type(name, ids, "a list of strings")
        found.append(ids)
    digests = fields.get("texts", {})
    if not isinstance(digests, dict) or not all(isinstance(one, str) for one in digests.values()):
        raise wrong_type("texts", digests, "an object of strings")
    return found[0], found[1], digests


def _query(fields: dict[str, Any]) -> str:
    query = string_field(fields, "query")
    if not 1 <= len(query) <= MAX_QUERY_CHARS:
        raise RequestError(
            400, "out_of_range", f"query has {len(query)} characters; 1 to {MAX_QUERY_CHARS} are allowed"
        )
    return query


def _k(fields: dict[str, Any]) -> int:
    return _integer("k", fields.get("k", DEFAULT_K), 1, MAX_K)


def _chars(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    return 0 if value is None else _integer(name, value, 0, None)


def string_field(fields: Mapping[str, Any], name: str, where: str = "") -> str:
    """The field; `where` is what stands before its name in the `RequestError` 400 that is raised."""
    if name not in fields:
        raise RequestError(400, "missing", f"{where}{name} is missing; send a string")
    value = fields[name]
    if not isinstance(value, str):
        raise wrong_type(f"{where}{name}", value, "a string")
    return value


def wrong_type(name: str, value: Any, expected: str) -> RequestError:
    """The error for a field that holds something else than `expected`."""
    return RequestError(400, "wrong_type", f"{name} is a {type(value).__name__}; send {expected}")


def _integer(name: str, value: Any, low: int, high: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, value, "an integer")
    if value < low or (high is not None and value > high):
        allowed = f"{low} to {high}" if high is not None else f"at least {low}"
        raise RequestError(400, "out_of_range", f"{name}={str(value)[:20]}; allowed: {allowed}")
    return value


class SearchQueue:
    """Admits `workers` searches at a time and lets `max_waiting` more wait; the next one is refused."""

    def __init__(
        self, workers: int, max_waiting: int = DEFAULT_MAX_WAITING, deadline_s: float = QUEUE_DEADLINE_S
    ) -> None:
        self._slots = asyncio.Semaphore(workers)
        self._max_waiting = max_waiting
        self._deadline_s = deadline_s
        self.waiting = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one slot. Raises `RequestError` 429 when the queue is full, 503 when the wait expires."""
        if self._slots.locked():
            if self.waiting >= self._max_waiting:
                raise RequestError(429, "queue_full", f"{self.waiting} requests are waiting; retry later", 1)
            await self._wait()
        else:
            await self._slots.acquire()
        try:
            yield
        finally:
            self._slots.release()

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await asyncio.wait_for(self._slots.acquire(), self._deadline_s)
        except TimeoutError as error:
            message = f"waited {self._deadline_s:g} s for a slot; retry later"
            raise RequestError(503, "queue_deadline", message, 1) from error
        finally:
            self.waiting -= 1
