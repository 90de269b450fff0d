"""Every number of a measured table in a README is that of its JSON, to the digits that are shown.

A table is found by its header. Each is either measured, with the JSON values of every number of every row in
the order in which they stand (`tests/support/measured.py`), or listed as not measured with the reason. A new
table or row fails until it is one of the two.
"""

import math
import re
from collections.abc import Callable
from functools import partial

import pytest

from tests.support import capacity_claims
from tests.support.capacity_claims import CAPACITY
from tests.support.measured import (
    CALLING,
    COUNTING,
    ENGINE,
    GPU,
    GYM,
    IFEVAL,
    LOGIC,
    NUMBER,
    PRIVACY,
    RARO,
    REPUTATION,
    RETRIEVAL,
    ROOT,
    TEXT_DOMAINS,
    TIR,
    Cells,
    Value,
    arms,
    bfcl,
    credit,
    environment,
    environment_seed,
    from_scratch,
    gpu_engine,
    gpu_prefixes,
    gpu_shared,
    gpu_sizes,
    gpu_sizes_newest,
    gpu_trainer,
    gpu_trl,
    imitated,
    imitated_family,
    is_shown,
    language,
    language_gpu,
    learning,
    padded,
    ppo_prices,
    ppo_seeds,
    pretrained,
    pretrained_seed,
    prompts,
    result,
    scripts,
    skill,
    starts,
    text_domain,
    tier,
)
from tests.support.privacy_claims import by_seed, readers, smollm2_summary, stopped
from tests.support.raro_tables import (
    raro,
    raro_ablations,
    raro_by_completions,
    raro_checks,
    raro_earned,
    raro_seeds,
)

DOMAINS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("domains/*/README.md"))
PAGES = ["README.md", CAPACITY, GPU, ENGINE, RETRIEVAL, *DOMAINS]
NEVER = ("not reached", "no gain by outcome")
"""What a cell says where the JSON has infinity."""

Table = tuple[str, str]
"""Page and header."""

NOT_MEASURED: dict[str, dict[str, str]] = {
    "README.md": {
        "domain | what it is": "words",
        "folder | subject": "words",
        "bundled | where it comes from": "words",
        "vLLM | torch | transformers | Python | on | what was run": "versions",
    },
    GPU: {"key | left open | chosen": "what the launcher chooses"},
    "domains/guessing/README.md": {"function | what it does": "words"},
    "domains/math/README.md": {
        "rows of | question | gold answer": "words",
        "status | meaning": "words",
        "`rewards=` | correct | wrong | no answer, unparsable": "settings of conf/rewards",
    },
    "domains/coding/README.md": {
        "rows of | task | tests": "words",
        "status | meaning": "words",
        "key | meaning": "words",
    },
    TIR: {"key | meaning": "words"},
    "domains/multidomain/README.md": {"key | meaning": "words"},
    COUNTING: {"key of `dataset_loader_params` | meaning": "words"},
    IFEVAL: {
        "name | file in `data_dir`, as `.jsonl`, `.json` or `.parquet` | rows": "words",
        "figure | meaning": "words",
        "instruction | decision": "words",
    },
    CALLING: {"name | problems": "words", "status | meaning": "words"},
    LOGIC: {
        "task | family | task | family": "words",
        "task | the answer is": "words",
        "status | meaning": "words",
    },
    "domains/reasoning_gym/README.md": {
        "key | meaning": "words",
        "`reasoning_gym.answer_format` | the answer is": "words",
    },
    "domains/textarena/README.md": {
        "players | games": "words, in test_games.py",
        "left out | because": "words",
        "metric | meaning": "words",
    },
    "domains/verifiers/README.md": {"key | meaning": "words", "of the trace | becomes": "words"},
    ENGINE: {
        "route | what it does": "words",
        "part of a decode step | 5M | 1M": "one profile whose records were not kept, as the page says",
        "asked with | the answer holds": "words",
    },
    RETRIEVAL: {
        "corpus | form": "words",
        "back end | for | where the index is": "settings, in test_numbers_of_pages.py",
        "file in `DIR` | content": "words",
        "request | body | answer": "settings, in test_numbers_of_pages.py",
        "status | when": "settings, in test_numbers_of_pages.py",
    },
    PRIVACY: {
        "room | subject": "words",
        "what goes wrong | what follows": "rules",
        "call | situation | reward": "rules",
    },
    RARO: {
        "verdict | critic | policy": "rules",
        "source | answer | form of both sides | right": "rules",
        "file | subject": "words",
    },
    REPUTATION: {
        "room | what it holds | imports": "words",
        "figure |": "figures",
        "name | rule": "rules",
        "key |": "settings",
    },
}


ENVIRONMENT_METRICS: dict[str, tuple[str, ...]] = {
    "textarena": ("reward", "success"),
    "verifiers": ("reward_halves", "success"),
}
"""Shown of each seed."""
ON_CARDS: dict[str, tuple[str, ...]] = {"textarena": ("reward", "success"), "logic": ("success",)}
"""The same on a card."""
ENDS = {
    domain: " | ".join(f"`{metric}` before | after" for metric in metrics)
    for domain, metrics in (ON_CARDS | ENVIRONMENT_METRICS).items()
}

MEASURED: dict[Table, tuple[int, Callable[[Cells], list[Value]]]] = {
    (CAPACITY, "part | microseconds | measured in"): (1, capacity_claims.costs),
    (
        CAPACITY,
        "GPUs | engines | trainer ranks | rollout workers | GPUs allow | simulated | actor busy, % "
        "| redis, % | preprocess, % | trainer, % | lowest limit, samples/s",
    ): (1, capacity_claims.sizes),
    (
        CAPACITY,
        "GPUs | actors | preprocesses | redis servers | simulated, samples/s | of what the GPUs allow, %",
    ): (1, capacity_claims.widened),
    (
        CAPACITY,
        "GPUs, parameters | NCCL, a host after the other | NCCL, relayed | shared file, each engine "
        "| shared file, once a host | checkpoint by one rank",
    ): (1, capacity_claims.weights),
    (GPU, "Qwen3 architecture | way | recomputed | tokens/s | MFU | peak memory"): (3, gpu_trainer),
    (
        GPU,
        "samples of a step | attention | recomputed | samples/s | unshared | ratio | peak memory | unshared",
    ): (3, gpu_shared),
    (GPU, "| host | samples/s | trainer alone | sampled tokens/s | steps that count"): (2, gpu_trl),
    (GPU, "| 8B, four cards | 4B, two cards | six layers of Qwen3-30B-A3B, two cards"): (1, gpu_sizes),
    (GPU, "| 4B, two cards | 1.7B, two cards | 1.7B, the same command again"): (1, gpu_sizes_newest),
    (GPU, "cache | samples/s | sampled tokens/s | prompt tokens found"): (1, gpu_prefixes),
    (GPU, "|"): (1, gpu_engine),
    **{
        (page, "held-out problems | n | before | after | difference"): (1, partial(text_domain, domain))
        for page, domain in zip((COUNTING, IFEVAL, CALLING, TIR, LOGIC, GYM), TEXT_DOMAINS, strict=True)
    },
    (CALLING, "category | references | right, JSON | as Python | right | changed | of these wrong"): (
        1,
        bfcl,
    ),
    (
        GYM,
        "imitation, weights | learning rate | success | reinforcement learning minus it | over seeds",
    ): (1, imitated),
    (GYM, "held-out questions, imitation at its best pass | n | before | after | difference"): (
        1,
        imitated_family,
    ),
    (GYM, "held-out questions | n | before | after | difference"): (1, pretrained),
    (GYM, "seed | before | after | steps | texts/s | minutes of training"): (1, pretrained_seed),
    (GYM, "held-out questions, on cards | n | before | after | difference"): (
        1,
        partial(pretrained, file="pretrained_gpu"),
    ),
    (GYM, "seed, on cards | before | after | steps | texts/s | minutes of training"): (
        1,
        partial(pretrained_seed, file="pretrained_gpu"),
    ),
    **{
        (f"domains/{domain}/README.md", "held-out problems | n | before | after | difference"): (
            1,
            partial(environment, domain),
        )
        for domain in ENVIRONMENT_METRICS
    },
    **{
        (f"domains/{domain}/README.md", f"seed | {ENDS[domain]} | steps | texts/s | minutes of training"): (
            1,
            partial(environment_seed, domain, metrics),
        )
        for domain, metrics in ENVIRONMENT_METRICS.items()
    },
    **{
        (f"domains/{domain}/README.md", "held-out problems, on a card | n | before | after | difference"): (
            1,
            partial(environment, domain, on_card=True),
        )
        for domain in ON_CARDS
    },
    **{
        (
            f"domains/{domain}/README.md",
            f"seed, on a card | {ENDS[domain]} | steps | texts/s | minutes of training",
        ): (1, partial(environment_seed, domain, metrics, on_card=True))
        for domain, metrics in ON_CARDS.items()
    },
    (PRIVACY, "skill | before | after | asked for"): (1, skill),
    (
        PRIVACY,
        "stage | calls of a rollout | prompt, mean | prompt, longest | answer, mean | answer, longest",
    ): (1, prompts),
    (PRIVACY, "script | success | leakage (answer or full)"): (1, scripts),
    (PRIVACY, "world | figure | before | after | difference"): (2, learning),
    (PRIVACY, "figure | before | after | difference"): (1, from_scratch),
    (PRIVACY, "policy | success | leakage (answer or full) | plan retrieves gold | choose right"): (1, arms),
    (PRIVACY, "arm | success | leakage (answer or full) | plan retrieves gold | choose right"): (1, padded),
    (PRIVACY, "SmolLM2 | success | leakage (answer or full) | plan retrieves gold | choose right"): (
        1,
        partial(arms, file="gpu_privacy_language"),
    ),
    ("README.md", "SmolLM2 on held-out problems | start | trained"): (1, smollm2_summary),
    (
        PRIVACY,
        "SmolLM2, runs that an end of time stopped: steps of 60 | outcome | situational | penalty",
    ): (1, stopped),
    (PRIVACY, "SmolLM2 by seed, success (leakage) | seed 0 | seed 1 | seed 2 | seed 3"): (1, by_seed),
    (
        PRIVACY,
        "share of rollouts that leak an answer or full information, by | rules | SmolLM2 trained "
        "| SmolLM2 as it is (invalid)",
    ): (1, readers),
    (
        PRIVACY,
        "card that the imitated script draws | million tokens | success | leakage | well-formed",
    ): (1, starts),
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
    (RARO, "percent right by seed, sampled (greedy) | seed 0 | seed 1 | seed 2"): (1, raro_seeds),
    (RARO, "check | seed 0 | seed 1 | seed 2"): (1, raro_checks),
    (RARO, "arm, reference values | sampled | greedy | trained tokens | seeds"): (
        1,
        partial(raro, file="raro_reference"),
    ),
    (RARO, "percent right by seed, reference values, sampled (greedy) | seed 0 | seed 1 | seed 2"): (
        1,
        partial(raro_seeds, file="raro_reference"),
    ),
    (RARO, "check, reference values | seed 0 | seed 1 | seed 2"): (
        1,
        partial(raro_checks, file="raro_reference"),
    ),
    (
        RARO,
        "ablation, reference values, seed 0 | sampled | greedy | sampled after a quarter | trained tokens",
    ): (1, raro_ablations),
    (RARO, "answers, means over seeds | first tenth | second | fifth | last"): (1, raro_earned),
    (RARO, "arm, SmolLM2 | sampled | greedy | trained tokens | seeds"): (1, partial(raro, file="gpu_raro")),
    (RARO, "percent right by seed, SmolLM2, sampled (greedy) | seed 0 | seed 1 | seed 2"): (
        1,
        partial(raro_seeds, file="gpu_raro"),
    ),
    (
        RARO,
        "percent right after completions, SmolLM2, means over seeds | 0 | 1,280 | 2,560 | 3,840 | 5,120",
    ): (1, raro_by_completions),
    (RARO, "check, SmolLM2 | seed 0 | seed 1 | seed 2"): (1, partial(raro_checks, file="gpu_raro")),
    (REPUTATION, "training seed | base | strong"): (1, ppo_seeds),
    (REPUTATION, "`c_signal` | 0.65 | 0.75 | 0.8"): (1, ppo_prices),
    (
        REPUTATION,
        "policy | share of margin, likeliest answers (drawn) | HELP / SIGNAL / DO_NOTHING of 50 | TI | MS "
        "| regret",
    ): (1, language),
    (
        REPUTATION,
        "SmolLM2 | share of margin | HELP / SIGNAL / DO_NOTHING of 50 | TI | MS | regret",
    ): (1, language_gpu),
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


@pytest.mark.parametrize("page", DOMAINS)
def test_each_domain_says_last_what_has_not_been_shown(page: str) -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[-1] == "Not shown yet"


def test_more_supervised_training_is_the_warm_model() -> None:
    """As the raro page says: the best version by validation is the one before training, with every seed."""
    runs = [run for run in result("raro")["runs"] if run["arm"] == "sft"]
    assert runs and all(run["after"] == run["before"] for run in runs)
    assert "version 0 with every seed" in (ROOT / RARO).read_text(encoding="utf-8")
