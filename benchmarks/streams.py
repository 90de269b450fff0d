"""Cost of a record and of a stream: python benchmarks/streams.py [--samples 5000].

Prints microseconds to encode and to decode one sample of 4096 tokens (beside JSON, which upstream's file
streams use), samples per second through a file stream from one process to another, and the median time from
`write` in the one to the record in the other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipelinerl.streams import SingleStreamSpec, read_stream, records, write_to_streams

RESULTS = Path(__file__).parent / "results" / "streams.json"
TOKENS = 4096
GOALS = {"encode_us": 5.0, "decode_us": 5.0, "samples_per_second": 2500.0, "delivery_median_ms": 5.0}
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


def best_us(function: Callable[[], Any], calls: int, rounds: int = 15) -> float:
    """Microseconds per call in the best of several rounds; other processes only ever make it slower."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - start) / calls)
    return min(times) * 1e6


def record_times(tree: records.Tree) -> dict[str, float]:
    """Microseconds to encode and to decode the tree as a record."""
    encoder, decoder = records.RecordEncoder(), records.RecordDecoder()
    data = b"".join(encoder.encode(tree))
    payload = bytearray(data[records.HEADER_SIZE :])
    return {
        "encode": best_us(lambda: encoder.encode(tree), 300),
        "decode": best_us(lambda: decoder.decode(records.parse_header(data), payload), 300),
    }


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Records without checksums, to tell what the encoding itself costs."""
    checksum = records.crc32
    try:
        records.crc32 = lambda data, value=0: 0
        yield
    finally:
        records.crc32 = checksum


def measure_codec() -> dict[str, float]:
    """Encode and decode one sample: with checksums, without them, and as JSON."""
    tree = sample()
    lists = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in tree.items()}
    text = json.dumps(lists)
    found = {
        "json_encode_us": best_us(lambda: json.dumps(lists), 5),
        "json_decode_us": best_us(lambda: json.loads(text), 5),
        "json_bytes": float(len(text)),
    }
    found |= {f"{name}_with_checksum_us": value for name, value in record_times(tree).items()}
    with unchecked():
        found |= {f"{name}_us": value for name, value in record_times(tree).items()}
    found["bytes"] = float(len(records.encode_record(tree)))
    return found


def reader(output_dir: Path, count: int) -> None:
    """The other process: read `count` samples, print seconds for them, then delays of the paced ones."""
    with read_stream(SingleStreamSpec(output_dir, "actor")) as stream:
        print("ready", flush=True)
        source = stream.read(deadline_s=120)
        first = next(source)
        start = time.perf_counter()
        for _ in range(count - 1):
            next(source)
        seconds = time.perf_counter() - start
        delays = []
        for _ in range(PACED_SAMPLES):
            record = next(source)
            delays.append(time.monotonic() - record["sent"])
        assert len(first["input_ids"]) == TOKENS
    print(json.dumps({"seconds": seconds, "delays": delays}), flush=True)


def measure_stream(samples: int) -> dict[str, float]:
    """Two processes, one writer and one reader: first as fast as possible, then one sample every 5 ms."""
    with tempfile.TemporaryDirectory() as folder:
        output_dir = Path(folder)
        command = [sys.executable, __file__, "--reader", folder, "--samples", str(samples)]
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        tree = sample()
        with write_to_streams(SingleStreamSpec(output_dir, "actor")) as stream:
            for _ in range(samples):
                stream.write(tree)
            time.sleep(1.0)
            for _ in range(PACED_SAMPLES):
                time.sleep(PACE_S)
                stream.write(tree | {"sent": time.monotonic()})
        answer = json.loads(other.stdout.readline())
        other.wait()
    delays = np.array(answer["delays"]) * 1e3
    return {
        "samples_per_second": (samples - 1) / answer["seconds"],
        "delivery_median_ms": float(np.median(delays)),
        "delivery_p99_ms": float(np.quantile(delays, 0.99)),
    }


def report(found: dict[str, float]) -> None:
    for name, value in found.items():
        goal = f"   goal {GOALS[name]:g}" if name in GOALS else ""
        print(f"{name:>24} {value:12.2f}{goal}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--reader", type=Path, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reader is not None:
        reader(args.reader, args.samples)
        return
    found = measure_codec() | measure_stream(args.samples)
    report(found)
    machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"results": found, "goals": GOALS, "machine": machine}, indent=2) + "\n")


if __name__ == "__main__":
    main()
