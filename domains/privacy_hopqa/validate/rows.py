"""Chain files: rows that cannot be loaded, repeated chains, patterns and references that cannot be right."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.data.chains import HOP_TYPE_KEYS, REFERENCE, Chain, known_hop_type
from domains.privacy_hopqa.dataset import lines_of, parse_row, problem_of, split_of
from domains.privacy_hopqa.validate.problems import GoldReference, Problem


@dataclass(slots=True)
class Chains:
    """What the chain files hold. `places` says where each `(task_id, chain_id)` was seen first."""

    problems: list[Problem] = field(default_factory=list)
    references: list[GoldReference] = field(default_factory=list)
    task_lines: dict[str, tuple[Path, int]] = field(default_factory=dict)
    chains: int = 0
    hops: int = 0
    _ids: dict[tuple[Path, str], int] = field(default_factory=dict)
    _identities: dict[tuple[str, str], str] = field(default_factory=dict)
    _contents: dict[object, str] = field(default_factory=dict)

    def read(self, path: Path, tasks: Path | None) -> None:
        """Check one file. `tasks` holds the task folders; without it they are not asked for names."""
        try:
            for number, line in lines_of(path):
                self._line(path, number, line, tasks)
        except (OSError, ValueError) as error:
            self.problems.append(Problem(path, 1, f"cannot be read ({error})"))

    def _line(self, path: Path, number: int, line: str, tasks: Path | None) -> None:
        try:
            row = parse_row(line)
            chain: Chain = problem_of(row, path, split_of(path), tasks)["chain"]
        except ValueError as error:
            self.problems.append(Problem(path, number, str(error)))
            return
        self.chains += 1
        self.hops += len(chain.hops)
        self.task_lines.setdefault(chain.task_id, (path, number))
        found = [*_row_problems(row, chain), *self._repetitions(path, number, chain)]
        self.problems += [Problem(path, number, f"chain {chain.chain_id}: {message}") for message in found]
        for hop in chain.hops:
            reference = GoldReference(path, number, chain, hop)
            if hop.gold_values:
                self.references.append(reference)
            else:
                self.problems.append(reference.problem("no doc_id, so no search can find its gold document"))

    def _repetitions(self, path: Path, number: int, chain: Chain) -> Iterator[str]:
        """Ids and contents that occurred before, in this file or another."""
        here = f"{path}:{number}"
        if (earlier := self._ids.setdefault((path, chain.chain_id), number)) != number:
            yield f"chain_id occurs twice, first in line {earlier}"
            return
        identity = (chain.task_id, chain.chain_id)
        if (first := self._identities.setdefault(identity, here)) != here:
            yield f"the same chain_id and task_id stand in {first}, so their audit logs cannot be told apart"
        content = (chain.task_id, tuple((hop.question, hop.answer, hop.gold_values) for hop in chain.hops))
        if (first := self._contents.setdefault(content, here)) != here:
            yield f"the same hops stand in {first}"


def _row_problems(row: Mapping[str, Any], chain: Chain) -> Iterator[str]:
    """Fields that contradict each other although the row can be loaded."""
    count = len(chain.hops)
    pattern = chain.pattern
    if row.get("pattern") and len(pattern) != count:
        yield f"pattern={row['pattern']!r} has {len(pattern)} characters for {count} hops"
    for hop, raw in zip(chain.hops, row["hops"], strict=True):
        letter = "L" if hop.source == "local" else "W"
        if hop.number <= len(pattern) and pattern[hop.number - 1] != letter:
            yield f"hop {hop.number} is {letter}, but pattern={pattern!r} says {pattern[hop.number - 1]}"
        for key in HOP_TYPE_KEYS:
            if raw.get(key) is not None and known_hop_type(raw[key]) is None:
                yield f"hop {hop.number}: {key}={raw[key]!r} is no hop type and counts as absent"
        late = [n for n in map(int, REFERENCE.findall(hop.question)) if hop.number <= n <= count]
        if late:
            yield f"hop {hop.number} refers to ({late[0]}), which is not answered before it: unanswerable"
        wrong_source = _gold_of_other_source(hop.gold_values, letter)
        if wrong_source:
            yield f"hop {hop.number} is {letter}, but its gold id is {wrong_source!r}"
    if row.get("n_hops") is not None and row["n_hops"] != count:
        yield f"n_hops={row['n_hops']!r}, but there are {count} hops"


def _gold_of_other_source(values: Sequence[str], letter: str) -> str | None:
    """A gold value that names a document of the source that is not searched for this hop."""
    other = "web/" if letter == "L" else "local/"
    return next((value for value in values if value.strip().lower().startswith(other)), None)
