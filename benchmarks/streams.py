"""Cost of a record, beside JSON, and of a stream over files and over redis.

    python -m benchmarks.streams [--samples 5000]

Microseconds to encode and to decode one sample of 4096 tokens from and to arrays, its checksum written and
checked; samples per second through a file stream from one process to another; and the median time from
`write` in the one to the record in the other. The same over a redis server on this machine.
"""

import contextlib
import json
import sys
import tempfile
import time
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


def read_all(folder: Path, count: int, port: int, connection: Connection) -> None:
    """The other process: read `count` samples, send seconds for them, then delays of the paced ones."""
    if port:
        set_streams_backend("redis", port=port)
    with read_stream(SingleStreamSpec(folder, "actor")) as stream:
        source = stream.read(deadline_s=120)
        connection.send("ready")
        assert len(next(source)["input_ids"]) == TOKENS
        start = time.perf_counter()
        for _ in range(count - 1):
            next(source)
        connection.send(time.perf_counter() - start)
        delays = []
        for _ in range(PACED_SAMPLES):
            sent = next(source)["sent"]  # the clock is read once the sample is there
            delays.append(time.monotonic() - sent)
        connection.send(delays)


def measure_stream(samples: int, redis: bool = False) -> tuple[float, float, float]:
    """Samples per second, and median and 99th percentile of the delivery in ms, between two processes.

    First as fast as possible, then one sample every 5 ms.
    """
    with contextlib.ExitStack() as stack:
        folder, port = Path(stack.enter_context(tempfile.TemporaryDirectory())), 0
        set_streams_backend("files")
        if redis:
            port = stack.enter_context(local_server(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            set_streams_backend("redis", port=port)
        reader = stack.enter_context(function(read_all, folder, samples, port))
        reader.recv()
        stream = stack.enter_context(write_to_streams(SingleStreamSpec(folder, "actor")))
        tree = sample()
        for _ in range(samples):
            stream.write(tree)
        time.sleep(1.0)
        for _ in range(PACED_SAMPLES):
            time.sleep(PACE_S)
            stream.write(tree | {"sent": time.monotonic()})
        seconds, delays = reader.recv(), 1e3 * np.array(reader.recv())
    return (samples - 1) / seconds, float(np.median(delays)), float(np.quantile(delays, 0.99))


def main() -> int:
    samples = command_line(__doc__).samples
    figures = measure_codec()
    rate, median, p99 = measure_stream(samples)
    redis_rate, redis_median, redis_p99 = measure_stream(samples, redis=True)
    figures += [
        at_least("stream between two processes", rate, "samples/s", 2500),
        at_most("delivery, median", median, "ms", 5.0),
        Figure("delivery, 99th percentile", p99, "ms"),
        Figure("redis: stream", redis_rate, "samples/s"),
        Figure("redis: delivery, median", redis_median, "ms"),
        Figure("redis: delivery, 99th percentile", redis_p99, "ms"),
        Figure("ratio of samples per second, redis over files", redis_rate / rate, "x"),
    ]
    report("streams", figures, {"tokens": TOKENS, "samples": samples})
    return 0


if __name__ == "__main__":
    sys.exit(main())
