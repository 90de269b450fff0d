"""A packed micro-batch, the record of the `training_data` stream: how it is made of samples, and read.

Preprocess calls `assemble_step` for the samples of one optimizer step; the trainer reads each record with
`PipelineBatchEncoding.from_record`. Numpy and plain values, no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from pipelinerl.finetune.rl.packing import balance, pack
from pipelinerl.finetune.rl.prefix_packing import pack_prefixes
from pipelinerl.finetune.rl.routes import routes_of_row
from pipelinerl.finetune.rl.sample import UNSAMPLED, Sample
from pipelinerl.modeling.prefixes import Prefixes, shared_with_previous
from pipelinerl.rollouts import MASKED_TOKEN_ID


@dataclass(slots=True)
class PipelineBatchEncoding:
    """One packed micro-batch, all token columns `[1, L]`.

    Columns at position t belong to token t, which the logits at t-1 predict. int32: input_ids, labels,
    position_ids, segment_ids, attention_mask, token_versions (UNSAMPLED on prompts); float32: the rest.
    seq_boundaries int32 `[n + 1]`. text_ids holds [group_id, rollout_index, step_index] per sample. `step`
    is the 0-based optimizer step, step_texts the samples of that step over all ranks (B); is_last marks the
    last micro-batch of a step for its rank. shared int32 `[n]`: the first tokens of each sample that are
    those of the sample before it, which are computed once (0 for the first); None: every token is computed.
    routes: experts of the U tokens that are computed, uint8 or uint16 `[U, layers, active]`, where engines
    said any; `unrouted` int32 `[m]` are those of the U that have none, and `disagreeing` counts, over shared
    tokens, the samples after the first that say other experts than the first.
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
    shared: np.ndarray | None = None
    routes: np.ndarray | None = None
    unrouted: np.ndarray | None = None
    disagreeing: int = 0
    attention_mask: np.ndarray | None = None
    pixel_values: None = None
    image_grid_thw: None = None

    @property
    def n_texts(self) -> int:
        return len(self.text_ids)

    @property
    def n_tokens(self) -> int:
        return int(self.input_ids.shape[-1])

    @property
    def n_computed(self) -> int:
        """Tokens that a forward pass computes: a token that samples share counts once."""
        return self.n_tokens - (0 if self.shared is None else int(self.shared.sum()))

    @property
    def prefixes(self) -> Prefixes | None:
        """Which tokens are computed; None: all."""
        return None if self.shared is None else Prefixes(self.seq_boundaries, self.shared)

    def to_record(self) -> dict[str, Any]:
        """A tree of plain values and arrays for the `training_data` stream."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        return record | {"n_texts": self.n_texts}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "PipelineBatchEncoding":
        """Read a record of the `training_data` stream; raises ValueError when a column is missing."""
        values = {f.name: record[f.name] for f in fields(cls) if f.name in record}
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
                f"in {self.n_texts} samples"
            )
        if self.shared is not None:
            self._check_shared()
        if self.routes is not None and (self.routes.ndim != 3 or len(self.routes) != self.n_computed):
            raise ValueError(
                f"training_data column routes has shape {self.routes.shape}, expected "
                f"({self.n_computed}, layers, active)"
            )

    def _check_shared(self) -> None:
        assert self.shared is not None
        lengths = np.diff(self.seq_boundaries)
        limits = np.minimum(lengths, np.concatenate([[0], lengths[:-1]]))
        fits = self.shared.shape == lengths.shape and ((self.shared >= 0) & (self.shared <= limits)).all()
        if not fits:
            raise ValueError(
                f"training_data column shared {self.shared.tolist()[:8]} does not fit its samples"
            )


TOKEN_COLUMNS = tuple(
    f.name
    for f in fields(PipelineBatchEncoding)
    if f.type is np.ndarray and f.name not in ("input_ids", "seq_boundaries")
)
"""Columns that have the shape of `input_ids`."""
SENTINEL_TOKENS = 8


def sentinel_batch(
    step: int,
    step_texts: int,
    share: bool = False,
    tokens: int = SENTINEL_TOKENS,
    shared: Sequence[int] = (0,),
) -> PipelineBatchEncoding:
    """A micro-batch of one text without labels, for a rank that has no sample in this step.

    With `share`, `shared` may ask for several of so many tokens each: what each has in common with the last.
    """
    zeros = np.zeros((1, len(shared) * tokens), np.float32)
    ids = zeros.astype(np.int32)
    values: dict[str, Any] = dict.fromkeys(TOKEN_COLUMNS, zeros)
    return PipelineBatchEncoding(
        **values
        | {
            "input_ids": ids,
            "labels": np.full_like(ids, MASKED_TOKEN_ID),
            "position_ids": np.tile(np.arange(tokens, dtype=np.int32), len(shared))[None],
            "segment_ids": ids,
            "token_versions": np.full_like(ids, UNSAMPLED),
            "group_tokens": zeros + 1,
            "num_labels": zeros + 1,
        },
        seq_boundaries=np.arange(0, ids.size + 1, tokens, dtype=np.int32),
        text_ids=[],
        step=step,
        step_texts=step_texts,
        sentinel=True,
        padding=ids.size,
        shared=np.array(shared, np.int32) if share else None,
    )


def assemble_step(
    samples: Sequence[Sample],
    step: int,
    seq_length: int,
    ranks: int = 1,
    packing: bool = True,
    share: bool = False,
) -> list[list[PipelineBatchEncoding]]:
    """`[rank][micro-batch]`: best-fit-decreasing rows of at most `seq_length` tokens, balanced over ranks.

    With `share`, samples that begin alike lie in the same rows, and what they share counts once. Without
    `packing` each sample is a row of its own. A rank without samples gets one sentinel.
    """
    share = share and packing
    if packing:
        rows_of_ranks = packed_rows(samples, seq_length, ranks, share)
    else:
        chosen = balance([len(sample.input_ids) for sample in samples], ranks)
        rows_of_ranks = [[[i] for i in own] for own in chosen]
    out = []
    for rows in rows_of_ranks:
        batches = [encode([samples[i] for i in row], step, len(samples), share) for row in rows]
        batches = batches or [sentinel_batch(step, len(samples), share)]
        for batch in batches[:-1]:
            batch.is_last = False
        out.append(batches)
    return out


def packed_rows(
    samples: Sequence[Sample], seq_length: int, ranks: int = 1, share: bool = False
) -> list[list[list[int]]]:
    """`[rank][row][sample index]`, for `assemble_step` and the reference; a rank may stay empty."""
    ids = [sample.input_ids for sample in samples]
    if share:
        return pack_prefixes(ids, [len(sample.old_logprobs) for sample in samples], seq_length, ranks)
    return pack([len(one) for one in ids], seq_length, ranks)


def encode(
    samples: Sequence[Sample], step: int, step_texts: int, share: bool = False
) -> PipelineBatchEncoding:
    """One packed row; log-probabilities and versions are spread over the labelled tokens, 0 elsewhere."""
    lengths = np.array([len(sample.input_ids) for sample in samples], np.int64)
    boundaries = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    labels = np.concatenate([sample.labels for sample in samples])
    learned = labels != MASKED_TOKEN_ID
    old, reference = np.zeros(len(labels), np.float32), np.zeros(len(labels), np.float32)
    versions = np.full(len(labels), UNSAMPLED, np.int32)
    old[learned] = np.concatenate([sample.old_logprobs for sample in samples])
    reference[learned] = np.concatenate([sample.ref_logprobs for sample in samples])
    versions[learned] = _versions(samples)
    labels[boundaries[:-1]] = MASKED_TOKEN_ID  # nothing predicts the first token of a sample
    columns = {
        "rewards": [sample.reward for sample in samples],
        "advantages": [sample.advantage for sample in samples],
        "group_tokens": [sample.group_tokens for sample in samples],
        "num_labels": [len(sample.old_logprobs) for sample in samples],
        "overflow": [sample.overflow for sample in samples],
        "loss_weight_scale": [sample.loss_weight_scale for sample in samples],
        "kl_weight_scale": [sample.kl_weight_scale for sample in samples],
    }
    expanded = np.repeat(np.array([*columns.values()], np.float32), lengths, axis=1)
    if any(sample.token_advantages is not None for sample in samples):
        expanded[list(columns).index("advantages"), learned] += np.concatenate(
            [_token_advantages(sample) for sample in samples]
        )
    sampled = versions[versions != UNSAMPLED]
    shared = shared_with_previous([sample.input_ids for sample in samples]) if share else None
    return PipelineBatchEncoding(
        input_ids=np.concatenate([sample.input_ids for sample in samples])[None],
        labels=labels[None],
        position_ids=(np.arange(len(labels)) - np.repeat(boundaries[:-1], lengths)).astype(np.int32)[None],
        segment_ids=np.repeat(np.arange(len(samples), dtype=np.int32), lengths)[None],
        seq_boundaries=boundaries,
        ref_logprobs=reference[None],
        old_logprobs=old[None],
        token_versions=versions[None],
        text_ids=[[sample.group_id, sample.rollout_index, sample.step_index] for sample in samples],
        roles=[sample.role for sample in samples],
        situations=[sample.situation for sample in samples],
        step=step,
        step_texts=step_texts,
        model_version=int(sampled.min()) if len(sampled) else 0,
        shared=shared,
        **routes_of_row(samples, boundaries, shared),
        **dict(zip(columns, expanded[:, None, :], strict=True)),
    )


def _token_advantages(sample: Sample) -> np.ndarray:
    """float32 `[labels]`."""
    own = sample.token_advantages
    return np.zeros(len(sample.old_logprobs), np.float32) if own is None else own


def _versions(samples: Sequence[Sample]) -> np.ndarray:
    """Weight version of each labelled token, int32 `[labels]`; UNSAMPLED where nobody noted one."""
    spans = [
        span
        for sample in samples
        for span in sample.weight_versions or [(UNSAMPLED, 0, len(sample.old_logprobs))]
    ]
    versions, starts, ends = np.array(spans, np.int32).T
    return np.repeat(versions, ends - starts)
