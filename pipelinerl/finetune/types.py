"""Counters of the trainer that survive a restart, and the micro-batch under the name upstream gave it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from pipelinerl.finetune.rl.batch import PipelineBatchEncoding

if TYPE_CHECKING:  # domains import this module, and must not wait for torch
    from pipelinerl.finetune.metrics import StepStatistics

_SUMMARY_ONLY = ("train_loss", "last_broadcasted_version", "total_time")
"""Counters that are no metric of a step."""
__all__ = ["PipelineBatchEncoding", "TrainingMetrics"]


@dataclass(slots=True)
class TrainingMetrics:
    """Counters that survive a restart. Times in seconds, `samples` in samples; a version is `samples`."""

    epoch: int = 0
    passes: int = 0
    completed_steps: int = 0
    samples: int = 0
    tokens: int = 0
    """Of all samples, prompts included."""
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

    def count(self, step: "StepStatistics", grad_norm: float, dropped_in_queue: int) -> None:
        """Add a step of all ranks; `dropped_in_queue` samples were too old before the trainer got them."""
        self.completed_steps += 1
        self.passes += len(step.tokens)
        self.samples += step.texts
        self.tokens += sum(step.tokens)
        self.sampled_tokens += step.lags.total() - step.masked["overlong"]
        self.samples_too_old_to_queue += dropped_in_queue
        self.samples_too_old_to_train += step.stale_texts
        self.tokens_too_old_to_train += step.stale_tokens
        self.grad_norm = grad_norm
        self.min_actor_version = min(step.versions, default=self.min_actor_version)
        self.max_actor_version = max(step.versions, default=self.max_actor_version)
        self.time_waiting_for_data += step.waited_s
        self.total_time += step.waited_s + step.worked_s

    def metrics(self) -> dict[str, Any]:
        """The counters that each record of the trainer has."""
        return {f"stats/{name}": v for name, v in self.to_dict().items() if name not in _SUMMARY_ONLY}

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
