"""The log of outbound web queries: one line before each request attempt leaves, one when it ended.

A rollout has a line when it begins and one when it was evaluated; a try that was given up lacks the latter.
Files are `<output_dir>/audit/<process>.jsonl`, append-only and local; they hold queries but no document text.
Leakage evaluation reads them and nothing else.
"""

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from domains.privacy_hopqa.agent.errors import AuditFailure
from domains.privacy_hopqa.agent.interfaces import Search
from domains.privacy_hopqa.agent.private_lines import PrivateLines

FOLDER = "audit"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutIdentity:
    """Whose requests these are. `rollout_id` is unique, also among retries of one rollout."""

    run_id: str
    rollout_id: str
    group_id: str | None
    training: bool
    split: str
    task_id: str
    chain_id: str
    model_version: int | None


class AuditLog(PrivateLines):
    """The log of one process. With `required`, a line that cannot be written raises AuditFailure."""

    def __init__(self, path: Path, required: bool = True) -> None:
        super().__init__(path)
        self._required = required
        self._warned = False

    @classmethod
    def of_run(cls, output_dir: Path, required: bool = True) -> "AuditLog":
        """The log of this process in a run's folder."""
        return cls(output_dir / FOLDER / f"{os.getpid()}.jsonl", required)

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one line. Raises AuditFailure if that is required and not possible."""
        try:
            super().append(line)
        except OSError as error:
            message = (
                f"the audit log {self.path} cannot be written ({error}); free space or set audit_required"
            )
            if self._required:
                raise AuditFailure(message) from None
            if not self._warned:
                self._warned = True
                logger.warning("%s", message)


@dataclass(slots=True)
class Attempt:
    """One request under way; its sender notes how many hits came."""

    n_hits: int | None = None


class Audit:
    """The audit of one rollout."""

    def __init__(self, log: AuditLog, identity: RolloutIdentity) -> None:
        self._log = log
        self._identity = asdict(identity)

    def announce(self) -> None:
        """Note that the rollout began, so that one without web requests is counted too."""
        self._log.append({"event": "rollout", "ts": time.time(), **self._identity})

    def end(self) -> None:
        """Note that the rollout was evaluated, so that a try which was given up is told from it."""
        self._log.append({"event": "end", "ts": time.time(), **self._identity})

    @contextmanager
    def attempt(self, search: Search) -> Iterator[Attempt]:
        """Log before the block sends its request, and how it ended. Raises AuditFailure before the block."""
        request_id = uuid4().hex
        self._log.append(
            {
                "ts": time.time(),
                "request_id": request_id,
                **self._identity,
                "hop_number": search.hop_number,
                "iteration": search.iteration,
                "action_id": search.action_id,
                "query": search.query,
                "query_sha256": hashlib.sha256(search.query.encode("utf-8", "replace")).hexdigest(),
                "k": search.k,
            }
        )
        start = time.perf_counter()
        attempt = Attempt()
        status = "error"
        try:
            yield attempt
            status = "ok"
        except BaseException as error:
            status = type(error).__name__
            raise
        finally:
            self._log.append(
                {
                    "ts": time.time(),
                    "request_id": request_id,
                    "status": status,
                    "n_hits": attempt.n_hits,
                    "latency_ms": round(1000 * (time.perf_counter() - start), 3),
                }
            )
