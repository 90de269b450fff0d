"""The replay buffer on one node: one SQLite file in WAL mode that all actor workers share.

Rollouts draw from it and put into it, the domain's hooks back it up and bring it back (`PairBuffer`).
Invariants: a row number is never used twice; a pair is there once; counters and rows change in one
transaction; committed rows survive the death of any process.
"""

import hashlib
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from domains.raro.pairs import Pair, PairBuffer, ReplayStats

SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 30.0
Mode = Literal["fifo", "reservoir"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS questions (question_id TEXT PRIMARY KEY, question TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS pairs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    sha TEXT NOT NULL UNIQUE,
    question_id TEXT NOT NULL REFERENCES questions (question_id),
    expert_answer TEXT NOT NULL,
    policy_answer TEXT NOT NULL,
    task TEXT NOT NULL,
    model_version INTEGER NOT NULL,
    created_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS digests (question_id TEXT PRIMARY KEY, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_COLUMNS = "question_id, question, expert_answer, policy_answer, task, model_version, created_at, seq"
_PAIRS = f"SELECT {_COLUMNS} FROM pairs JOIN questions USING (question_id)"
_CHECKED_PAIRS = f"SELECT {_COLUMNS}, sha FROM pairs LEFT JOIN questions USING (question_id)"
_CHECKED_QUESTIONS = "SELECT question, digest FROM questions JOIN digests USING (question_id)"
_ONE_PAIR = f"{_PAIRS} WHERE seq = ?"
_SEQ_AT = "SELECT seq FROM pairs ORDER BY seq LIMIT 1 OFFSET ?"
_NUMBERS = ("schema", "arrivals", "duplicates")
_GUESSES = 16
"""Row numbers drawn blindly before rows are counted; few are gaps unless most rows were replaced."""


class ReplayBuffer:
    """The `PairBuffer` of one node. Safe for threads; each process opens its own connection."""

    def __init__(
        self,
        path: Path,
        capacity: int = 20_000,
        mode: Mode = "fifo",
        run_id: str = "",
        rng: random.Random | None = None,
    ) -> None:
        """Open or create the file. Raises ValueError for a file of another schema version."""
        self.path, self.capacity, self.mode, self.run_id = path, capacity, mode, run_id
        self._rng = rng or random.Random()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._owner = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._transaction():
            pass

    def watermark(self) -> int:
        with self._transaction("BEGIN") as db:
            return int(db.execute("SELECT COALESCE(MAX(seq), 0) FROM pairs").fetchone()[0])

    def put(self, pair: Pair) -> bool:
        with self._transaction() as db:
            if db.execute("SELECT 1 FROM pairs WHERE sha = ?", (pair.sha,)).fetchone():
                _count(db, "duplicates")
                return False
            arrivals = _count(db, "arrivals")
            rows = int(db.execute("SELECT COUNT(*) FROM pairs").fetchone()[0])
            if rows >= self.capacity:
                fifo = self.mode == "fifo"
                place = 0 if fifo else reservoir_place(self._rng, self.capacity, arrivals)
                if place is None:
                    return True
                # The question stays: there are no more of them than problems.
                db.execute(f"DELETE FROM pairs WHERE seq = ({_SEQ_AT})", (place,))
            _insert(db, pair)
            return True

    def sample(self, rng: random.Random, n: int, at_or_below: int) -> list[Pair]:
        with self._transaction("BEGIN") as db:
            lowest = db.execute("SELECT MIN(seq) FROM pairs").fetchone()[0]
            if lowest is None or lowest > at_or_below:
                return []
            drawn = [_draw(db, rng, int(lowest), at_or_below) for _ in range(n)]
        return [Pair(*row) for row in drawn]

    def stats(self) -> ReplayStats:
        with self._transaction("BEGIN") as db:
            size, last = db.execute("SELECT COUNT(*), COALESCE(MAX(seq), 0) FROM pairs").fetchone()
            counts = dict(db.execute("SELECT key, value FROM meta").fetchall())
        return ReplayStats(size, int(counts.get("arrivals", 0)), int(counts.get("duplicates", 0)), last)

    def backup(self, path: Path) -> None:
        """An online copy: writers go on meanwhile."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"~{path.name}")
        beside.unlink(missing_ok=True)
        with self._lock, closing(sqlite3.connect(beside)) as copy:
            self._connected().backup(copy)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)

    def restore(self, path: Path) -> None:
        check_intact(path)
        with self._lock, closing(sqlite3.connect(path)) as copy:
            copy.backup(self._connected())

    def rows(self) -> list[Pair]:
        """All pairs by row number."""
        with self._transaction("BEGIN") as db:
            found = db.execute(f"{_PAIRS} ORDER BY seq").fetchall()
        return [Pair(*row) for row in found]

    def load(self, pairs: Sequence[Pair], arrivals: int, duplicates: int) -> None:
        """Fill an empty buffer with pairs under their own row numbers, and set its counters."""
        with self._transaction() as db:
            for pair in pairs:
                _insert(db, pair, pair.seq)
            for key, value in (("arrivals", arrivals), ("duplicates", duplicates)):
                db.execute("UPDATE meta SET value = ? WHERE key = ?", (str(value), key))

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        """This process's connection; one that was inherited over a fork is left alone."""
        if self._connection is None or self._owner != os.getpid():
            self._connection = _open(self.path, self.run_id)
            self._owner = os.getpid()
        return self._connection

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """A transaction that writes; `BEGIN` for one that reads, which waits for no writer."""
        with self._lock:
            db = self._connected()
            db.execute(begin)
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")


def reservoir_place(rng: random.Random, capacity: int, arrivals: int) -> int | None:
    """Which of `capacity` rows the newest of `arrivals` replaces; None if it is not kept.

    Every arrival so far is then kept with probability capacity / arrivals (Vitter 1985, algorithm R).
    """
    return rng.randrange(capacity) if rng.random() < capacity / arrivals else None


def _open(path: Path, run_id: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA.strip().split(";\n"):
        db.execute(statement)
    for key, value in (("schema", SCHEMA_VERSION), ("run_id", run_id), ("arrivals", 0), ("duplicates", 0)):
        db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, str(value)))
    db.execute("COMMIT")
    found = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()[0]
    if int(found) != SCHEMA_VERSION:
        db.close()
        raise ValueError(f"{path} has schema {found}, expected {SCHEMA_VERSION}; use force_restart=true")
    return db


def _count(db: sqlite3.Connection, key: str) -> int:
    """Add one to a counter and return it."""
    db.execute("UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = ?", (key,))
    return int(db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0])


def _draw(db: sqlite3.Connection, rng: random.Random, lowest: int, at_or_below: int) -> tuple[Any, ...]:
    """One row, uniform over those from `lowest` to `at_or_below`, whatever numbers are missing between."""
    for _ in range(_GUESSES):
        row: tuple[Any, ...] | None = db.execute(_ONE_PAIR, (rng.randint(lowest, at_or_below),)).fetchone()
        if row is not None:
            return row
    rows = int(db.execute("SELECT COUNT(*) FROM pairs WHERE seq <= ?", (at_or_below,)).fetchone()[0])
    seq = db.execute(_SEQ_AT, (rng.randrange(rows),)).fetchone()[0]
    found: tuple[Any, ...] = db.execute(_ONE_PAIR, (seq,)).fetchone()
    return found


def _insert(db: sqlite3.Connection, pair: Pair, seq: int | None = None) -> None:
    db.execute("INSERT OR IGNORE INTO questions VALUES (?, ?)", (pair.question_id, pair.question))
    digest = (pair.question_id, _digest(pair.question))
    db.execute("INSERT OR IGNORE INTO digests VALUES (?, ?)", digest)
    answers = (pair.question_id, pair.expert_answer, pair.policy_answer, pair.task)
    row = (seq, pair.sha, *answers, pair.model_version, pair.created_at)
    db.execute("INSERT INTO pairs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()


def check_intact(path: Path) -> None:
    """Raises ValueError for a copy that is missing or damaged."""
    if not intact(path):
        raise ValueError(f"{path} is no intact replay buffer; delete it or name another")


def intact(path: Path) -> bool:
    """Whether the file is there, passes SQLite's integrity check, and every text has its digest.

    SQLite checks the order of its pages and not the texts on them: a flipped bit of an answer passes it.
    """
    if not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)) as db:
            checked = db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
            if not checked or min(int(meta.get(key, -1)) for key in _NUMBERS) < 0:
                return False
            pairs = db.execute(_CHECKED_PAIRS)
            if not all(Pair(*row[:-1]).sha == row[-1] for row in pairs):
                return False
            questions = db.execute(_CHECKED_QUESTIONS)
            return all(isinstance(text, str) and _digest(text) == digest for text, digest in questions)
    except (sqlite3.DatabaseError, UnicodeDecodeError, TypeError, ValueError):
        return False


def files_of(live: Path) -> list[Path]:
    """The file and what SQLite keeps beside it, of which each may be there or not."""
    return [live, *(live.with_name(live.name + suffix) for suffix in ("-wal", "-shm"))]


def remove(live: Path) -> None:
    """What an earlier run has left there."""
    for path in files_of(live):
        path.unlink(missing_ok=True)


def recover(live: Path, checkpoint: Path, say: Callable[[str], None] = print) -> None:
    """Before a run starts: keep an intact live file, else take the checkpoint's copy, else start empty."""
    if intact(live):
        return
    for path in files_of(live):
        if path.exists():
            say(f"replay buffer {path.name} is damaged and set aside")
            path.replace(path.with_name(f"{path.name}.damaged"))
    if not intact(checkpoint):
        return
    say(f"replay buffer restored from {checkpoint}")
    buffer = ReplayBuffer(live)
    buffer.restore(checkpoint)
    buffer.close()


class BackupWriter:
    """Writes a backup when one is asked for and the last is old enough; never two at a time."""

    def __init__(self, buffer: PairBuffer, path: Path, every_s: float) -> None:
        self.buffer, self.path, self.every_s = buffer, path, every_s
        self._thread = ThreadPoolExecutor(1, "replay backup")
        self.running: Future[None] | None = None
        """The last backup that was started."""
        self._started_s = float("-inf")

    def checkpoint(self, now_s: float | None = None) -> None:
        """Start a backup if it is time. Raises the error of an earlier one."""
        now_s = time.monotonic() if now_s is None else now_s
        if self.running is not None:
            if not self.running.done():
                return
            self.running.result()
        if now_s - self._started_s >= self.every_s:
            self._started_s = now_s
            self.running = self._thread.submit(self.buffer.backup, self.path)
