"""Sentences of RARO's README about the pretrained model: what their JSON says."""

from typing import Any

import numpy as np

from tests.support.claims import Claim
from tests.support.measured import RARO, result
from tests.support.raro_tables import raro_curves, raro_lower_end, raro_tenths


def smollm2() -> dict[str, Any]:
    """The table of the pretrained model."""
    found: dict[str, Any] = result("gpu_raro")["table"]
    return found


def share_of_gain(version: int) -> float:
    """RARO's share of verifier RL's gain with the pretrained model, sampled, at an evaluation."""
    own, verified = mean_curve("raro"), mean_curve("rlvr")
    return (own[version] - own[0]) / (verified[version] - verified[0])


def peak(arm: str) -> float:
    """The best of an arm's evaluations with the pretrained model."""
    return max(mean_curve(arm))


def mean_curve(arm: str) -> list[float]:
    """Percent right of the pretrained model's evaluations, sampled, means over seeds."""
    return [float(mean) for mean in np.mean(raro_curves(arm, file="gpu_raro"), axis=0)]


def last_rises() -> list[float]:
    """Points that more SFT of the pretrained model gains between its last two evaluations, by seed."""
    return [curve[-1] - curve[-2] for curve in raro_curves("sft", file="gpu_raro")]


def lost(arm: str, curve: str = "curve") -> float:
    """Points between the best evaluation with the pretrained model and the last, of means over seeds."""
    runs = [list(run[curve].values()) for run in result("gpu_raro")["runs"] if run["arm"] == arm]
    means = np.mean(runs, axis=0)
    return float(max(means) - means[-1])


def entropies(arm: str) -> list[float]:
    """Of a token in the first and the last steps with the pretrained model, means over seeds."""
    runs = [run["entropy"] for run in result("gpu_raro")["runs"] if run["arm"] == arm]
    return [float(np.mean(seeds)) for seeds in zip(*runs)]


SMOLLM2_SENTENCES: dict[str, Claim] = {
    "RARO with SmolLM2, gain ratio": (
        RARO,
        r"with SmolLM2: sampled (\S+) \[(\S+), (\S+)\], greedy (\S+) \[(\S+), (\S+)\]\. Both",
        lambda: [
            smollm2()[way]["gain ratio"][key]
            for way in ("sampled", "greedy")
            for key in ("ratio", "low", "high")
        ],
    ),
    "RARO with SmolLM2, costs": (
        RARO,
        r"at (\S+) times its trained tokens: (\S+) seconds a run beside (\S+), five",
        lambda: [
            smollm2()["costs"]["raro"]["trained_tokens"] / smollm2()["costs"]["rlvr"]["trained_tokens"],
            *(smollm2()["costs"][arm]["seconds"] for arm in ("raro", "rlvr")),
        ],
    ),
    "RARO with SmolLM2, after the first steps": (
        RARO,
        r"After the first 20 steps the share of the verifier's gain is (\S+), later it is above 1: verifier "
        r"RL is then past its best\s+\((\S+) sampled\)",
        lambda: [share_of_gain(1), peak("rlvr")] if min(map(share_of_gain, (2, 3, 4))) > 1 else [],
    ),
    "RARO with SmolLM2, a quarter of the steps": (
        "README.md",
        r"(\S+) percent by sampled\s+answers\s+\((\S+) with a critic\), "
        r"with a critic after half of\s+them \((\S+)\)",
        lambda: [peak("rlvr"), mean_curve("raro")[1], peak("raro")],
    ),
    "RARO with SmolLM2, the critic first": (
        RARO,
        r"accuracy reaches (\S+) to (\S+) in the second tenth while the policy's reward falls to "
        r"(\S+) to\s+(\S+)\. Then",
        lambda: [
            end(seed[1] for seed in raro_tenths(name, "gpu_raro"))
            for name in ("critic accuracy", "policy reward")
            for end in (min, max)
        ],
    ),
    "RARO with SmolLM2, the critic at last": (
        RARO,
        r"its accuracy scatters\s+\((\S+) to (\S+)\)\. By the letter of the third check one seed \((\S+)\)",
        lambda: [
            *(end(smollm2()["game"]["raro"]["critic accuracy"]["last"]) for end in (min, max)),
            *(one for one in smollm2()["game"]["raro"]["ties"]["change"] if one > 0.05),
        ],
    ),
    "RARO with SmolLM2, more SFT at its end": (
        RARO,
        r"sampled answers fall from (\S+) to (\S+) to (\S+) % right and climb back over (\S+)\s+answers, "
        r"still by (\S+) to (\S+) points between .*? gain more, from (\S+) to (\S+)\.\n",
        lambda: [
            smollm2()["sampled"]["warm"]["mean"],
            *(end(min(curve) for curve in raro_curves("sft", file="gpu_raro")) for end in (min, max)),
            max(float(at) for run in result("gpu_raro")["runs"] for at in run["curve"]),
            *(end(last_rises()) for end in (min, max)),
            *(smollm2()["greedy"][arm]["mean"] for arm in ("warm", "sft")),
        ],
    ),
    "RARO with SmolLM2, entropy": (
        RARO,
        r"\(entropy of a token (\S+) in the first five\s+steps, (\S+) in the last twenty\).*?"
        r"texts goes from (\S+) to (\S+), and RARO loses no more",
        lambda: [value for arm in ("rlvr", "raro") for value in entropies(arm)],
    ),
    "RARO with SmolLM2, what is lost": (
        RARO,
        r"best mean to the last (\S+) points sampled and (\S+) greedy; RARO (\S+) and (\S+)\):",
        lambda: [lost(arm, curve) for arm in ("rlvr", "raro") for curve in ("curve", "greedy")],
    ),
    "RARO with SmolLM2, above more SFT": (
        RARO,
        r"RARO - more SFT above 0 \(sampled (\S+), greedy (\S+)\)",
        lambda: [raro_lower_end(way, "gpu_raro") for way in ("sampled", "greedy")],
    ),
    "RARO with SmolLM2, answers": (
        RARO,
        r"\(8,000 questions, ([\d,]+) answers where the RL arms sample ([\d,]+)\)",
        lambda: [
            result("gpu_raro")["table"]["costs"]["sft"]["completions"],
            float(result("gpu_raro")["steps"] * result("gpu_raro")["policy completions per step"]),
        ],
    ),
}
