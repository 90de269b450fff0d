"""Values of documents that no result holds as they stand there; `benchmarks.documents` reads them by name.

Each takes a function that reads a result by its file's name and returns what that file could have held.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks._intervals import ratio_of_means, t_interval
from pipelinerl.config.card_limit import SPEEDS, EngineReads, mean_context

Read = Callable[[str], Any]


def _interval(mean: float, low: float | None, high: float | None) -> dict[str, float | None]:
    return {"mean": mean, "low": low, "high": high}


def capacity_first(read: Read) -> Any:
    """By number of GPUs, the part that limits first, and its samples per second."""
    rows = read("capacity")["rows"]
    return {gpus: {"part": row["first"], "samples": row["alone"][row["first"]]} for gpus, row in rows.items()}


def from_scratch(read: Read) -> Any:
    """Ends of the model of 57M by metric; the file has the interval of a change in the figure's name."""
    figures = read("gpu_privacy_rl")["figures"]
    found = {}
    for name, figure in figures.items():
        if change := re.fullmatch(r"rl: (\w+), change \[(\S+), (\S+)\]", name):
            metric, low, high = change.groups()
            ends = {when: figures[f"rl: {metric}, {when}"]["value"] for when in ("before", "after")}
            found[metric] = ends | {"difference": _interval(figure["value"], float(low), float(high))}
    return found


def pretrained_minutes(read: Read) -> Any:
    """Of training, by hardware and seed."""
    rows = {hardware: read(f"pretrained_{hardware}")["rows"] for hardware in ("cpu", "gpu")}
    return {hardware: [row["training_s"] / 60 for row in found] for hardware, found in rows.items()}


def smollm2_by_seed(read: Read) -> Any:
    """Means of the last evaluation by arm, seed and metric, and of all arms' first one as `start`."""
    rows, arms = read("gpu_privacy_language_rows"), ("outcome", "situational", "penalty")
    found: dict[str, Any] = {}
    for seed in read("gpu_privacy_language")["seeds"]["outcome"]:
        runs = {arm: rows[f"{arm}_{seed}"]["evaluations"] for arm in arms if f"{arm}_{seed}" in rows}
        ends = {arm: [run[-1][1]] for arm, run in runs.items()}
        for name, asked in (ends | {"start": [run[0][1] for run in runs.values()]}).items():
            means = {
                metric: float(np.mean([value for one in asked for value in one[metric]]))
                for metric in ("success", "leak")
            }
            found.setdefault(name, {})[str(seed)] = means
    return found


def smollm2_over_seeds(read: Read) -> Any:
    """Student's interval over seeds of each gate's differences, and what the penalty leaves of leakage."""
    found: dict[str, Any] = {}
    for name, gate in read("gpu_privacy_language")["gates"].items():
        if len(differences := gate.get("by_seed", ())) > 1:
            mean, half = t_interval(differences)
            assert half is not None
            found[name] = _interval(mean, mean - half, mean + half)
    seeds = smollm2_by_seed(read)
    pairs = [(seeds["penalty"][seed]["leak"], start_of_penalty(read, seed)) for seed in seeds["penalty"]]
    found["leakage left"] = _interval(*ratio_of_means(*zip(*pairs, strict=True)))
    return found


def smollm2_costs(read: Read) -> Any:
    """What the penalty takes off, as positive numbers: success against situational rewards, and leakage."""
    gates = read("gpu_privacy_language")["gates"]
    cost, leak = gates["O5 at most 3 points below situational"], gates["O4 penalty lowers leakage"]
    return {
        "pooled": _interval(-cost["value"], -cost["high"], -cost["low"]),
        "leak": _interval(-leak["value"], -leak["high"], -leak["low"]),
    }


def pretrained_over_seeds(read: Read) -> Any:
    """Student's interval over seeds of what SmolLM2 gains on cards."""
    rows = read("pretrained_gpu")["rows"]
    mean, half = t_interval([float(np.mean(row["after"]) - np.mean(row["before"])) for row in rows])
    assert half is not None
    return _interval(mean, mean - half, mean + half)


def start_of_penalty(read: Read, seed: str) -> float:
    """Leakage in the first evaluation of the penalty's run."""
    return float(np.mean(read("gpu_privacy_language_rows")[f"penalty_{seed}"]["evaluations"][0][1]["leak"]))


def later_rates(read: Read) -> Any:
    """By result and arm: tokens of the steps behind the first by their time, with waiting and updates.

    Prompts are included. `minutes` are those of 10,000 samples; `least` and `most` are of single steps.
    """
    found: dict[str, Any] = {}
    for name in ("gpu_sizes", "gpu_sizes_newest"):
        for arm, row in read(name)["rows"].items():
            tokens = [step["throughput/tokens_per_step"] for step in row["steps"][1:]]
            # What an update takes of the trainer's time; all of it, where it did not go on beside a step.
            held = [step.get("weights/held_s", step.get("weights/total_s")) for step in row["steps"][1:]]
            times = [step["throughput/sec_per_step"] + one for step, one in zip(row["steps"][1:], held)]
            if tokens:
                rate, rates = sum(tokens) / sum(times), [one / time for one, time in zip(tokens, times)]
                found.setdefault(name, {})[arm] = {
                    "mean": rate,
                    "minutes": 10_000 * 2 * row["context"] / rate / 60,
                    "least": min(rates),
                    "most": max(rates),
                }
    return found


def engine_shares(read: Read) -> Any:
    """Share of the card's limit that an engine with the 1.7B model reached, by card, in percent.

    512 requests in flight. The H200's bandwidth was measured by the trainer beside it; the H100's is the data
    sheet's.
    """
    reads = EngineReads(
        weights=3_441_185_600, token=2 * 28 * 8 * 128 * 2
    )  # keys and values, layers, heads, width
    h200, h100 = read("gpu_trl")["figures"], read("gpu_outputs_once")["figures"]
    copied = read("gpu_trl_rows")["ours"]["last_metrics"]["throughput/copy_bytes_per_sec"]
    found = {
        "H200": (h200["ours: sampled"]["value"], mean_context(518, 512), copied),
        "H100": (
            h100["outputs once, 512 always in flight"]["value"],
            mean_context(512, 512),
            SPEEDS["H100"].bandwidth,
        ),
    }
    return {
        card: 100 * rate / reads.tokens_per_second(512, context, bandwidth)
        for card, (rate, context, bandwidth) in found.items()
    }


def tried_architectures(read: Read) -> int:
    """How many the table of models has."""
    return len(read("architectures")["rows"])


def architectures_of(read: Read) -> Any:
    """By what its layers have, the architectures that were tried, each with models of it."""
    found: dict[str, list[str]] = {}
    for row in read("architectures")["rows"]:
        kinds = [kind for kind in ("windows", "experts") if kind in row["special"].split(", ")]
        found.setdefault(" and ".join(kinds) or "neither", []).append(f"`{row['name']}` ({row['examples']})")
    return {kinds: ", ".join(names) for kinds, names in found.items()}


def not_embedded(read: Read) -> str:
    """Those that the embedded engine refuses."""
    return ", ".join(f"`{row['name']}`" for row in read("architectures")["rows"] if row["engine"] == "no")


VALUES: Mapping[str, Callable[[Read], Any]] = {
    one.__name__: one
    for one in (
        capacity_first,
        from_scratch,
        pretrained_minutes,
        smollm2_over_seeds,
        smollm2_costs,
        pretrained_over_seeds,
        later_rates,
        engine_shares,
        tried_architectures,
        architectures_of,
        not_embedded,
    )
}
