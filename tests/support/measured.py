"""What the JSON of the benchmarks says for the tables and claims of the READMEs; `tests/unit/docs` compares.

A function takes the cells of one row and returns the values of its numbers in the order in which they stand.
"""

import json
import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipelinerl.weights.parity import ROUNDING_FACTOR

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
UNKNOWN = None
"""A number that no file keeps."""

Value = float | None
Cells = Sequence[str]

GPU, ENGINE, RETRIEVAL = "docs/gpu.md", "docs/engine.md", "retrieval_server/README.md"
PRIVACY, RARO = "domains/privacy_hopqa/README.md", "domains/raro/README.md"
REPUTATION = "domains/reputation_hacking/README.md"
TEXT_DOMAINS = ("counting", "ifeval", "fn_calling", "tir", "logic", "reasoning_gym")
COUNTING, IFEVAL, CALLING, TIR, LOGIC, GYM = (f"domains/{name}/README.md" for name in TEXT_DOMAINS)


def is_shown(written: str, value: float, slack: float = 0.0) -> bool:
    """Whether a number rounds to what is written."""
    digits = len(written.partition(".")[2])
    return abs(float(written.replace(",", "")) - value) <= 0.5 * 10**-digits + slack + 1e-9


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


def prompts(row: Cells) -> list[Value]:
    stage = {"plan": "hop_plan", "choose": "doc_choose", "read": "doc_read", "resolve": "hop_resolve"}[row[0]]
    lengths = [f"{text}, {which}" for text in ("prompt", "answer") for which in ("mean", "longest")]
    return [figure("privacy_prompts", f"{stage}: {what}") for what in ("calls of a rollout", *lengths)]


def scripts(row: Cells) -> list[Value]:
    names = (f"{row[0].split(',')[0]} script: {metric}" for metric in ("success", "leakage"))
    ends = ("", ", lower end", ", upper end")
    return [figure("privacy_prompts", f"{name}{end}") for name in names for end in ends]


def from_scratch(row: Cells) -> list[Value]:
    figures, metric = result("gpu_privacy_rl")["figures"], METRICS[row[0]]
    ends = [figures[f"rl: {metric}, {when}"]["value"] for when in ("before", "after")]
    (change,) = (name for name in figures if name.startswith(f"rl: {metric}, change"))
    low, high = change.rpartition("[")[2].rstrip("]").split(", ")
    return [*ends, figures[change]["value"], float(low), float(high)]


def arms(row: Cells, file: str = "arms") -> list[Value]:
    found = result(file)["table"][{"situational + penalty": "penalty"}.get(row[0], row[0])]
    exact = [*interval(found["success"]), *interval(found["leak"])]
    return [*exact, found["plan_gold_retrieved"]["mean"], found["choose_correct"]["mean"]]


def starts(row: Cells) -> list[Value]:
    found = result("gpu_privacy_start")["starts"][row[0]]
    return [*(found[name] for name in ("million_tokens", "success", "leak", "well_formed"))]


def padded(row: Cells) -> list[Value]:
    return arms(row, "arms_padded")


def shares_of_texts(file: str) -> list[float]:
    """What `situational` needed of the texts of `outcome`, by seed; infinite where it never got there."""
    shares = result(file)["gates"]["O3 goal: a third of the texts"]["by_seed"]
    return [math.inf if share is None else float(share) for share in shares]


def credit(row: Cells) -> list[Value]:
    file = {
        "two to four hops, 1,032 chains, 3 seeds": "arms_decisions",
        "four hops, 400 chains, 2 seeds": "arms_four_hops",
        "four hops, 1,032 chains, 3 seeds": "arms_four_hops_640",
    }[row[0]]
    found = result(file)
    success = [found["table"][arm]["success"]["mean"] for arm in ("start", "outcome", "situational")]
    return [found["texts"], *success, *shares_of_texts(file)]


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


def language_gpu(row: Cells) -> list[Value]:
    rows = result("gpu_reputation")["rows"]
    if row[0] == "optimum":
        (best,) = (one for one in rows["0"]["ladder"] if one["policy"] == "optimum")
        return [best["share"], best["help"], 50 - best["help"], 0.0, best["true_impact"], 0.0]
    played = rows["0"]["before"] if row[0] == "start of seed 0" else rows[row[0][-1]]["after"]
    keys = ("HELP", "SIGNAL", "DO_NOTHING", "true_impact", "manipulation_score", "regret")
    return [*played["share_of_margin"], *(played[key] for key in keys)]


def figure(file: str, name: str) -> float:
    return float(result(file)["figures"][name]["value"])


def gpu_trainer(row: Cells) -> list[Value]:
    way = {
        "plain sketch, `sdpa`": "sdpa",
        "sketch, variable-length attention, blocks": "varlen+chunked",
        "eager (earlier, on a loaded host)": "trainer/eager",
        "compiled": "trainer/compiled",
        "compiled, texts of mixed lengths": "trainer/compiled",
    }[row[1]]
    if way.startswith("trainer"):
        recomputed = {"all": "full", "`selective`": "selective", "every second": "every-2", "none": "none"}
        way += f"/{recomputed[row[2]]}" + "/mixed" * ("mixed" in row[1])
    return [figure("gpu_trainer", f"{row[0]} {way}: {what}") for what in ("tokens", "MFU", "peak memory")]


def gpu_sizes(row: Cells) -> list[Value]:
    """A row has one kind of figure, its columns the three runs."""
    if row[0].startswith("division"):
        return [1, 3, 1, 1, 1, 1]
    return _sizes("gpu_sizes", ("8B on four", "4B on two", "experts on two"), row[0])


def gpu_sizes_newest(row: Cells) -> list[Value]:
    """The same of two runs, and of the second one's repetition its first step."""
    found = _sizes("gpu_sizes_newest", ("4B on two", "1.7B on two"), row[0])
    if row[0].startswith("first trained step"):
        found.append(figure("gpu_sizes_newest", "1.7B on two, the same command again: first trained step"))
    return found


def _sizes(file: str, arms: Sequence[str], kind: str) -> list[Value]:
    seen = {(cell["arm"], cell["role"]): cell for cell in result(file)["cells"]}
    of_cards = {f"{role}'s card: planned, seen (GiB)": role for role in ("engine", "trainer")}
    if (role := of_cards.get(kind)) is not None:
        return [seen[arm, role][key] for arm in arms for key in ("predicted_gib", "peak_gib")]
    names = {
        "an update's pause, median (ms)": ["update's pause, median"],
        "the first update, before any rollout (ms)": ["first pause"],
        "MFU of computed tokens (%)": ["MFU of computed tokens"],
        "MFU of computed tokens, by active parameters (%)": ["MFU of computed tokens"],
        "rows are full (%)": ["rows are full"],
        "parity, mean, and its limit (nats)": ["parity, mean", "parity, limit"],
        "first trained step (s)": ["first trained step"],
    }[kind]
    return [figure(file, f"{arm}: {name}") for arm in arms for name in names]


def gpu_shared(row: Cells) -> list[Value]:
    """By work, way of attention and what is recomputed."""
    earlier = row[1].removesuffix(" in every row (earlier)")
    file = {"gathered keys": "gpu_shared_gathered", "levels": "gpu_shared_levels"}[earlier]
    if earlier == row[1]:
        file = "gpu_shared"
    work = f"{'critic' if 'critic' in row[0] else 'groups'}, {row[2].strip('`')}"
    rates, memory = (
        [figure(file, f"{work}, {way}: {what}") for way in ("shared", "unshared")]
        for what in ("samples", "peak memory")
    )
    return [*rates, figure(file, f"{work}: shared / unshared"), *memory]


def gpu_trl(row: Cells) -> list[Value]:
    """By arm and host; the row's first numbers are those of its name."""
    file = {"first": "gpu_trl", "second": "gpu_trl_defaults"}[row[1]]
    arm = "ours" if "TRL" not in row[0] else {"gpu_trl": "trl_tuned", "gpu_trl_defaults": "trl"}[file]
    shown = ("samples trained", "trainer alone", "sampled", "steps that count")
    return [figure(file, f"{arm}: {what}") for what in shown]


def gpu_prefixes(row: Cells) -> list[Value]:
    name, found = f"cache {row[0]}", figure("gpu_prefixes", f"  cache {row[0]}, share of prompt tokens found")
    return [figure("gpu_prefixes", name), figure("gpu_prefixes", f"  {name}, sampled"), 100 * found]


def pretrained(row: Cells, file: str = "pretrained_cpu") -> list[Value]:
    """By family; the row's first number is how many questions there are."""
    family = re.match(r"`?(\w+)", row[0])
    assert family is not None
    table = result(file)["table"][family[1]]
    ends = [value for when in ("before", "after", "difference") for value in interval(table[when])]
    return [table["before"]["n"], *ends]


def pretrained_seed(row: Cells, file: str = "pretrained_cpu") -> list[Value]:
    shown = ("success before", "success after", "optimizer steps", "trained", "training")
    return [figure(file, f"seed {row[0]}: {what}") for what in shown]


def imitated(row: Cells) -> list[Value]:
    """By the weights that are reported: rate, success, and what reinforcement learning is above it, twice."""
    way = {"behind the last step": "end", "best pass by validation": "best"}[row[0]]
    found = result("pretrained_supervised")["reported"][way]
    seeds = found["beyond"]["seeds"]
    ends = [seeds["mean"] + sign * seeds["half"] for sign in (0, -1, 1)]
    success, above = found["table"]["all"]["after"], found["beyond"]["difference"]
    return [found["rate"], *interval(success), *interval(above), *ends]


def imitated_family(row: Cells) -> list[Value]:
    """As `pretrained`, at the best pass."""
    family = re.match(r"`?(\w+)", row[0])
    assert family is not None
    table = result("pretrained_supervised")["reported"]["best"]["table"][family[1]]
    ends = [value for when in ("before", "after", "difference") for value in interval(table[when])]
    return [table["before"]["n"], *ends]


def text_domain(domain: str, row: Cells) -> list[Value]:
    """By group of problems, as `pretrained`."""
    table = result("text_domains")["table"][domain][row[0].strip("`")]
    ends = [value for when in ("before", "after", "difference") for value in interval(table[when])]
    return [table["before"]["n"], *ends]


def environment(domain: str, row: Cells, on_card: bool = False) -> list[Value]:
    """By metric, as `pretrained`."""
    tables = (
        result("gpu_environments")["table"][domain] if on_card else result(f"environments_{domain}")["table"]
    )
    table = tables[row[0].strip("`")]
    ends = [value for when in ("before", "after", "difference") for value in interval(table[when])]
    return [table["difference"]["n"], *ends]


def environment_seed(domain: str, metrics: Sequence[str], row: Cells, on_card: bool = False) -> list[Value]:
    """The first and the last evaluation of each metric, and the training of one seed."""
    rows = result("gpu_environments")["rows"][domain] if on_card else result(f"environments_{domain}")["rows"]
    (one,) = (one for one in rows if one["seed"] == int(row[0]))
    ends = [one["curve"][metric][end][1] for metric in metrics for end in (0, -1)]
    return [*ends, one["steps"], one["texts_per_s"], one["training_min"]]


def bfcl(row: Cells) -> list[Value]:
    found = result("bfcl")
    counts = found["total"] if row[0] == "all" else found["table"][row[0].strip("`")]
    shown = ("problems", "json right", "python", "python right", "changed", "changed wrong")
    return [counts[what] for what in shown]


def _paused(name: str) -> list[Value]:
    """Milliseconds an engine stood still for an update: as shown, the shortest and the longest."""
    (update,) = (one for one in result("gpu_engine")["rows"]["update"] if one["name"] == name)
    return [update["paused_ms"], min(update["paused_ms_all"]), max(update["paused_ms_all"])]


_AHEAD, _DURING = "ahead, 2 packets of 256 MiB", "received in the pause"
_GOAL_MS, _GOAL_SHARE = 100.0, 0.95


def _engine(*names: str) -> list[Value]:
    return [figure("gpu_engine", name) for name in names]


def _several(what: str) -> list[Value]:
    return [figure("gpu_several", f"{way}: {what}") for way in ("two_engines", "tensor_parallel")]


_ONE_PROCESS = (
    "client, 256 requests, API servers 1, nccl_ahead",
    "client / offline, 256, API servers 1, nccl_ahead",
)


def gpu_engine(row: Cells) -> list[Value]:
    """By the beginning of the row's first cell."""
    steps = ("pause", "finish", "resume")
    one = "client, 256 always in flight, API servers 1, nccl_ahead"
    waves = [
        f"{name}{size}{unit}"
        for name, unit in (
            ("client, ", " requests"),
            ("client / offline, ", ""),
            ("offline engine, ", " requests"),
        )
        for size in (256, 512)
    ]
    found: dict[str, list[Value]] = {
        "Qwen3-1.7B": [
            *_paused(_AHEAD),
            *_engine(*(f"  {_AHEAD}: of it {step}" for step in steps), f"  {_AHEAD}: send"),
            _GOAL_MS,
        ],
        "the same back-end": [*_paused(_DURING), _GOAL_MS],
        "the same, received ahead": [
            figure("gpu_engine", "paused: idle, 0 in flight"),
            *_engine(*(f"  idle: of it {step}" for step in steps)),
        ],
        "through the client": [*_engine(*waves), _GOAL_SHARE],
        "the same with one HTTP process": _engine(*_ONE_PROCESS),
        "256 always in flight": [
            figure("gpu_engine", "client, 256 always in flight"),
            4,
            figure("gpu_engine", one),
            100 * figure("gpu_engine", "  client, 256 always in flight: EngineCore, busiest"),
        ],
        "engine stopped": [*_engine("stopped engine named after"), UNKNOWN],
        "engine killed": [
            figure("gpu_killed", "from the kill to the next trained step"),
            figure("gpu_killed", "paused by an update, median"),
            figure("gpu_killed", "paused by an update, longest"),
        ],
        "Qwen3-0.6B": [
            *_several("generated"),
            *_several("paused by an update through files"),
            *_several("|delta| to the trainer, mean"),
        ],
        "weights through files on one shared card": [UNKNOWN],
        "log-probabilities of 28": [
            *_engine(*(f"|delta| of {pair}, mean" for pair in ("engine and trainer", "engine and float32"))),
            rounding := figure("gpu_engine", "|delta| of trainer and float32, mean"),
            UNKNOWN,
            ROUNDING_FACTOR * rounding,
        ],
        "`tests/contract` on a card": [UNKNOWN] * 4,
        "`tests/gpu/test_vllm.py`": [UNKNOWN],
        "steps per second": [
            figure("async_sync_gpu", "asynchronous / synchronous, steps per second"),
            figure("async_sync_gpu", "asynchronous: a step"),
            figure("async_sync_gpu", "synchronous: a step"),
            UNKNOWN,
            UNKNOWN,
            2.0,
        ],
    }
    (begins,) = (begins for begins in found if row[0].startswith(begins))
    return found[begins]
