"""Streams between the processes of a run: records in order, one writer and any number of readers.

    spec = SingleStreamSpec(exp_path=output_dir, topic="actor")
    with write_to_streams(spec) as stream:
        stream.write({"input_ids": array, "reward": 1.0})
    with read_stream(spec) as stream:
        for record in stream.read(deadline_s=60, name="the first group of rollouts"):
            ...

`python -m pipelinerl.streams OUTPUT_DIR TOPIC` prints any stream as JSON.
"""

from typing import Any

from pipelinerl.streams.base import (
    EARLIEST,
    Backend,
    PartitionWriter,
    StreamReader,
    StreamWriter,
    list_streams,
    read_stream,
    register_backend,
    remove_stream,
    set_streams_backend,
    wait_any,
    write_to_streams,
)
from pipelinerl.streams.errors import CorruptRecord, StreamBusy, StreamError, UnsupportedValue
from pipelinerl.streams.files import FilesBackend
from pipelinerl.streams.specs import SingleStreamSpec, StreamRangeSpec, StreamSpec, is_stats_topic


def _redis(**settings: Any) -> Backend:
    from pipelinerl.streams.redis_streams import RedisBackend  # the client is an extra

    return RedisBackend(**settings)


register_backend("files", FilesBackend)
register_backend("redis", _redis)

__all__ = [
    "EARLIEST",
    "Backend",
    "CorruptRecord",
    "FilesBackend",
    "PartitionWriter",
    "SingleStreamSpec",
    "StreamBusy",
    "StreamError",
    "StreamRangeSpec",
    "StreamReader",
    "StreamSpec",
    "StreamWriter",
    "UnsupportedValue",
    "is_stats_topic",
    "list_streams",
    "read_stream",
    "register_backend",
    "remove_stream",
    "set_streams_backend",
    "wait_any",
    "write_to_streams",
]
