"""The audit log of outbound web requests, read back as one ordered list of queries per rollout.

A line with a `query` is a request attempt, written before it left; a line with the same `request_id` and a
`status` completes it; a line with `"event": "rollout"` announces a rollout, so that rollouts without any web
request are counted too. It finished if a line with `"event": "end"` names it; without that it is a try that
was given up, because an engine or a service failed or the run was stopped.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.agent.audit import FOLDER
from domains.privacy_hopqa.dataset import parse_row
from pipelinerl.base.line_file import read_lines

_COMPLETED_KEPT = 10_000
_TEXTS = ("query", "request_id", "rollout_id", "task_id", "chain_id", "split")


@dataclass(slots=True)
class RolloutLog:
    """The web requests of one rollout, as they stand in the files."""

    rollout_id: str
    split: str
    task_id: str
    chain_id: str
    model_version: int | None = None
    training: bool = False
    started: float = math.inf
    """Time of its earliest line."""
    sent: list[tuple[float, Any, str]] = field(default_factory=list)
    """Time, action and query of each request attempt."""
    finished: bool = False
    """Whether a line says that it came to its end."""

    @property
    def queries(self) -> list[str]:
        """The queries in the order in which they left, transport retries merged."""
        ordered = sorted(self.sent, key=lambda attempt: attempt[0])
        # A transport retry is the same query of the same action again.
        return [query for _, query in dict.fromkeys((action, query) for _, action, query in ordered)]

    @property
    def attempts(self) -> int:
        """Requests that left, retries included."""
        return len(self.sent)


@dataclass(frozen=True, slots=True)
class QueryLog:
    """All rollouts of a run; `requests` counts attempts, to be compared with the service's own counter."""

    rollouts: tuple[RolloutLog, ...]
    """Finished ones, which can be rated."""
    requests: int
    unanswered: int
    unfinished: tuple[RolloutLog, ...] = ()
    """Tries without an end, each under a name of its own; the rollout may have been tried again."""


def audit_files(run_dir: Path) -> list[Path]:
    """The audit files of a run, or the file itself. Raises `FileNotFoundError` that names the place."""
    if run_dir.is_file():
        return [run_dir]
    files = sorted((run_dir / FOLDER).glob("*.jsonl"))
    if not files:
        raise FileNotFoundError(f"no audit log in {run_dir / FOLDER}; pass the folder of a run that searched")
    return files


def read_audit_log(files: Iterable[Path]) -> QueryLog:
    """Read files of JSON lines, without the incomplete line of a killed process.

    Raises `ValueError` with file and line for any other line that is none.
    """
    found: dict[str, RolloutLog] = {}
    requested: set[str] = set()
    completed: set[str] = set()
    requests = 0
    for line in (line for path in files for line in read_lines(path, _entry)):
        if "query" in line:
            requests += 1
            requested.add(line["request_id"])
            attempt = (float(line.get("ts", 0.0)), line.get("action_id"), line["query"])
            _of_rollout(found, line).sent.append(attempt)
        elif line.get("event") == "rollout":
            _of_rollout(found, line)
        elif line.get("event") == "end":
            _of_rollout(found, line).finished = True
        elif "status" in line:
            completed.add(line["request_id"])
        if len(completed) > _COMPLETED_KEPT:  # what is answered needs no memory
            requested, completed = requested - completed, completed - requested
    tries = sorted(found.values(), key=lambda rollout: rollout.started)
    finished = tuple(rollout for rollout in tries if rollout.finished)
    unfinished = tuple(rollout for rollout in tries if not rollout.finished)
    return QueryLog(finished, requests, len(requested - completed), unfinished)


def _of_rollout(found: dict[str, RolloutLog], line: Mapping[str, Any]) -> RolloutLog:
    rollout_id = str(line["rollout_id"])
    if rollout_id not in found:
        found[rollout_id] = RolloutLog(
            rollout_id,
            str(line.get("split", "")),
            str(line["task_id"]),
            str(line["chain_id"]),
            line.get("model_version"),
            bool(line.get("training", False)),
        )
    rollout = found[rollout_id]
    rollout.started = min(rollout.started, float(line.get("ts", 0.0)))
    return rollout


def _entry(text: bytes) -> Mapping[str, Any]:
    """The object of one line. Raises ValueError for what the audit does not write."""
    line = parse_row(text)
    if missing := [key for key in _needed(line) if key not in line]:
        raise ValueError(f"{', '.join(missing)} missing; is this an audit log?")
    if wrong := [key for key in _TEXTS if not isinstance(line.get(key, ""), str)]:
        raise ValueError(f"{', '.join(wrong)} is no text; is this an audit log?")
    if not isinstance(line.get("ts", 0.0), int | float):
        raise ValueError(f"ts={line['ts']!r} is no time; is this an audit log?")
    return line


def _needed(line: Mapping[str, Any]) -> tuple[str, ...]:
    if "query" in line:
        return "request_id", "rollout_id", "task_id", "chain_id"
    if "status" in line:
        return ("request_id",)
    return ("rollout_id", "task_id", "chain_id") if line.get("event") in ("rollout", "end") else ()
