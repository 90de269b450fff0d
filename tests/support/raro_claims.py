"""Tables and sentences of RARO's README: what their JSON says."""

from typing import Any

import numpy as np

from benchmarks._raro_table import tenths
from tests.support.claims import Claim
from tests.support.measured import RARO, Cells, Value, result


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


def raro_game(figure_of_game: str) -> tuple[list[float], list[float]]:
    """By seed, the means of the first five and of the last five steps."""
    runs = [list(run["game"][figure_of_game].values()) for run in result("raro")["runs"] if run["game"]]
    return [float(np.mean(run[:5])) for run in runs], [float(np.mean(run[-5:])) for run in runs]


def raro_ends() -> list[float]:
    """The policy's reward at first, mean over seeds, and at last."""
    first, last = raro_game("policy reward")
    return [float(np.mean(first)), *last]


def earned_by_shares() -> list[float]:
    """The policy's reward in the last tenth, by the shares of ties and right verdicts, and as recorded."""
    found = {
        name: one["last"] for name, one in result("raro")["table"]["game"]["raro"].items() if "last" in one
    }
    pairs = zip(found["ties"], found["critic accuracy"], strict=True)
    return [*((1 - ties) * (1 - right) + 0.6 * ties for ties, right in pairs), *found["policy reward"]]


def raro_curves(arm: str, file: str = "raro") -> list[list[float]]:
    """Accuracy of sampled answers, version by version, of each seed."""
    return [list(run["curve"].values()) for run in result(file)["runs"] if run["arm"] == arm]


def raro_tenths(figure_of_game: str, file: str = "raro_reference") -> list[list[float]]:
    """By seed, the means of the tenths of training at the reference values."""
    runs = [run for run in result(file)["runs"] if run["arm"] == "raro"]
    return [tenths([*run["game"][figure_of_game].values()]) for run in runs]


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


def above_sft(way: str) -> list[float]:
    """RARO's points above more SFT at the reference values, by seed."""
    after = {(run["arm"], run["seed"]): run["after"][way] for run in result("raro_reference")["runs"]}
    return [after["raro", seed] - after["sft", seed] for seed in (0, 1, 2)]


RARO_SENTENCES: dict[str, Claim] = {
    "RARO, gain ratio": (
        RARO,
        r"seeds differ: sampled (\S+) \[(\S+), (\S+)\], greedy (\S+) \[(\S+), (\S+)\]\.\n",
        lambda: [
            result("raro")["table"][way]["gain ratio"][key]
            for way in ("sampled", "greedy")
            for key in ("ratio", "low", "high")
        ],
    ),
    "RARO, gain ratio at the reference values": (
        RARO,
        r"values: sampled (\S+) \[(\S+), (\S+)\], greedy (\S+) \[(\S+), (\S+)\], "
        r"where it was (\S+) and (\S+)\s+with",
        lambda: [
            *(
                result("raro_reference")["table"][way]["gain ratio"][key]
                for way in ("sampled", "greedy")
                for key in ("ratio", "low", "high")
            ),
            *(result("raro")["table"][way]["gain ratio"]["ratio"] for way in ("sampled", "greedy")),
        ],
    ),
    "RARO, above more SFT at the reference values": (
        RARO,
        r"seeds are (\S+) to (\S+) points above it by sampled answers, and (\S+) to\n(\S+) by greedy ones",
        lambda: [pick(above_sft(way)) for way in ("sampled", "greedy") for pick in (min, max)],
    ),
    "RARO, the policy's reward at the reference values": (
        RARO,
        r"from (\S+), (\S+) and (\S+) in the second tenth to (\S+), (\S+) and (\S+) in the ninth "
        r"\((\S+), (\S+) and (\S+) in the\s+last",
        lambda: [tenth[at] for at in (1, 8, 9) for tenth in raro_tenths("policy reward")],
    ),
    "RARO, the first quarter at the reference values": (
        RARO,
        r"after 1,664 completions RARO has (\S+), (\S+) and (\S+)\s+"
        r"where verifier RL has (\S+), (\S+) and (\S+)\. The critic",
        lambda: [curve[1] for arm in ("raro", "rlvr") for curve in raro_curves(arm, file="raro_reference")],
    ),
    "RARO, weights of one half at the reference values": (
        RARO,
        r"with weights of 1/2 each \(the arm `half`\) seed 0 has (\S+) there, and (\S+) instead of (\S+)\s",
        lambda: [
            *(raro_curves("half", file="raro_reference")[0][at] for at in (1, -1)),
            raro_curves("raro", file="raro_reference")[0][-1],
        ],
    ),
    "RARO, tokens at the reference values": (
        RARO,
        r"trains on (\d+) times the tokens of verifier\s+RL",
        lambda: [
            result("raro_reference")["table"]["costs"]["raro"]["trained_tokens"]
            / result("raro_reference")["table"]["costs"]["rlvr"]["trained_tokens"]
        ],
    ),
    "RARO, the distance at the reference values": (
        RARO,
        r"Later the distance is (\S+) to (\d+) points",
        lambda: [
            end(
                verified - own
                for pair in zip(*(raro_curves(arm, file="raro_reference") for arm in ("raro", "rlvr")))
                for own, verified in [*zip(*pair)][2:]
            )
            for end in (min, max)
        ],
    ),
    "RARO, falling policy reward": (
        RARO,
        r"it goes from (\S+) \(mean of the\s+first five steps\) to\s+(\S+), (\S+) and (\S+) \(last five\)",
        raro_ends,
    ),
    "RARO, the critic": (
        RARO,
        r"right in (\S+) of its\s+committed verdicts at\s+first and in (\S+) to (\S+) of them at the end",
        lambda: [
            float(np.mean(raro_game("critic accuracy")[0])),
            min(raro_game("critic accuracy")[1]),
            max(raro_game("critic accuracy")[1]),
        ],
    ),
    "RARO, ties": (
        RARO,
        r"are (\d+) to (\d+) % of the\s+verdicts in the first five steps and (\d+) to (\d+) % in the last",
        lambda: [100 * end(steps) for steps in raro_game("ties") for end in (min, max)],
    ),
    "RARO, the goal": (
        RARO,
        r"0\.90 of the verifier's gain is missed with two verdicts \((\S+); .*?"
        r"differ widely, (\S+) to (\S+)\)",
        lambda: [
            result("raro")["table"]["sampled"]["gain ratio"]["ratio"],
            *(
                end(run["after"]["greedy"] for run in result("raro")["runs"] if run["arm"] == "raro")
                for end in (min, max)
            ),
        ],
    ),
    "RARO, what more SFT became": (
        RARO,
        r"it fell from about (\d+) to (\d+) and ended at (\S+) to (\S+), so that",
        lambda: [
            float(np.mean([curve[0] for curve in raro_curves("sft")])),
            float(np.mean([min(curve) for curve in raro_curves("sft")])),
            min(curve[-1] for curve in raro_curves("sft")),
            max(curve[-1] for curve in raro_curves("sft")),
        ],
    ),
    "RARO, what the policy earns by the shares of verdicts": (
        RARO,
        r"the formula gives (\S+), (\S+) and (\S+), and the runs have (\S+), (\S+) and (\S+)\. ",
        earned_by_shares,
    ),
    "RARO, more SFT": (
        RARO,
        r"RARO beats more SFT by at least (\S+) points",
        lambda: [
            (gain := result("raro")["table"]["sampled"]["raro - sft"])["mean"] - gain["half_width"],
        ],
    ),
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
        r"RL is then past its best\n\((\S+) sampled\)",
        lambda: [share_of_gain(1), peak("rlvr")] if min(map(share_of_gain, (2, 3, 4))) > 1 else [],
    ),
    "RARO with SmolLM2, a quarter of the steps": (
        "README.md",
        r"(\S+) percent by sampled answers\n\((\S+) with a critic\), "
        r"with a critic after half of them \((\S+)\)",
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
    "RARO with SmolLM2, entropy of verifier RL": (
        RARO,
        r"\(entropy of a token (\S+) in the first five\s+steps, (\S+) in the last twenty\)",
        lambda: [
            float(np.mean(seeds))
            for seeds in zip(*(run["entropy"] for run in result("gpu_raro")["runs"] if run["arm"] == "rlvr"))
        ],
    ),
}
