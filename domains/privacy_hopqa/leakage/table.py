"""Leakage of a run as a table: the command groups rollouts here and prints their rates beside controls."""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from domains.privacy_hopqa.leakage.log import QueryLog, RolloutLog
from domains.privacy_hopqa.leakage.report import LEVELS, LeakageReport

RULES = "rules"
CUT_AMOUNTS = "rules, cut amounts"
LANGUAGE_MODEL = "language model"
Groups = dict[str, list[RolloutLog]]
Reports = Mapping[str, LeakageReport]


def of_kind(rollout: RolloutLog, which: str) -> bool:
    """Whether the rollout is one of those named: all, evaluation or training."""
    return which == "all" or rollout.training == (which == "training")


def grouped(log: QueryLog, which: str = "all", limit: int | None = None) -> Groups:
    """Finished rollouts by split and, in evaluation, also by weight version: before and after learning.

    `which` is all, evaluation or training. With `limit` at most so many rollouts of each split and version
    are kept, the same ones every time.
    """
    finest: Groups = {}
    for rollout in sorted(log.rollouts, key=_order):
        if of_kind(rollout, which):
            finest.setdefault(_name(rollout, versions=True), []).append(rollout)
    groups: Groups = {}
    for name, rollouts in finest.items():
        kept = sorted(rollouts, key=lambda r: sha256(r.rollout_id.encode()).digest())[:limit]
        groups.setdefault(_name(rollouts[0], versions=False), []).extend(kept)
        if name not in groups:
            groups[name] = kept
    return groups


def not_finished(tries: Sequence[RolloutLog]) -> str:
    """What is said of tries that are not rated; nothing if there are none."""
    if not tries:
        return ""
    sent = sum(len(rollout.queries) for rollout in tries)
    return (
        f"Tries of rollouts that did not finish (failed, given up or still going on) and are not rated: "
        f"{len(tries)}, with {sent} web queries"
    )


def _order(rollout: RolloutLog) -> tuple[bool, str, int]:
    """Evaluation before training, versions in the order of training."""
    return rollout.training, rollout.split, 0 if rollout.training else rollout.model_version or 0


def _name(rollout: RolloutLog, versions: bool) -> str:
    name = f"{'training' if rollout.training else 'evaluation'} {rollout.split}".strip()
    if versions and not rollout.training and rollout.model_version is not None:
        return f"{name} v{rollout.model_version}"
    return name


def rendered(found: Mapping[str, Reports]) -> str:
    """The table: raw rates with 95 % intervals over chains, controls, and what to know of a row."""
    rows: list[tuple[str, ...]] = [
        ("adversary", "rollouts", "level", "raw [95 % interval]", "empty log", "company only", "")
    ]
    for adversary, reports in found.items():
        for name, report in reports.items():
            rows += [_row(adversary, name, level, report) for level in LEVELS]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def _row(adversary: str, name: str, level: str, report: LeakageReport) -> tuple[str, ...]:
    empty, company = report.empty_log[level], report.company_only[level]
    note = ""
    if adversary in (RULES, CUT_AMOUNTS) and (empty.count or company.count):
        note = "invalid: a control leaked"
    elif level in report.contaminated:
        note = "contaminated: known from the company's name"
    raw = str(report.levels[level])
    return adversary, name, level, raw, f"{empty.value:.1%}", f"{company.value:.1%}", note


def spread(names: Sequence[str], count: int) -> list[str]:
    """At most `count` of the names, the first and the last among them, evenly spaced."""
    if len(names) <= count:
        return list(names)
    return [names[round(i * (len(names) - 1) / (count - 1))] for i in range(count)]
