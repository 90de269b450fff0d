"""A packed micro-batch, the record of the `training_data` stream; numpy and plain values, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from pipelinerl.rollouts import MASKED_TOKEN_ID

UNSAMPLED = -1
"""Token version of tokens that no engine sampled (prompts)."""


@dataclass(slots=True)
class PipelineBatchEncoding:
    """One packed micro-batch, all token columns `[1, L]`.

    Columns at position t belong to token t, which the logits at t-1 predict. int32: input_ids, labels,
    position_ids, segment_ids, attention_mask, token_versions (UNSAMPLED on prompts); float32: the rest.
    seq_boundaries int32 `[n + 1]`. text_ids holds [group_id, rollout_index, step_index] per text. `step`
    is the 0-based optimizer step, step_texts the texts of that step over all ranks (B); is_last marks the
    last micro-batch of a step for its rank.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    segment_ids: np.ndarray
    seq_boundaries: np.ndarray
    rewards: np.ndarray
    advantages: np.ndarray
    ref_logprobs: np.ndarray
    old_logprobs: np.ndarray
    group_tokens: np.ndarray
    num_labels: np.ndarray
    overflow: np.ndarray
    loss_weight_scale: np.ndarray
    kl_weight_scale: np.ndarray
    token_versions: np.ndarray
    text_ids: list[list[Any]]
    step: int
    step_texts: int
    is_last: bool = True
    model_version: int = 0
    roles: list[str | None] = field(default_factory=list)
    situations: list[str | None] = field(default_factory=list)
    sentinel: bool = False
    padding: int = 0
    is_packed: bool = True
    attention_mask: np.ndarray | None = None
    pixel_values: None = None
    image_grid_thw: None = None

    @property
    def n_texts(self) -> int:
        return len(self.text_ids)

    @property
    def n_tokens(self) -> int:
        return int(self.input_ids.shape[-1])

    def to_record(self) -> dict[str, Any]:
        """A tree of plain values and arrays for the `training_data` stream."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        return record | {"n_texts": self.n_texts}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> PipelineBatchEncoding:
        """Read a record of the `training_data` stream; raises ValueError when a column is missing."""
        known = {f.name: f for f in fields(cls)}
        values = {name: record[name] for name in known if name in record}
        try:
            batch = cls(**values)
        except TypeError as error:
            raise ValueError(f"a training_data record is incomplete: {error}") from error
        batch.check()
        return batch

    def check(self) -> None:
        """Raise ValueError when token columns disagree in shape or boundaries do not fit."""
        shape = self.input_ids.shape
        for name in TOKEN_COLUMNS:
            if getattr(self, name).shape != shape:
                raise ValueError(
                    f"training_data column {name} has shape {getattr(self, name).shape}, expected {shape}"
                )
        covered = self.seq_boundaries[-1] == shape[-1] and len(self.seq_boundaries) == self.n_texts + 1
        if not covered and not self.sentinel:
            raise ValueError(
                f"seq_boundaries {self.seq_boundaries.tolist()[-3:]} do not cover {shape[-1]} tokens "
                f"in {self.n_texts} texts"
            )


TOKEN_COLUMNS = (
    "labels",
    "position_ids",
    "segment_ids",
    "rewards",
    "advantages",
    "ref_logprobs",
    "old_logprobs",
    "group_tokens",
    "num_labels",
    "overflow",
    "loss_weight_scale",
    "kl_weight_scale",
    "token_versions",
)
SENTINEL_TOKENS = 8


def sentinel_batch(step: int, step_texts: int) -> PipelineBatchEncoding:
    """A micro-batch of 8 tokens without labels for a rank that has no text in this step."""
    zeros = np.zeros((1, SENTINEL_TOKENS), np.float32)
    ids = np.zeros((1, SENTINEL_TOKENS), np.int32)
    values: dict[str, Any] = dict.fromkeys(TOKEN_COLUMNS, zeros)
    return PipelineBatchEncoding(
        **values
        | {
            "input_ids": ids,
            "labels": np.full_like(ids, MASKED_TOKEN_ID),
            "position_ids": np.arange(SENTINEL_TOKENS, dtype=np.int32)[None],
            "segment_ids": ids,
            "token_versions": np.full_like(ids, UNSAMPLED),
            "group_tokens": zeros + 1,
            "num_labels": zeros + 1,
        },
        seq_boundaries=np.array([0, SENTINEL_TOKENS], np.int32),
        text_ids=[],
        step=step,
        step_texts=step_texts,
        sentinel=True,
    )
