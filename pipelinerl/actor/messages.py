"""What travels between the scheduler and its workers: length-prefixed pickles over a socket pair.

Pickles stay between a process and the children it started itself, because problems may hold any value;
records in streams hold none.
"""

import asyncio
import pickle
import struct
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Assignment:
    """Run one rollout."""

    key: int
    """Unique in this process; names the rollout in the answer."""
    group_id: str
    rollout_index: int
    problem: bytes
    """The pickled problem; each rollout gets a copy of its own."""
    engine: str
    training: bool
    seed: int | None
    version: int
    """Newest announced version at the start, a lower bound for every token of the rollout."""


class Ending(StrEnum):
    DONE = "done"
    EMPTY = "empty"
    FAILED = "failed"
    NO_ENGINE = "no_engine"
    """No engine was in rotation until the deadline; the run ends."""


@dataclass(slots=True)
class Outcome:
    """How one rollout ended."""

    key: int
    ending: Ending
    reason: str = ""
    texts: list[dict[str, Any]] = field(default_factory=list)
    """Records of the texts, stamped with group, rollout and step."""
    metrics: dict[str, float | list[float]] = field(default_factory=dict)
    prompt_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    overflow: bool = False
    latency_s: float = 0.0
    retries: int = 0
    model_version: int | None = None
    """Minimum over its texts."""
    dataset: str | None = None
    domain: str | None = None
    inexact_texts: int = 0
    """Texts whose versions are lower bounds."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker is ready."""

    worker: int


@dataclass(frozen=True, slots=True)
class Pulse:
    """Once a second from each worker."""

    worker: int
    loop_lags_s: list[float]
    """Delays of the event loop since the last pulse, sampled every few milliseconds."""
    engines_out: list[str]
    """Engines the worker's fleet has out of rotation."""
    requests: dict[str, float]
    """Totals of the worker's engine client since its start."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The newest version the trainer announced."""

    version: int
    at: float
    """When it did so last, in seconds since 1970; once more after an engine that was started again has it."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Give up rollouts; no outcome is sent for them."""

    keys: list[int]


@dataclass(frozen=True, slots=True)
class Stop:
    """Finish: cancel everything and exit with 0."""


@dataclass(frozen=True, slots=True)
class Died:
    """Last words of a worker."""

    worker: int
    reason: str


class Channel:
    """One end of a socket pair. Messages sent within one turn of the loop travel together."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self._pending: list[Any] = []
        self._flush_handle: asyncio.Handle | None = None

    @classmethod
    async def open(cls, sock: Any) -> "Channel":
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 20)
        return cls(reader, writer)

    def send(self, message: Any) -> None:
        self._pending.append(message)
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._flush_handle = None
        if self._pending and not self._writer.is_closing():
            body = pickle.dumps(self._pending, protocol=5)
            self._writer.write(_LENGTH.pack(len(body)) + body)
        self._pending = []

    async def receive(self) -> list[Any] | None:
        """The messages that arrived together, or None when the other end is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self) -> None:
        self.flush()
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return
