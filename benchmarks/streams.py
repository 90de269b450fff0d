"""Cost of a record and of a stream, beside JSON lines that are polled.

    python -m benchmarks.streams [--samples 5000]

Microseconds to encode and to decode one sample of 4096 tokens from and to arrays, its checksum written and
checked; samples per second through a file stream from one process to another; and the median time from
`write` in the one to the record in the other. The same over a redis server on this machine, and with lists of
numbers as JSON lines and a reader that looks every 100 ms, which is how upstream's file streams work.
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._figures import Figure, at_least, at_most, best_us, command_line, report
from benchmarks._processes import function
from pipelinerl.streams import SingleStreamSpec, read_stream, records, set_streams_backend, write_to_streams
from pipelinerl.streams.local_server import local_server

TOKENS = 4096
PACED_SAMPLES, PACE_S = 300, 0.005
POLL_S = 0.1
Write = Callable[[dict[str, Any]], None]


def sample(index: int = 0) -> dict[str, Any]:
    """One text as the actor publishes it: ids, labels and log-probabilities of 4096 tokens."""
    rng = np.random.default_rng(index)
    return {
        "text": "word " * 800,
        "input_ids": rng.integers(0, 150_000, TOKENS, dtype=np.int32),
        "labels": rng.integers(0, 150_000, TOKENS, dtype=np.int32),
        "logprobs": -rng.random(TOKENS, dtype=np.float32),
        "reward": 1.0,
        "group_id": "0123456789",
        "weight_versions": [[0, 0, 2000], [64, 2000, 4096]],
        "metadata": {"rollout_index": 3, "step_index": 1, "model_version": 0},
    }


def as_lists(tree: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in tree.items()}


def measure_codec() -> list[Figure]:
    """Encode and decode one sample as a record, and as JSON."""
    tree = sample()
    encoder, decode = records.RecordEncoder(), records.record_decoder()
    data = b"".join(encoder.encode(tree))
    payload = memoryview(bytearray(data[records.HEADER_SIZE :]))
    encode_us = best_us(lambda: encoder.encode(tree), 500)
    decode_us = best_us(lambda: decode(records.parse_header(data), payload), 500)
    lists = as_lists(tree)
    text = json.dumps(lists)
    json_encode_us = best_us(lambda: json.dumps(lists), 5, 5)
    json_decode_us = best_us(lambda: json.loads(text), 5, 5)
    return [
        at_most("encode", encode_us, "us", 5.0),
        at_most("decode", decode_us, "us", 5.0),
        Figure("record", len(data), "bytes"),
        Figure("JSON: encode", json_encode_us, "us"),
        Figure("JSON: decode", json_decode_us, "us"),
        Figure("JSON: record", len(text), "bytes"),
        Figure("ratio of encoding, JSON over record", json_encode_us / encode_us, "x"),
        Figure("ratio of decoding, JSON over record", json_decode_us / decode_us, "x"),
    ]


@contextlib.contextmanager
def record_writer(folder: Path) -> Iterator[Write]:
    with write_to_streams(SingleStreamSpec(folder, "actor")) as stream:
        yield stream.write


def record_reader(folder: Path) -> Iterator[dict[str, Any]]:
    with read_stream(SingleStreamSpec(folder, "actor")) as stream:
        yield from stream.read(deadline_s=120)


@contextlib.contextmanager
def polled_json_writer(folder: Path) -> Iterator[Write]:
    with (folder / "actor.jsonl").open("w") as file:

        def write(tree: dict[str, Any]) -> None:
            file.write(json.dumps(as_lists(tree)) + "\n")
            file.flush()

        yield write


def polled_json_reader(folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / "actor.jsonl"
    while not path.exists():
        time.sleep(POLL_S)
    with path.open() as file:
        part = ""
        while True:
            part += file.readline()
            if part.endswith("\n"):
                yield json.loads(part)
                part = ""
            else:
                time.sleep(POLL_S)


WAYS = {
    "records": (record_writer, record_reader),
    "redis": (record_writer, record_reader),
    "polled JSON": (polled_json_writer, polled_json_reader),
}


def read_all(way: str, folder: Path, count: int, port: int, connection: Connection) -> None:
    """The other process: read `count` samples, send seconds for them, then delays of the paced ones."""
    if port:
        set_streams_backend("redis", port=port)
    source = WAYS[way][1](folder)
    connection.send("ready")
    assert len(next(source)["input_ids"]) == TOKENS
    start = time.perf_counter()
    for _ in range(count - 1):
        next(source)
    connection.send(time.perf_counter() - start)
    delays = []
    for _ in range(PACED_SAMPLES):
        sent = next(source)["sent"]
        delays.append(time.monotonic() - sent)
    connection.send(delays)


def measure_stream(way: str, samples: int) -> tuple[float, float, float]:
    """Samples per second, and median and 99th percentile of the delivery in ms, between two processes.

    First as fast as possible, then one sample every 5 ms.
    """
    with contextlib.ExitStack() as stack:
        folder, port = Path(stack.enter_context(tempfile.TemporaryDirectory())), 0
        set_streams_backend("files")
        if way == "redis":
            port = stack.enter_context(local_server(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            set_streams_backend("redis", port=port)
        reader = stack.enter_context(function(read_all, way, folder, samples, port))
        reader.recv()
        write = stack.enter_context(WAYS[way][0](folder))
        tree = sample()
        for _ in range(samples):
            write(tree)
        time.sleep(1.0)
        for _ in range(PACED_SAMPLES):
            time.sleep(PACE_S)
            write(tree | {"sent": time.monotonic()})
        seconds, delays = reader.recv(), 1e3 * np.array(reader.recv())
    return (samples - 1) / seconds, float(np.median(delays)), float(np.quantile(delays, 0.99))


def main() -> int:
    samples = command_line(__doc__).samples
    figures = measure_codec()
    rate, median, p99 = measure_stream("records", samples)
    redis_rate, redis_median, redis_p99 = measure_stream("redis", samples)
    polled_rate, polled_median, _ = measure_stream("polled JSON", max(samples // 10, 100))
    figures += [
        at_least("stream between two processes", rate, "samples/s", 2500),
        at_most("delivery, median", median, "ms", 5.0),
        Figure("delivery, 99th percentile", p99, "ms"),
        Figure("redis: stream", redis_rate, "samples/s"),
        Figure("redis: delivery, median", redis_median, "ms"),
        Figure("redis: delivery, 99th percentile", redis_p99, "ms"),
        Figure("ratio of samples per second, redis over files", redis_rate / rate, "x"),
        Figure("polled JSON: stream", polled_rate, "samples/s"),
        Figure("polled JSON: delivery, median", polled_median, "ms"),
        Figure("ratio of samples per second", rate / polled_rate, "x"),
        Figure("ratio of median delivery", polled_median / median, "x"),
    ]
    report("streams", figures, {"tokens": TOKENS, "samples": samples, "poll_s": POLL_S})
    return 0


if __name__ == "__main__":
    sys.exit(main())
