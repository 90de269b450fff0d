"""Streams in redis: one redis stream per partition, the same binary records as on disk, no pickles.

Record number `i` is the entry `<i + 1>-<epoch>` with the single field `r`. The epoch counts how often the
partition was started over. Beside the entries lie a hash with the epoch and a hash with the positions of the
named readers. A partition's writer is recognised by the name of its connection, which the server forgets when
the writer dies. Topics for people (statistics, evaluation samples) stay on disk.
"""

from collections import deque
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from pipelinerl.streams.base import EARLIEST, FlowControl, PartitionWriter, StreamReader
from pipelinerl.streams.errors import CorruptRecord
from pipelinerl.streams.files import FilesBackend
from pipelinerl.streams.records import Tree, record_decoder, split_record
from pipelinerl.streams.redis_link import RedisLink
from pipelinerl.streams.redis_writer import FIELD, Keys, RedisWriter, ends, index_of
from pipelinerl.streams.specs import SingleStreamSpec, check_plain, is_for_people

_LAST = (1 << 64) - 1
# A reader fetches about so much at once.
_FETCH_BYTES, _FETCH_RECORDS = 8 << 20, 256


class RedisReader(StreamReader):
    """Keeps a blocking read at the server while nothing is there, so that a record wakes it at once."""

    def __init__(
        self, link: RedisLink, side: RedisLink, keys: Keys, spec: SingleStreamSpec, offset: int, name: str
    ) -> None:
        """`link` is for the blocking read and is closed with the reader, `side` for short questions."""
        self.spec, self._keys, self._name, self._link, self._side = spec, keys, name, link, side
        self._decode = record_decoder()
        self._fetched: deque[tuple[bytes, list[bytes]]] = deque()
        self._asked = False
        self._mean_bytes = _FETCH_BYTES
        self._marked = -1
        try:
            if name:
                check_plain("reader", name)
            self.position = self._seek(offset)
            self._epoch = self._current_epoch()
            self._mark()
        except BaseException:
            self.close()
            raise

    def _seek(self, offset: int) -> int:
        first, written = ends(self._side, self._keys.entries)
        if offset == EARLIEST:
            return first
        if offset < first:
            raise self._freed(offset, first)
        if offset > written:
            raise self._missing(offset, written)
        return offset

    def _current_epoch(self) -> int | None:
        """None as long as nobody has written."""
        answer = self._side.call("HGET", self._keys.about, "epoch")
        return None if answer is None else int(answer)

    def _mark(self) -> None:
        """Who asks for more has done with what was handed out."""
        if self._name and self.position != self._marked:
            self._side.call("HSET", self._keys.readers, self._name, self.position)
            self._marked = self.position

    def next_record(self) -> tuple[Tree] | None:
        if not self._fetched:
            self._mark()
            self._fetch()
        if not self._fetched:
            self._check_not_replaced()
            return None
        tree = self._read(*self._fetched[0])
        self._fetched.popleft()
        self.position += 1
        return (tree,)

    def _command(self, *block: Any) -> tuple[Any, ...]:
        count = max(1, min(_FETCH_RECORDS, _FETCH_BYTES // self._mean_bytes))
        after = f"{self.position}-{_LAST}"
        return ("XREAD", "COUNT", count, *block, "STREAMS", self._keys.entries, after)

    def _fetch(self) -> None:
        if self._asked:
            if not self._link.readable(0):
                return
            self._asked = False
            self._take(self._link.receive())
        if not self._fetched:
            self._take(self._link.call(*self._command()))
        if not self._fetched:
            self.fileno()

    def fileno(self) -> int | None:
        """Leaves a read at the server, unless there is one, that is answered when there is a record."""
        if not self._fetched and not self._asked:
            self._link.send(*self._command("BLOCK", 0))
            self._asked = True
        return self._link.descriptor

    @property
    def buffered(self) -> bool:
        return bool(self._fetched)

    def _take(self, answer: Any) -> None:
        if answer:
            self._fetched.extend(answer[0][1])
            size = sum(sum(map(len, fields)) for _, fields in self._fetched)
            self._mean_bytes = max(1, size // len(self._fetched))

    def _read(self, entry_id: bytes, fields: list[bytes]) -> Tree:
        index, epoch = index_of(entry_id)
        if self._epoch is None:
            self._epoch = self._current_epoch()
        if epoch != self._epoch:
            self._check_not_replaced()
        elif index > self.position and (first := ends(self._side, self._keys.entries)[0]) > self.position:
            raise self._freed(self.position, first)
        try:
            if (index, epoch) != (self.position, self._epoch):
                raise CorruptRecord("its id is not the next one")
            if len(fields) != 2 or fields[0] != FIELD:
                raise CorruptRecord("its fields are not those of a record")
            header, received = split_record(fields[1])
            # Arrays are views of the payload, and whoever reads them may write into them.
            payload = np.empty(len(received), np.uint8).data
            payload[:] = received
            return self._decode(header, payload)
        except CorruptRecord as error:
            raise CorruptRecord(
                f"record {self.position} of stream {self.spec} is corrupt ({error}); "
                f"redis at {self._link.address}, entry {entry_id.decode()}"
            ) from error

    def _check_not_replaced(self) -> None:
        if self._epoch is not None and self._current_epoch() != self._epoch:
            raise self._replaced()

    def unread(self) -> int:
        return max(0, ends(self._side, self._keys.entries)[1] - self.position)

    def describe_end(self) -> str:
        if self._current_epoch() is None:
            return "no writer has opened it"
        return f"it holds {ends(self._side, self._keys.entries)[1]} records"

    def close(self) -> None:
        self._link.close()


class RedisBackend(FilesBackend):
    """Topics for people stay on disk. `namespace` begins the names of keys, the run's folder if None."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 11000,
        password: str | None = None,
        namespace: str | None = None,
        **flow: Any,
    ) -> None:
        super().__init__()
        self._connect = partial(RedisLink, host, port, password)
        self._namespace = namespace
        # What is in memory has to be bounded and freed.
        self._redis_flow = FlowControl(**{"max_unread": 1024, "trim": True} | flow)

    def _keys(self, spec: SingleStreamSpec) -> Keys:
        return Keys(f"pipelinerl:{self._namespace or spec.exp_path.absolute()}", spec)

    @cached_property
    def _side(self) -> RedisLink:
        """The connection for short questions, shared by all readers of this process."""
        return self._connect()

    def open_writer(self, spec: SingleStreamSpec, mode: str) -> PartitionWriter:
        if is_for_people(spec.topic):
            return super().open_writer(spec, mode)
        keys = self._keys(spec)
        return RedisWriter(self._connect(keys.writer), keys, spec, mode, self._redis_flow)

    def open_reader(self, spec: SingleStreamSpec, offset: int, name: str) -> StreamReader:
        if is_for_people(spec.topic):
            return super().open_reader(spec, offset, name)
        return RedisReader(self._connect(), self._side, self._keys(spec), spec, offset, name)

    def partitions(self, exp_path: Path) -> list[SingleStreamSpec]:
        """Those that have had a writer, and those on disk."""
        found = [spec for spec in super().partitions(exp_path) if is_for_people(spec.topic)]
        for member in self._side.call("SMEMBERS", self._keys(SingleStreamSpec(exp_path, "any")).partitions):
            topic, instance, partition = member.decode().split("/")
            found.append(SingleStreamSpec(exp_path, topic, int(instance), int(partition)))
        return found

    def remove(self, exp_path: Path, topic: str) -> None:
        if is_for_people(topic):
            super().remove(exp_path, topic)
            return
        for spec in self.partitions(exp_path):
            if spec.topic == topic:
                keys = self._keys(spec)
                self._side.call("DEL", keys.entries, keys.readers)
                self._side.call("HINCRBY", keys.about, "epoch", 1)
                self._side.call("SREM", keys.partitions, str(spec))

    def close(self) -> None:
        if "_side" in vars(self):
            self._side.close()
