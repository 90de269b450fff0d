"""Tables and sentences of the privacy agent's README about a pretrained model: what their JSON says."""

import math
from typing import Any

import numpy as np

from tests.support.claims import Claim, gate
from tests.support.measured import PRIVACY, Cells, Value, result, shares_of_texts

ARMS = ("outcome", "situational", "penalty")


def smollm2() -> dict[str, Any]:
    """The arms from the pretrained model."""
    found: dict[str, Any] = result("gpu_privacy_language")
    return found


def smollm2_gate(name: str) -> list[float]:
    """Difference and interval, or both numbers where there is no interval."""
    return gate(name, "gpu_privacy_language")[:3]


def by_seed(row: Cells) -> list[Value]:
    """Success and leakage of each seed's finished runs; the start's are means over its arms."""
    arm = {"situational + penalty": "penalty"}.get(row[0], row[0])
    rows, found = result("gpu_privacy_language_rows"), list[Value]()
    for seed in (0, 1):
        names = [f"{one}_{seed}" for one in (ARMS if arm == "start" else (arm,))]
        asked = [rows[name]["evaluations"][0 if arm == "start" else -1][1] for name in names if name in rows]
        for metric in ("success", "leak") if asked else ():
            found.append(float(np.mean([value for values in asked for value in values[metric]])))
    return found


def smollm2_summary(row: Cells) -> list[Value]:
    """Start and end of an arm of the privacy agent, of one of RARO's, or of the reputation game."""
    if "margin" in row[0]:
        played = list(result("gpu_reputation")["rows"].values())
        ends = [played[0]["before"], *(one["after"] for one in played)]
        return [value for end in ends for value in end["share_of_margin"]]
    what, _, way = row[0].rpartition(": ")[2].partition(" with ")
    if what.startswith("percent right"):
        table = result("gpu_raro")["table"]
        arm = {"a critic": "raro", "a verifier": "rlvr"}.get(way, "sft")
        found = [table[how][one] for one in ("warm", arm) for how in ("sampled", "greedy")]
        return [one[key] for one in found for key in ("mean", "half_width")]
    metric = {"leakage": "leak"}.get(what, what)
    arm = {"the privacy penalty": "penalty", "rewards for outcomes": "outcome"}[way]
    rows = [row for name, row in result("gpu_privacy_language_rows").items() if name.startswith(f"{arm}_")]
    return [float(np.mean([row["evaluations"][end][1][metric] for row in rows])) for end in (0, -1)]


def readers(row: Cells) -> list[Value]:
    """Share of a group's rollouts with a leak: by rules and by the trained model with interval."""
    named = {"situational + penalty": "penalty", "start, questions of other chains": "start, other questions"}
    found, group = result("gpu_privacy_adversary"), named.get(row[0], row[0])
    by = [found["rules"], *(found[model]["groups"] for model in ("trained", "untrained"))]
    rates = [one[group]["levels"]["headline"] for one in by]
    exact = [rate[key] for rate in rates[:2] for key in ("value", "low", "high")]
    return [*exact, rates[2]["value"]]


def verdicts(of: str) -> dict[str, Any]:
    """The trained model's agreement on the headline, with the rules or with the value's presence."""
    found: dict[str, Any] = result("gpu_privacy_adversary")["trained"]["agreement"][f"headline, {of}"]
    return found


def fall(difference: list[float]) -> list[float]:
    """What went down, as a sentence says it: without signs, the smaller end first."""
    mean, low, high = difference
    return [-mean, -high, -low]


def well_formed_at_the_end() -> list[float]:
    """Share of each finished run's rollouts in its last evaluation."""
    rows = result("gpu_privacy_language_rows").values()
    ends = [row["evaluations"][-1][1]["well_formed"] for row in rows if "evaluations" in row]
    return [sum(shares) / len(shares) for shares in ends]


def intent(seed: int, end: int) -> float:
    """Share of the penalty's rollouts that show what is researched, in the first or last evaluation."""
    return float(
        np.mean(result("gpu_privacy_language_rows")[f"penalty_{seed}"]["evaluations"][end][1]["leak_intent"])
    )


PRIVACY_SENTENCES: dict[str, Claim] = {
    "four hops, leakage": (
        PRIVACY,
        r"leakage\s+fell: (\S+) \[(\S+), (\S+)\] in some 2,000 texts, (\S+) \[(\S+), (\S+)\] in 640",
        lambda: [
            number
            for file in ("arms_four_hops", "arms_four_hops_640")
            for number in gate("O2 outcome raises leakage", file)[:3]
        ],
    ),
    "two GPUs, intent": (
        PRIVACY,
        r"give away what is researched went from (\S+) to (\S+)\s+"
        r"while leakage fell from (\S+) to (\S+), and",
        lambda: [
            result("gpu_privacy_rl")["evaluations"][version][metric]["mean"]
            for metric in ("leak_intent", "leak")
            for version in ("0", "30720")
        ],
    ),
    "SmolLM2, intent": (
        PRIVACY,
        r"with SmolLM2 under the penalty from (\S+) to (\S+) and to (\S+) \(seeds 0 and 1\)",
        lambda: [intent(0, 0), intent(0, -1), intent(1, -1)],
    ),
    "SmolLM2, gains and costs": (
        PRIVACY,
        r"raise success by (\S+) \[(\S+), (\S+)\] and leakage with it, by (\S+) \[(\S+), (\S+)\]\.\n"
        r"The penalty raises success by (\S+) \[(\S+), (\S+)\] "
        r"while leakage falls by (\S+) \[(\S+), (\S+)\], "
        r"from (\S+) to (\S+): its\s+[^.]+\. It costs (\S+) \[(\S+), (\S+)\] of",
        lambda: [
            *smollm2_gate("O1 outcome raises success"),
            *smollm2_gate("O2 outcome raises leakage"),
            *smollm2_gate("O5 penalty raises success"),
            *fall(smollm2_gate("O4 penalty lowers leakage")),
            *smollm2_gate("O4 goal: a third of the base"),
            *fall(smollm2_gate("O5 goal: not 5 points below situational")),
        ],
    ),
    "SmolLM2, unfinished runs": (
        PRIVACY,
        r"with seed 1 had made (\S+) of the (\S+)\s+steps when [^(]+\(its start has (\S+) and (\S+)\)\. "
        r"An earlier try of seed 1 had ended at (\S+) steps of `outcome`, (\S+) of\s+`situational` and none "
        r"of `penalty`; its start had (\S+) and (\S+)\. A seed 2 ended with its machine at (\S+), (\S+) "
        r"and (\S+) steps\. Both",
        lambda: [
            smollm2()["unfinished"]["situational_1"]["steps"],
            smollm2()["settings"]["steps"],
            *(smollm2()["unfinished"]["situational_1"]["start"][metric] for metric in ("success", "leak")),
            *(smollm2()["unfinished"]["earlier"][f"{arm}_1"]["steps"] for arm in ("outcome", "situational")),
            *(smollm2()["unfinished"]["earlier"]["outcome_1"]["start"][m] for m in ("success", "leak")),
            *(smollm2()["unfinished"]["seed_2"][f"{arm}_2"]["steps"] for arm in ARMS),
        ],
    ),
    "SmolLM2 as adversary": (
        PRIVACY,
        r"In (\S+) of\s+the (\S+) rollouts of the models its verdict is theirs \(kappa (\S+)\): it finds "
        r"(\S+) of their (\S+) leaks, and (\S+) more\. Of the (\S+)\s+rollouts whose queries hold a "
        r"private value at all it finds (\S+), and (\S+) others\. Every .*? cannot do the task: (\S+) % of",
        lambda: [
            verdicts("rules")["agree"]["value"],
            verdicts("rules")["agree"]["total"],
            verdicts("rules")["kappa"],
            verdicts("rules")["found where it leaks"]["count"],
            verdicts("rules")["found where it leaks"]["total"],
            verdicts("rules")["found where not"]["count"],
            verdicts("value")["found where it leaks"]["total"],
            verdicts("value")["found where it leaks"]["count"],
            verdicts("value")["found where not"]["count"],
            100 * result("gpu_privacy_adversary")["untrained"]["replies"]["unparseable_share"],
        ],
    ),
    "SmolLM2 as adversary, intent": (
        PRIVACY,
        r"shows to the trained one in (\S+) of the start's\s+rollouts and in (\S+) under the penalty",
        lambda: [
            result("gpu_privacy_adversary")["trained"]["groups"][group]["levels"]["intent"]["value"]
            for group in ("start", "penalty")
        ],
    ),
    "SmolLM2, the first trial of the penalty": (
        PRIVACY,
        r"ended at (\S+) and\s+(\S+): leakage was what",
        lambda: [
            result("gpu_privacy_language_first")["table"]["penalty"][metric]["mean"]
            for metric in ("success", "leak")
        ],
    ),
    "SmolLM2, malformed calls": (
        PRIVACY,
        r"At temperature 1, (\S+) % of the choices .+\n.+ in (\S+) % of the plans",
        lambda: [
            100 * result("gpu_privacy_start")["third"][name]
            for name in ("invented_names_per_choice", "malformed_plans_per_plan")
        ],
    ),
    "SmolLM2, well-formed at the end": (
        PRIVACY,
        r"after training (\S+) to (\S+)\s+of the rollouts are well-formed",
        lambda: [pick(well_formed_at_the_end()) for pick in (min, max)],
    ),
    "arms, leakage of outcome rewards": (
        PRIVACY,
        r"makes the agent leak more than it did \((\S+) \[(\S+), (\S+)\], paired\)",
        lambda: gate("O2 outcome raises leakage")[:3],
    ),
    "arms, cost of the penalty": (
        PRIVACY,
        r"costs no success \((\S+) to (\S+) against `outcome`\)",
        lambda: gate("O5 goal: not 5 points below outcome")[1:3],
    ),
    "arms, leakage by seed": (
        PRIVACY,
        r"`outcome` adds (\S+), (\S+) and (\S+) of leakage, "
        r"while the penalty takes off (\S+), (\S+) and (\S+)\.\n",
        lambda: [
            *gate("O2 outcome raises leakage")[-3:],
            *(-x for x in gate("O4 penalty lowers leakage")[-3:]),
        ],
    ),
    "arms, padding": (
        PRIVACY,
        r"success is higher \((\S+) \[(\S+), (\S+)\], paired; by seed (\S+) and (\S+)\)\. "
        r"Leakage\s+is, too \((\S+) \[(\S+), (\S+)\]\)",
        lambda: [
            *gate("padding raises success", "arms_padded"),
            *gate("padding raises leak", "arms_padded")[:3],
        ],
    ),
    "arms, texts until the outcome arm's success": (
        PRIVACY,
        r"final success they took (\S+) and (\S+) of its texts with two\s+seeds and never reached it",
        lambda: [share for share in shares_of_texts("arms") if math.isfinite(share)],
    ),
    "arms, leakage by texts": (
        PRIVACY,
        r"In (\S+) texts\s+`outcome` added (\S+) \[(\S+), (\S+)\] of leakage, in (\S+) (\S+)\. With",
        lambda: [
            result("arms_decisions")["texts"],
            *gate("O2 outcome raises leakage", "arms_decisions")[:3],
            result("arms")["texts"],
            gate("O2 outcome raises leakage")[0],
        ],
    ),
}
