"""A chunk of whole groups: advantages, baseline-only samples, filter, and (scope `chunk`) loss weights."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.advantages import Advantages, compute_advantages
from pipelinerl.finetune.rl.advantages.base import zero_advantage_groups
from pipelinerl.finetune.rl.loss_scale import apply_scales, check_roles
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.rl.table import SampleTable


@dataclass(slots=True)
class ChunkResult:
    """Samples to train on, dropped ones with their reason, and what the metrics need."""

    ready: list[Sample] = field(default_factory=list)
    dropped: list[tuple[Sample, str]] = field(default_factory=list)
    table: SampleTable | None = None
    advantages: Advantages | None = None
    filtered_groups: int = 0


def process_groups(
    groups: Sequence[Sequence[Sample]], rl: RLConfig, eos_token_ids: Collection[int] = ()
) -> tuple[ChunkResult, list[tuple[Sequence[Sample], str]]]:
    """What `process_chunk` makes of the groups together, and those that it refuses, with its message."""
    try:
        return process_chunk(list(chain.from_iterable(groups)), rl, eos_token_ids), []
    except ValueError:
        pass  # of one of them; each is asked alone
    good: list[Sequence[Sample]] = []
    bad: list[tuple[Sequence[Sample], str]] = []
    for group in groups:
        try:
            process_chunk(group, rl, eos_token_ids)
            good.append(group)
        except ValueError as error:
            bad.append((group, str(error)))
    return process_chunk(list(chain.from_iterable(good)), rl, eos_token_ids), bad


def process_chunk(
    samples: Sequence[Sample], rl: RLConfig, eos_token_ids: Collection[int] = ()
) -> ChunkResult:
    """Write advantage, group_tokens, overflow and (scope `chunk`) scales into valid samples of whole groups.

    Order: masked samples aside, advantages, baseline-only samples and zero-advantage groups out, weights.
    Raises ValueError naming the sample for a role without a weight or a length, and for samples that the
    estimator cannot compare.
    """
    result = ChunkResult(dropped=[(sample, "masked") for sample in samples if sample.masked])
    samples = [sample for sample in samples if not sample.masked]
    if not samples:
        return result
    table = SampleTable.of(samples)
    advantages = compute_advantages(table, rl)
    result.table, result.advantages = table, advantages
    only_baseline = table.loss_weight == 0  # they gave others siblings, and have done their work
    zero = np.zeros(len(table), bool)
    if rl.filter_zero_advantage_groups:
        signal = np.where(only_baseline, 0.0, advantages.advantage)
        zero = zero_advantage_groups(table, signal, rl.zero_advantage_epsilon) & ~only_baseline
        result.filtered_groups = len(np.unique(table.group[zero]))
    result.dropped += [(samples[i], "baseline_only") for i in np.flatnonzero(only_baseline)]
    result.dropped += [(samples[i], "zero_advantage") for i in np.flatnonzero(zero)]
    kept = np.flatnonzero(~only_baseline & ~zero)
    check_roles(table.select(kept), "role_weights", rl.role_weights)
    check_roles(table.select(kept), "role_lengths", rl.role_lengths)
    for row in kept.tolist():
        sample = samples[row]
        sample.advantage = float(advantages.advantage[row])
        sample.group_tokens = float(advantages.group_tokens[row])
        sample.overflow = sample.is_cut(eos_token_ids)
        result.ready.append(sample)
    if rl.loss_scale_scope == "chunk":
        apply_scales(result.ready, rl)
    return result
