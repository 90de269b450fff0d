"""Values of the measured claims in sentences of documents; `tests/unit/docs/test_claims.py` compares them."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.measured import figure, result

Claim = tuple[str, str, Callable[[], list[float]]]
"""A page, a pattern with a group for each number, and the numbers by their JSON."""


def words(pattern: str) -> str:
    """The pattern with any white space for each blank, because pages are wrapped."""
    return re.sub(r"(?<!\\) ", r"\\s+", pattern)


def wrapped(claims: dict[str, Claim]) -> dict[str, Claim]:
    """The same, however their pages are wrapped."""
    return {name: (page, words(pattern), values) for name, (page, pattern, values) in claims.items()}


def gate(name: str, file: str = "arms") -> list[float]:
    """Difference, interval and differences by seed; or start and end, where that is what decides it."""
    found = result(file)["gates"][name]
    keys = ("start", "end") if "start" in found else ("value", "low", "high")
    return [*(found[key] for key in keys), *found.get("by_seed", ())]


def shared_row(work: str, way: str, file: str = "gpu_shared_rows") -> dict[str, Any]:
    """What `benchmarks.gpu.shared` kept of one way of one work, nothing recomputed."""
    wanted = (work, "none", way)
    (row,) = (r for r in result(file)["rows"] if (r["work"], r["mode"], r["way"]) == wanted)
    return dict(row)


def spent(row: dict[str, Any], *kinds: str) -> float:
    """Milliseconds of a step that kernels of these kinds take, by the profile of some of its rows."""
    return float(sum(row["profile"]["ms"][kind] for kind in kinds) * row["rows"] / row["profile"]["rows"])


def critic_profile() -> list[float]:
    """In the order of the list in docs/gpu.md."""
    shared, unshared = (shared_row("critic", way) for way in ("shared", "unshared"))
    gathered = shared_row("critic", "shared", "gpu_shared_gathered_rows")
    elementwise = ("compiled", "other", "copies")
    steps = [float(np.mean(row["steps_s"])) * 1e3 for row in (shared, unshared)]
    lost = spent(shared, "gathering"), spent(shared, "idle")
    told = re.findall(r"=(\d+)", result("gpu_shared")["settings"]["critic"])
    groups, texts, _, sampled, _ = map(int, told)
    return [
        shared["raw_tokens"],
        shared["unique_tokens"],
        shared["raw_tokens"] / shared["unique_tokens"],
        shared["profile"]["wall_ms"],
        spent(shared, "matmul"),
        spent(unshared, "matmul") / spent(shared, "matmul"),
        groups * texts * sampled,
        spent(shared, "attention"),
        spent(unshared, "attention") / spent(shared, "attention"),
        spent(shared, *elementwise),
        spent(unshared, *elementwise) / spent(shared, *elementwise),
        lost[0],
        spent(gathered, "gathering"),
        lost[1],
        spent(unshared, "idle") / lost[1],
        steps[0] - 1e3 * float(np.mean(shared["passes_s"])),
        steps[1] / (steps[0] - sum(lost)),
    ]


def groups_profile() -> list[float]:
    """Tokens for each computed one; per sample, unshared over shared: matrix products and attention."""
    shared, unshared = (shared_row("groups", way) for way in ("shared", "unshared"))
    return [
        shared["raw_tokens"] / shared["unique_tokens"],
        *(spent(unshared, kind) / spent(shared, kind) for kind in ("matmul", "attention")),
    ]


def chaos() -> list[float]:
    """Random faults in a row: how many, in how many strikes, how they ended and the longest time."""
    found = result("chaos")
    strikes, outcomes = found["strikes"], [strike["outcome"] for strike in found["strikes"]]
    faults = sum(len(strike["kinds"]) for strike in strikes)
    ends = [outcomes.count(name) for name in ("went on", "named", "complete")]
    assert sum(ends) == len(strikes) and len(found["fell_short"]) == 1
    return [faults, len(strikes), *ends, max(strike["seconds"] for strike in strikes)]


def halves_of_a_host(arm: str) -> list[float]:
    """Samples a second; milliseconds of a pause, a broadcast, a whole update and a sharded step."""
    step = "step" if arm == "local" else f"{arm}_step"
    (row,) = result("gpu_several_hosts")["rows"][arm]
    return [
        figure("gpu_several_hosts", f"{arm}: samples trained"),
        figure("gpu_several_hosts", f"{arm}: paused by an update, median"),
        1e3 * float(np.median(row["send_s"])),
        figure("gpu_several_hosts", f"{arm}: a whole update, median"),
        figure("gpu_several_hosts", f"{step}: sharded optimizer step"),
    ]


def prefix_cache(metric: str, what: str) -> list[float]:
    """The smallest and the largest of what the recordings have under this name."""
    figures = result("prefix_cache")["figures"]
    found = [row["value"] for name, row in figures.items() if name.startswith(f"{metric}: {what}")]
    return [min(found), max(found)]


def coding_success(when: str) -> list[float]:
    """Mean and interval, before, after or of the difference."""
    found = result("coding")["table"]["success"][when]
    return [found[end] for end in ("mean", "low", "high")]


def text_domain_ends(domain: str) -> list[float]:
    """The start's most likely answers, always the same answer by group, the runs above those, minutes."""
    found = result("text_domains")
    greedy = found["greedy"][domain]
    above = [greedy["difference"][end] for end in ("mean", "low", "high")]
    minutes = [row["training_s"] / 60 for row in found["rows"] if row["domain"] == domain]
    return [greedy["success"]["mean"], *greedy["constant"].values(), *above, min(minutes), max(minutes)]


def programs_of_dialogues() -> list[float]:
    """Least and most over the seeds before, and the mean after."""
    rows = [row for row in result("text_domains")["rows"] if row["domain"] == "tir"]
    before, after = ([row["means"][end]["num_python_calls"] for row in rows] for end in (0, 1))
    return [min(before), max(before), sum(after) / len(after)]


def decoding_rounds() -> list[float]:
    figures = result("prefix_cache_decoding")["figures"]
    return [row["value"] for name, row in figures.items() if "of round" in name]


def recorded(what: str) -> list[int]:
    found: list[int] = result("prefix_cache")["settings"][what]
    return found


def forwards(model: str) -> list[float]:
    """Ratios of the embedded engine's two forwards."""
    return [
        figure("forwards", f"{model}: {kind}, ratio")
        for kind in ("32 decodes", "one decode", "a prompt of 256")
    ]
