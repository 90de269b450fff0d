"""Every rollout that starts ends in exactly one counted way; each role keeps its part of the books.

A ledger is an append-only file of JSON lines, `<output_dir>/accounting/<role>.jsonl`; `reconcile` adds all of
them up. A rollout is named `<group_id>/<rollout_index>`. A rollout of several texts can meet several fates
(one text trained, another too old); the most final one counts: trained > stale > filtered > failed > empty >
unfinished.

A resume is written down too. Updates behind the checkpoint are undone: their rollouts are unfinished again.
What preprocess held at the checkpoint is replayed and may still be trained on; whatever else was under way
is discarded, and stays unfinished.
"""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from pipelinerl.line_file import LineFile


class Outcome(enum.StrEnum):
    STARTED = "started"
    TRAINED = "trained"
    STALE = "stale"
    FILTERED = "filtered"
    FAILED = "failed"
    EMPTY = "empty"
    EVAL_STARTED = "eval_started"
    EVAL_DONE = "eval_done"
    EVAL_FAILED = "eval_failed"
    RESUMED = "resumed"
    """No rollout: the actor was started again."""
    UNDONE = "undone"
    """The ends that the trainer wrote for these rollouts behind the checkpoint are void."""
    REPLAYED = "replayed"
    """The rollouts that preprocess has kept over the last resume; the latest line counts."""


# Ends of a rollout, the most final first.
TRAINING_ENDS = (Outcome.TRAINED, Outcome.STALE, Outcome.FILTERED, Outcome.FAILED, Outcome.EMPTY)
EVAL_ENDS = (Outcome.EVAL_DONE, Outcome.EVAL_FAILED)
_FOLDER = "accounting"


class _Entry(msgspec.Struct):
    outcome: Outcome
    rollouts: list[str]
    reason: str = ""
    time: float = 0.0


def rollout_id(group_id: str, rollout_index: int) -> str:
    """The name of a rollout in the books."""
    return f"{group_id}/{rollout_index}"


def ledger_path(output_dir: Path, role: str) -> Path:
    return Path(output_dir) / _FOLDER / f"{role}.jsonl"


class Ledger:
    """One role's book. Lines are appended whole, so several processes of a role may share it."""

    def __init__(self, output_dir: Path, role: str) -> None:
        self._file = LineFile(ledger_path(output_dir, role))
        self._encoder = msgspec.json.Encoder()

    def record(self, outcome: Outcome, rollouts: Iterable[str], reason: str = "") -> None:
        """Append one line for these rollouts; nothing for none. The line is on its way when this returns."""
        names = list(rollouts)
        if names:
            self._write(outcome, names, reason)

    def note_resume(self) -> None:
        """The actor starts again: what runs now belongs to an earlier start."""
        self._write(Outcome.RESUMED, [], "")

    def note_replayed(self, rollouts: Iterable[str]) -> None:
        """Preprocess starts again with these rollouts, or none, in its buffer."""
        self._write(Outcome.REPLAYED, list(rollouts), "")

    def _write(self, outcome: Outcome, names: list[str], reason: str) -> None:
        entry = _Entry(Outcome(outcome), names, reason, round(time.time(), 3))
        self._file.append(self._encoder.encode(entry))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Counts:
    """Rollouts by outcome; `ends` and `eval_ends` hold every outcome, also those that did not occur."""

    started: int = 0
    ends: dict[Outcome, int] = field(default_factory=dict)
    unfinished: int = 0
    eval_started: int = 0
    eval_ends: dict[Outcome, int] = field(default_factory=dict)
    eval_unfinished: int = 0
    reasons: dict[Outcome, dict[str, int]] = field(default_factory=dict)
    never_started: tuple[str, ...] = ()
    started_twice: tuple[str, ...] = ()
    torn_lines: int = 0
    resumes: int = 0
    undone: int = 0
    """Rollouts whose update was undone by a resume, whatever became of them later."""
    replayed: int = 0
    """Rollouts kept over the last resume."""
    discarded: int = 0
    """Unfinished rollouts that a resume left behind."""

    @property
    def adds_up(self) -> bool:
        """Whether every rollout started once and everything that ended had started."""
        training = self.started == sum(self.ends.values()) + self.unfinished
        evaluation = self.eval_started == sum(self.eval_ends.values()) + self.eval_unfinished
        return training and evaluation and not self.never_started and not self.started_twice

    def __getitem__(self, outcome: Outcome) -> int:
        return self.ends.get(outcome, 0) + self.eval_ends.get(outcome, 0)

    def lines(self) -> list[str]:
        """The sums for people, one line each."""
        parts = [f"{n} {outcome.value}" for outcome, n in self.ends.items()] + [
            f"{self.unfinished} unfinished"
        ]
        rows = [f"rollouts: {self.started} started = {' + '.join(parts)}"]
        if self.eval_started:
            ends = [f"{n} {o.value.removeprefix('eval_')}" for o, n in self.eval_ends.items()]
            ends.append(f"{self.eval_unfinished} unfinished")
            rows.append(f"evaluation rollouts: {self.eval_started} started = {' + '.join(ends)}")
        for outcome, reasons in self.reasons.items():
            listed = ", ".join(f"{reason} {n}" for reason, n in sorted(reasons.items(), key=lambda r: -r[1]))
            rows.append(f"{outcome.value}: {listed}")
        if self.resumes:
            rows.append(
                f"resumed {self.resumes} times: {self.undone} rollouts trained after a checkpoint undone, "
                f"{self.replayed} kept over the last resume, {self.discarded} discarded"
            )
        for names, problem in (
            (self.never_started, "ended without a start"),
            (self.started_twice, "started twice"),
        ):
            if names:
                rows.append(f"THE SUMS DO NOT ADD UP: {len(names)} rollouts {problem}, such as {names[0]}")
        if self.torn_lines:
            rows.append(
                f"{self.torn_lines} incomplete lines in the books (a process was killed while writing)"
            )
        return rows


@dataclass
class _Fates:
    """Where each rollout of one kind (training or evaluation) stands."""

    ends: tuple[Outcome, ...]
    started: set[str] = field(default_factory=set)
    twice: set[str] = field(default_factory=set)
    best: dict[str, tuple[int, str]] = field(default_factory=dict)
    earlier: set[str] = field(default_factory=set)
    """Started before the last resume."""
    undone: set[str] = field(default_factory=set)
    replayed: set[str] = field(default_factory=set)

    def undo(self, names: list[str]) -> None:
        self.undone.update(names)
        for name in names:
            self.best.pop(name, None)

    @property
    def discarded(self) -> int:
        """Rollouts of earlier starts that nobody will end any more."""
        return len(self.earlier - self.best.keys() - self.replayed)

    def start(self, names: list[str]) -> None:
        self.twice.update(self.started.intersection(names))
        if len(set(names)) != len(names):
            self.twice.update(name for name, n in Counter(names).items() if n > 1)
        self.started.update(names)

    def end(self, outcome: Outcome, names: list[str], reason: str) -> None:
        rank = self.ends.index(outcome)
        for name in names:
            known = self.best.get(name)
            if known is None or rank < known[0]:
                self.best[name] = (rank, reason)

    def tally(self) -> tuple[dict[Outcome, int], dict[Outcome, dict[str, int]], int, list[str]]:
        """Counts by outcome, by outcome and reason, unfinished ones, and names that never started."""
        ended = Counter(rank for name, (rank, _) in self.best.items() if name in self.started)
        counts = {outcome: ended[rank] for rank, outcome in enumerate(self.ends)}
        reasons: dict[Outcome, dict[str, int]] = {}
        by_reason = Counter(fate for name, fate in self.best.items() if fate[1] and name in self.started)
        for (rank, reason), n in sorted(by_reason.items()):
            reasons.setdefault(self.ends[rank], {})[reason] = n
        unknown = sorted(self.best.keys() - self.started)
        return counts, reasons, len(self.started) - sum(counts.values()), unknown


class Books:
    """All ledgers of a run, read incrementally: `update` reads only what is new since the last call."""

    def __init__(self, output_dir: Path) -> None:
        self._folder = Path(output_dir) / _FOLDER
        self._offsets: dict[Path, int] = {}
        self._training = _Fates(TRAINING_ENDS)
        self._evaluation = _Fates(EVAL_ENDS)
        self._torn = self._resumes = 0
        self._pending_torn: dict[Path, bool] = {}
        self._decoder = msgspec.json.Decoder(_Entry)

    def update(self) -> Counts:
        """Read new lines of every ledger and return the sums."""
        if self._folder.is_dir():
            for path in sorted(self._folder.glob("*.jsonl")):
                self._read(path)
        return self._counts()

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            data = file.read()
        complete = data.rfind(b"\n") + 1
        self._offsets[path] = self._offsets.get(path, 0) + complete
        self._pending_torn[path] = complete < len(data)
        for line in data[:complete].splitlines():
            try:
                entry = self._decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._torn += 1
                continue
            self._enter(entry)

    def _enter(self, entry: _Entry) -> None:
        if entry.outcome is Outcome.STARTED:
            self._training.start(entry.rollouts)
        elif entry.outcome is Outcome.EVAL_STARTED:
            self._evaluation.start(entry.rollouts)
        elif entry.outcome is Outcome.RESUMED:
            self._resumes += 1
            self._training.earlier = set(self._training.started)
        elif entry.outcome is Outcome.UNDONE:
            self._training.undo(entry.rollouts)
        elif entry.outcome is Outcome.REPLAYED:
            self._training.replayed = set(entry.rollouts)
        elif entry.outcome in EVAL_ENDS:
            self._evaluation.end(entry.outcome, entry.rollouts, entry.reason)
        else:
            self._training.end(entry.outcome, entry.rollouts, entry.reason)

    def _counts(self) -> Counts:
        ends, reasons, unfinished, unknown = self._training.tally()
        eval_ends, eval_reasons, eval_unfinished, eval_unknown = self._evaluation.tally()
        return Counts(
            started=len(self._training.started),
            ends=ends,
            unfinished=unfinished,
            eval_started=len(self._evaluation.started),
            eval_ends=eval_ends,
            eval_unfinished=eval_unfinished,
            reasons={**reasons, **eval_reasons},
            never_started=(*unknown, *eval_unknown),
            started_twice=(*sorted(self._training.twice), *sorted(self._evaluation.twice)),
            torn_lines=self._torn + sum(self._pending_torn.values()),
            resumes=self._resumes,
            undone=len(self._training.undone),
            replayed=len(self._training.replayed),
            discarded=self._training.discarded,
        )


def ledger_end(output_dir: Path, role: str) -> int:
    """Bytes in a role's book: what a checkpoint remembers."""
    path = ledger_path(output_dir, role)
    return path.stat().st_size if path.exists() else 0


def undo_after(output_dir: Path, role: str, end: int, ledger: Ledger) -> int:
    """Void the ends that `role` wrote behind byte `end`, in `ledger`; returns how many rollouts they were."""
    path = ledger_path(output_dir, role)
    if not path.exists():
        return 0
    names: dict[str, None] = {}
    decoder = msgspec.json.Decoder(_Entry)
    for line in path.read_bytes()[end:].splitlines():
        try:
            entry = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # a torn line, which `update` counts
        if entry.outcome is Outcome.UNDONE:
            for name in entry.rollouts:
                names.pop(name, None)
        elif entry.outcome in TRAINING_ENDS:
            names.update(dict.fromkeys(entry.rollouts))
    ledger.record(Outcome.UNDONE, names)
    return len(names)


def reconcile(output_dir: Path) -> Counts:
    """Add up the books of a run."""
    return Books(output_dir).update()
