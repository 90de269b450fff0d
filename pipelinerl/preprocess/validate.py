"""Which texts of a group can be trained on. A bad text or group is a counted reason, never a crash."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelinerl.rollouts import MASKED_TOKEN_ID

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a text has to fit: vocabulary, tokens per packed row, rollouts per group."""

    vocab_size: int
    seq_length: int
    attempts: int
    needs_versions: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """Texts to go on with, and the others with their reason, both in the order of the group."""

    kept: list[Record]
    dropped: list[tuple[Record, str]]


def metadata_of(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text's metadata; nothing where there is none."""
    metadata = text.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def check_group(texts: Sequence[Record], limits: Limits) -> Checked:
    """Check one group; an error in its bookkeeping drops all of it, an error in a text that text."""
    reason = group_problem(texts, limits)
    if reason:
        return Checked([], [(text, reason) for text in texts])
    kept: list[Record] = []
    dropped: list[tuple[Record, str]] = []
    for text in texts:
        reason = text_problem(text, limits)
        if reason:
            dropped.append((text, reason))
        else:
            kept.append(text)
    return Checked(kept, dropped)


def group_problem(texts: Sequence[Mapping[str, Any]], limits: Limits) -> str:
    """`duplicate_index`, `foreign_index` or `foreign_group`; empty when the group is in order."""
    seen: set[tuple[int, int]] = set()
    for text in texts:
        metadata = metadata_of(text)
        rollout, step = metadata.get("rollout_index"), metadata.get("step_index")
        if not isinstance(rollout, int) or not isinstance(step, int):
            return "foreign_index"
        if not 0 <= rollout < limits.attempts or step < 0:
            return "foreign_index"
        if (rollout, step) in seen:
            return "duplicate_index"
        seen.add((rollout, step))
        if text.get("group_id") is None or text["group_id"] != texts[0].get("group_id"):
            return "foreign_group"
    return ""


def text_problem(text: Mapping[str, Any], limits: Limits) -> str:
    """The reason why a text cannot be trained on; empty when it can."""
    try:
        return _text_problem(text, limits)
    except (KeyError, TypeError, ValueError, OverflowError):
        return "malformed"


def _text_problem(text: Mapping[str, Any], limits: Limits) -> str:
    """As `text_problem`; raises when a field is missing or has a shape or type that no text has."""
    ids, labels = _vector(text["input_ids"], "iu"), _vector(text["labels"], "iu")
    logprobs = _vector(text["logprobs"], "fiu")
    learned = labels != MASKED_TOKEN_ID
    n_labels = int(np.count_nonzero(learned))
    if len(ids) > limits.seq_length:
        return "oversize"
    if len(ids) != len(labels) or n_labels != len(logprobs) or (labels[learned] != ids[learned]).any():
        return "label_mismatch"
    if n_labels == 0 or (n_labels == 1 and learned[0]):
        return "no_labels"
    if int(ids.min()) < 0 or int(ids.max()) >= limits.vocab_size:
        return "foreign_id"
    if not math.isfinite(text.get("reward", 0.0)) or not np.isfinite(logprobs).all():
        return "not_finite"
    return _version_problem(text, n_labels, limits.needs_versions)


def _vector(values: Any, kinds: str) -> np.ndarray:
    """One-dimensional array of the given numpy kinds; an empty list has no type yet and passes."""
    array = np.asarray(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in kinds):
        raise TypeError(f"shape {array.shape}, type {array.dtype}")
    return array if len(array) else array.astype(np.int32)


def _version_problem(text: Mapping[str, Any], n_labels: int, needed: bool) -> str:
    spans = text.get("weight_versions") or []
    if not spans:
        missing = metadata_of(text).get("model_version") is None
        return "no_version" if missing and needed else ""
    at, last = 0, -1
    for version, start, end in spans:
        if start != at or end <= start or version < last:
            return "bad_versions"
        at, last = end, version
    return "" if at == n_labels else "bad_versions"
