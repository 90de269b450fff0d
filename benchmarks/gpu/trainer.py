"""Training tokens per second, memory and a profile on one GPU.

    python -m benchmarks.gpu.trainer [--sizes 0.6B 1.7B 4B] [--rows ROW ...] [--cells SIZE:ROW ...]
                                     [--repeats 3] [--budget 600.0] [--out FILE]

Random weights of Qwen3's architectures, packs of 16,384 tokens in texts of 2,048, bfloat16. `--cells` are
measured in this order, instead of all `--rows` of all `--sizes`; those that are left after `--budget` seconds
are left out. Rows:

- `sdpa`: what one would write first: transformers' model with a block-diagonal mask, logits of all tokens in
  float32, checkpointing of every layer; forward and backward only.
- `trainer/...`: the project's own step on real micro-batches (`Learner.accumulate`, ratios, entropy and
  statistics included), two of them in a row as within an optimizer step, with float32 master weights:
  `eager/full`, and compiled layers with checkpointing `full`, `every-2`, `selective` or `none`. The
  optimizer's step is timed apart. `.../mixed`: texts of log-normal lengths as preprocess packs them, so that
  rows differ in length and in their texts.

MFU counts 6 N per token over 990 TFLOP/s, whatever is computed twice.
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel, Qwen3ForCausalLM

from benchmarks._figures import RESULTS, Figure, at_least, at_most, command_line, report, write_json
from benchmarks._texts import RL, learner_for, random_texts
from benchmarks.gpu.cards import need_cuda
from benchmarks.gpu.served import model_config
from pipelinerl.config.finetune import Checkpointing
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, assemble_step, encode
from pipelinerl.finetune.rl.losses import Coefficients
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.modeling.logprobs import token_scores
from pipelinerl.modeling.model import active_parameters, output_head, prepare_model

PEAK_FLOPS = 990e12
TOKENS, TEXT, PROMPT = 16_384, 2_048, 64
VOCAB = 151_936
SIZES = ("0.6B", "1.7B", "4B")
CHECKPOINTING: dict[str, Checkpointing] = {
    "full": True,
    "every-2": 2,
    "selective": "selective",
    "none": False,
    "offload": "offload",
}
ROWS = (
    "sdpa",
    "trainer/eager/full",
    *(f"trainer/compiled/{mode}" for mode in CHECKPOINTING if mode != "offload"),
    "trainer/compiled/selective/mixed",
)
MICRO_BATCHES = 2
KERNELS = {
    "attention": ("flash", "fmha", "cudnn_generated_fort"),
    "matmul": ("gemm", "nvjet", "cutlass", "xmma", "splitk", "cublas"),
    "copies": ("memcpy", "memset"),
}
"""Parts of the names of kernels, by what they compute."""
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


def build(size: str, device: str = "cuda") -> PreTrainedModel:
    """A random float32 model."""
    torch.manual_seed(0)
    with torch.device(device):
        return Qwen3ForCausalLM(model_config(size)).float()


def count(model: PreTrainedModel) -> int:
    """Parameters of a token, for MFU."""
    return active_parameters(model)


def micro_batch(count: int = TOKENS // TEXT, length: int = TEXT, vocab: int = VOCAB) -> PipelineBatchEncoding:
    """One full pack of `count` texts of one length."""
    texts = random_texts([length] * count, vocab, PROMPT)
    return encode(texts, 0, len(texts))


def mixed_batches() -> list[PipelineBatchEncoding]:
    """Micro-batches of a step of 64 texts, the longest half a pack."""
    lengths = np.random.default_rng(1).lognormal(np.log(TOKENS / 24), 0.8, 64)
    lengths = np.clip(lengths, 2 * PROMPT, TOKENS // 2).astype(np.int64)
    return assemble_step(random_texts(lengths.tolist(), VOCAB, PROMPT), 0, TOKENS)[0]


def plain_step(row: Row) -> tuple[Callable[[], Any], None]:
    """Forward and backward as one would write them, every layer checkpointed, weights in bfloat16."""
    model = build(row.size)
    row.parameters, row.tokens = count(model), TOKENS
    model.set_attn_implementation("sdpa")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.use_cache = False
    model.bfloat16().train()
    batch = micro_batch()
    ids = torch.as_tensor(batch.input_ids, dtype=torch.int64, device="cuda")
    positions = torch.as_tensor(batch.position_ids, dtype=torch.int64, device="cuda")
    text = torch.arange(ids.shape[1], device="cuda") // TEXT
    mask = (text[:, None] == text[None]).tril()[None, None]
    inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": mask, "use_cache": False}

    def step() -> None:
        hidden = model.get_decoder()(**inputs).last_hidden_state[0]
        logits = (hidden[:-1] @ output_head(model)[0].T).float()
        (-logits.log_softmax(-1).gather(1, ids[0, 1:, None]).mean()).backward()
        model.zero_grad(set_to_none=True)

    return step, None


def trainer_step(row: Row) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The project's own step: its micro-batches, and what `apply` does at the end."""
    _, way, mode, *mixed = row.name.split("/")
    model = prepare_model(build(row.size), "cuda", CHECKPOINTING[mode], compile=way == "compiled")
    batches = mixed_batches() if mixed else [micro_batch()] * MICRO_BATCHES
    row.parameters, row.micro_batches = count(model), len(batches)
    row.tokens = sum(batch.n_tokens for batch in batches)
    learner = learner_for(model, bfloat16=True)

    def step() -> None:
        # As in the loop: targets are prepared on the host for every micro-batch.
        for batch in batches:
            learner.accumulate(batch, targets_of(batch, RL), Coefficients())

    return step, learner.apply


def measure(size: str, name: str, repeats: int) -> Row:
    """Build, warm up, time and profile one row; an error becomes the row's."""
    row = Row(size, name, 0)
    torch.cuda.reset_peak_memory_stats()
    try:
        started = time.monotonic()
        step, apply = plain_step(row) if name == "sdpa" else trainer_step(row)
        torch.cuda.synchronize()
        row.build_s = round(time.monotonic() - started, 2)
        row.first_step_s = round(timed(step, 1), 2)
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
            row.profile = profile_step(lambda: (step(), apply()))
    except (RuntimeError, torch.OutOfMemoryError) as error:
        row.error = f"{type(error).__name__}: {str(error)[:600]}"
    return row


def profile_step(step: Callable[[], Any], kinds: Mapping[str, tuple[str, ...]] = KERNELS) -> dict[str, Any]:
    """Milliseconds of a step's kernels by kind, by their names, and of the longest; `idle`: without one."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
        wall_ms = 1e3 * (time.perf_counter() - started)
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)
    kernels = {row.key: row.self_device_time_total / 1e3 for row in rows if row.self_device_time_total > 0}
    spent = dict.fromkeys([*kinds, "other"], 0.0)
    for name, ms in kernels.items():
        fitting = (kind for kind, parts in kinds.items() if any(part in name.lower() for part in parts))
        spent[next(fitting, "other")] += ms
    longest = {name[:90]: round(ms, 3) for name, ms in list(kernels.items())[:25]}
    spent["idle"] = wall_ms - sum(spent.values())
    return {"wall_ms": round(wall_ms, 3), "ms": spent, "longest_ms": longest}


def timed(step: Callable[[], Any], repeats: int) -> float:
    """Median of seconds per call, each between two synchronisations where there is a GPU."""
    times, synchronize = [], torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(repeats):
        synchronize()
        started = time.perf_counter()
        step()
        synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def loss_memory(hidden_size: int) -> dict[str, float]:
    """Peak GB of scores and their backward beyond inputs and the head's own gradient, and their time."""
    hidden = torch.randn(TOKENS, hidden_size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(VOCAB, hidden_size, device="cuda") * 0.02).bfloat16().requires_grad_()
    targets = torch.randint(0, VOCAB, (TOKENS,), device="cuda")

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
    return {
        "gb": round(used / 1e9, 4),
        "head_gradient_gb": round(weight.grad.nbytes / 1e9, 4),
        "ms": round(1e3 * seconds, 2),
        "tflops": round(8 * TOKENS * VOCAB * hidden_size / seconds / 1e12, 1),
        "full_logits_f32_gb": round(TOKENS * VOCAB * 4 / 1e9, 2),
    }


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def figures_of(rows: list[Row], loss: dict[str, dict[str, float]]) -> list[Figure]:
    """Goals are for rows of the real step that checkpoint."""
    figures = []
    for row in rows:
        if row.error is None:
            label = f"{row.size} {row.name}"
            goals = row.name.startswith("trainer/compiled") and "none" not in row.name
            least, mfu = (goal.get(row.size) if goals else None for goal in (GOALS, MFU_GOALS))
            figures.append(at_least(f"{label}: tokens", row.tokens_per_s, "tok/s", least))
            figures.append(at_least(f"{label}: MFU", row.mfu_percent, "%", mfu))
            figures.append(Figure(f"{label}: peak memory", row.peak_gb, "GB"))
    for size, values in loss.items():
        figures.append(at_most(f"{size} loss: peak memory", values["gb"], "GB", 1.0))
        figures.append(Figure(f"{size} loss: time", values["ms"], "ms"))
    return figures


def main() -> int:
    options = command_line(__doc__, sizes=SIZES, rows=ROWS)
    options.out = options.out or RESULTS / "gpu_trainer.json"
    need_cuda("benchmarks.gpu.trainer")
    started = time.monotonic()
    # One piece of code serves all rows: sizes and modes would otherwise run into the limit of its versions.
    torch._dynamo.config.recompile_limit = 64
    rows: list[Row] = []
    loss: dict[str, dict[str, float]] = {}
    card = {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    cells = options.cells or [f"{size}:{name}" for size in options.sizes for name in options.rows or ROWS]
    for size, name in (cell.split(":") for cell in cells):
        if time.monotonic() - started > options.budget:
            print(f"  {size} {name}: left out, {options.budget:g} s are over", flush=True)
            continue
        rows.append(row := measure(size, name, options.repeats))
        free()
        print(
            f"  {time.monotonic() - started:.0f} s: {vars(row) | {'profile': row.profile.get('ms')}}",
            flush=True,
        )
        if size not in loss:
            loss[size] = loss_memory(model_config(size).hidden_size)
            print(f"  {size} loss: {loss[size]}", flush=True)
            free()
        details = {**card, "rows": [asdict(row) for row in rows], "loss": loss}
        write_json(options.out.with_name(options.out.stem + "_rows.json"), details)
    settings = {**card, "tokens": TOKENS, "text": TEXT, "cells": cells}
    report("gpu_trainer", figures_of(rows, loss), settings, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
