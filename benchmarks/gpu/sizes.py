"""Runs at the sizes that people train, every key at its default: what was planned beside what cards showed.

    python -m benchmarks.gpu.sizes [--only ARM ...] [--steps 4] [--limit 400.0] [--work results/gpu_sizes]
                                   [--devices 0,1,2,3] [--context 1024] [--hardware gpu|cpu] [--out FILE]
                                   [key=value ...]

Random weights of published shapes; the work is one call a rollout, with a prompt of `--context` tokens and
as many sampled, in groups of 8. An arm is a model and the number of cards it gets of `--devices`; nothing but
the work is configured. Of each arm the JSON has the launcher's plan (bytes of an engine's and of a trainer's
card), the peaks that the driver and torch's allocator showed, the first trained step, the pause of each
update, MFU, row fill and parity with its limit. `--limit` seconds are for each arm; one that is stopped there
keeps what it has shown. Arms that have a file in `--work` are not run again, and rows of other arms that
`--out` has stay there; `key=value` are for every run. `--hardware cpu` rehearses an arm with a tiny model of
its kind and the embedded engine. Arms of long texts are steps of the trainer alone
(`benchmarks.gpu.sharded`): one text a row, all recomputed, and what each GPU does of it.
"""

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS, Figure, at_least, at_most, command_line, machine, report, write_json
from benchmarks.gpu import runs
from benchmarks.gpu.cards import need_cuda
from benchmarks.gpu.runs import LimitedRun
from benchmarks.gpu.shapes import FAMILIES, make_model
from benchmarks.gpu.steady import numbers
from benchmarks.gpu.trl import made_once, on_loopback
from pipelinerl.observe.history import read_metrics
from pipelinerl.observe.report_page import CHOICES

GROUP = 8


@dataclass(frozen=True)
class Arm:
    """One run."""

    model: str
    cards: int
    texts: int
    """Of an optimizer step."""
    goals: Mapping[str, float]
    """MFU in percent and trained steps at least, an update's pause in ms and the first step in s at most."""
    overrides: tuple[str, ...] = ()
    on_cards: tuple[str, ...] = ()
    """Further ones, which a rehearsal does without."""


REPLAYED, WIDTH = "experts replayed", "experts' width, dense"
"""The log ratio of the first is to be no larger than that of the second."""
TEXT_ONLY = ("+vllm_config.vllm_kwargs.language-model-only=true",)
ON_ONE = ("world.share_device=true",)
TEN_STEPS = {"mfu": 30, "pause": 100, "steps": 10}
ARMS = {
    "8B on four": Arm("8B", 4, 192, {"mfu": 42, "pause": 60, "first": 200}),
    "4B on two": Arm("4B", 2, 64, {"pause": 60}),
    "experts on two": Arm("experts", 2, 64, {"mfu": 25, "pause": 100}, ("finetune.rl.routing=free",)),
    REPLAYED: Arm("experts", 2, 64, {}, ("finetune.rl.routing=replay",)),
    WIDTH: Arm("slice", 2, 64, {}),
    "hybrid on two": Arm("hybrid", 2, 64, TEN_STEPS, on_cards=TEXT_ONLY),
    "hybrid on two, nothing shared": Arm(
        "hybrid", 2, 64, {}, ("finetune.share_prefixes=false",), on_cards=TEXT_ONLY
    ),
    "Gemma-3-4B's shape on two cards": Arm("windows", 2, 64, TEN_STEPS),
    "4B shared": Arm("4B", 1, 64, {}, on_cards=ON_ONE),
    **{f"{name} on one": Arm(name, 1, 64, {}, on_cards=ON_ONE) for name in FAMILIES},
    "1.7B on two": Arm("1.7B", 2, 128, {"pause": 60, "first": 100}),
    "1.7B on four": Arm("1.7B", 4, 256, {"pause": 60}),
}


@dataclass(frozen=True)
class LongArm:
    """Steps of the trainer alone on texts that fill a row."""

    model: str
    cards: int
    tokens: int
    words: tuple[str, ...] = ()
    """Further options of `benchmarks.gpu.sharded`."""


LONG = {
    "32k: 8B on four": LongArm("8B", 4, 32_768),
    "32k: 8B on four, inputs in host memory": LongArm("8B", 4, 32_768, ("--mode", "offload")),
    "131k: 1.7B with seq_parallel=2 on two": LongArm("1.7B", 2, 131_072, ("--seq-parallel", "2")),
}


def overrides(arm: Arm, model: Path, context: int, cpu: bool) -> list[str]:
    """The work, and nothing of the machine."""
    serving = "engine.max_model_len" if cpu else "vllm_config.vllm_kwargs.max_model_len"
    texts = 16 if cpu else arm.texts
    return [
        f"hardware={'cpu' if cpu else 'gpu'}",
        f"model_path={model}",
        "dataset_loader=benchmarks.gpu.trl_rollouts.load_sized",
        f"dataset_loader_params={{tokens:{context}}}",
        "train_dataset_names=[train]",
        "actor.rollout_policy=benchmarks.gpu.trl_rollouts.generate_rollout",
        f"llm.parameters.max_tokens={context}",
        "llm.parameters.ignore_eos=true",
        f"{serving}={2 * context + 64}",
        f"max_lag={2 * texts}",
        "eval_every_n_versions=0",
        f"finetune.attempts={GROUP}",
        f"finetune.gradient_accumulation_passes={texts}",
        "finetune.save_checkpoint_steps=100000",
        "finetune.memory_debug.enabled=true",
    ]


@contextmanager
def memory_watch(log: Path, devices: Sequence[str]) -> Iterator[None]:
    """Writes what the driver says of each card's memory, twice a second."""
    query = ["nvidia-smi", "--query-gpu=index,memory.used,utilization.gpu", "--format=csv,noheader,nounits"]
    with log.open("w", encoding="utf-8") as out:
        try:
            watch = subprocess.Popen([*query, "-lms", "500", "-i", ",".join(devices)], stdout=out)
        except OSError:  # no driver, as in a rehearsal
            yield
            return
        try:
            yield
        finally:
            watch.terminate()
            watch.wait(10)


def peaks(log: Path) -> dict[str, float]:
    """Most MiB of each card by its index, without what other programs hold there all the time."""
    found: dict[str, list[float]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        index, _, rest = line.partition(",")
        used = rest.split(",")[0].strip()
        if used.isdigit():
            found.setdefault(index.strip(), []).append(float(used))
    return {index: max(looks) - min(looks) for index, looks in found.items()}


def run_arm(name: str, options: Any, devices: Sequence[str]) -> dict[str, Any]:
    """Run one arm and read what it left; what it did not reach is missing from the row."""
    arm, work, cpu = ARMS[name], options.work / _folder(name), options.hardware == "cpu"
    work.mkdir(parents=True, exist_ok=True)
    size, steps = "tiny_" * cpu + arm.model, max(options.steps, int(arm.goals.get("steps", 0)))
    model = made_once(make_model, (arm.model, cpu), options.work / f"model_{size}")
    out, used = runs.fresh(work / "run"), devices[: arm.cards]
    words = [
        *overrides(arm, model, options.context, cpu),
        *arm.overrides,
        *(() if cpu else arm.on_cards),
        *options.overrides,
    ]
    env = on_loopback() | ({} if cpu else {"CUDA_VISIBLE_DEVICES": ",".join(used)})
    begun = time.time()
    with memory_watch(work / "cards.csv", used):
        run = LimitedRun(runs.launcher(out, words), work / "run.log", env)
        try:
            run.until(lambda: len(_steps(out)) >= steps, options.limit)
        finally:
            ended = run.process.poll()
            run.stop()
    runs.keep(out, work / "kept.json")
    row = {
        "arm": name,
        "cards": arm.cards,
        "model": arm.model,
        "texts": arm.texts,
        "context": options.context,
    }
    row |= {"overrides": list(options.overrides), "machine": machine(), "begun": begun, "exit": ended}
    row |= read_run(out, begun) | {"peaks_mib": peaks(work / "cards.csv"), "said": run.said(6)}
    write_json(work / "row.json", row)
    return row


def run_long(name: str, options: Any, devices: Sequence[str]) -> dict[str, Any]:
    """Time one arm of long texts; its figures, or what it said instead."""
    arm, cpu = LONG[name], options.hardware == "cpu"
    work = options.work / _folder(name)
    work.mkdir(parents=True, exist_ok=True)
    used, out = devices[: arm.cards], work / "sharded.json"
    out.unlink(missing_ok=True)
    start = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(arm.cards)]
    words = ["--size", arm.model, "--tokens", arm.tokens, "--text", arm.tokens, "--repeats", 1, *arm.words]
    command = [
        sys.executable,
        "-m",
        *start,
        "-m",
        "benchmarks.gpu.sharded",
        *map(str, [*words, "--out", out]),
    ]
    env = on_loopback() | ({} if cpu else {"CUDA_VISIBLE_DEVICES": ",".join(used)})
    run = LimitedRun([*command, *(["--cpu"] if cpu else [])], work / "run.log", env)
    try:
        run.end(options.limit)  # its figures are its last words
    finally:
        run.stop()
    row = {"arm": name, "cards": arm.cards, "model": arm.model, "tokens": arm.tokens, "machine": machine()}
    row |= {"figures": json.loads(out.read_text())["figures"] if out.is_file() else {}, "said": run.said(6)}
    write_json(work / "row.json", row)
    return row


def _folder(name: str) -> str:
    return re.sub(r"[^\w.]+", "_", name)


def _steps(out: Path) -> list[dict[str, Any]]:
    return [row for row in read_metrics(out, "finetune") if "throughput/sec_per_pass" in row]


def read_run(out: Path, begun: float) -> dict[str, Any]:
    """What the run planned and showed: the table of choices, each step, each update."""
    steps = _steps(out)
    begins = (
        *("throughput/", "weights/", "memory/", "stats/completed_steps", "stats/samples", "rl/ess"),
        *("routing/", "stats/lag", "rl/mean_abs_log_ratio_new_old"),
    )
    choices = out / CHOICES
    return {
        "plan": json.loads(choices.read_text()) if choices.is_file() else [],
        "first_step_s": steps[0]["time"] - begun if steps else None,
        "steps": [
            {"at": row["time"] - begun}
            | {key: one for key, one in numbers(row).items() if key.startswith(begins)}
            for row in steps
        ],
    }


def planned_gib(row: Mapping[str, Any], role: str) -> float | None:
    """What the table of choices says of a card of this role."""
    for choice in row["plan"]:
        if choice["subject"] == f"bytes for {role}":
            return float(choice["chosen"].split(" of ")[0])
    return None


def rows_gib(row: Mapping[str, Any]) -> float | None:
    """What it says of a trainer's full rows."""
    for choice in row["plan"]:
        if choice["subject"] == "bytes for trainer":
            found = re.search(r"rows of \d+ tokens[^,]*? ([\d.]+)(?:,|$)", choice["chosen"])
            return float(found[1]) if found else None
    return None


def planned_as_full(row: Mapping[str, Any]) -> float | None:
    """GiB of a trainer's card for rows as full as those of the fullest step; the plan is for full ones."""
    planned, of_rows = planned_gib(row, "trainer"), rows_gib(row)
    fills = [step["throughput/row_fill"] for step in row["steps"] if "throughput/row_fill" in step]
    if planned is None or of_rows is None or not fills:
        return None
    return planned - of_rows * (1 - max(fills))


def cells(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Prediction beside peak: of an engine's card by the driver, of a trainer's by torch's allocator."""
    for name, row in rows.items():
        memory = [
            step["memory/device_peak_bytes"] for step in row["steps"] if "memory/device_peak_bytes" in step
        ]
        engine, trainer = planned_gib(row, "engine"), planned_gib(row, "trainer")
        if trainer is not None and len(memory) > 3:  # before, layers may not be compiled yet
            peak = max(memory) / 2**30
            cell = {"arm": name, "role": "trainer", "predicted_gib": trainer, "peak_gib": round(peak, 2)}
            as_full = planned_as_full(row)
            yield cell if as_full is None else cell | {"as_full_gib": round(as_full, 2)}
        if engine is not None and row["peaks_mib"] and row["steps"] and row["cards"] > 1:
            peak = _engine_peak(row)
            yield {"arm": name, "role": "engine", "predicted_gib": engine, "peak_gib": round(peak / 1024, 2)}


def _engine_peak(row: Mapping[str, Any]) -> float:
    """Engines have the first cards of a host."""
    return float(row["peaks_mib"][min(row["peaks_mib"], key=int)])


def without_lag(row: Mapping[str, Any]) -> float | None:
    """Mean size of the log ratio where every token was sampled by the weights that are trained, in nats."""
    key = "rl/mean_abs_log_ratio_new_old"
    found = [step[key] for step in row["steps"] if step.get("stats/lag_max") == 0 and key in step]
    return statistics.median(found) if found else None


def figures_of(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Figure]:
    """First step, pauses, MFU and row fill of each arm, and its predictions over what was seen."""
    for name, row in rows.items():
        if name in LONG:
            for label, one in row["figures"].items():
                yield Figure(f"{name}: {label}", one["value"], one["unit"])
            continue
        goals, steps = ARMS[name].goals, row["steps"]
        if row["first_step_s"] is not None:
            yield at_most(f"{name}: first trained step", row["first_step_s"], "s", goals.get("first"))
        pauses = [1e3 * s["weights/max_paused_s"] for s in steps if s.get("weights/max_paused_s")]
        if pauses[1:]:
            median = statistics.median(pauses[1:])
            yield at_most(f"{name}: update's pause, median", median, "ms", goals.get("pause"))
            yield Figure(f"{name}: first pause", pauses[0], "ms")
        if "steps" in goals:
            yield at_least(f"{name}: trained steps", len(steps), "steps", goals["steps"])
        if (ratio := without_lag(row)) is not None:
            goal = without_lag(rows[WIDTH]) if name == REPLAYED and WIDTH in rows else None
            yield at_most(f"{name}: log ratio at no lag, mean size", ratio, "nats", goal)
        later = steps[1:] or steps
        for key, label, unit, scale in (
            ("throughput/mfu_unique", "MFU of computed tokens", "%", 100),
            ("throughput/row_fill", "rows are full", "%", 100),
            ("weights/parity_mean_abs", "parity, mean", "nats", 1),
            ("weights/parity_limit", "parity, limit", "nats", 1),
            ("rl/mean_abs_log_ratio_new_old", "log ratio, mean size", "nats", 1),
            ("routing/replayed_share", "tokens with replayed experts", "%", 100),
            ("routing/differing_share", "choices of experts that differ", "%", 100),
            ("routing/bytes_per_token", "record of experts of a token", "bytes", 1),
        ):
            values = [scale * step[key] for step in (later if "mfu" in key else steps) if key in step]
            if values:
                shown = max(values) if key.startswith("weights") else statistics.median(values)
                goal = goals.get("mfu") if "mfu" in key else None
                yield at_least(f"{name}: {label}", shown, unit, goal)
    for cell in cells({name: row for name, row in rows.items() if name in ARMS}):
        ratio = 100 * (cell["predicted_gib"] / cell["peak_gib"] - 1)
        yield at_most(f"{cell['arm']}: {cell['role']}'s card, planned above its peak", ratio, "%", 10)
        if "as_full_gib" in cell:
            ratio = 100 * (cell["as_full_gib"] / cell["peak_gib"] - 1)
            label = f"{cell['arm']}: trainer's card, planned for rows as full as these above its peak"
            yield at_most(label, ratio, "%", 10)


def main() -> int:
    arms = [*ARMS, *LONG]
    options = command_line(__doc__, only=arms)
    options.work = options.work.absolute()
    left = [n for n in options.only or arms if not (options.work / _folder(n) / "row.json").is_file()]
    if options.hardware == "gpu" and left:
        need_cuda("benchmarks.gpu.sizes", "--hardware cpu")
    runs.leave_in_order()
    devices = options.devices.split(",")
    out = options.out or (RESULTS if options.hardware == "gpu" else options.work) / "gpu_sizes.json"
    for name in left:
        with runs.survived(name):
            (run_long if name in LONG else run_arm)(name, options, devices)
    kept = json.loads(out.read_text())["rows"] if out.is_file() else {}
    found = kept | {
        name: json.loads(path.read_text())
        for name in arms
        if (path := options.work / _folder(name) / "row.json").is_file()
    }
    missed = report("gpu_sizes", list(figures_of(found)), {"context": options.context}, out)
    whole_runs = {name: row for name, row in found.items() if name in ARMS}
    whole = json.loads(out.read_text()) | {"cells": list(cells(whole_runs)), "rows": found}
    write_json(out, whole)
    return 1 if missed or not set(options.only or arms) <= set(found) else 0


if __name__ == "__main__":
    sys.exit(main())
