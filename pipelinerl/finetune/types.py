"""Counters of the trainer that survive a restart, and the micro-batch under the name upstream gave it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pipelinerl.finetune.rl.batch import PipelineBatchEncoding

__all__ = ["PipelineBatchEncoding", "TrainingMetrics"]


@dataclass(slots=True)
class TrainingMetrics:
    """Counters that survive a restart. Times in seconds, `samples` in texts; a version is `samples`."""

    epoch: int = 0
    passes: int = 0
    completed_steps: int = 0
    samples: int = 0
    tokens: int = 0
    """Of all texts, prompts included."""
    sampled_tokens: int = 0
    """Those that were trained."""
    last_broadcasted_version: int = 0
    samples_too_old_to_queue: int = 0
    samples_too_old_to_train: int = 0
    tokens_too_old_to_train: int = 0
    train_loss: float = 0.0
    grad_norm: float = 0.0
    lr: float = 0.0
    max_actor_version: int = 0
    min_actor_version: int = 0
    time_waiting_for_data: float = 0.0
    total_time: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainingMetrics":
        """Raises ValueError for a counter this version does not know."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"training metrics hold unknown counters: {', '.join(unknown)}")
        return cls(**dict(values))
