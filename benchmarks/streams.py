"""Cost of a record and of a stream, beside JSON lines that are polled.

    python -m benchmarks.streams [--samples 5000]

Microseconds to encode and to decode one sample of 4096 tokens from and to arrays, its checksum written and
checked; samples per second through a file stream from one process to another; and the median time from
`write` in the one to the record in the other. The same over a redis server on this machine, and with lists of
numbers as JSON lines and a reader that looks every 100 ms, which is how upstream's file streams work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchmarks._figures import ROOT, Figure, at_least, at_most, best_us, report
from pipelinerl.streams import SingleStreamSpec, read_stream, records, set_streams_backend, write_to_streams
from pipelinerl.streams.local_server import local_server

TOKENS = 4096
PACED_SAMPLES, PACE_S = 300, 0.005
POLL_S = 0.1


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
    json_encode_us, json_decode_us = (
        best_us(lambda: json.dumps(lists), 5, 5),
        best_us(lambda: json.loads(text), 5, 5),
    )
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


Write = Callable[[dict[str, Any]], None]


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


@contextlib.contextmanager
def redis_server(way: str) -> Iterator[int]:
    """The port of a server for the way `redis`, 0 for the others."""
    if way != "redis":
        set_streams_backend("files")
        yield 0
        return
    with tempfile.TemporaryDirectory() as name, local_server(Path(name)) as port:
        set_streams_backend("redis", port=port)
        yield port


def read_all(way: str, folder: Path, count: int) -> None:
    """The other process: read `count` samples, print seconds for them, then delays of the paced ones."""
    source = WAYS[way][1](folder)
    print("ready", flush=True)
    assert len(next(source)["input_ids"]) == TOKENS
    start = time.perf_counter()
    for _ in range(count - 1):
        next(source)
    seconds = time.perf_counter() - start
    delays = []
    for _ in range(PACED_SAMPLES):
        sent = next(source)["sent"]
        delays.append(time.monotonic() - sent)
    print(json.dumps({"seconds": seconds, "delays": delays}), flush=True)


@contextlib.contextmanager
def reading_process(command: list[str]) -> Iterator[IO[str]]:
    """Lines that the other process prints once it is ready; it is ended with the block, whatever happens."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"the reading process ended with {process.wait()}")
            yield process.stdout
        finally:
            process.kill()


def measure_stream(way: str, samples: int) -> dict[str, float]:
    """Two processes, one writer and one reader: first as fast as possible, then one sample every 5 ms."""
    with tempfile.TemporaryDirectory() as name, redis_server(way) as port:
        folder = Path(name)
        options = ["--reader", name, "--way", way, "--samples", str(samples), "--port", str(port)]
        command = [sys.executable, "-m", "benchmarks.streams", *options]
        with reading_process(command) as answers:
            tree = sample()
            with WAYS[way][0](folder) as write:
                for _ in range(samples):
                    write(tree)
                time.sleep(1.0)
                for _ in range(PACED_SAMPLES):
                    time.sleep(PACE_S)
                    write(tree | {"sent": time.monotonic()})
            answer = json.loads(answers.readline())
    delays = np.array(answer["delays"]) * 1e3
    return {
        "samples_per_s": (samples - 1) / answer["seconds"],
        "median_ms": float(np.median(delays)),
        "p99_ms": float(np.quantile(delays, 0.99)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--reader", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=list(WAYS), default="records", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reader is not None:
        if args.port:
            set_streams_backend("redis", port=args.port)
        read_all(args.way, args.reader, args.samples)
        return 0
    codec = measure_codec()
    ours = measure_stream("records", args.samples)
    server = measure_stream("redis", args.samples)
    polled = measure_stream("polled JSON", max(args.samples // 10, 100))
    figures = [
        *codec,
        at_least("stream between two processes", ours["samples_per_s"], "samples/s", 2500),
        at_most("delivery, median", ours["median_ms"], "ms", 5.0),
        Figure("delivery, 99th percentile", ours["p99_ms"], "ms"),
        Figure("redis: stream", server["samples_per_s"], "samples/s"),
        Figure("redis: delivery, median", server["median_ms"], "ms"),
        Figure("redis: delivery, 99th percentile", server["p99_ms"], "ms"),
        Figure(
            "ratio of samples per second, redis over files",
            server["samples_per_s"] / ours["samples_per_s"],
            "x",
        ),
        Figure("polled JSON: stream", polled["samples_per_s"], "samples/s"),
        Figure("polled JSON: delivery, median", polled["median_ms"], "ms"),
        Figure("ratio of samples per second", ours["samples_per_s"] / polled["samples_per_s"], "x"),
        Figure("ratio of median delivery", polled["median_ms"] / ours["median_ms"], "x"),
    ]
    report("streams", figures, {"tokens": TOKENS, "samples": args.samples, "poll_s": POLL_S})
    return 0


if __name__ == "__main__":
    sys.exit(main())
