"""From values per text to values per token, and whether a text was cut off."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from pipelinerl.rollouts import MASKED_TOKEN_ID

_NOT_CUT = frozenset({"stop", "content_filter"})


def count_labels(labels: Any) -> int:
    """Number of labels that are learned, of a list or an integer array."""
    if isinstance(labels, np.ndarray):
        return int(np.count_nonzero(labels != MASKED_TOKEN_ID))
    return len(labels) - labels.count(MASKED_TOKEN_ID)


def is_overflow(text: Mapping[str, Any], eos_token_ids: Collection[int] = ()) -> bool:
    """Whether generation was cut by length or context.

    Decided by the finish reason, then by `finished`, then by an end-of-sequence id among the labelled
    tokens; the prompt never decides.
    """
    reason = text.get("finish_reason") or (text.get("metadata") or {}).get("finish_reason")
    reason = str(reason).strip().lower() if reason is not None else ""
    if reason == "length":
        return True
    if reason in _NOT_CUT or text.get("finished"):
        return False
    labels = np.asarray(text["labels"])
    return not any(bool((labels == eos).any()) for eos in eos_token_ids)


def expand(values: np.ndarray, lengths: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Repeat each text's values over its tokens: `[C, N]` and int `[N]` to float32 `[C, sum(lengths)]`.

    `out`, float32 of at least that width, is reused; what is returned is then a view of it.
    """
    total = int(lengths.sum())
    if out is None or out.shape[1] < total:
        out = np.empty((len(values), total), np.float32)
    columns = np.ascontiguousarray(values.T, dtype=np.float32)
    at = 0
    for column, length in zip(columns, lengths.tolist()):
        out[:, at : at + length] = column[:, None]
        at += length
    return out[:, :total]
