"""The tables of `docs/metrics.md`, and what records of a role have beyond them or lack."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROLES = ("actor", "preprocess", "finetune")
_PLACEHOLDER = re.compile(r"<[a-z]+>")
_CONDITION = re.compile(r"\*([^*]+)\*: ")
"""Before a definition."""
_NOT_METRICS = {"time", "step"}


@dataclass(frozen=True)
class Row:
    """One metric; `when`, the condition of its row or section, is empty for what every run reports."""

    role: str
    name: str
    unit: str
    reducer: str
    when: str
    definition: str

    def matches(self, name: str) -> bool:
        parts = [re.escape(part) for part in _PLACEHOLDER.split(self.name)]
        return re.fullmatch(".+".join(parts), name) is not None


def rows() -> list[Row]:
    """Every metric of the document, in its order; a line may have several, each with its own reducer."""
    found, role, section = [], "", ""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            role, section = line[3:].partition(":")[0], ""
        elif line.startswith("*Only "):
            section = line
        elif line.startswith("| `"):
            cell, how, said = (cell.strip() for cell in line.strip("|").split("|"))
            names = re.findall(r"`([^`]+)`", cell)
            unit, _, reducer = how.partition(", ")
            each = reducer.split(", ")
            reducers = each if len(each) == len(names) else [reducer] * len(names)
            condition = _CONDITION.match(said)
            when, definition = (condition[1], said[condition.end() :]) if condition else (section, said)
            found += [Row(role, name, unit, one, when, definition) for name, one in zip(names, reducers)]
    return found


def unknown(key: str, domain_metrics: Iterable[str] = ()) -> bool:
    """Whether no row describes this key, given by name or with a row's own placeholders.

    What stands in place of a placeholder must be the placeholder, a word that the row's definition names, or
    a metric of the domain; a misspelt metric would otherwise pass as a value of some rollout.
    """
    return not any(_describes(row, key, set(domain_metrics)) for row in rows())


def _describes(row: Row, key: str, domain_metrics: set[str]) -> bool:
    pattern = "(.+)".join(re.escape(part) for part in _PLACEHOLDER.split(row.name))
    found = re.fullmatch(pattern, key)
    if found is None:
        return False
    named = _words(row) | domain_metrics | set(_PLACEHOLDER.findall(row.name))
    if "as above" in row.definition:
        named |= {name for one in rows() if one.name == "actor/<metric>_mean" for name in _words(one)}
    return named.issuperset(found.groups())


def _words(row: Row) -> set[str]:
    return set(re.findall(r"`([^`]+)`", row.definition))


def names_in(output_dir: Path, role: str) -> set[str]:
    """Names of all metrics in a role's records."""
    lines = (output_dir / role / "metrics.jsonl").read_text().splitlines()
    return {name for line in lines for name in json.loads(line)} - _NOT_METRICS


def undocumented(role: str, names: Iterable[str]) -> list[str]:
    """Names that no row of the role describes."""
    mine = [row for row in rows() if row.role == role]
    return sorted(name for name in set(names) if not any(row.matches(name) for row in mine))


def missing(role: str, names: Iterable[str]) -> list[str]:
    """Rows of the role without a condition for which there is no name."""
    known = set(names)
    mine = [row for row in rows() if row.role == role and not row.when]
    return [row.name for row in mine if not any(map(row.matches, known))]


def check_run(output_dir: Path) -> None:
    """Assert that a finished run and the tables agree."""
    for role in ROLES:
        names = names_in(output_dir, role)
        assert undocumented(role, names) == [], role
        assert missing(role, names) == [], role
