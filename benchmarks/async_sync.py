"""How much faster is training while generating than in turns? Same texts, same machine, same code.

    python -m benchmarks.async_sync [--hardware cpu|gpu] [--steps 12] [--start 300.0] [--window 300.0]
                                    [--work results/async_sync] [--out FILE] [key=value ...]

Two runs on completions whose lengths have a long tail: one in which texts may be several updates old, and one
with `max_lag=0`, where every text of a step is sampled by the weights that the step starts from, as in
synchronous training. The figure is the ratio of their seconds per optimizer step, over `--steps` after the
first ones. The model is random and hardly learns (learning rate 1e-6): only time is measured.

Two deadlines for each run: `--start` until its first optimizer step (an engine compiles before that), then
`--window`. A run that is not through by then is ended and counts with the steps that it has made.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS, ROOT, Figure, at_least, at_most, command_line, report
from benchmarks._long_tail import lengths
from benchmarks.engine import build_model
from benchmarks.gpu import runs
from benchmarks.gpu.runs import LimitedRun, launcher, values
from pipelinerl.observe.history import read_metrics

GOAL = 2.0
TOKENIZER = ROOT / "domains/guessing/checkpoint"
OVERRIDES = shlex.split("""
dataset_loader=benchmarks._long_tail.load_problems train_dataset_names=[train] eval_every_n_versions=0
actor.rollout_policy=benchmarks._long_tail.generate_rollout llm.parameters.ignore_eos=true finetune.attempts=2
finetune.save_checkpoint_steps=100000 finetune.learning_rate=1e-6 finetune.lr_scheduler_type=constant
finetune.num_warmup_steps=0
""")
"""Of both runs."""


@dataclass(frozen=True)
class Size:
    """What is run on one kind of machine."""

    shape: tuple[int, ...]
    """Of the model, as in `benchmarks.engine`."""
    texts: int
    """Of an optimizer step, which is also what the engine samples at a time."""
    median: float
    """Of the lengths, which are log-normal with sigma 1."""
    longest: int
    context: int
    overrides: str


SIZES = {
    "cpu": Size((96, 2, 256, 3, 3, 32), 32, 40, 480, 512, "engine.max_model_len=512"),
    "gpu": Size(
        (1024, 12, 3072, 16, 8, 64),
        texts=256,
        median=100,
        longest=1500,
        context=1536,
        overrides="vllm_config.vllm_kwargs.max_model_len=1536 finetune.gradient_checkpointing=false "
        "vllm_config.vllm_kwargs.max-num-batched-tokens=8192",
    ),
}


@dataclass(frozen=True)
class Mode:
    """How far a run may be ahead of its trainer."""

    updates: int
    """How many updates old a text may be."""
    skipped: int
    """Steps before the clock starts."""


MODES = {"asynchronous": Mode(12, 10), "synchronous": Mode(0, 3)}
"""While the longest text is sampled beside others, 8 to 10 steps pass (its length over the mean): with fewer
updates every step would wait for it, and the steps before are made of short texts, so they do not count."""


def random_model(folder: Path, shape: tuple[int, ...]) -> Path:
    """A Qwen3 of random weights in `folder`, with the guessing game's tokenizer."""
    build_model(shape, folder, json.loads((TOKENIZER / "config.json").read_text())["vocab_size"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / name)
    return folder


def overrides(hardware: str, size: Size, model: Path, updates: int, steps: int) -> list[str]:
    """Of the run in which texts are at most `updates` updates old."""
    return [
        *OVERRIDES,
        f"hardware={hardware}",
        f"model_path={model}",
        f"max_lag={updates * size.texts}",
        f"dataset_loader_params={{count:4096,median:{size.median},sigma:1.0,longest:{size.longest}}}",
        f"actor.llm_max_rollouts={size.texts}",
        f"llm.parameters.max_tokens={size.longest}",
        f"finetune.gradient_accumulation_passes={size.texts}",
        f"finetune.max_train_steps={steps}",
        f"finetune.seq_length={4 * size.context}",
        f"preprocess.ring_buffer_size={8 * size.texts}",
        f"preprocess.max_ready_samples_per_lead={2 * size.texts}",
        *size.overrides.split(),
    ]


def measure(run: LimitedRun, out: Path, start_s: float, window_s: float, skipped: int) -> dict[str, Any]:
    """Seconds per step of a run in `out` after the first `skipped`, and what else the comparison needs.

    RuntimeError if no optimizer step was made within `start_s`, or too few in `window_s` from then on.
    """
    begun = run.until(lambda: bool(runs.steps_of(out)), start_s)
    first_s = run.seconds
    status = run.end(first_s + window_s if begun else first_s)
    steps = runs.steps_of(out)
    try:
        if not begun:
            raise ValueError(f"no optimizer step after {first_s:.0f} s (--start {start_s:g})")
        seconds = runs.seconds_per_step(steps, skipped)
    except ValueError as error:
        raise RuntimeError(
            f"{out}: exit status {status}, {error} (--window {window_s:g})\n{run.said()}"
        ) from None
    trainer, actor = read_metrics(out, "finetune"), read_metrics(out, "actor")
    return {
        "status": status,
        "seconds_per_step": seconds,
        "steps": steps[-1][1],
        "first_step_s": first_s,
        "lag_max_texts": max(values(trainer, "stats/lag_max"), default=0.0),
        "idle_share": [float("nan"), *values(actor[-1:], "actor/requests/engine_idle_share")][-1],
        "paused_ms": [1e3 * one for one in values(trainer, "weights/max_paused_s")],
        "total_s": run.seconds,
    }


def figures_of(found: Mapping[str, Mapping[str, Any]], hardware: str) -> Iterator[Figure]:
    """The table, with the goal for GPUs; on a CPU engine and trainer are after the same cores."""
    for mode, one in found.items():
        yield Figure(f"{mode}: a step", one["seconds_per_step"], "s")
        yield Figure(f"{mode}: steps made", one["steps"], "steps")
        yield Figure(f"{mode}: first step after", one["first_step_s"], "s")
        yield Figure(f"{mode}: oldest trained text", one["lag_max_texts"], "texts")
        if mode == "asynchronous":
            yield at_most("asynchronous: engine without requests", one["idle_share"], "share", 0.05)
    if len(found) == len(MODES):
        ratio = found["synchronous"]["seconds_per_step"] / found["asynchronous"]["seconds_per_step"]
        goal = GOAL if hardware == "gpu" else None
        yield at_least("asynchronous / synchronous, steps per second", ratio, "x", goal)


def main() -> int:
    options = command_line(__doc__)
    runs.leave_in_order()
    size, work = SIZES[options.hardware], options.work.absolute()
    model = random_model(work / "model", size.shape)
    drawn = lengths(4096, size.median, 1.0, size.longest)
    settings: dict[str, Any] = {"hardware": options.hardware, "texts per step": size.texts}
    settings |= {"mean length": round(float(drawn.mean())), "longest": int(drawn.max())}
    out = options.out or RESULTS / f"async_sync_{options.hardware}.json"
    found: dict[str, dict[str, Any]] = {}
    for name, mode in MODES.items():
        given = overrides(options.hardware, size, model, mode.updates, mode.skipped + options.steps)
        folder = runs.fresh(work / name)
        run = LimitedRun(launcher(folder, [*given, *options.overrides]), folder.with_suffix(".log"))
        with runs.survived(name):
            found[name] = measure(run, folder, options.start, options.window, mode.skipped)
        runs.keep(folder, (options.out or work / out.name).with_stem(f"{out.stem}_{name}"))
        runs.write_partial(out, found)
        if run.terminated:
            print("ended before its end; what there is follows", flush=True)
            break
    out.with_suffix(".partial").unlink(missing_ok=True)
    missed = report("async_sync", figures_of(found, options.hardware), settings, out)
    return min(missed, 1) if len(found) == len(MODES) else 1


if __name__ == "__main__":
    sys.exit(main())
