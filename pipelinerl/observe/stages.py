"""Is the run getting anywhere, and if not, which stage holds up the others?

Every role writes what it waits for (`status.json`). Data flows one way, so the stage that is stuck is the
first one, seen from the trainer, that does not wait for data from the stage before it.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelinerl.base.waits import StallDetector, WaitExpired
from pipelinerl.observe.history import read_status

Status = Mapping[str, Mapping[str, Any]]
WAITS_FOR_DATA = {"finetune": "samples of step", "preprocess": "groups of rollouts"}
"""How the wait for the stage before begins, for the stages that have one."""


def stuck_stage(status: Status) -> str:
    """The stage that holds up the run and what it does, from the status of each role."""
    for role in ("finetune", "preprocess"):
        if role in status:
            wait = longest_wait(status[role])
            if not wait.startswith(WAITS_FOR_DATA[role]):
                return f"{role} waits for {wait}" if wait else f"{role} is busy and does not come to an end"
    actor = status.get("actor")
    if actor is None:
        return "actor has not begun"
    if wait := longest_wait(actor):
        return f"actor waits for {wait}"
    out = f"; engines out of rotation: {actor['engines_out']}" if actor.get("engines_out") else ""
    return f"actor: {actor.get('active', 0)} rollouts are in flight and none ends{out}"


def longest_wait(status: Mapping[str, Any]) -> str:
    """The name of the longest of a role's waits, empty without any."""
    waits = status.get("waits") or []
    return str(max(waits, key=lambda wait: wait["waited_s"])["name"]) if waits else ""


def progress_trace(output_dir: Path) -> tuple[int, ...]:
    """Sizes of the files that grow with every rollout and every step."""
    files = [*sorted((output_dir / "accounting").glob("*.jsonl"))]
    files += [output_dir / role / "metrics.jsonl" for role in ("finetune", "preprocess", "actor")]
    return tuple(path.stat().st_size if path.exists() else 0 for path in files)


class ProgressWatch:
    """Raises WaitExpired once no rollout and no optimizer step has left a trace for `deadline_s` seconds."""

    def __init__(self, output_dir: Path, deadline_s: float) -> None:
        self._output_dir, self._deadline_s = output_dir, deadline_s
        self._began = time.time()
        self._stall = StallDetector(None, 0.0)

    def check(self, now: float) -> None:
        """Look at the rollout accounting and the metrics; call it every few seconds with a monotonic time."""
        if self._stall.look(progress_trace(self._output_dir), now) >= self._deadline_s:
            stuck = stuck_stage(self._status())
            raise WaitExpired("a rollout or an optimizer step", self._deadline_s, stuck)

    def _status(self) -> Status:
        """What the roles of this start say; files of an earlier one are left out."""
        return read_status(self._output_dir, since=self._began)
