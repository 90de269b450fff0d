"""Training tokens per second, memory and a profile on one GPU.

    python -m benchmarks.gpu.trainer [--sizes 0.6B 1.7B 4B] [--rows ...] [--budget 150] [--out FILE]

Random weights of Qwen3's architectures, packs of 16,384 tokens in texts of 2,048, bfloat16. Rows:

- `sdpa`: what one would write first: transformers' model with a block-diagonal mask, logits of all tokens in
  float32, checkpointing of every layer; forward and backward only.
- `varlen`: the same with variable-length attention. `varlen+chunked`: and log-probabilities in blocks.
- `trainer/...`: the project's own step on real micro-batches (`Learner.accumulate`, ratios, entropy and
  statistics included), two of them in a row as within an optimizer step, with float32 master weights:
  `eager/full`, and compiled layers with checkpointing `full`, `every-2`, `selective` or `none`. The
  optimizer's step is timed apart. `.../mixed`: texts of log-normal lengths as preprocess packs them, so that
  rows differ in length and in their texts.

MFU counts 6 N per token over 990 TFLOP/s, whatever is computed twice.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks._figures import RESULTS, Figure, at_least, at_most, report
from benchmarks._texts import random_texts
from benchmarks.gpu.profile_step import profile_step
from pipelinerl.config import Config
from pipelinerl.config.finetune import Checkpointing, RLConfig
from pipelinerl.finetune.build import learner_of
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, assemble_step, encode
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.modeling.logprobs import token_scores
from pipelinerl.modeling.masters import MasterWeights
from pipelinerl.modeling.model import distinct_parameters, hidden_states, output_head, prepare_model
from pipelinerl.modeling.segments import Segments

DEVICE = "cuda"
PEAK_FLOPS = 990e12
TOKENS, TEXT, PROMPT = 16_384, 2_048, 64
VOCAB = 151_936
SIZES: dict[str, dict[str, int]] = {
    "0.6B": {"hidden_size": 1024, "num_hidden_layers": 28, "heads": 16, "intermediate_size": 3072},
    "1.7B": {"hidden_size": 2048, "num_hidden_layers": 28, "heads": 16, "intermediate_size": 6144},
    "4B": {"hidden_size": 2560, "num_hidden_layers": 36, "heads": 32, "intermediate_size": 9728},
}
CHECKPOINTING: dict[str, Checkpointing] = {
    "full": True,
    "every-2": 2,
    "selective": "selective",
    "none": False,
}
SKETCHES = ("sdpa", "varlen", "varlen+chunked")
ROWS = (
    *SKETCHES,
    "trainer/eager/full",
    *(f"trainer/compiled/{mode}" for mode in CHECKPOINTING),
    "trainer/compiled/selective/mixed",
)
MICRO_BATCHES = 2
GOALS = {"0.6B": 60_000.0, "1.7B": 34_000.0}
MFU_GOALS = {"1.7B": 35.0, "4B": 35.0}


@dataclass
class Row:
    """What one way of training one size costs. Times in milliseconds, memory in GB (1e9 bytes)."""

    size: str
    name: str
    parameters: int
    tokens: int = 0
    micro_batches: int = 1
    step_ms: float = 0.0
    tokens_per_s: float = 0.0
    mfu_percent: float = 0.0
    peak_gb: float = 0.0
    optimizer_ms: float | None = None
    tokens_per_s_with_optimizer: float | None = None
    build_s: float = 0.0
    first_step_s: float = 0.0
    profile: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


def build(size: str, tokens: int = TOKENS, vocab: int = VOCAB) -> PreTrainedModel:
    """A random float32 model on the default device."""
    shape = dict(SIZES[size])
    heads = shape.pop("heads")
    config = Qwen3Config(
        vocab_size=vocab,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=max(tokens, 40_960),
        tie_word_embeddings=True,
        **shape,
    )
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return Qwen3ForCausalLM(config)


def micro_batch(tokens: int = TOKENS, text: int = TEXT) -> PipelineBatchEncoding:
    """One full pack of texts of one length."""
    texts = random_texts([text] * (tokens // text), VOCAB, PROMPT)
    return encode(texts, 0, len(texts))


def mixed_batches() -> list[PipelineBatchEncoding]:
    """Micro-batches of a step of 64 texts, the longest half a pack."""
    lengths = np.random.default_rng(1).lognormal(np.log(TOKENS / 24), 0.8, 64)
    lengths = np.clip(lengths, 2 * PROMPT, TOKENS // 2).astype(np.int64)
    return assemble_step(random_texts(lengths.tolist(), VOCAB, PROMPT), 0, TOKENS)[0]


def sketch_step(row: Row) -> tuple[Callable[[], Any], None]:
    """Forward and backward as one would write them, every layer checkpointed, weights in bfloat16."""
    model, name = build(row.size), row.name
    row.parameters, row.tokens = count(model), TOKENS
    if name == "sdpa":
        model.set_attn_implementation("sdpa")
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.config.use_cache = False
        model.train()
    else:
        prepare_model(model, DEVICE, True)
    MasterWeights(model.requires_grad_(False))
    model.requires_grad_(True)
    batch = micro_batch()
    ids = torch.as_tensor(batch.input_ids, dtype=torch.int64, device=DEVICE)
    positions = torch.as_tensor(batch.position_ids, dtype=torch.int64, device=DEVICE)
    segments = Segments.from_offsets(batch.seq_boundaries, DEVICE)
    text = torch.arange(ids.shape[1], device=DEVICE) // TEXT
    mask = (text[:, None] == text[None]).tril()[None, None] if name == "sdpa" else None

    def step() -> None:
        if mask is not None:
            out = model.get_decoder()(
                input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False
            )
            hidden = out.last_hidden_state[0]
        else:
            hidden = hidden_states(model, ids, positions, segments)[0]
        if name.endswith("chunked"):
            logprobs = token_scores(hidden[:-1], output_head(model)[0], ids[0, 1:]).logprobs
        else:
            logits = (hidden[:-1] @ output_head(model)[0].T).float()
            logprobs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        (-logprobs.mean()).backward()
        for parameter in model.parameters():
            parameter.grad = None

    return step, None


def trainer_step(row: Row) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The project's own step: its micro-batches, and what `apply` does at the end."""
    _, way, mode, *mixed = row.name.split("/")
    model = prepare_model(build(row.size), DEVICE, CHECKPOINTING[mode], compile=way == "compiled")
    batches = mixed_batches() if mixed else [micro_batch()] * MICRO_BATCHES
    row.parameters, row.micro_batches = count(model), len(batches)
    row.tokens = sum(batch.n_tokens for batch in batches)
    rl = RLConfig(epsilon_high=4.0)
    cfg = Config.model_validate({"finetune": {"rl": rl, "max_train_steps": 100}})
    learner = learner_of(model, cfg, Ranks())

    def step() -> None:
        # As in the loop: targets are prepared on the host for every micro-batch.
        for batch in batches:
            learner.accumulate(batch, targets_of(batch, rl), Coefficients())

    return step, learner.apply


def count(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for _, parameter in distinct_parameters(model))


def measure(size: str, name: str, repeats: int, profiled: bool) -> Row:
    """Build, warm up, time and profile one row; an error becomes the row's."""
    row = Row(size, name, 0)
    torch.cuda.reset_peak_memory_stats()
    try:
        started = time.monotonic()
        step, apply = sketch_step(row) if name in SKETCHES else trainer_step(row)
        torch.cuda.synchronize()
        row.build_s = round(time.monotonic() - started, 2)
        step()
        torch.cuda.synchronize()
        row.first_step_s = round(time.monotonic() - started - row.build_s, 2)
        if apply is not None:
            apply()
        step()
        torch.cuda.reset_peak_memory_stats()
        seconds = timed(step, repeats)
        row.peak_gb = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        row.step_ms = round(1e3 * seconds, 2)
        row.tokens_per_s = round(row.tokens / seconds, 1)
        row.mfu_percent = round(100 * 6 * row.parameters * row.tokens / seconds / PEAK_FLOPS, 2)
        if apply is not None:
            both = timed(lambda: (step(), apply()), 2)
            row.optimizer_ms = round(1e3 * (both - seconds), 2)
            row.tokens_per_s_with_optimizer = round(row.tokens / both, 1)
        if profiled:
            row.profile = profile_step((lambda: (step(), apply())) if apply is not None else step, warm=0)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        row.error = f"{type(error).__name__}: {str(error)[:600]}"
    return row


def timed(step: Callable[[], Any], repeats: int) -> float:
    """Median of seconds per call, each between two synchronisations."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def loss_memory(hidden_size: int) -> dict[str, float]:
    """Peak GB of scores and their backward beyond inputs and the head's own gradient, and their time."""
    hidden = torch.randn(TOKENS, hidden_size, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(VOCAB, hidden_size, device=DEVICE) * 0.02).bfloat16().requires_grad_()
    targets = torch.randint(0, VOCAB, (TOKENS,), device=DEVICE)

    def step() -> None:
        hidden.grad = weight.grad = None
        token_scores(hidden, weight, targets).logprobs.sum().backward()

    step()
    hidden.grad = weight.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seconds = timed(step, 5)
    assert weight.grad is not None
    used = torch.cuda.max_memory_allocated() - before - weight.grad.nbytes
    flops = 8 * TOKENS * VOCAB * hidden_size
    return {
        "gb": round(used / 1e9, 4),
        "head_gradient_gb": round(weight.grad.nbytes / 1e9, 4),
        "ms": round(1e3 * seconds, 2),
        "tflops": round(flops / seconds / 1e12, 1),
        "full_logits_f32_gb": round(TOKENS * VOCAB * 4 / 1e9, 2),
    }


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def figures_of(rows: list[Row], loss: dict[str, dict[str, float]]) -> list[Figure]:
    """Goals are for the best row that checkpoints, and the real step's."""
    figures = []
    for row in rows:
        label = f"{row.size} {row.name}"
        if row.error is not None:
            continue
        checkpointed = row.name.startswith("trainer/compiled") and "none" not in row.name
        goal = GOALS.get(row.size) if checkpointed else None
        if goal is None:
            figures.append(Figure(f"{label}: tokens", row.tokens_per_s, "tok/s"))
        else:
            figures.append(at_least(f"{label}: tokens", row.tokens_per_s, "tok/s", goal))
        if checkpointed and row.size in MFU_GOALS:
            figures.append(at_least(f"{label}: MFU", row.mfu_percent, "%", MFU_GOALS[row.size]))
        else:
            figures.append(Figure(f"{label}: MFU", row.mfu_percent, "%"))
        figures.append(Figure(f"{label}: peak memory", row.peak_gb, "GB"))
    for size, values in loss.items():
        figures.append(at_most(f"{size} loss: peak memory", values["gb"], "GB", 1.0))
        figures.append(Figure(f"{size} loss: time", values["ms"], "ms"))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--cells", nargs="+", help="SIZE:ROW in this order, instead of --sizes and --rows")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds; rows after it are left out")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_trainer.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.gpu.trainer needs a CUDA device", file=sys.stderr)
        return 2
    started = time.monotonic()
    # One piece of code serves all rows: sizes and modes would otherwise run into the limit of its versions.
    torch._dynamo.config.recompile_limit = 64
    rows: list[Row] = []
    loss: dict[str, dict[str, float]] = {}
    card = {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    details = options.out.with_name(options.out.stem + "_rows.json")
    details.parent.mkdir(parents=True, exist_ok=True)
    cells = options.cells or [f"{size}:{name}" for size in options.sizes for name in options.rows]
    for size, name in (cell.split(":") for cell in cells):
        if time.monotonic() - started > options.budget:
            print(f"  {size} {name}: left out, {options.budget:g} s are over", flush=True)
            continue
        rows.append(measure(size, name, options.repeats, name not in SKETCHES))
        free()
        last = rows[-1]
        print(
            f"  {time.monotonic() - started:.0f} s: {size} {name}: {last.tokens_per_s:,.0f} tok/s, "
            f"MFU {last.mfu_percent:.1f} %, {last.peak_gb} GB, optimizer {last.optimizer_ms} ms, built in "
            f"{last.build_s} s, first step {last.first_step_s} s, {last.profile.get('ms', '')} "
            f"{last.error or ''}",
            flush=True,
        )
        if size not in loss and name != "varlen":
            loss[size] = loss_memory(SIZES[size]["hidden_size"])
            print(f"  {size} loss: {loss[size]}", flush=True)
            free()
        text = json.dumps({**card, "rows": [asdict(row) for row in rows], "loss": loss}, indent=1)
        details.write_text(text + "\n")
    settings = {**card, "tokens": TOKENS, "text": TEXT, "cells": cells}
    report("gpu_trainer", figures_of(rows, loss), settings, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
