"""Texts that are ready to be trained on, and the choice of exactly B of them for a step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from pipelinerl.finetune.rl.batch import UNSAMPLED
from pipelinerl.finetune.rl.text_table import NONE, TextTable
from pipelinerl.preprocess.validate import Record
from pipelinerl.rollouts import MASKED_TOKEN_ID
from pipelinerl.run_state.accounting import rollout_id


@dataclass(slots=True)
class ReadyText:
    """One text after advantages and filter.

    input_ids, labels int32 `[L]`; logprobs, ref_logprobs float32 and versions int32 `[labels]`.
    """

    group_id: str
    rollout_index: int
    step_index: int
    input_ids: np.ndarray
    labels: np.ndarray
    logprobs: np.ndarray
    ref_logprobs: np.ndarray
    versions: np.ndarray
    reward: float
    advantage: float
    group_tokens: float
    overflow: bool
    loss_weight: float
    role: str | None
    situation: str | None
    loss_scale: float = 1.0
    kl_scale: float = 1.0

    @property
    def rollout(self) -> str:
        return rollout_id(self.group_id, self.rollout_index)

    @property
    def trainable_labels(self) -> int:
        """Labels that have a predictor: all but one on the first token."""
        return len(self.logprobs) - int(self.labels[0] != MASKED_TOKEN_ID)


def versions_of(record: Record, n_labels: int) -> np.ndarray:
    """Version of each labelled token, int32 `[labels]`; UNSAMPLED where nobody noted one."""
    versions = np.full(n_labels, UNSAMPLED, np.int32)
    spans = record.get("weight_versions") or []
    for version, start, end in spans:
        versions[start:end] = version
    fallback = (record.get("metadata") or {}).get("model_version")
    if not spans and fallback is not None:
        versions[:] = fallback
    return versions


def scale_table(texts: list[ReadyText]) -> TextTable:
    """The columns that loss weights need, for the texts of one step."""
    groups: dict[str, int] = {}
    roles: dict[str, int] = {}
    n = len(texts)
    zeros, nothing = np.zeros(n, np.int64), np.full(n, np.nan)
    role = [NONE if t.role is None else roles.setdefault(t.role, len(roles)) for t in texts]
    return TextTable(
        group=np.array([groups.setdefault(t.group_id, len(groups)) for t in texts], np.int64),
        rollout=np.array([t.rollout_index for t in texts], np.int64),
        step=np.array([t.step_index for t in texts], np.int64),
        reward=np.array([t.reward for t in texts]),
        n_tokens=np.array([len(t.input_ids) for t in texts], np.int64),
        situation=np.full(n, NONE, np.int64),
        local_index=zeros,
        segment_length=zeros,
        pooled=np.zeros(n, bool),
        padding_value=nothing,
        padding_reward=nothing,
        role=np.array(role, np.int64),
        loss_weight=np.array([t.loss_weight for t in texts]),
        masked=np.zeros(n, bool),
        group_names=tuple(groups),
        situation_names=(),
        role_names=tuple(roles),
    )


class ReadyBuffer:
    """Ready texts by rollout, oldest rollout first."""

    def __init__(self) -> None:
        self._rollouts: OrderedDict[str, list[ReadyText]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ReadyText]:
        return chain.from_iterable(self._rollouts.values())

    def add(self, texts: Iterable[ReadyText]) -> None:
        for text in texts:
            self._rollouts.setdefault(text.rollout, []).append(text)
            self._count += 1

    def remove(self, unwanted: Callable[[ReadyText], bool]) -> list[ReadyText]:
        """Take out and return the texts for which `unwanted` holds."""
        removed: list[ReadyText] = []
        for name in list(self._rollouts):
            kept: list[ReadyText] = []
            for text in self._rollouts[name]:
                (removed if unwanted(text) else kept).append(text)
            self._replace(name, kept)
        self._count -= len(removed)
        return removed

    def remove_oldest(self, limit: int) -> list[ReadyText]:
        """Take out the oldest rollouts until at most `limit` texts remain."""
        removed: list[ReadyText] = []
        while self._count > limit:
            _, texts = self._rollouts.popitem(last=False)
            removed += texts
            self._count -= len(texts)
        return removed

    def take(self, n: int) -> tuple[list[ReadyText], int]:
        """Exactly `n` texts, whole rollouts where that works out, and the number of rollouts cut.

        Oldest first; a rollout that no longer fits is passed over for a younger one that does, and only if
        none does the oldest left is cut. Raises ValueError when fewer than `n` texts are here.
        """
        if n > self._count:
            raise ValueError(f"{n} texts were asked for, {self._count} are ready")
        taken: list[ReadyText] = []
        for name in list(self._rollouts):
            texts = self._rollouts[name]
            if len(taken) + len(texts) <= n:
                taken += texts
                del self._rollouts[name]
            if len(taken) == n:
                break
        split = 0
        if len(taken) < n:
            name = next(iter(self._rollouts))
            missing = n - len(taken)
            taken += self._rollouts[name][:missing]
            self._rollouts[name] = self._rollouts[name][missing:]
            split = 1
        self._count -= n
        return taken, split

    def _replace(self, name: str, texts: list[ReadyText]) -> None:
        if texts:
            self._rollouts[name] = texts
        else:
            del self._rollouts[name]
