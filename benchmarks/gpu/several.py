"""One engine over two cards, and an engine on each: the same updates, under load, with the same numbers.

    python -m benchmarks.gpu.several [--sets tensor_parallel two_engines] [--size 0.6B] [--out FILE]

All engines start at the same time with a small share of each card, which the trainer's side uses as well:
weights travel through files, since NCCL does not connect two processes on one card. The sets are measured one
after the other, and what the first gave is kept when the second is ended. `--cpu` rehearses two engines of a
CPU build of vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks._figures import RESULTS, Figure, at_most, report
from benchmarks.gpu.engine import random_model, scores_of
from benchmarks.gpu.load import Load
from benchmarks.gpu.runs import Terminated, leave_in_order, write_partial
from benchmarks.gpu.served import Server, engine_argv, model_folder, started
from pipelinerl.modeling.model import distinct_parameters
from pipelinerl.weights.send.engine_state import EngineState
from pipelinerl.weights.send.file_transport import FileTransport
from pipelinerl.weights.send.parity import probe_ids
from pipelinerl.weights.send.publisher import Publisher
from pipelinerl.weights.wire import weights_directory

SETS: dict[str, Sequence[str]] = {"tensor_parallel": ("0,1",), "two_engines": ("0", "1")}
"""Cards of each engine."""
ON_CPU: dict[str, Sequence[str]] = {"two_engines": ("", "")}
PROMPT = OUTPUT = 256
UPDATES = 4
THROUGH_S = 60.0
WINDOW_S = 5.0
PARITY_LIMIT = 0.05
"""Of random weights in bfloat16, on average; float32 stays below 1e-4."""


def kwargs_of(cards: str, streams: int, cpu: bool) -> dict[str, Any]:
    """Flags of one engine; NCCL alone connects its ranks, without vLLM's own all-reduce."""
    kwargs: dict[str, Any] = {"max-model-len": PROMPT + OUTPUT + 16, "max-num-seqs": streams}
    if cpu:
        return {**kwargs, "dtype": "float32", "enforce-eager": ""}
    kwargs |= {"gpu-memory-utilization": 0.2, "kv-cache-memory-bytes": 8 * 2**30}
    ranks = cards.count(",") + 1
    if ranks > 1:
        kwargs |= {"tensor-parallel-size": ranks, "disable-custom-all-reduce": ""}
    return kwargs


def servers_of(
    sets: dict[str, Sequence[str]], folder: Path, options: argparse.Namespace
) -> dict[str, list[Server]]:
    """All engines, which begin to start beside each other: that takes as long as the slowest."""
    found: dict[str, list[Server]] = {name: [] for name in sets}
    placed = [(name, cards) for name, engines in sets.items() for cards in engines]
    for index, (name, cards) in enumerate(placed):
        port = options.port + 10 * index
        argv = engine_argv(folder, port, "file_ahead", kwargs_of(cards, options.streams, options.cpu))
        found[name].append(Server(argv, cards, port, options.out.parent / f"several{index}.log"))
    return found


def ready(name: str, servers: Sequence[Server]) -> bool:
    """Whether all engines of a set have started; if not, it is said why."""
    try:
        for server in servers:
            server.wait_ready()
    except SystemExit as error:
        print(f"{name}: {error}", flush=True)
        return False
    return True


def measure(urls: list[str], model: PreTrainedModel, vocab: int, streams: int) -> dict[str, Any]:
    """Updates under load, the numbers of each engine afterwards, and the tokens per second of all."""
    size = sum(parameter.numel() for _, parameter in distinct_parameters(model))
    folder = weights_directory(Path(tempfile.mkdtemp()), size * model.dtype.itemsize, None)
    publisher = Publisher(urls, FileTransport(folder, model.dtype, ahead=True))
    paused: list[float] = []
    with ExitStack() as stack:
        stack.callback(publisher.close)
        publisher.wait_ready(60)
        loads = [stack.enter_context(Load(url, streams, vocab, PROMPT, OUTPUT)) for url in urls]
        for load in loads:
            load.wait_through(THROUGH_S)
        engines = [EngineState(url, 30.0) for url in urls]
        first = [one.counters() for one in engines]
        time.sleep(WINDOW_S)
        rate = sum(one.counters().rate_since(at) for one, at in zip(engines, first))
        for version in range(1, UPDATES + 1):
            with torch.no_grad():
                for _, parameter in distinct_parameters(model):
                    parameter.mul_(1.01)
            done = publisher.publish(version, distinct_parameters(model))
            paused.append(max(done.paused_s.values()) * 1e3)
            time.sleep(0.5)
        ids = probe_ids(vocab)
        expected = scores_of(model, ids)
        found = [publisher.prompt_logprobs(row) for row in ids]
        deltas = {url: np.abs(np.stack([one[url] for one in found]) - expected) for url in urls}
    return {
        "tokens_per_s": rate,
        "paused_ms": statistics.median(paused[1:]),
        "bytes": done.bytes,
        "parity_mean": max(float(delta.mean()) for delta in deltas.values()),
        "parity_max": max(float(delta.max()) for delta in deltas.values()),
        "errors": [error for load in loads for error in load.result.get("errors", [])],
    }


def figures_of(rows: dict[str, dict[str, Any]]) -> list[Figure]:
    figures = []
    for name, row in rows.items():
        figures.append(Figure(f"{name}: generated", row["tokens_per_s"], "tok/s"))
        figures.append(Figure(f"{name}: paused by an update through files", row["paused_ms"], "ms"))
        figures.append(
            at_most(f"{name}: |delta| to the trainer, mean", row["parity_mean"], "nats", PARITY_LIMIT)
        )
        figures.append(Figure(f"{name}: |delta| to the trainer, max", row["parity_max"], "nats"))
        figures.append(at_most(f"{name}: failed requests", float(len(row["errors"])), "", 0.0))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--size", default="0.6B")
    parser.add_argument("--streams", type=int, default=64, help="requests in flight at each engine")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/pipelinerl-bench"))
    parser.add_argument("--port", type=int, default=8500)
    parser.add_argument("--cpu", action="store_true", help="rehearse on a CPU build of vLLM")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_several.json")
    options = parser.parse_args()
    known = ON_CPU if options.cpu else SETS
    sets = {name: known[name] for name in options.sets if name in known}
    size = "tiny" if options.cpu else options.size
    folder = model_folder(size, options.folder / size)
    if not options.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"  # of the trainer's side
    device = torch.device("cpu") if options.cpu else torch.device("cuda", 0)
    rows: dict[str, dict[str, Any]] = {}
    leave_in_order()
    try:
        measure_sets(sets, folder, device, options, rows)
    except Terminated:
        print("ended before its end; what there is follows", flush=True)
    card = "none" if options.cpu else torch.cuda.get_device_name(device)
    missed = report("gpu_several", figures_of(rows), {"card": card, "model": size}, options.out)
    options.out.with_suffix(".partial").unlink(missing_ok=True)
    return 1 if len(rows) < len(sets) else min(missed, 1)


def measure_sets(
    sets: dict[str, Sequence[str]],
    folder: Path,
    device: torch.device,
    options: argparse.Namespace,
    rows: dict[str, dict[str, Any]],
) -> None:
    """Each set by itself, into `rows`: what fails is said and does not cost the others."""
    vocab = int(json.loads((folder / "config.json").read_text())["vocab_size"])
    servers = servers_of(sets, folder, options)
    with started([server for engines in servers.values() for server in engines]):
        startup = {name: ready(name, engines) for name, engines in servers.items()}
        model = random_model(folder, device)
        for name, engines in servers.items():
            if not startup[name]:
                continue
            try:
                rows[name] = measure([one.url for one in engines], model, vocab, options.streams)
            except Exception as error:
                print(f"{name} FAILED: {type(error).__name__}: {error}", flush=True)
                continue
            print(json.dumps({name: rows[name]}), flush=True)
            write_partial(options.out, rows)


if __name__ == "__main__":
    sys.exit(main())
