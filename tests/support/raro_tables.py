"""Rows of the tables of RARO's README, and curves of its runs: what their JSON says."""

import numpy as np

from benchmarks._raro_table import tenths
from tests.support.measured import Cells, Value, result


def raro(row: Cells, file: str = "raro") -> list[Value]:
    arm = {"the warm model": "warm", "more SFT": "sft", "RARO": "raro", "verifier RL": "rlvr"}
    name = arm.get(row[0], "raro - sft")
    assert name in arm.values() or row[0] == "RARO - more SFT, by seed", row[0]
    found = result(file)["table"]
    ways = [found[way][name] for way in ("sampled", "greedy")]
    tokens = [found["costs"][name]["trained_tokens"]] if name in found["costs"] else []
    return [*(one[key] for one in ways for key in ("mean", "half_width")), *tokens, ways[0]["seeds"]]


def raro_seeds(row: Cells, file: str = "raro") -> list[Value]:
    named = {"the warm model": "raro", "more SFT": "sft", "RARO": "raro", "verifier RL": "rlvr"}
    arm = named[row[0].partition(",")[0]]
    runs = sorted((run for run in result(file)["runs"] if run["arm"] == arm), key=lambda run: run["seed"])
    if arm == "sft":
        return [list(run["curve"].values())[-1] for run in runs]
    when = "before" if row[0] == "the warm model" else "after"
    return [run[when][way] for run in runs for way in ("sampled", "greedy")]


def raro_ablations(row: Cells) -> list[Value]:
    """Of seed 0: at the end by both ways, sampled after a quarter, and what was trained on."""
    named = {"RARO": "raro", "without ties": "no_tie", "without replay": "no_replay"}
    arm = (named | {"weights of 1/2 each": "half"})[row[0]]
    runs = result("raro_reference")["runs"]
    (run,) = (run for run in runs if (run["arm"], run["seed"]) == (arm, 0))
    quarter = list(run["curve"].values())[1]
    return [run["after"]["sampled"], run["after"]["greedy"], quarter, run["trained_tokens"]]


def raro_by_completions(row: Cells) -> list[Value]:
    """Means over the seeds of the pretrained model, evaluation by evaluation."""
    title, _, way = row[0].partition(", ")
    arm, curve = {"RARO": "raro", "verifier RL": "rlvr"}[title], {"sampled": "curve"}.get(way, way)
    curves = [list(run[curve].values()) for run in result("gpu_raro")["runs"] if run["arm"] == arm]
    return [float(mean) for mean in np.mean(curves, axis=0)]


def raro_checks(row: Cells, file: str = "raro") -> list[Value]:
    name, _, what = row[0].partition(", ")
    if what == "highest tenth":
        runs = [run["game"][name] for run in result(file)["runs"] if run["arm"] == "raro"]
        return [max(tenths([*run.values()])) for run in runs]
    found = result(file)["table"]["game"]["raro"][name]
    if "change" in what:
        return list(found["change"])
    return [one for ends in zip(found["first"], found["last"], strict=True) for one in ends]


def raro_earned(row: Cells) -> list[Value]:
    """Means over seeds in the first, second, fifth and last tenth."""
    runs = [run["earned"] for run in result("raro_reference")["runs"] if run["arm"] == "raro"]
    name, _, unit = row[0].partition(", ")
    scale = 100.0 if unit == "percent" else 1.0
    return [scale * float(np.mean([run[name][tenth] for run in runs])) for tenth in (0, 1, 4, 9)]


def raro_curves(arm: str, file: str = "raro") -> list[list[float]]:
    """Accuracy of sampled answers, version by version, of each seed."""
    return [list(run["curve"].values()) for run in result(file)["runs"] if run["arm"] == arm]


def raro_tenths(figure_of_game: str, file: str = "raro_reference") -> list[list[float]]:
    """By seed, the means of the tenths of training at the reference values."""
    runs = [run for run in result(file)["runs"] if run["arm"] == "raro"]
    return [tenths([*run["game"][figure_of_game].values()]) for run in runs]


def raro_lower_end(way: str, file: str) -> float:
    """Of the 95 % interval of RARO - more SFT."""
    gain = result(file)["table"][way]["raro - sft"]
    return float(gain["mean"] - gain["half_width"])
