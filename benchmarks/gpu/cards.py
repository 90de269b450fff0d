"""What engines and the trainer's side ask of cards: memory, and whom NCCL connects."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config

from benchmarks._figures import RESULTS
from pipelinerl.config.card_limit import mean_context
from pipelinerl.config.detect import visible_devices
from pipelinerl.finetune.peaks import copy_bandwidth
from pipelinerl.launcher.decoder_shape import decoder_shape
from pipelinerl.launcher.engine_memory import EngineWork, decode_reads

Limits = dict[str, Any]
"""`card`, `copy_bytes_per_s`, and `tok_s` by requests in flight."""

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


def need_cuda(script: str, otherwise: str = "") -> None:
    """SystemExit with one line where torch sees no card; `otherwise`: the switch with which it needs none."""
    if not torch.cuda.is_available():
        print(f"{script} needs a CUDA device{otherwise and f', or {otherwise}'}", file=sys.stderr)
        raise SystemExit(2)


def kept_at(name: str, out: Path | None, rehearsal: bool) -> Path:
    """The file of a script's figures: `out`, or a committed result, which a rehearsal leaves alone."""
    return out or (Path("results/rehearsal") if rehearsal else RESULTS) / f"{name}.json"


def visible_cards() -> list[str]:
    """Ids of the cards that the launcher would use; those of two where there is none."""
    return visible_devices() or ["0", "1"]


def nccl_cards() -> int:
    """How many cards an engine and a trainer need to be connected over NCCL; the trainer's is the last."""
    return 1 if os.environ.get(SEVERAL_RANKS) == "1" else 2


def kv_bytes(config: Qwen3Config, requests: int, context: int = CONTEXT) -> int:
    """KV cache in bfloat16 of so many requests at their full length, and a little more for whole blocks.

    In 8 bits that is more than is needed, so that both have the same number of requests.
    """
    per_token = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return int(1.03 * per_token * requests * context)


def engine_kwargs(options: argparse.Namespace, config: Qwen3Config) -> dict[str, Any]:
    """Flags of a server for so many requests at once; the offline engine has the same."""
    requests = max(options.in_flight)
    kwargs = {"max-model-len": CONTEXT, "max-num-seqs": requests, "max-num-batched-tokens": 8192}
    if options.kv != "auto":
        kwargs["kv-cache-dtype"] = options.kv
    if options.cpu:
        return {**kwargs, "dtype": "float32", "enforce-eager": ""}
    size = kv_bytes(config, requests)
    return {**kwargs, "kv-cache-memory-bytes": size, "gpu-memory-utilization": SHARED_MEMORY}


def card_limits(config: Qwen3Config, kwargs: Mapping[str, Any], counts: Sequence[int], card: str) -> Limits:
    """Tokens a second that reading a card's memory allows an engine, by requests in flight.

    The bandwidth is that of a copy on the visible card, `card` its name.
    """
    shape, copied = decoder_shape(config.to_dict()), copy_bandwidth(torch.device("cuda", 0))
    assert shape is not None and copied is not None
    small = "fp8" in str(kwargs.get("kv-cache-dtype"))
    work = EngineWork(max_model_len=CONTEXT, cache_bytes_per_number=1 if small else 2)
    reads, context = decode_reads(shape, work), mean_context(PROMPT, OUTPUT)
    found = {count: reads.tokens_per_second(count, context, copied) for count in counts}
    return {"card": card, "copy_bytes_per_s": copied, "tok_s": found}


def check_cards(options: argparse.Namespace, config: Qwen3Config, card_bytes: int) -> None:
    """SystemExit for what would fail minutes later: too much on a card, or NCCL within one."""
    together = options.gpus[0] == options.gpus[1]
    # The offline engine, and later the server that hands outputs over once, are there as well.
    engines = 2 if together and {"throughput", "once"} & set(options.rows) else 1
    needed, most = engines * kv_bytes(config, max(options.in_flight)), KV_SHARE * card_bytes
    if needed > most:
        raise SystemExit(
            f"the KV caches on card {options.gpus[0]} need {needed / 2**30:.0f} GiB, at most "
            f"{most / 2**30:.0f} are for them; lower --in-flight"
        )
    over_nccl = options.backend.startswith("nccl") and UPDATING & set(options.rows)
    if together and over_nccl and nccl_cards() > 1:
        raise SystemExit(f"NCCL on one card: set {SEVERAL_RANKS}=1 (from 2.30) or --backend file_ahead")
