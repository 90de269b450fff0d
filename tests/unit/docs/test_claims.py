"""Measured claims in the sentences of the READMEs are those of their JSON, to the digits that are shown."""

import re
from collections import Counter
from functools import partial

import pytest

from tests.support.capacity_claims import SENTENCES as CAPACITY_SENTENCES
from tests.support.claims import (
    Claim,
    coding_success,
    programs_of_dialogues,
    text_domain_ends,
    wrapped,
)
from tests.support.goal_claims import GOAL_SENTENCES
from tests.support.machine_claims import MACHINES
from tests.support.measured import (
    ROOT,
    figure,
    is_shown,
    result,
)
from tests.support.pretrained_claims import PRETRAINED_SENTENCES
from tests.support.privacy_claims import PRIVACY_SENTENCES
from tests.support.privacy_seed_claims import PRIVACY_SEED_SENTENCES
from tests.support.raro_claims import RARO_SENTENCES
from tests.support.reputation_claims import REPUTATION_SENTENCES, figure_rows, language_shares

ENDS = ("before", "after")

GAMES = wrapped(RARO_SENTENCES | REPUTATION_SENTENCES | GOAL_SENTENCES)
AGENT = wrapped(PRIVACY_SENTENCES | PRIVACY_SEED_SENTENCES)
OTHERS = MACHINES | CAPACITY_SENTENCES | AGENT | GAMES | PRETRAINED_SENTENCES
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
}


NUMBERS = re.compile(r"[+-]?\d(?:[\d.,]*\d)?")
"""Those of a group that lists several, as many as there are seeds."""


@pytest.mark.parametrize("name", list(SENTENCES))
def test_claims_in_sentences_are_those_of_their_json(name: str) -> None:
    page, pattern, values = SENTENCES[name]
    (found,) = re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    groups = [found] if isinstance(found, str) else list(found)
    written = [number for group in groups for number in (NUMBERS.findall(group) if " " in group else [group])]
    wanted = values()
    assert len(written) == len(wanted)
    for one, value in zip(written, wanted):
        assert is_shown(one.rstrip(","), value), f"{one}, in the JSON {value:.5g}"


def test_the_figure_over_prices_has_three_seeds_a_price_and_the_language_model_of_its_json() -> None:
    rows = figure_rows()
    learned = Counter(row["c_signal"] for row in rows if row["features"] == "scaled")
    assert len(learned) > 10 and set(learned.values()) == {3}
    stars = [float(row["share_of_margin"]) for row in rows if row["features"] == "language"]
    assert stars == pytest.approx(language_shares(drawn=False))
    assert len(rows) == 3 * len(learned) + len(stars)
