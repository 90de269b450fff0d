"""Samples as columns: what advantage estimators and loss weights compute with.

Made by preprocess, for the samples of a chunk and again for those of an optimizer step. The samples are valid
(`finetune/rl/sample.py`), so nothing is checked here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from pipelinerl.finetune.rl.sample import Sample

NONE = -1
"""Code of an absent situation or role."""


@dataclass(frozen=True, slots=True)
class SampleTable:
    """N samples. Codes index the tuples of names.

    group, rollout, step, n_tokens, situation, local_index, segment_length, role: int64 `[N]`;
    reward, padding_value, padding_reward (NaN = absent), loss_weight: float64 `[N]`.
    """

    group: np.ndarray
    rollout: np.ndarray
    step: np.ndarray
    reward: np.ndarray
    n_tokens: np.ndarray
    situation: np.ndarray
    local_index: np.ndarray
    segment_length: np.ndarray
    padding_value: np.ndarray
    padding_reward: np.ndarray
    role: np.ndarray
    loss_weight: np.ndarray
    group_names: tuple[str, ...]
    situation_names: tuple[str, ...]
    role_names: tuple[str, ...]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "SampleTable":
        """One row per sample, in order; their places must have been settled."""
        group, group_names = _encode([s.group_id for s in samples])
        situation, situation_names = _encode([s.situation for s in samples])
        role, role_names = _encode([s.role for s in samples])
        return cls(
            group=group,
            rollout=np.array([s.rollout_index for s in samples], np.int64),
            step=np.array([s.step_index for s in samples], np.int64),
            reward=np.array([s.reward for s in samples], np.float64),
            n_tokens=np.array([len(s.input_ids) for s in samples], np.int64),
            situation=situation,
            local_index=np.array([s.local_index or 0 for s in samples], np.int64),
            segment_length=np.array([s.segment_length or 0 for s in samples], np.int64),
            # numpy reads None as NaN
            padding_value=np.array([s.padding_value for s in samples], np.float64),
            padding_reward=np.array([s.padding_reward for s in samples], np.float64),
            role=role,
            loss_weight=np.array([s.loss_weight for s in samples], np.float64),
            group_names=group_names,
            situation_names=situation_names,
            role_names=role_names,
        )

    def __len__(self) -> int:
        return len(self.group)

    def select(self, rows: np.ndarray) -> "SampleTable":
        """The rows of a boolean mask or an index array."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return SampleTable(**{k: v[rows] if isinstance(v, np.ndarray) else v for k, v in values.items()})

    def name(self, row: int) -> str:
        """`group/rollout/step`, as messages write it."""
        return f"{self.group_names[self.group[row]]}/{self.rollout[row]}/{self.step[row]}"

    def rollout_codes(self) -> np.ndarray:
        """int64 `[N]`, equal for samples of the same rollout."""
        return codes_of(self.group, self.rollout)


def codes_of(*columns: np.ndarray) -> np.ndarray:
    """Number the distinct rows of int64 columns: 0.. in lexicographic order, int64 `[N]`."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, column_codes = np.unique(column, return_inverse=True)
        combined = codes * (int(column_codes.max(initial=0)) + 1) + column_codes
        _, codes = np.unique(combined, return_inverse=True)
    return codes


def _encode(values: Sequence[str | None]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes int64 `[N]` in order of first appearance; NONE for None."""
    codes: dict[str, int] = {}
    column = [NONE if value is None else codes.setdefault(value, len(codes)) for value in values]
    return np.asarray(column, np.int64), tuple(codes)
