"""What engines and the trainer's side ask of cards: memory, and whom NCCL connects."""

import argparse
import os
from collections.abc import Sequence
from typing import Any

PROMPT = OUTPUT = 512
CONTEXT = PROMPT + OUTPUT + 16
SHARED_MEMORY = 0.2
"""Of a card that has to be free when an engine starts; its KV cache has a size of its own."""
KV_SHARE = 0.85
"""Of a card for the KV caches of all engines on it; the rest is for weights and graphs."""
UPDATING = {"parity", "update", "failure"}
"""Rows in which weights travel."""
SEVERAL_RANKS = "NCCL_MULTI_RANK_GPU_ENABLE"
"""With `1`, NCCL from 2.30 connects several processes on one card; without, it refuses them."""


def nccl_cards() -> int:
    """How many cards an engine and a trainer need to be connected over NCCL; the trainer's is the last."""
    return 1 if os.environ.get(SEVERAL_RANKS) == "1" else 2


def counts_of(options: argparse.Namespace, first: bool) -> list[int]:
    """Requests of each wave, ascending: all of them for the first server."""
    counts = sorted(options.in_flight)
    return counts if first else counts[:1]


def kv_bytes(config: dict[str, Any], requests: int) -> int:
    """KV cache in bfloat16 of so many requests at their full length, and a little more for whole blocks."""
    per_token = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    return int(1.03 * per_token * requests * CONTEXT)


def engine_kwargs(options: argparse.Namespace, config: dict[str, Any], requests: int) -> dict[str, Any]:
    """Flags of a server for so many requests at once; the offline engine has the same."""
    kwargs = {
        "max-model-len": CONTEXT,
        "max-num-seqs": max(options.in_flight),
        "max-num-batched-tokens": 8192,
    }
    if options.cpu:
        return {**kwargs, "dtype": "float32", "enforce-eager": ""}
    size = kv_bytes(config, requests)
    return {**kwargs, "kv-cache-memory-bytes": size, "gpu-memory-utilization": SHARED_MEMORY}


def check_cards(
    options: argparse.Namespace, backends: Sequence[str], config: dict[str, Any], card_bytes: int
) -> None:
    """SystemExit for what would fail minutes later: too much on a card, or NCCL within one.

    `backends` are the weight transfers of all servers; the rows in which weights travel take the first.
    """
    sizes = [kv_bytes(config, counts_of(options, first=number == 0)[-1]) for number in range(len(backends))]
    together = options.gpus[0] == options.gpus[1]
    if together and "throughput" in options.rows:  # the offline engine is there as well
        sizes.append(kv_bytes(config, max(options.in_flight)))
    most = KV_SHARE * card_bytes
    if sum(sizes) > most:
        raise SystemExit(
            f"the KV caches of {len(sizes)} engines on card {options.gpus[0]} need {sum(sizes) / 2**30:.0f} "
            f"GiB, at most {most / 2**30:.0f} are for them; lower --in-flight or ask for fewer --api-servers"
        )
    over_nccl = backends[0].startswith("nccl") and UPDATING & set(options.rows)
    if together and over_nccl and nccl_cards() > 1:
        raise SystemExit(f"NCCL on one card: set {SEVERAL_RANKS}=1 (from 2.30) or --backends file_ahead")
