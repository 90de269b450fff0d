"""One engine over two cards, and an engine on each: the same updates, under load, with the same numbers.

    python -m benchmarks.gpu.several [--sets tensor_parallel two_engines] [--size 0.6B] [--streams 64]
                                     [--folder /tmp/pipelinerl-bench] [--port 8500] [--cpu] [--out FILE]

All engines start at the same time with a small share of each card, which the trainer's side uses as well:
weights travel through files, since NCCL does not connect two processes on one card. The sets are measured one
after the other with `--streams` requests in flight at each engine, and what the first gave is kept when the
second is ended. `--cpu` rehearses two engines of a CPU build of vLLM.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks._figures import RESULTS, Figure, at_most, command_line, report
from benchmarks._processes import Server, started
from benchmarks.gpu.clients import end_load, load
from benchmarks.gpu.runs import Terminated, leave_in_order, survived, write_partial
from benchmarks.gpu.served import engine_argv, model_folder, vllm_server
from benchmarks.gpu.throughput import steady_rate
from benchmarks.gpu.updates import file_transport, next_version, random_model, scores_of
from pipelinerl.modeling.model import distinct_parameters
from pipelinerl.weights.parity import probe_ids
from pipelinerl.weights.publisher import Publisher

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


def measure(servers: Sequence[Server], model: PreTrainedModel, streams: int) -> dict[str, Any]:
    """Updates under load, the numbers of each engine afterwards, and the tokens per second of all."""
    urls, vocab = [server.url for server in servers], model.config.vocab_size
    publisher = Publisher(urls, file_transport(model))
    paused: list[float] = []
    with ExitStack() as stack:
        stack.callback(publisher.close)
        publisher.wait_ready(60)
        loads = [stack.enter_context(load(url, streams, vocab, PROMPT, OUTPUT)) for url in urls]
        for child in loads:
            child.expect("THROUGH", THROUGH_S)
        rate = steady_rate(urls, WINDOW_S)
        for version in range(1, UPDATES + 1):
            next_version(model)
            done = publisher.publish(version, distinct_parameters(model))
            paused.append(max(done.paused_s.values()) * 1e3)
            time.sleep(0.5)
        ids = probe_ids(vocab)
        expected = scores_of(model, ids)
        found = [publisher.prompt_logprobs(row) for row in ids]
        deltas = [np.abs(np.stack([one[url] for one in found]) - expected) for url in urls]
        errors = [error for child in loads for error in end_load(child)["errors"]]
    return {
        "tokens_per_s": rate,
        "paused_ms": statistics.median(paused[1:]),
        "bytes": done.bytes,
        "parity_mean": max(float(delta.mean()) for delta in deltas),
        "parity_max": max(float(delta.max()) for delta in deltas),
        "errors": errors,
    }


def figures_of(rows: dict[str, dict[str, Any]]) -> list[Figure]:
    figures = []
    for name, row in rows.items():
        figures += [
            Figure(f"{name}: generated", row["tokens_per_s"], "tok/s"),
            Figure(f"{name}: paused by an update through files", row["paused_ms"], "ms"),
            at_most(f"{name}: |delta| to the trainer, mean", row["parity_mean"], "nats", PARITY_LIMIT),
            Figure(f"{name}: |delta| to the trainer, max", row["parity_max"], "nats"),
            at_most(f"{name}: failed requests", float(len(row["errors"])), "", 0.0),
        ]
    return figures


def measure_sets(
    sets: dict[str, Sequence[str]],
    folder: Path,
    device: torch.device,
    options: argparse.Namespace,
    rows: dict[str, dict[str, Any]],
) -> None:
    """Each set by itself, into `rows`: what fails is said and does not cost the others.

    All engines begin to start beside each other: that takes as long as the slowest.
    """
    servers: dict[str, list[Server]] = {name: [] for name in sets}
    placed = [(name, cards) for name, engines in sets.items() for cards in engines]
    for index, (name, cards) in enumerate(placed):
        port, log = options.port + 10 * index, options.out.parent / f"several{index}.log"
        argv = engine_argv(folder, port, "file_ahead", kwargs_of(cards, options.streams, options.cpu))
        servers[name].append(vllm_server(argv, cards, port, log))
    with started(*(server for engines in servers.values() for server in engines)):
        ready = []
        for name, engines in servers.items():
            with survived(name):
                for server in engines:
                    server.wait_ready()
                ready.append(name)
        model = random_model(folder, device)
        for name in ready:
            with survived(name):
                rows[name] = measure(servers[name], model, options.streams)
                print(json.dumps({name: rows[name]}), flush=True)
                write_partial(options.out, rows)


def main() -> int:
    options = command_line(__doc__, sets=SETS)
    options.out = options.out or RESULTS / "gpu_several.json"
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


if __name__ == "__main__":
    sys.exit(main())
