"""Streams between the processes of a run: records in order, one writer and any number of readers.

    spec = SingleStreamSpec(exp_path=output_dir, topic="actor")
    with write_to_streams(spec) as stream:
        stream.write({"input_ids": array, "reward": 1.0})
    with read_stream(spec) as stream:
        for record in stream.read(deadline_s=60, name="the first group of rollouts"):
            ...

`python -m pipelinerl.streams OUTPUT_DIR TOPIC` prints any stream as JSON.
"""

from pipelinerl.streams.backends import (
    StreamWriter,
    list_streams,
    read_stream,
    remove_stream,
    set_streams_backend,
    write_to_streams,
)
from pipelinerl.streams.base import EARLIEST, StreamReader
from pipelinerl.streams.errors import CorruptRecord, StreamBusy, StreamError, UnsupportedValue
from pipelinerl.streams.specs import (
    KEPT_TOPIC,
    SingleStreamSpec,
    StoredStreamSpec,
    StreamRangeSpec,
    StreamSpec,
    attempt_of,
    is_for_people,
    stream_folders,
)
from pipelinerl.streams.wakeup import wait_any

__all__ = [
    "EARLIEST",
    "KEPT_TOPIC",
    "CorruptRecord",
    "SingleStreamSpec",
    "StoredStreamSpec",
    "StreamBusy",
    "StreamError",
    "StreamRangeSpec",
    "StreamReader",
    "StreamSpec",
    "StreamWriter",
    "UnsupportedValue",
    "attempt_of",
    "is_for_people",
    "list_streams",
    "read_stream",
    "remove_stream",
    "set_streams_backend",
    "stream_folders",
    "wait_any",
    "write_to_streams",
]
