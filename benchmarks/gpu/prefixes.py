"""What vLLM's prefix cache gives to groups that share their prompt: the same waves with the cache off and on.

    python -m benchmarks.gpu.prefixes [--size 1.7B] [--prompt 2048] [--output 128] [--group 8] [--groups 64]
                                      [--in-flight 256] [--rounds 3] [--clients 2] [--api-servers 0]
                                      [--gpu 0] [--cpu] [--port 8340] [--folder /tmp/pipelinerl-bench]
                                      [--out FILE]

Random weights of a Qwen3 architecture on one GPU, requests through the actor's client. A wave is `--groups`
prompts of random ids, each asked by `--group` requests that follow each other, as the attempts of a group do;
`--in-flight` are under way at a time, so that prompts and answers are in a mixture. Each of the `--rounds`
has prompts of its own, so only the requests of a group find each other's blocks. Two engines, one after the
other, get the same waves. `--api-servers` are the engine's HTTP processes (0: as many as a run has). `--cpu`
rehearses it with a tiny model on a CPU build of vLLM (`VLLM_PYTHON`).
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks._figures import RESULTS, Figure, at_least, command_line, report, write_json
from benchmarks._processes import started
from benchmarks.gpu.cards import SHARED_MEMORY, kv_bytes
from benchmarks.gpu.clients import clients, wave
from benchmarks.gpu.served import PYTHON, engine_argv, model_config, model_folder, vllm_server
from pipelinerl.base.http import call
from pipelinerl.engines.engine_metrics import CacheWatch, parse_prometheus
from pipelinerl.engines.vllm.options import api_servers, installed_version

GOAL = 2.5
TINY = {
    "size": "tiny",
    "prompt": 512,
    "output": 16,
    "groups": 4,
    "in_flight": 16,
    "api_servers": 1,
    "gpu": "",
}


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    options = command_line(__doc__, argv)
    options.out = options.out or RESULTS / "gpu_prefixes.json"
    options.gpu = str(options.gpu)
    if options.cpu:
        vars(options).update(TINY)
    options.api_servers = options.api_servers or api_servers(len(os.sched_getaffinity(0)), 1, 1)
    return options


def engine_flags(options: argparse.Namespace, cache: bool) -> dict[str, Any]:
    """Those of a run for so many requests at once; the KV cache holds all of them without sharing."""
    context = options.prompt + options.output + 16
    flags: dict[str, Any] = {
        "max-model-len": context,
        "max-num-seqs": options.in_flight,
        "max-num-batched-tokens": 8192,
        "enable-prefix-caching": cache,
    }
    if options.cpu:
        return {**flags, "dtype": "float32", "enforce-eager": ""}
    size = kv_bytes(model_config(options.size), options.in_flight, context)
    return {**flags, "kv-cache-memory-bytes": size, "gpu-memory-utilization": SHARED_MEMORY}


def measure(options: argparse.Namespace, folder: Path, cache: bool) -> dict[str, Any]:
    """One engine: the seconds of each wave, and what it found in its cache."""
    requests = options.group * options.groups
    # Nothing is sent to it: vLLM's own transfer does as well as one that needs this package's plug-in.
    argv = engine_argv(folder, options.port, "nccl", engine_flags(options, cache), options.api_servers)
    print(" ".join(argv), flush=True)
    log = options.out.with_name(f"{options.out.stem}_{'on' if cache else 'off'}.log")
    server, watch = vllm_server(argv, options.gpu, options.port, log), CacheWatch()

    def looked() -> tuple[float, float]:
        return watch.since_last(parse_prometheus(call("GET", server.url, "/metrics", 30.0).decode()))

    rows = []
    with started(server):
        server.wait_ready(600.0)
        vocabulary = model_config(options.size).vocab_size
        with clients(options.clients, server.url, vocabulary, options.prompt) as senders:
            shape = {"group": options.group, "in_flight": options.in_flight}
            # The first wave warms the engine: its kernels, graphs and connections.
            for seed in range(options.rounds + 1):
                looked()
                sent = wave(senders, requests, options.output, **shape, seed=seed)
                queries, hits = looked()
                row = {"seconds": sent["seconds"], "tokens": sent["tokens"], "failed": len(sent["errors"])}
                row |= {"errors": sent["errors"][:3], "queries": queries, "hits": hits}
                print(f"cache {'on' if cache else 'off'}, wave {seed}: {row}", flush=True)
                rows.append(row)
    return {"warm": rows[0], "waves": rows[1:]}


def figures(found: dict[str, Any], requests: int) -> Iterator[Figure]:
    """Medians over the waves; `found` by `off` and `on`."""
    rates = {}
    for name, rows in found.items():
        waves = rows["waves"]
        rates[name] = statistics.median(requests / one["seconds"] for one in waves)
        yield Figure(f"cache {name}", rates[name], "samples/s")
        tokens = statistics.median(one["tokens"] / one["seconds"] for one in waves)
        yield Figure(f"  cache {name}, sampled", tokens, "tok/s")
        queries, hits = (sum(one[key] for one in waves) for key in ("queries", "hits"))
        yield Figure(f"  cache {name}, share of prompt tokens found", hits / max(1.0, queries), "")
        if failed := sum(one["failed"] for one in waves):
            yield Figure(f"  cache {name}: failed requests", failed, "")
    yield at_least("with the cache / without", rates["on"] / rates["off"], "x", GOAL)


def main() -> int:
    options = parsed()
    folder = model_folder(options.size, options.folder / options.size)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    found = {name: measure(options, folder, name == "on") for name in ("off", "on")}
    settings = {
        "card": "none" if options.cpu else torch.cuda.get_device_name(int(options.gpu)),
        "vllm": installed_version(PYTHON),
        "model": options.size,
        "prompt": options.prompt,
        "sampled": options.output,
        "requests of a prompt": options.group,
        "prompts of a wave": options.groups,
        "in flight": options.in_flight,
        "api servers": options.api_servers,
        "client processes": options.clients,
    }
    missed = report("gpu_prefixes", figures(found, options.group * options.groups), settings, options.out)
    write_json(options.out, {**json.loads(options.out.read_text()), "waves": found})
    return 1 if any(one["failed"] for rows in found.values() for one in rows["waves"]) else min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
