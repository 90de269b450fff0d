"""Rollouts that block their worker's event loop: written by the worker, said by the launcher.

While a loop is blocked its worker can send nothing; a thread of it writes a file.
"""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pipelinerl.base.files import write_whole

log = logging.getLogger(__name__)

NAME = "blocked.json"
SAID_EVERY_S = 60.0
"""Of one worker, however often it is blocked meanwhile."""


def write_block(output_dir: Path, role: str, block: dict[str, Any]) -> None:
    """Keep a worker's latest block: `who`, `where`, `since` and, once over, `until` (seconds since 1970)."""
    try:
        write_whole(output_dir / role / NAME, msgspec.json.encode(block) + b"\n")
    except OSError as error:  # the log has it; what matters on this disk will say so by itself
        log.warning("%s cannot be written: %s", output_dir / role / NAME, error)


class BlockWatch:
    """Lines about blocked workers, first as they are noticed and then once a minute while it goes on."""

    def __init__(self, output_dir: Path, now: float | None = None) -> None:
        """What was blocked before `now`, in seconds since 1970, was so in an earlier start."""
        self._output_dir, self._began = output_dir, time.time() if now is None else now
        self._said: dict[str, tuple[float, float]] = {}
        """By worker: when it was said last, and the beginning of that block."""

    def lines(self, now: float | None = None) -> Iterator[str]:
        """What is to be said at this moment."""
        now = time.time() if now is None else now
        for path in sorted(self._output_dir.glob(f"actor/worker_*/{NAME}")):
            try:
                block = msgspec.json.decode(path.read_bytes())
                since, until = float(block["since"]), block.get("until")
                line = self._line(path.parent.name, since, until, now)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # a file that is no block; the worker's log has what it was
            if line is not None:
                remedy = "await, or make the rollout a plain function"
                yield f"{line} by {block['who']} at {block['where']}; {remedy}"

    def _line(self, worker: str, since: float, until: float | None, now: float) -> str | None:
        said_at, said_of = self._said.get(worker, (0.0, 0.0))
        told = since == said_of and until is not None
        if since < self._began or told or now - said_at < SAID_EVERY_S:
            return None
        self._said[worker] = (now, since)
        state = "is" if until is None else "was"
        return f"rollout {worker.replace('_', ' ')} {state} blocked for {(until or now) - since:.0f} s"
