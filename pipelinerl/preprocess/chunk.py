"""A chunk of whole groups: advantages, baseline-only texts, filter, and (scope `chunk`) loss weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.advantages import Advantages, compute_advantages
from pipelinerl.finetune.rl.filtering import baseline_only, zero_advantage_groups
from pipelinerl.finetune.rl.loss_scale import are_off, check_roles, is_counted, loss_scales
from pipelinerl.finetune.rl.text_table import NONE, TextTable, build_table
from pipelinerl.finetune.rl.tokens import is_overflow
from pipelinerl.preprocess.ready import ReadyText, versions_of
from pipelinerl.preprocess.validate import Record


@dataclass(slots=True)
class ChunkResult:
    """Ready texts, dropped records with their reason, and what the metrics need."""

    ready: list[ReadyText] = field(default_factory=list)
    dropped: list[tuple[Record, str]] = field(default_factory=list)
    table: TextTable | None = None
    advantages: Advantages | None = None
    filtered_groups: int = 0


def process_chunk(texts: Sequence[Record], rl: RLConfig, eos_token_ids: Collection[int] = ()) -> ChunkResult:
    """Order: masked texts aside, advantages, baseline-only texts and zero-advantage groups out, weights.

    Expects valid texts of whole groups with `ref_logprobs` filled. Raises ValueError naming the text for
    contradictory labels, for a role without a weight or a length, and for unequal rewards within a rollout
    on the default path.
    """
    result = ChunkResult()
    records = list(texts)
    if not records:
        return result
    table = build_table(records)
    result.dropped += [(records[i], "masked") for i in np.flatnonzero(table.masked)]
    rows = np.flatnonzero(~table.masked)
    records, table = [records[i] for i in rows], table.select(rows)
    if not records:
        return result
    advantages = compute_advantages(
        table, rl.step_reward_advantages, rl.pad_step_rewards_for_advantage, rl.divide_advantage_by_std
    )
    result.table, result.advantages = table, advantages
    only_baseline = baseline_only(table)
    zero = np.zeros(len(table), bool)
    if rl.filter_zero_advantage_groups:
        signal = np.where(only_baseline, 0.0, advantages.advantage)
        zero = zero_advantage_groups(table, signal, rl.zero_advantage_epsilon) & ~only_baseline
        result.filtered_groups = len(np.unique(table.group[zero]))
    result.dropped += [(records[i], "baseline_only") for i in np.flatnonzero(only_baseline)]
    result.dropped += [(records[i], "zero_advantage") for i in np.flatnonzero(zero)]
    kept = np.flatnonzero(~only_baseline & ~zero)
    check_roles(table.select(kept), "role_weights", rl.role_weights)
    check_roles(table.select(kept), "role_lengths", rl.role_lengths)
    result.ready = [_ready(records[i], i, table, advantages, eos_token_ids) for i in kept.tolist()]
    if rl.loss_scale_scope == "chunk":
        apply_scales(result.ready, table.select(kept), rl)
    return result


def split_bad_groups(
    groups: Sequence[Sequence[Record]], rl: RLConfig, eos_token_ids: Collection[int] = ()
) -> tuple[list[Sequence[Record]], list[tuple[Sequence[Record], str]]]:
    """Groups that `process_chunk` takes together, and the others with its message."""
    good: list[Sequence[Record]] = []
    bad: list[tuple[Sequence[Record], str]] = []
    for group in groups:
        try:
            process_chunk([*chain.from_iterable(good), *group], rl, eos_token_ids)
            good.append(group)
        except ValueError as error:
            bad.append((group, str(error)))
    return good, bad


def apply_scales(ready: Sequence[ReadyText], table: TextTable, rl: RLConfig) -> dict[str, float]:
    """Write loss weights into the texts of one scope; returns each role's mass and the missing roles.

    With everything off nothing is counted: the weights stay exactly 1.
    """
    if are_off(table, rl.batch_size_normalization, rl.role_weights) and not rl.role_lengths:
        for text in ready:
            text.loss_scale = text.kl_scale = 1.0
        return {}
    labels = np.array([t.trainable_labels for t in ready], np.int64)
    overflow = np.array([t.overflow for t in ready], np.int64)
    counted = is_counted(labels, overflow, rl.overlong_filtering)
    scales = loss_scales(table, counted, rl.batch_size_normalization, rl.role_weights, rl.loss_scale_scope)
    for text, policy, kl in zip(ready, scales.policy.tolist(), scales.kl.tolist()):
        constant = rl.role_lengths[text.role or ""] if rl.role_lengths else 1.0
        text.loss_scale, text.kl_scale = policy / constant, kl / constant
    metrics = {f"adv/role/{role}/mass": mass for role, mass in scales.role_mass.items()}
    metrics |= {f"adv/role/{role}/texts": float(n) for role, n in scales.role_texts.items()}
    metrics |= {f"adv/role_missing/{role}": 1.0 for role in scales.missing_roles}
    return metrics


def _ready(
    record: Record, row: int, table: TextTable, advantages: Advantages, eos_token_ids: Collection[int]
) -> ReadyText:
    logprobs = np.asarray(record["logprobs"], np.float32)
    role, situation = int(table.role[row]), int(table.situation[row])
    return ReadyText(
        group_id=table.group_names[table.group[row]],
        rollout_index=int(table.rollout[row]),
        step_index=int(table.step[row]),
        input_ids=np.asarray(record["input_ids"], np.int32),
        labels=np.asarray(record["labels"], np.int32),
        logprobs=logprobs,
        ref_logprobs=np.asarray(record["ref_logprobs"], np.float32),
        versions=versions_of(record, len(logprobs)),
        reward=float(table.reward[row]),
        advantage=float(advantages.advantage[row]),
        group_tokens=float(advantages.group_tokens[row]),
        overflow=is_overflow(record, eos_token_ids),
        loss_weight=float(table.loss_weight[row]),
        role=None if role == NONE else table.role_names[role],
        situation=None if situation == NONE else table.situation_names[situation],
    )
