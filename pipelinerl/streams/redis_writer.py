"""The writer of a partition in redis, and the names and numbers that readers share with it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pipelinerl.streams.base import PartitionWriter
from pipelinerl.streams.errors import StreamBusy, StreamError
from pipelinerl.streams.limits import Limits
from pipelinerl.streams.records import RecordEncoder, Tree
from pipelinerl.streams.redis_link import Address, RedisLink, Refused
from pipelinerl.streams.specs import SingleStreamSpec
from pipelinerl.streams.wakeup import POLL_MAX_S, POLL_MIN_S

FIELD = b"r"
# Records that are done with go about so often.
_FREE_BYTES, _FREE_RECORDS = 16 << 20, 32


@dataclass(frozen=True)
class Keys:
    """Names of what belongs to one partition."""

    entries: str
    about: str
    readers: str
    writer: str

    @classmethod
    def of(cls, namespace: str, spec: SingleStreamSpec) -> Keys:
        entries = f"{namespace}:{spec}"
        # The name of a connection may hold no blanks.
        writer = "pipelinerl-writer-" + hashlib.sha256(entries.encode()).hexdigest()[:32]
        return cls(entries, f"{entries}:about", f"{entries}:readers", writer)


def ends(link: RedisLink, entries: str) -> tuple[int, int]:
    """Number of the first record that is there, and how many were written."""
    try:
        answer = link.call("XINFO", "STREAM", entries)
    except Refused as error:
        if error.code == "no":  # "no such key"
            return 0, 0
        raise
    info = dict(zip(answer[::2], answer[1::2]))
    written = index_of(info[b"last-generated-id"])[0] + 1
    return written - int(info[b"length"]), written


def index_of(entry_id: bytes) -> tuple[int, int]:
    """Record number and epoch of an entry."""
    number, _, epoch = entry_id.partition(b"-")
    return int(number) - 1, int(epoch)


def positions_of(link: RedisLink, keys: Keys) -> dict[str, int]:
    flat = link.call("HGETALL", keys.readers)
    return {name.decode(): int(position) for name, position in zip(flat[::2], flat[1::2])}


class RedisWriter(PartitionWriter):
    """Appends with explicit ids, so that a second writer that slipped in fails at its first record."""

    def __init__(
        self, address: Address, namespace: str, spec: SingleStreamSpec, mode: str, limits: Limits
    ) -> None:
        self._spec, self._limits = spec, limits
        self._keys = keys = Keys.of(namespace, spec)
        self._encoder = RecordEncoder()
        self._pause_s = POLL_MIN_S
        self._may_write_to = self._fresh_bytes = self._fresh_records = 0
        link = RedisLink(address, keys.writer)
        self._link: RedisLink | None = link
        try:
            self._be_the_only_writer(link)
            if mode == "w":
                link.call("DEL", keys.entries, keys.readers)
            if mode == "w" or not link.call("HEXISTS", keys.about, "epoch"):
                link.call("HINCRBY", keys.about, "epoch", 1)
            link.call("SADD", f"{namespace}:partitions", str(spec))
            self._epoch = int(link.call("HGET", keys.about, "epoch"))
            self._index = ends(link, keys.entries)[1]
        except BaseException:
            self.close()
            raise

    def _be_the_only_writer(self, link: RedisLink) -> None:
        """Of two that open at the same time, the one that connected first stays."""
        own = int(link.call("CLIENT", "ID"))
        for line in link.call("CLIENT", "LIST").decode().splitlines():
            client = dict(part.partition("=")[::2] for part in line.split(" "))
            if client.get("name") == self._keys.writer and int(client["id"]) < own:
                raise StreamBusy(
                    f"stream {self._spec} already has a writer; a partition takes one, close the other or "
                    "use another partition"
                )

    def append(self, tree: Tree) -> None:
        if self._link is None:
            raise StreamError(f"stream {self._spec} is closed")
        record = b"".join(self._encoder.encode(tree))
        if self._limits.max_unread is not None and self._index >= self._may_write_to:
            self._wait_for_readers(self._link, self._limits.max_unread)
        try:
            self._link.call("XADD", self._keys.entries, f"{self._index + 1}-{self._epoch}", FIELD, record)
        except Refused as error:
            if "equal or smaller" in str(error):
                raise StreamBusy(f"stream {self._spec} has been written by somebody else") from error
            raise StreamError(f"stream {self._spec} cannot be written: {error}") from error
        self._index += 1
        self._fresh_records += 1
        self._fresh_bytes += len(record)
        if self._fresh_records >= _FREE_RECORDS or self._fresh_bytes >= _FREE_BYTES:
            self._free(self._link)

    def _wait_for_readers(self, link: RedisLink, bound: int) -> None:
        def positions() -> dict[str, int]:
            return positions_of(link, self._keys)

        if positions():
            slowest = self._limits.wait_for_readers(self._spec, self._index, positions, self._pause)
            self._may_write_to = slowest + bound
            self._pause_s = POLL_MIN_S

    def _pause(self, remaining_s: float) -> None:
        assert self._link is not None
        self._free(self._link)
        # Nothing is sent on this connection meanwhile, so it becomes readable only when the server goes.
        if self._link.readable(min(self._pause_s, remaining_s)):
            self._link.call("PING")
        self._pause_s = min(self._pause_s * 1.5, POLL_MAX_S)

    def _free(self, link: RedisLink) -> None:
        """Remove what every named reader has done with."""
        self._fresh_records = self._fresh_bytes = 0
        if self._limits.trim and (positions := positions_of(link, self._keys)):
            link.call("XTRIM", self._keys.entries, "MINID", f"{min(positions.values()) + 1}-0")

    def close(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            link.close()
