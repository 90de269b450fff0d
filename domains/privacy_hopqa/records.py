"""Local records of a run: one line of numbers per rollout, and the full trace of a sampled fraction.

`<output_dir>/rollouts/<process>.jsonl` feeds the report; `<output_dir>/traces/<process>.jsonl` holds prompts
and answers, is off by default (`trace_fraction: 0`) and never leaves the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.audit import RolloutIdentity
from domains.privacy_hopqa.metrics import PrivacyHopQAMetrics
from domains.privacy_hopqa.trace import Episode

ROLLOUTS = "rollouts"
TRACES = "traces"
_KEPT = (
    "reward",
    "success",
    "well_formed",
    "no_error",
    "correct_hops",
    "total_hops",
    "web_queries",
    "leak",
    "leak_intent",
    "leak_answer",
    "leak_full",
)


class Records:
    """Writes the records of one process."""

    def __init__(self, output_dir: Path, trace_fraction: float) -> None:
        self._output_dir = output_dir
        self._trace_fraction = trace_fraction

    def write(self, identity: RolloutIdentity, metrics: PrivacyHopQAMetrics, episode: Episode) -> None:
        """Append the rollout's line, and its trace if it is among the sampled ones. Raises OSError."""
        values = metrics.model_dump(include=set(_KEPT))
        self._append(ROLLOUTS, asdict(identity) | values)
        if sampled(identity.rollout_id, self._trace_fraction):
            self._append(TRACES, asdict(identity) | {"calls": [_call(record) for record in episode.calls]})

    def _append(self, folder: str, line: dict[str, Any]) -> None:
        path = self._output_dir / folder / f"{os.getpid()}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _call(record: Any) -> dict[str, Any]:
    return {
        "stage": str(record.stage),
        "hop": record.hop_number,
        "iteration": record.iteration,
        "situation": record.situation,
        "error": str(record.error) if record.error else None,
        "prompt": record.prompt,
        "text": record.text,
    }


def sampled(rollout_id: str, fraction: float) -> bool:
    """Whether this rollout is among the given fraction; the same answer every time."""
    digest = hashlib.sha256(rollout_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def read_rollouts(output_dir: Path) -> Iterator[dict[str, Any]]:
    """The lines of all processes; a torn last line is left out."""
    for path in sorted((output_dir / ROLLOUTS).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)
