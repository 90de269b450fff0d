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
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pipelinerl.base.closing import Closing
from pipelinerl.base.line_file import LineFile
from pipelinerl.run_state.fates import Fates


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


class Ledger(Closing):
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
            often = "once" if self.resumes == 1 else f"{self.resumes} times"
            rows.append(
                f"resumed {often}: {self.undone} rollouts trained after a checkpoint undone, "
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


class Books:
    """All ledgers of a run, read incrementally: `update` reads only what is new since the last call."""

    def __init__(self, output_dir: Path) -> None:
        self._folder = Path(output_dir) / _FOLDER
        self._offsets: dict[Path, int] = {}
        self._training, self._evaluation = Fates(), Fates()
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
        self._pending_torn[path] = False
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    self._pending_torn[path] = True
                    break
                self._offsets[path] = self._offsets.get(path, 0) + len(line)
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
            self._training.resume()
        elif entry.outcome is Outcome.UNDONE:
            self._training.undo(entry.rollouts)
        elif entry.outcome is Outcome.REPLAYED:
            self._training.replayed = set(entry.rollouts)
        elif entry.outcome in EVAL_ENDS:
            self._evaluation.end(EVAL_ENDS.index(entry.outcome), entry.rollouts, entry.reason)
        else:
            self._training.end(TRAINING_ENDS.index(entry.outcome), entry.rollouts, entry.reason)

    def _counts(self) -> Counts:
        training, evaluation = self._training, self._evaluation
        ends, reasons = _named(training, TRAINING_ENDS)
        eval_ends, eval_reasons = _named(evaluation, EVAL_ENDS)
        return Counts(
            started=training.started,
            ends=ends,
            unfinished=training.unfinished,
            eval_started=evaluation.started,
            eval_ends=eval_ends,
            eval_unfinished=evaluation.unfinished,
            reasons={**reasons, **eval_reasons},
            never_started=(*sorted(training.unknown), *sorted(evaluation.unknown)),
            started_twice=(*sorted(training.twice), *sorted(evaluation.twice)),
            torn_lines=self._torn + sum(self._pending_torn.values()),
            resumes=self._resumes,
            undone=training.undone,
            replayed=len(training.replayed),
            discarded=training.discarded,
        )


def _named(
    fates: Fates, ends: tuple[Outcome, ...]
) -> tuple[dict[Outcome, int], dict[Outcome, dict[str, int]]]:
    """Rollouts by outcome, and by outcome and reason."""
    counts, reasons = dict.fromkeys(ends, 0), dict[Outcome, dict[str, int]]()
    for (rank, reason), n in fates.by_reason().items():
        counts[ends[rank]] += n
        if reason:
            reasons.setdefault(ends[rank], {})[reason] = n
    return counts, reasons


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
    with path.open("rb") as file:
        file.seek(end)
        for line in file:
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
