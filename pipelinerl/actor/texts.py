"""From what a domain returns to what is published: checked, labelled and stamped."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelinerl.rollouts import MASKED_TOKEN_ID, BaseMetrics, TrainingText, VersionSpan
from pipelinerl.situations import emit_situations


@dataclass(frozen=True)
class Stamp:
    """Where texts come from. `version` was announced when the rollout started."""

    group_id: str
    rollout_index: int
    version: int
    frozen: int | None = None
    """Version of the engines' weights where no trainer sends any, so that engines know of none."""


def stamped_records(texts: Sequence[TrainingText], stamp: Stamp) -> tuple[list[dict[str, Any]], int]:
    """Records of a rollout's texts in step order, and how many have lower bounds for versions.

    Raises ValueError naming the text for anything the trainer could not learn from: arrays that disagree,
    numbers that are not finite, versions that do not cover the output.
    """
    rollout = f"{stamp.group_id}/{stamp.rollout_index}"
    emit_situations(texts, rollout)
    inexact = 0
    for step, text in enumerate(texts):
        name = f"{rollout}/{step}"
        _check_numbers(text, name)
        outputs = _check_lengths(text, name)
        if stamp.frozen is not None:
            text.weight_versions = [(stamp.frozen, 0, outputs)]
        if text.weight_versions:
            _check_spans(text.weight_versions, outputs, name)
        else:
            # A text not made of an engine's answer: every token is at least as new as the rollout's start.
            text.weight_versions = [(stamp.version, 0, outputs)]
            text.metadata["exact_versions"] = False
        inexact += text.metadata.get("exact_versions") is False
        text.group_id = stamp.group_id
        text.metadata["group_id"] = stamp.group_id
        text.metadata["rollout_index"] = stamp.rollout_index
        text.metadata["step_index"] = step
        text.metadata["model_version"] = min(version for version, _, _ in text.weight_versions)
    return [text.to_record() for text in texts], inexact


def _check_numbers(text: TrainingText, name: str) -> None:
    if not math.isfinite(text.reward):
        raise ValueError(f"text {name}: reward is {text.reward}, expected a finite number")
    if not math.isfinite(text.loss_weight):
        raise ValueError(f"text {name}: loss_weight is {text.loss_weight}, expected a finite number >= 0")
    if not np.isfinite(text.logprobs).all():
        raise ValueError(f"text {name}: a log-probability is not finite")


def _check_lengths(text: TrainingText, name: str) -> int:
    """The number of labelled tokens."""
    if len(text.input_ids) != len(text.labels):
        raise ValueError(f"text {name}: {len(text.input_ids)} input_ids but {len(text.labels)} labels")
    outputs = int(np.count_nonzero(text.labels != MASKED_TOKEN_ID))
    if outputs == 0:
        raise ValueError(f"text {name}: no label is learnt; leave such a text out of training_texts")
    if len(text.logprobs) != outputs:
        raise ValueError(f"text {name}: {len(text.logprobs)} logprobs but {outputs} labelled tokens")
    return outputs


def _check_spans(spans: Sequence[VersionSpan], outputs: int, name: str) -> None:
    end = 0
    for version, start, stop in spans:
        if start != end or stop <= start or version < 0:
            raise ValueError(f"text {name}: weight_versions {list(spans)} are not contiguous spans")
        end = stop
    if end != outputs:
        raise ValueError(f"text {name}: weight_versions cover {end} of {outputs} output tokens")


def metric_values(metrics: BaseMetrics) -> dict[str, float | list[float]]:
    """Numbers of a metrics object; absent ones (None) are left out. Raises ValueError for anything else."""
    values: dict[str, float | list[float]] = {}
    for name, value in metrics:
        if value is None:
            continue
        if isinstance(value, list | tuple):
            values[name] = [float(item) for item in value]
        elif isinstance(value, bool | int | float | np.generic):
            values[name] = float(value)
        else:
            raise ValueError(
                f"metric {name} is a {type(value).__name__}, expected float, int, bool or a list of them"
            )
    return values
