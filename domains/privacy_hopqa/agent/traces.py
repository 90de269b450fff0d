"""Full traces of a sampled fraction of rollouts, for people: `<output_dir>/traces/<process>.jsonl`.

They hold prompts and answers, are off by default (`trace_fraction: 0`) and never leave the machine.
"""

import hashlib
import os
from dataclasses import asdict
from pathlib import Path

from domains.privacy_hopqa.agent.audit import RolloutIdentity
from domains.privacy_hopqa.agent.episode import CallRecord, Episode
from domains.privacy_hopqa.agent.private_lines import PrivateLines

FOLDER = "traces"


class Traces:
    """Writes the traces of one process."""

    def __init__(self, output_dir: Path, fraction: float) -> None:
        self._lines = PrivateLines(output_dir / FOLDER / f"{os.getpid()}.jsonl")
        self._fraction = fraction

    def write(self, identity: RolloutIdentity, episode: Episode) -> None:
        """Append the rollout's trace if it is among the sampled ones. Raises OSError."""
        if not sampled(identity.rollout_id, self._fraction):
            return
        self._lines.append(
            asdict(identity)
            | {
                "answers": episode.answers,
                "searches": episode.searches,
                "transitions": [asdict(transition) for transition in episode.transitions],
                "calls": [_call(record) for record in episode.calls],
            }
        )


def _call(record: CallRecord) -> dict[str, str | int | None]:
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
