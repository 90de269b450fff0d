"""Rollout accounting: every rollout that starts ends in exactly one counted way.

Each role records what it knows in an append-only file of JSON lines, `<output_dir>/accounting/<role>.jsonl`
(`RolloutLog`); launcher, report and progress line add all of them up (`reconcile`, `RolloutAccounting`). A
rollout is named `<group_id>/<rollout_index>`. One of several samples can meet several ends (one sample
trained, another too old); the most final one counts: trained > stale > filtered > failed > empty >
unfinished.

A resume is recorded too. Ends that the trainer recorded after the checkpoint are rolled back: their rollouts
are where they were at the checkpoint, as far as the trainer knows of them; an end that another role recorded
stands. What preprocess held at the checkpoint is replayed and may still be trained on; whatever else was
under way is discarded, and stays unfinished.
"""

import enum
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pipelinerl.base.line_file import LineFile, LineTail
from pipelinerl.run_state.rollout_table import RolloutTable


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
    RETRIED = "retried"
    """No end: tries that failed and were made again; a rollout stands here once for each."""
    RESUMED = "resumed"
    """No rollout: the actor was started again, what runs now belongs to an earlier start."""
    UNDONE = "undone"
    """The ends that the trainer recorded for these rollouts after the checkpoint are rolled back."""
    REPLAYED = "replayed"
    """The rollouts, or none, that preprocess has kept over the last resume; the latest line counts."""


ROLES = ("actor", "preprocess", "finetune")
TRAINER = "finetune"
"""The role whose ends a resume may roll back."""
_OF_ONE = re.compile(
    # A status of HTTP, an exit code or a signal, behind its name, stays.
    # Before a word such as "tokens" it is a number of things.
    r"(?P<kept>\b(?i:error|failed|answered|returned|responded|response)(?: with)?[ :=(\['\"]*"
    r"[45]\d\d\b(?![ ,.]*[a-z\d])"
    r"|\b[45]\d\d(?= (?:Client|Server) Error)"
    r"|\b(?i:http(?:/\d(?:\.\d)?|error)?|\w*status\w*|\w*code|\w*signal|rc|exit|exited with)"
    r"[ :=('\"]*-?\d{1,3}\b|\b\d{3}(?=, message=))"
    r"|0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"
    r"|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
)
CUT = "…"
"""How a reason ends that was cut off."""
# Not the apostrophe of a word. A quote may hold its own mark behind a backslash; a cut one has no end.
_QUOTED = re.compile(rf"(?<!\w)'(?:[^'\\]|\\.)*(?:'(?!\w)|{CUT}\Z)|\"(?:[^\"\\]|\\.)*(?:\"|{CUT}\Z)")
_STATUS = re.compile(r".[45]\d\d [A-Z][a-zA-Z ]+.")
_PLACE = re.compile(r" \(\S+:\d+\)$")
_LONG_QUOTE = 20
_COMPARED = 120
"""Characters of a kind whose reason was cut off: where it ends depends on the length of what is masked."""
_URL_OR_PATH = re.compile(r"https?://[^\s'\"<>]+|(?<![\w.:/])/(?:[\w.~@%+-]+/)+[\w.~@%+-]+")
_TYPE = re.compile(r"(?:group_discarded: )?[A-Za-z_][\w.]*(?=: )")
_MOST_TEXTS = 3
"""Of one type of error at one place: more are words of single rollouts, and are counted together."""
_OTHERS = ", and others"
_OFTEN = 10
"""From so many on, and from a tenth of its type and place on, a text stays a kind of its own."""


def kind_of(reason: str) -> str:
    """A reason without what belongs to one rollout, to be counted: ids, numbers, and quotes that are long,
    have one of these, or are a value that stands behind the words.

    The file and line at its end stay, and so do a status of HTTP, an exit code and a signal.
    """
    place = found[0] if (found := _PLACE.search(reason)) else ""
    said = reason.removesuffix(place) if place else reason
    kind = _masked(_URL_OR_PATH.sub("…", _QUOTED.sub(_quoted, said)))
    if said.endswith(CUT) and len(kind) > _COMPARED:
        kind = f"{kind[:_COMPARED].removesuffix(CUT)}{CUT}"
    return kind + place


def _masked(text: str) -> str:
    return _OF_ONE.sub(lambda found: found["kept"] or "#", text)


def kinds_of(reasons: Mapping[str, int]) -> dict[str, str]:
    """The kind of each reason, from how often each was given.

    Of one type, codes and place more than three kinds are one, named by what is said most often, and so are
    more than three of one type and place. What makes a good part of these failures stays a kind of its own.
    """
    kinds = {reason: kind_of(reason) for reason in reasons}
    for coarser in (_type_codes_and_place, _type_and_place):
        said: dict[str, Counter[str]] = {}
        for reason, n in reasons.items():
            said.setdefault(coarser(kinds[reason]), Counter())[kinds[reason]] += n
        together: dict[str, str] = {}
        for both, texts in said.items():
            rare = [kind for kind, n in texts.items() if kind == both or n < max(_OFTEN, texts.total() / 10)]
            if len(rare) > _MOST_TEXTS or both in texts:  # which a run with very many has
                name = _named(max(rare, key=texts.__getitem__), both)
                together |= dict.fromkeys(rare, name)
        kinds = {reason: together.get(kind, kind) for reason, kind in kinds.items()}
    return kinds


def commonest_of(reasons: Sequence[str]) -> tuple[str, int]:
    """The newest and commonest reason of the commonest kind, and how many are of this kind; newest last."""
    kinds = kinds_of(Counter(reasons))
    kind, n = Counter(kinds[reason] for reason in reasons).most_common(1)[0]
    of_kind = [reason for reason in reasons if kinds[reason] == kind]
    texts = Counter(map(kind_of, of_kind))
    most = max(texts.values())
    return next(reason for reason in reversed(of_kind) if texts[kind_of(reason)] == most), n


def _named(commonest: str, both: str) -> str:
    """What several texts of a type and place are called."""
    if commonest == both or _OTHERS in commonest:
        return commonest
    place = found[0] if (found := _PLACE.search(commonest)) else ""
    return commonest.removesuffix(place) + _OTHERS + place


def _type_codes_and_place(kind: str) -> str:
    """Without what an error says but for its codes, so that a status with many texts is one kind."""
    codes = " ".join(found["kept"] for found in _OF_ONE.finditer(kind) if found["kept"])
    both = _type_and_place(kind)
    return both.replace("…", f"{codes} …", 1) if codes and both != kind else both


def _type_and_place(kind: str) -> str:
    """Without what an error says; the same where its type and place are not known."""
    type_, place = _TYPE.match(kind), _PLACE.search(kind)
    return f"{type_[0]}: …{place[0]}" if type_ and place else kind


def _coarser(reason: str) -> tuple[str, str]:
    kind = kind_of(reason)
    return kind, _type_codes_and_place(kind)


def _listed(reasons: Mapping[str, int]) -> str:
    kinds, named = Counter[str](), kinds_of(reasons)
    for reason, n in reasons.items():
        kinds[named[reason]] += n
    return ", ".join(f"{kind} {n}" for kind, n in kinds.most_common())


def _quoted(quote: re.Match[str]) -> str:
    before = quote.string[: quote.start()]
    # "KeyError: 'x'" names a place in the data; in "could not convert string to float: 'x'" x is the data.
    value = before.endswith(": ") and before.count(": ") > 1 and not before.endswith("KeyError: ")
    of_one = value or len(quote[0]) > _LONG_QUOTE or _masked(quote[0]) != quote[0]
    return "'…'" if of_one and not _STATUS.fullmatch(quote[0]) else quote[0]


# Ends of a rollout, the most final first.
TRAINING_ENDS = (Outcome.TRAINED, Outcome.STALE, Outcome.FILTERED, Outcome.FAILED, Outcome.EMPTY)
EVAL_ENDS = (Outcome.EVAL_DONE, Outcome.EVAL_FAILED)
# They say something also where they name no rollout.
_OF_A_RESUME = (Outcome.RESUMED, Outcome.REPLAYED)


class _Record(msgspec.Struct):
    outcome: Outcome
    rollouts: list[str]
    reason: str = ""
    time: float = 0.0


_End = tuple[Outcome, str]
_decode = msgspec.json.Decoder(_Record).decode


def _more_final(one: Outcome, other: Outcome) -> bool:
    return TRAINING_ENDS.index(one) < TRAINING_ENDS.index(other)


def rollout_id(group_id: str, rollout_index: int) -> str:
    """The name of a rollout in the accounting."""
    return f"{group_id}/{rollout_index}"


def log_path(output_dir: Path, role: str) -> Path:
    return Path(output_dir) / "accounting" / f"{role}.jsonl"


def log_size(output_dir: Path, role: str) -> int:
    """Bytes that a role has recorded: what a checkpoint remembers."""
    path = log_path(output_dir, role)
    return path.stat().st_size if path.exists() else 0


class RolloutLog(LineFile):
    """One role's records. Lines are appended whole, so several processes of a role may share a file."""

    def __init__(self, output_dir: Path, role: str) -> None:
        super().__init__(log_path(output_dir, role))

    def record(self, outcome: Outcome, rollouts: Iterable[str] = (), reason: str = "") -> None:
        """Append one line for these rollouts; nothing for none, unless it is about a resume."""
        # One write to the kernel: killed before it the rollouts stay unfinished, after it they are counted.
        names = list(rollouts)
        if names or outcome in _OF_A_RESUME:
            entry = _Record(Outcome(outcome), names, reason, round(time.time(), 3))
            self.append(msgspec.json.encode(entry))

    def undo_after(self, end: int) -> int:
        """Roll back the ends recorded behind byte `end`; returns how many rollouts they were.

        Nothing is removed from the file: a line that takes them back is added, and the ends that rollouts of
        several samples had at `end` already are written again.
        """
        # From the file alone: a start that was killed between the lines, or an earlier resume from the same
        # checkpoint, leaves what is missing to be found here, and no more.
        behind = {name for entry in self._entries(end) for name in entry.rollouts}
        at_end = self._ends_of(behind, end) if behind else {}
        now = self._ends_of(behind) if behind else {}
        undone = [name for name, stands in now.items() if stands != at_end.get(name)]
        again: dict[_End, list[str]] = {}
        for name, stood in at_end.items():
            if now.get(name) != stood:
                again.setdefault(stood, []).append(name)
        self.record(Outcome.UNDONE, undone)
        for (outcome, reason), names in again.items():
            self.record(outcome, names, reason)
        return len(undone)

    def _entries(self, start: int = 0, stop: int | None = None) -> Iterator[_Record]:
        """The records between two bytes."""
        tail = LineTail(self.path, offset=start)
        for entry in tail.records(_decode):
            if stop is not None and tail.offset > stop:
                return
            yield entry

    def _ends_of(self, names: Collection[str], stop: int | None = None) -> dict[str, _End]:
        """How those of these rollouts that had ended at byte `stop` had done so, and why."""
        found: dict[str, _End] = {}
        for entry in self._entries(stop=stop):
            for name in entry.rollouts:
                if name not in names:
                    continue
                if entry.outcome is Outcome.UNDONE:
                    found.pop(name, None)
                elif name not in found or _more_final(entry.outcome, found[name][0]):
                    found[name] = entry.outcome, entry.reason
        return found


@dataclass(frozen=True)
class RolloutCounts:
    """Rollouts by outcome; `ends` and `eval_ends` hold every outcome, also those that did not occur."""

    started: int = 0
    ends: dict[Outcome, int] = field(default_factory=dict)
    unfinished: int = 0
    eval_started: int = 0
    eval_ends: dict[Outcome, int] = field(default_factory=dict)
    eval_unfinished: int = 0
    reasons: dict[Outcome, dict[str, int]] = field(default_factory=dict)
    retried: dict[str, int] = field(default_factory=dict)
    """Tries that failed and were made again, by kind of reason; their rollouts are counted as they ended."""
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
    removed: tuple[str, ...] = ()
    """Roles that recorded metrics and whose file is not there, so that its ends are missing here."""

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
        rows = [f"rollouts: {_sum(self.started, self.ends, self.unfinished)}"]
        if self.eval_started:
            evaluated = _sum(self.eval_started, self.eval_ends, self.eval_unfinished)
            rows.append(f"evaluation rollouts: {evaluated}")
        for outcome, reasons in self.reasons.items():
            rows.append(f"{outcome}: {_listed(reasons)}")
        if self.retried:
            tries = sum(self.retried.values())
            rows.append(f"failed tries that were made again: {tries} = {_listed(self.retried)}")
        if self.resumes:
            often = "once" if self.resumes == 1 else f"{self.resumes} times"
            rows.append(
                f"resumed {often}: {self.undone} rollouts trained after a checkpoint undone, "
                f"{self.replayed} kept over the last resume, {self.discarded} discarded"
            )
        # A kill only leaves rollouts unfinished; these two are errors of the program.
        if names := self.never_started:
            rows.append(f"rollout accounting error: {len(names)} ended and never started, such as {names[0]}")
        if names := self.started_twice:
            rows.append(f"rollout accounting error: {len(names)} started twice, such as {names[0]}")
        for role in self.removed:
            rows.append(f"accounting/{role}.jsonl was removed: how rollouts ended there is not known")
        if self.torn_lines:
            rows.append(f"{self.torn_lines} incomplete lines recorded (a process was killed while writing)")
        return rows


def _sum(started: int, ends: dict[Outcome, int], unfinished: int) -> str:
    parts = [f"{n} {outcome.removeprefix('eval_')}" for outcome, n in ends.items()]
    return f"{started} started = {' + '.join([*parts, f'{unfinished} unfinished'])}"


class RolloutAccounting:
    """The records of all roles of a run: `update` reads only what is new since the last call."""

    def __init__(self, output_dir: Path) -> None:
        self._folder = log_path(output_dir, "").parent
        self._tails: dict[Path, LineTail] = {}
        self._training, self._evaluation = (
            RolloutTable(TRAINING_ENDS, _coarser),
            RolloutTable(EVAL_ENDS, _coarser),
        )
        self._resumes = 0
        self._retried = Counter[str]()

    def update(self) -> RolloutCounts:
        """Read new lines of every role and return the sums. Raises DamagedLine."""
        # File by file and not by time: an end may be read before its start, which the table allows for.
        for path in sorted(self._folder.glob("*.jsonl")):
            for entry in self._tails.setdefault(path, LineTail(path)).records(_decode):
                self._enter(entry.outcome, entry.rollouts, entry.reason, undoable=path.stem == TRAINER)
        training, evaluation = self._training, self._evaluation
        ends, reasons = Counter[Outcome](), dict[Outcome, dict[str, int]]()
        for (outcome, reason), n in [*training.by_reason().items(), *evaluation.by_reason().items()]:
            ends[outcome] += n
            if reason:
                reasons.setdefault(outcome, {})[reason] = n
        return RolloutCounts(
            started=training.started,
            ends={outcome: ends[outcome] for outcome in TRAINING_ENDS},
            unfinished=training.unfinished,
            eval_started=evaluation.started,
            eval_ends={outcome: ends[outcome] for outcome in EVAL_ENDS},
            eval_unfinished=evaluation.unfinished,
            reasons=reasons,
            retried=dict(self._retried),
            never_started=(*sorted(training.unknown), *sorted(evaluation.unknown)),
            started_twice=(*sorted(training.twice), *sorted(evaluation.twice)),
            torn_lines=sum(tail.dropped for tail in self._tails.values()),
            resumes=self._resumes,
            undone=training.undone,
            replayed=len(training.replayed),
            discarded=training.discarded,
            removed=tuple(role for role in ROLES if self._is_removed(role)),
        )

    def _is_removed(self, role: str) -> bool:
        output_dir = self._folder.parent
        metrics = output_dir / role / "metrics.jsonl"
        # A role that ends while it starts leaves empty metrics, and made no file of ends.
        try:
            recorded = metrics.stat().st_size > 0
        except OSError:  # it is not there, or removed under the run
            return False
        return recorded and not log_path(output_dir, role).exists()

    def outcome(self, rollout: str) -> tuple[str, str]:
        """How a rollout ended, as `update` last read it, and why; `unfinished` for one without an end."""
        end = self._training.end_of(rollout) or self._evaluation.end_of(rollout)
        return (end[0].removeprefix("eval_"), end[1]) if end else ("unfinished", "")

    def _enter(self, outcome: Outcome, rollouts: list[str], reason: str, undoable: bool) -> None:
        match outcome:
            case Outcome.STARTED:
                self._training.start(rollouts)
            case Outcome.EVAL_STARTED:
                self._evaluation.start(rollouts)
            case Outcome.EVAL_DONE | Outcome.EVAL_FAILED:
                self._evaluation.end(outcome, rollouts, reason)
            case Outcome.RETRIED:
                self._retried[kind_of(reason)] += len(rollouts)
            case Outcome.RESUMED:
                # Only the actor records starts and this, so what is of an earlier start stands before it.
                self._resumes += 1
                self._training.resume()
            case Outcome.UNDONE:
                self._training.undo(rollouts)
            case Outcome.REPLAYED:
                # What an earlier resume kept has ended since, or is among these, or is discarded.
                self._training.replayed = set(rollouts)
            case _:
                self._training.end(outcome, rollouts, reason, undoable)


def reconcile(output_dir: Path) -> RolloutCounts:
    """Add up the records of a run. Raises DamagedLine."""
    return RolloutAccounting(output_dir).update()
