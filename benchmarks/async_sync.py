"""How much faster is training while generating than in turns? Same texts, same machine, same code.

    python -m benchmarks.async_sync [--hardware cpu|gpu] [--steps 12] [--start 300] [--window 300] [key=value]

Two runs on completions whose lengths have a long tail: one in which texts may be several updates old, and one
with `max_lag=0`, where every text of a step is sampled by the weights that the step starts from, as in
synchronous training. The figure is the ratio of their seconds per optimizer step, after the first steps. The
model is random and hardly learns (learning rate 1e-6): only time is measured.

Two deadlines for each run: `--start` until its first optimizer step (an engine compiles before that), then
`--window`. A run that is not through by then is ended and counts with the steps that it has made.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS, Figure, at_least, at_most, report
from benchmarks._long_tail import lengths, random_model
from benchmarks.gpu.runs import (
    LimitedRun,
    fresh,
    keep,
    launcher,
    leave_in_order,
    records,
    seconds_per_step,
    steps_of,
    values,
    write_partial,
)

GOAL = 2.0


@dataclass(frozen=True)
class Size:
    """What is run on one kind of machine."""

    shape: dict[str, int]
    texts: int
    """Of an optimizer step, which is also what the engine samples at a time."""
    median: float
    sigma: float
    longest: int
    context: int
    overrides: tuple[str, ...] = ()


SIZES = {
    "cpu": Size(
        {
            "hidden_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "head_dim": 32,
            "intermediate_size": 256,
        },
        texts=32,
        median=40,
        sigma=1.0,
        longest=480,
        context=512,
    ),
    "gpu": Size(
        {
            "hidden_size": 1024,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 3072,
        },
        texts=256,
        median=100,
        sigma=1.0,
        longest=1500,
        context=1536,
        overrides=(
            "vllm_config.vllm_kwargs.max_model_len=1536",
            "vllm_config.vllm_kwargs.max-num-batched-tokens=8192",
            "finetune.gradient_checkpointing=false",
            "weights.parity_mean_abs=0.2",
        ),
    ),
}


@dataclass(frozen=True)
class Mode:
    """How far a run may be ahead of its trainer."""

    updates: int
    """How many updates old a text may be."""
    skipped: int
    """Steps before the clock starts."""


MODES = {"synchronous": Mode(0, 3), "asynchronous": Mode(12, 10)}
"""While the longest text is sampled beside others, 8 to 10 steps pass (its length over the mean): with fewer
updates every step would wait for it, and the steps before are made of short texts, so they do not count."""


def overrides(hardware: str, size: Size, model: Path, updates: int, steps: int) -> list[str]:
    """Of the run in which texts are at most `updates` updates old."""
    tail = f"count:4096,median:{size.median},sigma:{size.sigma},longest:{size.longest}"
    engine = [f"engine.max_model_len={size.context}"] if hardware == "cpu" else []
    return [
        f"hardware={hardware}",
        f"model_path={model}",
        "dataset_loader=benchmarks._long_tail.load_problems",
        f"dataset_loader_params={{{tail}}}",
        "train_dataset_names=[train]",
        "actor.rollout_policy=benchmarks._long_tail.generate_rollout",
        f"actor.llm_max_rollouts={size.texts}",
        "llm.parameters.ignore_eos=true",
        f"llm.parameters.max_tokens={size.longest}",
        "finetune.attempts=2",
        f"finetune.gradient_accumulation_passes={size.texts}",
        f"finetune.max_train_steps={steps}",
        "finetune.save_checkpoint_steps=100000",
        "finetune.learning_rate=1e-6",
        "finetune.lr_scheduler_type=constant",
        "finetune.num_warmup_steps=0",
        f"finetune.seq_length={4 * size.context}",
        f"preprocess.ring_buffer_size={8 * size.texts}",
        f"preprocess.max_ready_samples_per_lead={2 * size.texts}",
        f"max_lag={updates * size.texts}",
        "eval_every_n_versions=0",
        *engine,
        *size.overrides,
    ]


def measure(run: LimitedRun, out: Path, start_s: float, window_s: float, skipped: int) -> dict[str, Any]:
    """Seconds per step of a run in `out` after the first `skipped`, and what else the comparison needs.

    RuntimeError if no optimizer step was made within `start_s`, or too few in `window_s` from then on.
    """
    begun = run.until(lambda: bool(steps_of(records(out, "finetune"))), start_s)
    first_s = run.seconds
    status = run.end(first_s + window_s if begun else first_s)
    if not begun:
        raise RuntimeError(
            f"{out}: exit status {status}, no optimizer step after {first_s:.0f} s (--start {start_s:g})\n"
            f"{run.said()}"
        )
    trainer, actor = records(out, "finetune"), records(out, "actor")
    try:
        seconds = seconds_per_step(trainer, skipped)
    except ValueError as error:
        problem = f"exit status {status}, {error} (--window {window_s:g})"
        raise RuntimeError(f"{out}: {problem}\n{run.said()}") from None
    last = actor[-1] if actor else {}
    return {
        "status": status,
        "seconds_per_step": seconds,
        "steps": steps_of(trainer)[-1][1],
        "first_step_s": first_s,
        "lag_max_texts": max(values(trainer, "stats/lag_max"), default=0.0),
        "idle_share": float(last.get("actor/requests/engine_idle_share", float("nan"))),
        "paused_ms": [1e3 * one for one in values(trainer, "weights/max_paused_s")],
        "total_s": run.seconds,
    }


def figures_of(found: dict[str, dict[str, Any]], hardware: str) -> list[Figure]:
    """The table, with the goal for GPUs; on a CPU engine and trainer are after the same cores."""
    figures = []
    for mode, one in found.items():
        figures.append(Figure(f"{mode}: a step", one["seconds_per_step"], "s"))
        figures.append(Figure(f"{mode}: steps made", one["steps"], "steps"))
        figures.append(Figure(f"{mode}: first step after", one["first_step_s"], "s"))
        figures.append(Figure(f"{mode}: oldest trained text", one["lag_max_texts"], "texts"))
        if mode == "asynchronous":
            share = one["idle_share"]
            figures.append(at_most("asynchronous: engine without requests", share, "share", 0.05))
    if len(found) == len(MODES):
        ratio = found["synchronous"]["seconds_per_step"] / found["asynchronous"]["seconds_per_step"]
        name = "asynchronous / synchronous, steps per second"
        figures.append(at_least(name, ratio, "x", GOAL) if hardware == "gpu" else Figure(name, ratio, "x"))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hardware", choices=list(SIZES), default="cpu")
    parser.add_argument("--steps", type=int, default=12, help="that count, after those that do not")
    parser.add_argument("--start", type=float, default=300.0, help="seconds of a run to its first step")
    parser.add_argument("--window", type=float, default=300.0, help="seconds of a run from its first step")
    parser.add_argument("--work", type=Path, default=Path("results/async_sync"))
    parser.add_argument("--out", type=Path, help="the table as JSON; async_sync_HARDWARE.json by default")
    parser.add_argument("overrides", nargs="*", help="of both runs, key=value")
    options = parser.parse_intermixed_args()
    leave_in_order()
    size = SIZES[options.hardware]
    options.work.mkdir(parents=True, exist_ok=True)
    model = random_model(options.work.absolute() / "model", size.shape)
    drawn = lengths(4096, size.median, size.sigma, size.longest)
    settings: dict[str, Any] = {"hardware": options.hardware, "texts per step": size.texts}
    settings |= {"mean length": round(float(drawn.mean())), "longest": int(drawn.max())}
    out = options.out or RESULTS / f"async_sync_{options.hardware}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = {}
    failed = 0
    for name, mode in reversed(MODES.items()):
        given = overrides(options.hardware, size, model, mode.updates, mode.skipped + options.steps)
        folder = fresh(options.work.absolute() / name)
        run = LimitedRun(launcher(folder, [*given, *options.overrides]), folder.with_suffix(".log"))
        try:
            found[name] = measure(run, folder, options.start, options.window, mode.skipped)
        except RuntimeError as error:
            failed = 1
            print(f"{name} FAILED: {error}", flush=True)
        keep(folder, (options.out or options.work / out.name).with_stem(f"{out.stem}_{name}"))
        write_partial(out, found)
        if run.terminated:
            print("ended before its end; what there is follows", flush=True)
            break
    out.with_suffix(".partial").unlink(missing_ok=True)
    missed = report("async_sync", figures_of(found, options.hardware), settings, out)
    return failed or min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
