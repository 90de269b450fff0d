"""The writer of a partition in redis, and the names and numbers that readers share with it.

Made by the backend of `redis_streams.py` for `write_to_streams`.
"""

import hashlib

from pipelinerl.streams.base import FlowControl, PartitionWriter
from pipelinerl.streams.errors import StreamBusy, StreamError
from pipelinerl.streams.records import Buffer, RecordEncoder, Tree
from pipelinerl.streams.redis_link import RedisLink, Refused
from pipelinerl.streams.specs import SingleStreamSpec
from pipelinerl.streams.wakeup import Pause

FIELD = b"r"
# Records that are done with go about so often.
_FREE_BYTES, _FREE_RECORDS = 16 << 20, 32


class Keys:
    """Names of what belongs to one partition."""

    def __init__(self, namespace: str, spec: SingleStreamSpec) -> None:
        self.entries = f"{namespace}:{spec}"
        self.about = f"{self.entries}:about"
        self.readers = f"{self.entries}:readers"
        self.partitions = f"{namespace}:partitions"
        # The name of a connection may hold no blanks.
        self.writer = "pipelinerl-writer-" + hashlib.sha256(self.entries.encode()).hexdigest()[:32]


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


class RedisWriter(PartitionWriter):
    """Appends with explicit ids, so that a second writer that slipped in fails at its first record."""

    def __init__(
        self, link: RedisLink, keys: Keys, spec: SingleStreamSpec, mode: str, flow: FlowControl
    ) -> None:
        """`link` bears the name `keys.writer`, and is closed with the writer."""
        super().__init__(spec, flow)
        self._link, self._keys = link, keys
        self._encoder = RecordEncoder()
        self._poll = Pause()
        self._fresh_bytes = self._fresh_records = 0
        self._closed = False
        try:
            self._be_the_only_writer()
            if mode == "w":
                link.call("DEL", keys.entries, keys.readers)
            if mode == "w" or not link.call("HEXISTS", keys.about, "epoch"):
                link.call("HINCRBY", keys.about, "epoch", 1)
            link.call("SADD", keys.partitions, str(spec))
            self._epoch = int(link.call("HGET", keys.about, "epoch"))
            self._index = ends(link, keys.entries)[1]
        except BaseException:
            self.close()
            raise

    def _be_the_only_writer(self) -> None:
        """Of two that open at the same time, the one that connected first stays."""
        own = int(self._link.call("CLIENT", "ID"))
        for line in self._link.call("CLIENT", "LIST").decode().splitlines():
            client = dict(part.partition("=")[::2] for part in line.split(" "))
            if client.get("name") == self._keys.writer and int(client["id"]) < own:
                raise self._busy()

    def _encode(self, tree: Tree) -> list[Buffer]:
        if self._closed:
            raise StreamError(f"stream {self._spec} is closed")
        return self._encoder.encode(tree)

    def _put(self, buffers: list[Buffer]) -> None:
        record = b"".join(buffers)
        try:
            self._link.call("XADD", self._keys.entries, f"{self._index + 1}-{self._epoch}", FIELD, record)
        except Refused as error:
            if "equal or smaller" in str(error):
                raise StreamBusy(f"stream {self._spec} has been written by somebody else") from error
            raise StreamError(f"stream {self._spec} cannot be written: {error}") from error
        self._poll.reset()
        self._fresh_records += 1
        self._fresh_bytes += len(record)
        if self._fresh_records >= _FREE_RECORDS or self._fresh_bytes >= _FREE_BYTES:
            self._trim()

    def _positions(self) -> dict[str, int]:
        flat = self._link.call("HGETALL", self._keys.readers)
        return {name.decode(): int(position) for name, position in zip(flat[::2], flat[1::2])}

    def _pause(self, remaining_s: float) -> None:
        self._trim()
        # Nothing is sent on this connection meanwhile, so it becomes readable only when the server goes.
        if self._link.readable(min(self._poll.next(), remaining_s)):
            self._link.call("PING")

    def _trim(self) -> None:
        self._fresh_records = self._fresh_bytes = 0
        super()._trim()

    def _free_before(self, index: int) -> None:
        self._link.call("XTRIM", self._keys.entries, "MINID", f"{index + 1}-0")

    def close(self) -> None:
        self._closed = True
        self._link.close()
