"""What travels between the scheduler and its workers: records over a socket pair, as in the streams.

Problems may hold any value and are the only pickles: made once per group (`problems.py`), carried as bytes
and read by each attempt for itself (`runner.py`), so that none sees what another did to its problem.
"""

import asyncio
import struct
from enum import StrEnum
from typing import Any

import msgspec

from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.streams.records import HEADER_SIZE, RecordEncoder, parse_header, record_decoder

_LENGTH = struct.Struct("<Q")


class Assignment(msgspec.Struct, frozen=True, tag=True):
    """Run one rollout."""

    key: int
    """Unique in this process; names the rollout in the answer."""
    group_id: str
    rollout_index: int
    problem: bytes
    """The pickled problem."""
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


class FinishedRollout(msgspec.Struct, kw_only=True, eq=False, tag=True):
    """How one rollout ended, and its samples."""

    key: int
    ending: Ending
    reason: str = ""
    samples: list[Sample] = []
    metrics: dict[str, float | list[float]] = {}
    latency_s: float = 0.0
    retries: int = 0
    retried: list[str] = []
    """Why each of the tries before the last one failed."""
    dataset: str | None = None
    domain: str | None = None

    @property
    def model_version(self) -> int | None:
        """The oldest of its samples; None without any."""
        return min((sample.oldest_version for sample in self.samples), default=None)


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A worker is ready."""

    worker: int


class Pulse(msgspec.Struct, frozen=True, tag=True):
    """Once a second from each worker."""

    worker: int
    loop_lags_s: list[float]
    """Delays of the event loop since the last pulse, sampled every few milliseconds."""
    in_rotation: list[str]
    """Engines that the worker's fleet sends requests to."""
    requests: dict[str, float]
    """Totals of the worker's engine client since its start."""


class Announced(msgspec.Struct, frozen=True, tag=True):
    """The newest version the trainer announced."""

    version: int
    at: float
    """When it did so last, in seconds since 1970; once more after an engine that was started again has it."""


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Give up rollouts; nothing is sent for them."""

    keys: list[int]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Finish: cancel everything and exit with 0."""


class Died(msgspec.Struct, frozen=True, tag=True):
    """Last words of a worker."""

    worker: int
    reason: str


Message = Assignment | FinishedRollout | Hello | Pulse | Announced | Cancel | Stop | Died


class Channel:
    """One end of a socket pair. Messages sent within one turn of the loop travel together."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self._encode, self._decode = RecordEncoder().encode, record_decoder(Message)
        self._pending: list[Any] = []
        self._flush_handle: asyncio.Handle | None = None

    @classmethod
    async def open(cls, sock: Any) -> "Channel":
        # With the 64 KiB that are usual, a message of many samples would pause the socket again and again.
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 20)
        return cls(reader, writer)

    def send(self, message: Message) -> None:
        """Queue a message. Raises UnsupportedValue or UnicodeEncodeError for what no record can hold."""
        # Encoded here and not in `flush`, where an error would reach nobody who knows the message.
        self._pending += self._encode(message)
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._flush_handle = None
        # A channel that is closing has nobody at its other end, which is noticed where messages are read.
        if self._pending and not self._writer.is_closing():
            body = b"".join(self._pending)
            self._writer.writelines((_LENGTH.pack(len(body)), body))
        self._pending = []

    async def receive(self) -> list[Message] | None:
        """The messages that arrived together, or None when the other end is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return self._read(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def _read(self, body: bytes) -> list[Message]:
        messages: list[Message] = []
        at = 0
        while at < len(body):
            header = parse_header(body[at : at + HEADER_SIZE])
            at += HEADER_SIZE
            # A copy: arrays are views, and those of one sample shall not keep all others in memory.
            payload = bytearray(body[at : at + header[0]])
            messages.append(self._decode(header, memoryview(payload)))
            at += header[0]
        return messages

    async def close(self) -> None:
        self.flush()
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return
