"""Sentences of the privacy agent's README whose numbers are those of their JSON."""

from typing import Any

from tests.support.claims import Claim, gate
from tests.support.measured import NUMBER, PRIVACY, result


def smollm2() -> dict[str, Any]:
    """The arms from the pretrained model."""
    found: dict[str, Any] = result("gpu_privacy_language")
    return found


def smollm2_gate(name: str) -> list[float]:
    """Difference and interval, or both numbers where there is no interval; one seed."""
    return gate(name, "gpu_privacy_language")[:3]


def fall(difference: list[float]) -> list[float]:
    """What went down, as a sentence says it: without signs, the smaller end first."""
    mean, low, high = difference
    return [-mean, -high, -low]


def well_formed_at_the_end() -> list[float]:
    """Share of each finished run's rollouts in its last evaluation."""
    rows = result("gpu_privacy_language_rows").values()
    ends = [row["evaluations"][-1][1]["well_formed"] for row in rows if "evaluations" in row]
    return [sum(shares) / len(shares) for shares in ends]


PRIVACY_SENTENCES: dict[str, Claim] = {
    "four hops, leakage": (
        PRIVACY,
        r"leakage\s+fell: (\S+) \[(\S+), (\S+)\] in some 2,000 texts, (\S+) \[(\S+), (\S+)\] in 640",
        lambda: [
            float(number)
            for file in ("arms_four_hops", "arms_four_hops_640")
            for number in NUMBER.findall(
                result(file)["gates"]["O2 outcome raises leakage"]["figures"].partition("]")[0]
            )
        ],
    ),
    "two GPUs, intent": (
        PRIVACY,
        r"give away what is researched went from (\S+) to (\S+)\s+while leakage fell from (\S+) to (\S+);",
        lambda: [
            result("gpu_privacy_rl")["evaluations"][version][metric]["mean"]
            for metric in ("leak_intent", "leak")
            for version in ("0", "30720")
        ],
    ),
    "SmolLM2, gains and costs": (
        PRIVACY,
        r"raise success by (\S+) \[(\S+), (\S+)\] and leakage with it, by (\S+) \[(\S+), (\S+)\]\.\n"
        r"The penalty raises success by (\S+) \[(\S+), (\S+)\] "
        r"while leakage falls by (\S+) \[(\S+), (\S+)\], "
        r"from (\S+) to (\S+): its\n[^.]+\. It costs (\S+) \[(\S+), (\S+)\] of",
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
        r"Of seed 1 `outcome` had made (\S+) steps [^,]+, `situational` (\S+)\nand `penalty` none; "
        r"their start has (\S+) and (\S+) \(",
        lambda: [
            smollm2()["unfinished"]["outcome_1"]["steps"],
            smollm2()["unfinished"]["situational_1"]["steps"],
            *(smollm2()["unfinished"]["outcome_1"]["start"][metric] for metric in ("success", "leak")),
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
        lambda: [
            float(share)
            for share in result("arms")["gates"]["O3 goal: a third of the texts"]["figures"]
            .rpartition(":")[2]
            .split(",")
            if share.strip() != "inf"
        ],
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
