"""Sentences of RARO's README and of its goals: what their JSON says."""

import json
import random

import numpy as np
from safetensors.torch import load_file

from benchmarks.raro import SIZES
from domains.raro.config import settings_of
from domains.raro.countdown import verify
from domains.raro.data import data_settings
from domains.raro.demonstrations import _training_questions, policy_trace
from domains.raro.parser import extract_answer
from pipelinerl.config.compose import compose
from tests.support.claims import Claim
from tests.support.measured import RARO, ROOT, result
from tests.support.raro_smollm2_claims import SMOLLM2_SENTENCES
from tests.support.raro_tables import raro_curves, raro_lower_end, raro_tenths

WARM = ROOT / "domains" / "raro" / "checkpoint"


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


def warm_model() -> list[float]:
    """Million parameters and tokens, percent of play with a wrong answer, of the critic's that is right."""
    written = json.loads((WARM / "recipe.json").read_text(encoding="utf-8"))
    sizes = [weights.numel() for weights in load_file(WARM / "model.safetensors").values()]
    (gate,) = written["gates"]
    tokens = sum(phase["tokens"] for phase in written["recipe"]["phases"])
    return [sum(sizes) / 1e6, tokens / 1e6, 100 * wrong_play(), 100 * gate["accuracy"]]


def wrong_play(count: int = 20_000) -> float:
    """Share of the policy's demonstrations whose answer misses."""
    cfg = compose(["+domain=raro", "hardware=cpu"]).tree
    questions = _training_questions(data_settings(settings_of(cfg).data).countdown)
    rng = random.Random(0)
    wrong = 0
    for _ in range(count):
        numbers, target = rng.choice(questions)
        said = policy_trace(numbers, target, rng)
        wrong += not verify(extract_answer(said) or "", numbers, target)
    return wrong / count


def sft_at_the_reference_values() -> list[float]:
    """Answers and passes; sampled after the first evaluation, at best later, and what is lost from there;
    greedy at best and lost; the versions that validation chooses."""
    runs = [run for run in result("raro_reference")["runs"] if run["arm"] == "sft"]
    answers = runs[0]["completions"]
    found = [answers, float(answers // SIZES["train"])]
    sampled, greedy = ([list(run[way].values()) for run in runs] for way in ("curve", "greedy"))
    firsts, later = [run[1] for run in sampled], [max(run[2:]) for run in sampled]
    found += [min(firsts), max(firsts), float(list(runs[0]["curve"])[1]), min(later), max(later)]
    for curves in (sampled, greedy):
        best, lost = [max(run[1:]) for run in curves], [max(run[1:]) - run[-1] for run in curves]
        found += [min(best), max(best)] if curves is greedy else []
        found += [min(lost), max(lost)]
    chosen = [version for run in runs for version in run["chosen"].values()]
    return [*found, float(SIZES["val"]), float(min(chosen)), float(max(chosen))]


def at_the_end(arm: str, way: str) -> list[float]:
    """Percent right at the reference values, by seed."""
    return [run["after"][way] for run in result("raro_reference")["runs"] if run["arm"] == arm]


def greedy_ends_of_ablations() -> list[float]:
    """How far RARO's seeds lie apart, sampled; their range by greedy answers, and what each ablation has."""
    sampled, greedy = (at_the_end("raro", way) for way in ("sampled", "greedy"))
    ablations = [one for arm in ("no_tie", "no_replay", "half") for one in at_the_end(arm, "greedy")]
    assert len(ablations) == 3 and min(ablations) > max(greedy)
    return [max(sampled) - min(sampled), min(greedy), max(greedy), *ablations]


def above_sft(way: str) -> list[float]:
    """RARO's points above more SFT at the reference values, by seed."""
    after = {(run["arm"], run["seed"]): run["after"][way] for run in result("raro_reference")["runs"]}
    return [after["raro", seed] - after["sft", seed] for seed in (0, 1, 2)]


RARO_SENTENCES: dict[str, Claim] = SMOLLM2_SENTENCES | {
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
        r"seeds are (\S+) to (\S+) points above it by sampled\s+answers, and (\S+) to (\S+) by greedy ones\. "
        r"The goal, a lower.*?sampled answers\s+\((\S+)\) and missed by greedy ones \((\S+), and (\S+) at ",
        lambda: [
            *(pick(above_sft(way)) for way in ("sampled", "greedy") for pick in (min, max)),
            *(raro_lower_end(way, "raro_reference") for way in ("sampled", "greedy")),
            2 * (gain := result("raro_reference")["table"]["greedy"]["raro - sft"])["mean"]
            - (gain["mean"] - gain["half_width"]),
        ],
    ),
    "RARO, more SFT at the reference values": (
        RARO,
        r"as many steps \(([\d,]+) answers, its 1,500 questions (\d+) times; .*?to (\S+) to (\S+) after "
        r"([\d,]+) of them, reaches (\S+) to (\S+) at best and ends (\S+) to (\S+) points below\s+that; "
        r"by greedy ones it rises to (\S+) to (\S+) and ends (\S+) to (\S+) points lower\. It counts with "
        r"the version that (\d+)\s+validation questions choose, after ([\d,]+) to ([\d,]+) answers",
        sft_at_the_reference_values,
    ),
    "RARO, ablations by greedy answers": (
        RARO,
        r"RARO's seeds differ by (\S+)\s+points\. By greedy answers all three ablations end above all three "
        r"seeds of RARO, which have (\S+) to (\S+): without ties\s+(\S+), without replay (\S+), with weights "
        r"of 1/2 each (\S+)\. They have one seed each",
        greedy_ends_of_ablations,
    ),
    "RARO, goals not reached by greedy answers": (
        RARO,
        r"lower end of three seeds is (\S+)\s+points, .*? With two verdicts it is (\S+), beside the warm",
        lambda: [raro_lower_end("greedy", file) for file in ("raro_reference", "raro")],
    ),
    "RARO, more SFT was stopped": (
        RARO,
        r"With two verdicts it was stopped after (\S+) answers",
        lambda: [run["completions"] for run in result("raro")["runs"] if run["arm"] == "sft"][:1],
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
        r"0\.90 of the verifier's gain is missed with two verdicts \((\S+); (\S+) by greedy .*?"
        r"differ widely, (\S+) to (\S+)\) and not decided .*?values \((\S+) \[(\S+), (\S+)\], sampled\)",
        lambda: [
            *(result("raro")["table"][way]["gain ratio"]["ratio"] for way in ("sampled", "greedy")),
            *(
                end(run["after"]["greedy"] for run in result("raro")["runs"] if run["arm"] == "raro")
                for end in (min, max)
            ),
            *(
                result("raro_reference")["table"]["sampled"]["gain ratio"][key]
                for key in ("ratio", "low", "high")
            ),
        ],
    ),
    "RARO, what more SFT became": (
        RARO,
        r"it fell from about (\d+) to (\d+) and\s+ended at (\S+) to (\S+), so that",
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
        r"RARO beats more SFT by at least (\S+) points by sampled answers and (\S+) by greedy ones",
        lambda: [raro_lower_end(way, "raro") for way in ("sampled", "greedy")],
    ),
    "RARO, the warm model": (
        RARO,
        r"The bundled model \((\S+)M parameters, from random weights, (\d+)M tokens\).*?so that (\d+) % of "
        r"the demonstrations end in a wrong.*?it gets (\S+) % of that\s+right",
        warm_model,
    ),
}
