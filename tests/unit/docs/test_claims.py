"""Measured claims in the sentences of the READMEs are those of their JSON, to the digits that are shown."""

import re
from functools import partial

import numpy as np
import pytest

from tests.support.capacity_claims import SENTENCES as CAPACITY_SENTENCES
from tests.support.claims import (
    Claim,
    coding_success,
    language_shares,
    programs_of_dialogues,
    raro_curves,
    raro_earned,
    raro_ends,
    raro_game,
    raro_tenths,
    speed,
    text_domain_ends,
)
from tests.support.machine_claims import MACHINES
from tests.support.measured import (
    RARO,
    REPUTATION,
    ROOT,
    figure,
    is_shown,
    ppo,
    result,
)
from tests.support.privacy_claims import PRIVACY_SENTENCES

ENDS = ("before", "after")

OTHERS = MACHINES | CAPACITY_SENTENCES | PRIVACY_SENTENCES
SENTENCES: dict[str, Claim] = OTHERS | {
    "57M, success and leakage": (
        "README.md",
        r"went from\s+(\S+) to (\S+) success and from (\S+) to (\S+) leakage in (\d+) seconds",
        lambda: [
            *(
                figure("gpu_privacy_rl", f"rl: {metric}, {when}")
                for metric in ("success", "leak")
                for when in ENDS
            ),
            figure("gpu_privacy_rl", "rl: from the first to the last record"),
        ],
    ),
    "recording endpoint": (
        "docs/recorder.md",
        r"takes (\S+) ms longer than one of the policy itself, and (\S+) ms with a bare",
        lambda: [
            figure("recorder", f"added to a call, {way}, median round") for way in ("openai", "aiohttp")
        ],
    ),
    "quickstart, shared prefixes": (
        "README.md",
        r"seeds 0 to 3,.*?trains (\S+) times as many texts a second as one that shares\s+nothing, "
        r"and (\S+) times.*?shared by (\S+) \[(\S+), (\S+)\] and leakage by\s+(\S+) \[(\S+), (\S+)\]",
        lambda: [
            figure("sharing", "shared / nothing"),
            figure("sharing", "shared / trainer"),
            *(
                figure("sharing", f"{metric} after, shared - nothing{end}")
                for metric in ("success", "leak")
                for end in ("", ", lower end", ", upper end")
            ),
        ],
    ),
    "a pretrained model on two cores": (
        "README.md",
        r"It learns on two CPU cores: (\S+) optimizer.*? took (\S+) to (\S+) minutes.*?from "
        r"(\S+) \[(\S+), (\S+)\] to (\S+) \[(\S+), (\S+)\];.*?that is \+(\S+) \[(\S+), (\S+)\]",
        lambda: [
            result("pretrained_cpu")["rows"][0]["steps"],
            *(
                extreme(row["training_s"] / 60 for row in result("pretrained_cpu")["rows"])
                for extreme in (min, max)
            ),
            *(
                result("pretrained_cpu")["table"]["all"][when][end]
                for when in ("before", "after", "difference")
                for end in ("mean", "low", "high")
            ),
        ],
    ),
    "a pretrained model on cards": (
        "README.md",
        r"beside each other, \S+ steps of 512 answers took (\S+) to (\S+) minutes of training and reached\s+"
        r"(\S+) \[(\S+), (\S+)\], \+(\S+) \[(\S+), (\S+)\]",
        lambda: [
            *(
                extreme(row["training_s"] / 60 for row in result("pretrained_gpu")["rows"])
                for extreme in (min, max)
            ),
            *(
                result("pretrained_gpu")["table"]["all"][when][end]
                for when in ("after", "difference")
                for end in ("mean", "low", "high")
            ),
        ],
    ),
    "programs of a small model": (
        "domains/coding/README.md",
        r"it solved (\S+) \[(\S+), (\S+)\] before and (\S+) \[(\S+), (\S+)\] after (\S+) to (\S+)\s+"
        r"minutes of training at (\S+) to (\S+) programs a second: \+(\S+) \[(\S+), (\S+)\]",
        lambda: [
            *coding_success("before"),
            *coding_success("after"),
            *(extreme(row["training_min"] for row in result("coding")["rows"]) for extreme in (min, max)),
            *(extreme(row["texts_per_s"] for row in result("coding")["rows"]) for extreme in (min, max)),
            *coding_success("difference"),
        ],
    ),
    **{
        f"most likely and constant answers, {domain}": (
            f"domains/{domain}/README.md",
            r"most\s+likely\s+answers\s+solve\s+(\S+)"
            + constant
            + r"\s+Beyond\s+the(?:se|\s+former)\s+the\s+runs\s+gain\s+(\S+)\s+\[(\S+), (\S+)\][.:].*?"
            + r"Training\s+took\s+(\S+)\s+to\s+(\S+)\s+minutes\s+a\s+seed\.",
            partial(text_domain_ends, domain),
        )
        for domain, constant in {
            "counting": r",\s+always\s+the\s+same\s+number\s+(\S+)\.",
            "ifeval": r"\.",
            "fn_calling": r"\.",
            "tir": r",\s+always\s+the\s+same\s+number\s+(\S+)\.",
            "logic": r",\s+always\s+the\s+same\s+answer\s+(\S+)\s+of\s+the\s+first\s+task\s+and\s+"
            r"(\S+)\s+of\s+the\s+second\.",
            "reasoning_gym": r",\s+always\s+the\s+same\s+answer\s+(\S+),\s+(\S+)\s+and\s+(\S+)\s+"
            r"of\s+the\s+families\.",
        }.items()
    },
    "programs of a dialogue": (
        "domains/tir/README.md",
        r"A\s+dialogue\s+has\s+(\S+)\s+to\s+(\S+)\s+programs\s+before\s+and\s+(\S+)\s+after\.",
        programs_of_dialogues,
    ),
    "GPU, shared prefixes": (
        "README.md",
        r"took (\S+) samples a second instead of (\S+)\s+where groups of 8 .*?"
        r"and (\S+) instead of (\S+) where",
        lambda: [
            figure("gpu_shared", f"{work}: fastest {way}")
            for work in ("groups", "critic")
            for way in ("shared", "unshared")
        ],
    ),
    "reputation, speed": (
        REPUTATION,
        r"makes (\S+) M steps a second at\s+N = 4096 with tape drawing \(goal 5 M\), "
        r"(\S+) M at 16 and (\S+) M at 1; the single environment (\S+) k\. "
        r"PPO makes (\S+) k\s+steps a second with 256 environments, (\d+) times",
        lambda: [
            *(speed("batch_env_steps_per_s", count) / 1e6 for count in ("4096", "16", "1")),
            speed("single_env_steps_per_s") / 1e3,
            speed("ppo_batch_256_steps_per_s") / 1e3,
            speed("ppo_ratio"),
        ],
    ),
    "RARO, gain ratio": (
        RARO,
        r"sampled: (\S+) \[(\S+), (\S+)\]\. Greedy: (\d\.\d+)",
        lambda: [
            *(result("raro")["table"]["sampled"]["gain ratio"][key] for key in ("ratio", "low", "high")),
            result("raro")["table"]["greedy"]["gain ratio"]["ratio"],
        ],
    ),
    "RARO, gain ratio at the reference values": (
        RARO,
        r"values: sampled (\S+) \[(\S+), (\S+)\], greedy (\S+) \[(\S+), (\S+)\], "
        r"where it was (\S+) and (\S+) with",
        lambda: [
            *(
                result("raro_reference")["table"][way]["gain ratio"][key]
                for way in ("sampled", "greedy")
                for key in ("ratio", "low", "high")
            ),
            *(result("raro")["table"][way]["gain ratio"]["ratio"] for way in ("sampled", "greedy")),
        ],
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
        r"it goes from (\S+) \(mean of the first five steps\) to\s+(\S+), (\S+) and (\S+) \(last five\)",
        raro_ends,
    ),
    "RARO, the critic": (
        RARO,
        r"right in (\S+) of its committed verdicts at\s+first and in (\S+) to (\S+) of them at the end",
        lambda: [
            float(np.mean(raro_game("critic accuracy")[0])),
            min(raro_game("critic accuracy")[1]),
            max(raro_game("critic accuracy")[1]),
        ],
    ),
    "RARO, ties": (
        RARO,
        r"are (\d+) to (\d+) % of the verdicts in the first five steps and (\d+) to (\d+) % in the last",
        lambda: [100 * end(steps) for steps in raro_game("ties") for end in (min, max)],
    ),
    "RARO, the goal": (
        RARO,
        r"of 0\.90 of the verifier's gain is missed \((\S+)\), .*? differ widely \((\S+) to\s+(\S+)\)",
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
    "reputation, what was not reached": (
        REPUTATION,
        r"not met by any recipe \((\S+) to (\S+) with `strong`\), and at 0\.65 `base` learns\s+"
        r"nothing \((\S+), (\S+) and (\S+)\)",
        lambda: [
            *(end(ppo("strong", 0.7, seed)["deterministic"] for seed in range(3)) for end in (min, max)),
            *(ppo("base", 0.65, seed)["deterministic"] for seed in range(3)),
        ],
    ),
    "reputation, the language model": (
        REPUTATION,
        r"holds on all three seeds\*\* \((\S+) to (\S+); drawn answers (\S+) to (\S+)\)",
        lambda: [end(language_shares(drawn)) for drawn in (False, True) for end in (min, max)],
    ),
    "reputation, the ladder": (
        REPUTATION,
        r"random (\S+), all-HELP (\S+), all-SIGNAL (\S+), rule (\S+), fitted linear rule (\S+)\.\s",
        lambda: [
            one["share"] for one in result("reputation_language")["ladder"] if one["policy"] != "optimum"
        ],
    ),
    "RARO, what the policy earns by the shares of verdicts": (
        RARO,
        r"the formula gives (\S+), (\S+) and (\S+), and the runs have (\S+), (\S+) and (\S+)\. ",
        raro_earned,
    ),
    "RARO, more SFT": (
        RARO,
        r"RARO beats more SFT by at least (\S+) points",
        lambda: [
            (gain := result("raro")["table"]["sampled"]["raro - sft"])["mean"] - gain["half_width"],
        ],
    ),
}


@pytest.mark.parametrize("name", list(SENTENCES))
def test_claims_in_sentences_are_those_of_their_json(name: str) -> None:
    page, pattern, values = SENTENCES[name]
    (found,) = re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    written = [found] if isinstance(found, str) else list(found)
    wanted = values()
    assert len(written) == len(wanted)
    for one, value in zip(written, wanted):
        assert is_shown(one.rstrip(","), value), f"{one}, in the JSON {value:.5g}"
