"""Measured claims in the sentences of the READMEs are those of their JSON, to the digits that are shown."""

import re
from functools import partial

import pytest

from tests.support.capacity_claims import SENTENCES as CAPACITY_SENTENCES
from tests.support.claims import (
    Claim,
    coding_success,
    language_shares,
    programs_of_dialogues,
    smollm2_reputation,
    speed,
    text_domain_ends,
)
from tests.support.machine_claims import MACHINES
from tests.support.measured import (
    REPUTATION,
    ROOT,
    figure,
    is_shown,
    ppo,
    result,
)
from tests.support.pretrained_claims import PRETRAINED_SENTENCES
from tests.support.privacy_claims import PRIVACY_SENTENCES
from tests.support.raro_claims import RARO_SENTENCES

ENDS = ("before", "after")

OTHERS = MACHINES | CAPACITY_SENTENCES | PRIVACY_SENTENCES | RARO_SENTENCES | PRETRAINED_SENTENCES
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
        r"seeds 0 to 3,.*?trains (\S+) times as many texts a second as one that\s+shares\s+nothing, "
        r"and (\S+) times.*?shared\s+by (\S+) \[(\S+), (\S+)\] and\s+leakage\s+by\s+(\S+) \[(\S+), (\S+)\]",
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
    "reputation, SmolLM2": (
        REPUTATION,
        r"in (\S+) to (\S+) s of training each.+holds on all three seeds \((\S+) to (\S+)\); one interval "
        r"reaches down to (\S+)\. .+random (\S+), all-HELP (\S+), all-SIGNAL (\S+), rule (\S+), "
        r"fitted linear rule (\S+)\.\s+Answers drawn in\s+training took (\S+) to (\S+) in the last",
        smollm2_reputation,
    ),
    "reputation, the ladder": (
        REPUTATION,
        r"(?<=seeds: )random (\S+), all-HELP (\S+), all-SIGNAL (\S+), rule (\S+), "
        r"fitted linear rule (\S+)\.\s",
        lambda: [
            one["share"] for one in result("reputation_language")["ladder"] if one["policy"] != "optimum"
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
