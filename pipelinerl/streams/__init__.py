"""Streams between the processes of a run: records in order, one writer and any number of readers.

    spec = SingleStreamSpec(exp_path=output_dir, topic="actor")
    with write_to_streams(spec) as stream:
        stream.write({"input_ids": array, "reward": 1.0})
    with read_stream(spec) as stream:
        for record in stream.read(deadline_s=60, name="the first group of rollouts"):
            ...

`python -m pipelinerl.streams OUTPUT_DIR TOPIC` prints any stream as JSON.
"""

from pipelinerl.streams.base import (
    Backend,
    PartitionWriter,
    StreamReader,
    StreamWriter,
    read_stream,
    register_backend,
    set_streams_backend,
    wait_any,
    write_to_streams,
)
from pipelinerl.streams.errors import CorruptRecord, StreamBusy, StreamError, UnsupportedValue
from pipelinerl.streams.files import FilesBackend
from pipelinerl.streams.specs import SingleStreamSpec, StreamRangeSpec, StreamSpec, is_stats_topic

register_backend("files", FilesBackend)

__all__ = [
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
    "read_stream",
    "register_backend",
    "set_streams_backend",
    "wait_any",
    "write_to_streams",
]
