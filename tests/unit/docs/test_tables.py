"""Every number of a measured table in a README is that of its JSON, to the digits that are shown.

A table is found by its header. Each is either measured, with the JSON values of every number of every row in
the order in which they stand, or listed as not measured with the reason. A new table or row fails until it is
one of the two.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("domains/*/README.md"))]
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
NEVER = ("not reached", "no gain by outcome")
"""What a cell says where the JSON has infinity."""
UNKNOWN = None
"""A number that no file keeps."""

Value = float | None
Cells = Sequence[str]
Table = tuple[str, str]
"""Page and header."""

PRIVACY, RARO = "domains/privacy_hopqa/README.md", "domains/raro/README.md"
REPUTATION = "domains/reputation_hacking/README.md"

NOT_MEASURED: dict[str, dict[str, str]] = {
    "README.md": {
        "domain | what it is": "words",
        "folder | subject": "words",
        "bundled | where it comes from": "words",
    },
    "domains/guessing/README.md": {"function | what it does": "words"},
    "domains/math/README.md": {
        "rows of | question | gold answer": "words",
        "status | meaning": "words",
        "`rewards=` | correct | wrong | no answer, unparsable": "settings of conf/rewards",
    },
    "domains/multidomain/README.md": {"key | meaning": "words"},
    PRIVACY: {
        "room | subject": "words",
        "what goes wrong | what follows": "rules",
        "call | situation | reward": "rules",
    },
    RARO: {
        "verdict | critic | policy": "rules",
        "file | subject": "words",
        "what | seen": "single runs that were looked at while the experiment was set up; no file keeps them",
        "attempts | right | reward if right | reward if wrong": "one run whose records were not kept",
    },
    REPUTATION: {
        "room | what it holds | imports": "words",
        "figure |": "figures",
        "name | rule": "rules",
        "key |": "settings",
    },
}


@cache
def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def interval(found: dict[str, float]) -> list[Value]:
    return [found["mean"], found["low"], found["high"]]


METRICS = {
    "success": "success",
    "success, well-formed rollouts": "success_if_well_formed",
    "reward": "reward",
    "leakage (answer or full)": "leak",
    "plan retrieves gold": "plan_gold_retrieved",
    "choose right": "choose_correct",
    "read right": "read_accuracy",
    "resolve right": "resolve_accuracy",
}


def skill(row: Cells) -> list[Value]:
    gates = json.loads((ROOT / "domains/privacy_hopqa/checkpoint/recipe.json").read_text())["gates"]
    kinds = {
        "read, the window holds the answer": ["read_yes"],
        "read, it does not": ["read_no"],
        "choose, gold stands first": ["choose_first"],
        "choose, gold stands elsewhere": ["choose_other"],
        "resolve, answered / open": ["resolve_yes", "resolve_no"],
    }[row[0]]
    found = {gate["kind"]: gate for gate in gates}
    after = [found[kind]["accuracy"] for kind in kinds]
    return [*[UNKNOWN for _ in kinds], *after, found[kinds[0]]["minimum"]]  # the recipe keeps the last phase


def learning(row: Cells) -> list[Value]:
    found = result("learning")[f"{row[0]}/{METRICS[row[1]]}"]
    return [found["before"]["mean"], found["after"]["mean"], *interval(found["difference"])]


def from_scratch(row: Cells) -> list[Value]:
    figures, metric = result("gpu_privacy_rl")["figures"], METRICS[row[0]]
    ends = [figures[f"rl: {metric}, {when}"]["value"] for when in ("before", "after")]
    (change,) = (name for name in figures if name.startswith(f"rl: {metric}, change"))
    low, high = change.rpartition("[")[2].rstrip("]").split(", ")
    return [*ends, figures[change]["value"], float(low), float(high)]


def arms(row: Cells) -> list[Value]:
    found = result("arms")["table"][{"situational + penalty": "penalty"}.get(row[0], row[0])]
    exact = [*interval(found["success"]), *interval(found["leak"])]
    return [*exact, found["plan_gold_retrieved"]["mean"], found["choose_correct"]["mean"]]


def credit(row: Cells) -> list[Value]:
    file = {
        "two to four hops, 1,032 chains, 3 seeds": "arms_decisions",
        "four hops, 400 chains, 2 seeds": "arms_four_hops",
        "four hops, 1,032 chains, 3 seeds": "arms_four_hops_640",
    }[row[0]]
    found = result(file)
    success = [found["table"][arm]["success"]["mean"] for arm in ("start", "outcome", "situational")]
    shares = found["gates"]["O3 goal: a third of the texts"]["figures"].rpartition(":")[2].split(",")
    return [found["texts"], *success, *(float(share) for share in shares)]


def tier(row: Cells) -> list[Value]:
    arm = {
        "base": "base",
        "outcome reward": "outcome",
        "situational reward": "situational",
        "situational reward, privacy penalty": "penalty",
    }[row[0]]
    seeds = result("privacy_ci_tier")["seeds"]
    values: list[Value] = [
        0.0 if arm == "base" else float(np.mean([s["trained"][arm]["samples"] for s in seeds]))
    ]
    for metric in ("success", "leakage"):
        chains = 100 * np.concatenate([seed["policies"][arm][metric] for seed in seeds])
        drawn = np.random.default_rng(0).integers(len(chains), size=(4000, len(chains)))
        values += [float(chains.mean()), *np.percentile(chains[drawn].mean(1), [2.5, 97.5]).tolist()]
    return values if arm == "base" else [*values, *(s["samples_to_target"][arm] for s in seeds)]


def raro(row: Cells) -> list[Value]:
    arm = {"the warm model": "warm", "more SFT": "sft", "RARO": "raro", "verifier RL": "rlvr"}
    name = arm.get(row[0], "raro - sft")
    assert name in arm.values() or row[0] == "RARO - more SFT, by seed", row[0]
    found = result("raro")["table"]
    ways = [found[way][name] for way in ("sampled", "greedy")]
    tokens = [found["costs"][name]["trained_tokens"]] if name in found["costs"] else []
    return [*(one[key] for one in ways for key in ("mean", "half_width")), *tokens, ways[0]["seeds"]]


def ppo(recipe: str, price: float, seed: int) -> dict[str, float]:
    wanted = {"recipe": recipe, "c_signal": price, "seed": seed}
    (found,) = (one for one in result("reputation")["learning"] if wanted.items() <= one.items())
    return found


def ppo_seeds(row: Cells) -> list[Value]:
    runs = [ppo(recipe, 0.7, int(row[0])) for recipe in ("base", "strong")]
    return [run[way] for run in runs for way in ("deterministic", "sampled")]


def ppo_prices(row: Cells) -> list[Value]:
    prices, seeds = (0.65, 0.75, 0.8), range(3)
    return [ppo(row[0].strip("`"), price, seed)["deterministic"] for price in prices for seed in seeds]


def language(row: Cells) -> list[Value]:
    found = result("reputation_language")
    (best,) = (one for one in found["ladder"] if one["policy"] == "optimum")
    if row[0] == "optimum":
        return [best["share"], best["help"], 50 - best["help"], 0.0, best["true_impact"], UNKNOWN, 0.0]
    seeds = {f"training seed {seed}": runs for seed, runs in found["seeds"].items()}
    likeliest, drawn = ({"the bundled start": found["start"]} | seeds)[row[0]]
    shares = [one["share_of_margin"] for one in (likeliest, drawn)]
    keys = ("help", "signal", "nothing", "true_impact", "manipulation_score")
    return [*shares, *(likeliest[key] for key in keys), best["J"] - likeliest["J"]]


MEASURED: dict[Table, tuple[int, Callable[[Cells], list[Value]]]] = {
    (PRIVACY, "skill | before | after | asked for"): (1, skill),
    (PRIVACY, "world | figure | before | after | difference"): (2, learning),
    (PRIVACY, "figure | before | after | difference"): (1, from_scratch),
    (PRIVACY, "policy | success | leakage (answer or full) | plan retrieves gold | choose right"): (1, arms),
    (
        PRIVACY,
        "chains | texts | success: start | outcome | situational "
        "| situational's share of outcome's texts, by seed",
    ): (1, credit),
    (
        PRIVACY,
        "policy | trained texts | success | leakage (answer or full) "
        "| texts to the outcome arm's last success, by seed",
    ): (1, tier),
    (RARO, "arm | sampled | greedy | trained tokens | seeds"): (1, raro),
    (REPUTATION, "training seed | base | strong"): (1, ppo_seeds),
    (REPUTATION, "`c_signal` | 0.65 | 0.75 | 0.8"): (1, ppo_prices),
    (
        REPUTATION,
        "policy | share of margin, likeliest answers (drawn) | HELP / SIGNAL / DO_NOTHING of 50 | TI | MS "
        "| regret",
    ): (1, language),
}
"""How many cells name the row, and its values."""

RESAMPLED = {tier}
"""Intervals that are drawn anew: their ends may differ by 0.2."""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def tables(page: str) -> dict[str, list[list[str]]]:
    """Rows by header, as they stand on the page."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    found: dict[str, list[list[str]]] = {}
    header = None
    for before, line in zip(["", *lines], lines):
        if re.fullmatch(r"\|(?: ?:?-+:? ?\|)+", line.strip()):
            header = " | ".join(cells(before)).strip()
            assert header not in found, f"{page}: two tables with the header {header}"
            found[header] = []
        elif not line.startswith("|"):
            header = None
        elif header is not None:
            found[header].append(cells(line))
    return found


def is_shown(written: str, value: float, slack: float = 0.0) -> bool:
    """Whether a number rounds to what is written."""
    digits = len(written.partition(".")[2])
    return abs(float(written.replace(",", "")) - value) <= 0.5 * 10**-digits + slack + 1e-9


@pytest.mark.parametrize("page", PAGES)
def test_every_table_is_measured_or_says_why_not(page: str) -> None:
    measured = {header for one, header in MEASURED if one == page}
    listed = set(NOT_MEASURED.get(page, {}))
    found = set(tables(page))
    assert sorted(found - measured - listed) == [], f"{page}: add these tables to MEASURED or NOT_MEASURED"
    assert sorted((measured | listed) - found) == [], f"{page}: these tables are no longer there"


@pytest.mark.parametrize("table", list(MEASURED), ids=lambda table: f"{table[0]}: {table[1][:40]}")
def test_every_number_of_a_measured_table_is_that_of_its_json(table: Table) -> None:
    names, values = MEASURED[table]
    for row in tables(table[0])[table[1]]:
        shown = " ; ".join(row[names:])
        try:
            wanted = values(row)
        except KeyError as error:
            pytest.fail(f"{table[0]}: the row {row[0]!r} is in no JSON ({error})")
        finite = [value for value in wanted if value is None or math.isfinite(value)]
        assert sum(shown.count(word) for word in NEVER) == len(wanted) - len(finite), shown
        written = NUMBER.findall(shown)
        assert len(written) == len(finite), f"{row[0]}: {len(written)} numbers, {len(finite)} in the JSON"
        for one, value in zip(written, finite):
            slack = 0.2 if values in RESAMPLED else 0.0
            if f"about {one}" in shown:
                slack = 0.02 * float(value or 0)
            assert value is None or is_shown(one, value, slack), f"{row[0]}: {one}, in the JSON {value:.5g}"


def raro_ends() -> list[float]:
    """The policy's reward, mean over seeds of the first five and the last five steps."""
    runs = [list(run["game"]["policy reward"].values()) for run in result("raro")["runs"] if run["game"]]
    return [float(np.mean([run[:5] for run in runs])), *(float(np.mean(run[-5:])) for run in runs)]


def figure(name: str, key: str) -> float:
    return float(result(name)["figures"][key]["value"])


def gate(name: str) -> list[float]:
    """Difference, interval and differences by seed, as `arms.json` tells them."""
    told = result("arms")["gates"][name]["figures"]
    return [float(number) for number in NUMBER.findall(re.sub(r"n=\d+", "", told))]


def speed(*keys: str) -> float:
    found = result("reputation")["speed"]
    for key in keys:
        found = found[key]
    return float(found)


SENTENCES: dict[str, tuple[str, str, Callable[[], list[float]]]] = {
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
    "RARO, falling policy reward": (
        RARO,
        r"it goes from (\S+) \(mean of the first five steps\) to\s+(\S+), (\S+) and (\S+) \(last five\)",
        raro_ends,
    ),
    "RARO, more SFT": (
        RARO,
        r"RARO beats more SFT by at least (\S+) points",
        lambda: [
            (gain := result("raro")["table"]["sampled"]["raro - sft"])["mean"] - gain["half_width"],
        ],
    ),
}
ENDS = ("before", "after")


@pytest.mark.parametrize("name", list(SENTENCES))
def test_claims_in_sentences_are_those_of_their_json(name: str) -> None:
    page, pattern, values = SENTENCES[name]
    (found,) = re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"))
    written = [found] if isinstance(found, str) else list(found)
    wanted = values()
    assert len(written) == len(wanted)
    for one, value in zip(written, wanted):
        assert is_shown(one.rstrip(","), value), f"{one}, in the JSON {value:.5g}"


def test_more_supervised_training_is_the_warm_model() -> None:
    """As the raro page says: the best version by validation is the one before training, with every seed."""
    runs = [run for run in result("raro")["runs"] if run["arm"] == "sft"]
    assert runs and all(run["after"] == run["before"] for run in runs)
    assert "version 0 with every seed" in (ROOT / RARO).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES[1:])
def test_each_domain_says_last_what_has_not_been_shown(page: str) -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[-1] == "Not shown yet"
