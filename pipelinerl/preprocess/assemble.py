"""Micro-batches from the texts of one optimizer step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelinerl.finetune.rl.batch import UNSAMPLED, PipelineBatchEncoding, sentinel_batch
from pipelinerl.finetune.rl.packing import balance, pack
from pipelinerl.finetune.rl.tokens import expand
from pipelinerl.preprocess.ready import ReadyText
from pipelinerl.rollouts import MASKED_TOKEN_ID

_PER_TEXT = ("rewards", "advantages", "group_tokens", "num_labels", "overflow")
_SCALES = ("loss_weight_scale", "kl_weight_scale")


def assemble_step(
    texts: Sequence[ReadyText], step: int, seq_length: int, ranks: int = 1, packing: bool = True
) -> list[list[PipelineBatchEncoding]]:
    """`[rank][micro-batch]`: best-fit-decreasing rows of at most `seq_length` tokens, balanced over ranks.

    Without `packing` each text is a row of its own. A rank without texts gets one sentinel.
    """
    lengths = [len(text.input_ids) for text in texts]
    if packing:
        plan = pack(lengths, seq_length, ranks)
    else:
        plan = [[[i] for i in chosen] for chosen in balance(lengths, ranks)]
    out = []
    for rows in plan:
        batches = [encode([texts[i] for i in row], step, len(texts)) for row in rows]
        batches = batches or [sentinel_batch(step, len(texts))]
        for batch in batches[:-1]:
            batch.is_last = False
        out.append(batches)
    return out


def encode(texts: Sequence[ReadyText], step: int, step_texts: int) -> PipelineBatchEncoding:
    """One packed row; log-probabilities and versions are spread over the labelled tokens, 0 elsewhere."""
    lengths = np.array([len(text.input_ids) for text in texts], np.int64)
    boundaries = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    labels = np.concatenate([text.labels for text in texts])
    learned = labels != MASKED_TOKEN_ID
    old, reference = np.zeros(len(labels), np.float32), np.zeros(len(labels), np.float32)
    versions = np.full(len(labels), UNSAMPLED, np.int32)
    old[learned] = np.concatenate([text.logprobs for text in texts])
    reference[learned] = np.concatenate([text.ref_logprobs for text in texts])
    versions[learned] = np.concatenate([text.versions for text in texts])
    labels[boundaries[:-1]] = MASKED_TOKEN_ID  # nothing predicts the first token of a text
    per_text = np.array(
        [
            [text.reward for text in texts],
            [text.advantage for text in texts],
            [text.group_tokens for text in texts],
            [len(text.logprobs) for text in texts],
            [text.overflow for text in texts],
            [text.loss_scale for text in texts],
            [text.kl_scale for text in texts],
        ],
        np.float64,
    )
    columns = dict(zip((*_PER_TEXT, *_SCALES), expand(per_text, lengths)[:, None, :]))
    sampled = versions[versions != UNSAMPLED]
    return PipelineBatchEncoding(
        input_ids=np.concatenate([text.input_ids for text in texts])[None],
        labels=labels[None],
        position_ids=(np.arange(len(labels)) - np.repeat(boundaries[:-1], lengths)).astype(np.int32)[None],
        segment_ids=np.repeat(np.arange(len(texts), dtype=np.int32), lengths)[None],
        seq_boundaries=boundaries,
        ref_logprobs=reference[None],
        old_logprobs=old[None],
        token_versions=versions[None],
        text_ids=[[text.group_id, text.rollout_index, text.step_index] for text in texts],
        roles=[text.role for text in texts],
        situations=[text.situation for text in texts],
        step=step,
        step_texts=step_texts,
        model_version=int(sampled.min()) if len(sampled) else 0,
        **columns,
    )
