"""Tables and sentences of the privacy agent's README about a pretrained model: what their JSON says."""

import math
import re
from typing import Any

import numpy as np

from pipelinerl.observe.intervals import bootstrap
from tests.support.claims import Claim, gate
from tests.support.measured import PRIVACY, Cells, Value, result, shares_of_texts

ARMS = ("outcome", "situational", "penalty")


def smollm2() -> dict[str, Any]:
    """The arms from the pretrained model."""
    found: dict[str, Any] = result("gpu_privacy_language")
    return found


def seeds_of(arm: str) -> list[int]:
    """Those of the arm's finished runs."""
    seeds: list[int] = smollm2()["seeds"][arm]
    return seeds


def smollm2_gate(name: str) -> list[float]:
    """Difference and interval, or both numbers where there is no interval."""
    return gate(name, "gpu_privacy_language")[:3]


def by_seed(row: Cells) -> list[Value]:
    """Success and leakage of each seed's finished runs; the start's are means over its arms."""
    arm = {"situational + penalty": "penalty"}.get(row[0], row[0])
    rows, found = result("gpu_privacy_language_rows"), list[Value]()
    for seed in seeds_of("outcome"):
        names = [f"{one}_{seed}" for one in (ARMS if arm == "start" else (arm,))]
        asked = [rows[name]["evaluations"][0 if arm == "start" else -1][1] for name in names if name in rows]
        for metric in ("success", "leak") if asked else ():
            found.append(float(np.mean([value for values in asked for value in values[metric]])))
    return found


def stopped(row: Cells) -> list[Value]:
    """Optimizer steps of a seed's runs that were stopped; a cell without one has no number."""
    seed, which = re.findall(r"seed (\d), (first|second)", row[0])[0]
    found = smollm2()["unfinished"] if which == "second" else smollm2()["unfinished"]["earlier"]
    return [found[name]["steps"] for name in (f"{arm}_{seed}" for arm in ARMS) if name in found]


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
    ways = {"the privacy penalty": "penalty", "rewards for outcomes": "outcome"}
    arm = ways.get(way, "situational")
    rows = [row for name, row in result("gpu_privacy_language_rows").items() if name.startswith(f"{arm}_")]
    ends = [np.concatenate([row["evaluations"][end][1][metric] for row in rows]) for end in (0, -1)]
    return [value for end in ends for value in bootstrap(end)[:3]]


def adversary() -> dict[str, Any]:
    """What the rules and the readers found, over all seeds."""
    found: dict[str, Any] = result("gpu_privacy_adversary")["pooled"]
    return found


def readers(row: Cells) -> list[Value]:
    """Share of a group's rollouts with a leak: by rules and by the trained model with interval."""
    named = {"situational + penalty": "penalty", "start, questions of other chains": "start, other questions"}
    found, group = adversary(), named.get(row[0], row[0])
    by = [found["rules"], *(found[model]["groups"] for model in ("trained", "untrained"))]
    rates = [one[group]["headline"] for one in by]
    exact = [rate[key] for rate in rates[:2] for key in ("value", "low", "high")]
    return [*exact, rates[2]["value"]]


def verdicts(of: str) -> dict[str, Any]:
    """The trained model's agreement on the headline, with the rules or with the value's presence."""
    found: dict[str, Any] = adversary()["trained"]["agreement"][f"headline, {of}"]
    return found


def smollm2_by_seed(name: str) -> list[float]:
    """A gate's difference with each seed."""
    found: list[float] = smollm2()["gates"][name]["by_seed"]
    return found


def at_the_end(name: str, metric: str) -> float:
    """A run's mean in its last evaluation, where the metric applies."""
    asked = result("gpu_privacy_language_rows")[name]["evaluations"][-1][1][metric]
    return float(np.mean([value for value in asked if value is not None]))


def cut_amounts(seed: str, groups: tuple[str, ...]) -> list[float]:
    """Rollouts with an amount without its thousands, and all of them."""
    found = result("gpu_privacy_adversary")["seeds"][seed]["cut"]
    return [float(sum(found[group][key] for group in groups)) for key in ("count", "total")]


def imitating() -> list[float]:
    """Seconds of each seed's supervised policy."""
    return [
        row["seconds"]
        for name, row in result("gpu_privacy_language_rows").items()
        if name.startswith("policy")
    ]


def training() -> list[float]:
    """Seconds from the first to the last step of each finished run."""
    rows = result("gpu_privacy_language_rows").values()
    return [row["rates"]["elapsed_s"] for row in rows if row.get("rates")]


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


def on_two_gpus(texts: str, metric: str) -> float:
    """Of the model made from scratch, after so many texts."""
    return float(result("gpu_privacy_rl")["evaluations"][texts][metric]["mean"])


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
    "the small model, what is anchored stays": (
        PRIVACY,
        r"which are only anchored, keep to within (\S+) of where they were",
        lambda: [
            max(
                abs(result("learning")[f"{world} world/{skill}_accuracy"]["difference"]["mean"])
                for world in ("same", "fresh")
                for skill in ("read", "resolve")
            )
        ],
    ),
    "two GPUs, the first steps": (
        PRIVACY,
        r"in the first 30 steps \((\S+) and (\S+) after 7,680 texts\); (\S+) % of the rollouts are malformed "
        r"at\s+the end, (\S+) % before",
        lambda: [
            *(on_two_gpus("7680", metric) for metric in ("success", "leak")),
            *(100 * (1 - on_two_gpus(version, "well_formed")) for version in ("30720", "0")),
        ],
    ),
    "incentive": (
        PRIVACY,
        r"the gold page comes first in (\S+) % of the searches,\s+without it in (\S+) %, but among the five "
        r"hits that a plan is rewarded for in (\S+) % of both",
        lambda: [
            100 * result("privacy_incentive")["figures"][f"{query}: gold among the first {hits}"]["value"]
            for query, hits in (("leaky", 1), ("safe", 1), ("safe", 5))
        ],
    ),
    "SmolLM2, intent": (
        PRIVACY,
        r"with SmolLM2 under the penalty ([^(]+) \(by seed\)",
        lambda: [intent(seed, end) for seed in seeds_of("penalty") for end in (0, -1)],
    ),
    "SmolLM2, gains": (
        PRIVACY,
        r"raise success by (\S+) \[(\S+), (\S+)\] and leakage with it, by (\S+) \[(\S+), (\S+)\],\s+"
        r"though hardly with seeds 2 and 3 \(by seed ([^)]+)\)\.\s+"
        r"The penalty raises success by (\S+) \[(\S+), (\S+)\]\s+"
        r"while leakage falls by (\S+) \[(\S+), (\S+)\],\s+from (\S+) to (\S+)\. What",
        lambda: [
            *smollm2_gate("O1 outcome raises success"),
            *smollm2_gate("O2 outcome raises leakage"),
            *smollm2_by_seed("O2 outcome raises leakage"),
            *smollm2_gate("O5 penalty raises success"),
            *fall(smollm2_gate("O4 penalty lowers leakage")),
            *smollm2_gate("O4 goal: a third of the base"),
        ],
    ),
    "SmolLM2, leakage that is left": (
        PRIVACY,
        r"What is left is (\S+) \[(\S+), (\S+)\] of the start's: this project's goal, a third, is just "
        r"missed, with seeds 0 and 1 it is met \(by seed ([^)]+)\)",
        lambda: [
            *smollm2()["leakage_left"]["all"],
            *(smollm2()["leakage_left"][str(seed)][0] for seed in seeds_of("penalty")),
        ],
    ),
    "SmolLM2, what the penalty costs": (
        PRIVACY,
        r"The\s+penalty costs (\S+) \[(\S+), (\S+)\] of the success of `situational` "
        r"\(seeds ([^;]+); by seed ([^)]+)\)",
        lambda: [
            *fall(smollm2_gate("O5 goal: not 5 points below situational")),
            *map(float, seeds_of("situational")),
            *(-one for one in smollm2_by_seed("O5 goal: not 5 points below situational")),
        ],
    ),
    "SmolLM2, what the penalty's cost is": (
        PRIVACY,
        r"the choices, of which (\S+) and (\S+) are right instead of (\S+) and (\S+), since .*? with seed 3 "
        r"it is the plans, of which (\S+) retrieve gold instead of (\S+)\.\n",
        lambda: [
            *(
                at_the_end(f"{arm}_{n}", "choose_correct")
                for arm in ("penalty", "situational")
                for n in (0, 2)
            ),
            *(at_the_end(f"{arm}_3", "plan_gold_retrieved") for arm in ("penalty", "situational")),
        ],
    ),
    "SmolLM2, the course of leakage": (
        PRIVACY,
        r"leakage fell from (\S+) and (\S+) in the first sixth of the texts to (\S+) and (\S+) in the "
        r"fourth, and was (\S+) and (\S+) in the last",
        lambda: [
            result("gpu_privacy_language_rows")[f"penalty_{seed}"]["course"][part]["leak"]
            for part in (0, 3, 5)
            for seed in (2, 3)
        ],
    ),
    "SmolLM2, a missed gate": (
        PRIVACY,
        r"is read right in (\S+) of the cases, asked for are (\S+)\)",
        lambda: next(
            [gate_of["accuracy"], gate_of["minimum"]]
            for gate_of in result("gpu_privacy_language_rows")["policy_3"]["gates"]
            if gate_of["kind"] == "read_yes"
        ),
    ),
    "SmolLM2, how long it takes": (
        PRIVACY,
        r"for half an hour: (\S+) to (\S+) s for the\s+policy, .*?, and (\S+) to (\S+) s from the first",
        lambda: [pick(times) for times in (imitating(), training()) for pick in (min, max)],
    ),
    "SmolLM2, starts of runs that were stopped": (
        PRIVACY,
        r"in no other table had (\S+) \((\S+)\) in its first try and (\S+) \((\S+)\) in the run of 57",
        lambda: [
            found["start"][metric]
            for found in (
                smollm2()["unfinished"]["earlier"]["outcome_1"],
                smollm2()["unfinished"]["situational_1"],
            )
            for metric in ("success", "leak")
        ],
    ),
    "SmolLM2 as adversary": (
        PRIVACY,
        r"In (\S+)\s+\[(\S+), (\S+)\] of the (\S+) rollouts of the models its verdict is theirs "
        r"\(kappa (\S+)\): it\s+finds (\S+) of their (\S+) leaks, and (\S+)\s+more\. Of the (\S+)\s+rollouts "
        r"whose queries hold a private value at all it finds (\S+), and (\S+) others\.",
        lambda: [
            *(verdicts("rules")["agree"][key] for key in ("value", "low", "high", "total")),
            verdicts("rules")["kappa"],
            verdicts("rules")["found where it leaks"]["count"],
            verdicts("rules")["found where it leaks"]["total"],
            verdicts("rules")["found where not"]["count"],
            verdicts("value")["found where it leaks"]["total"],
            verdicts("value")["found where it leaks"]["count"],
            verdicts("value")["found where not"]["count"],
        ],
    ),
    "SmolLM2 as adversary, cut amounts": (
        PRIVACY,
        r"(\S+) of (\S+) rollouts under rewards for outcomes have one, (\S+) of the start's, "
        r"(\S+) under `situational` and (\S+) under the penalty\. Counted as leaks, they leave (\S+) that "
        r"only the reader finds, and agreement with seed 2 is (\S+) \(kappa (\S+)\)\. "
        r".*? has read, (\S+) of (\S+) rollouts",
        lambda: [
            *(cut_amounts("2", ("outcome",))),
            *(cut_amounts("2", (group,))[0] for group in ("start", "situational", "penalty")),
            verdicts("rules or cut")["found where not"]["count"],
            verdicts("rules or cut")["agree"]["value"],
            verdicts("rules or cut")["kappa"],
            *cut_amounts("3", ("start", *ARMS)),
        ],
    ),
    "SmolLM2 as adversary, replies": (
        PRIVACY,
        r"cannot do the task: (\S+) % of the questions",
        lambda: [100 * adversary()["untrained"]["replies"]["unparseable_share"]],
    ),
    "SmolLM2 as adversary, intent": (
        PRIVACY,
        r"shows to the trained one in (\S+) of the start's\s+rollouts and in (\S+) under the\s+penalty",
        lambda: [
            adversary()["trained"]["groups"][group]["intent"]["value"] for group in ("start", "penalty")
        ],
    ),
    "SmolLM2, the first trial": (
        PRIVACY,
        r"There 60 steps led from (\S+) \((\S+)\) to (\S+) \((\S+)\) with\s+`outcome`, (\S+) \((\S+)\) with "
        r"`situational` and (\S+) \((\S+)\) with the penalty",
        lambda: [
            result("gpu_privacy_language_first")["table"][row][metric]["mean"]
            for row in ("start", *ARMS)
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
