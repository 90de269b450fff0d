"""Factors on the loss of each sample: how rollouts and roles share an optimizer step.

Called by preprocess once per step (`loss_scale_scope=batch`) or once per chunk of groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.finetune.rl.table import NONE, SampleTable


@dataclass(frozen=True, slots=True)
class LossScales:
    """float64 `[N]` factors of the policy term and of the KL and entropy terms; 0 where not counted.

    role_mass and role_samples describe the counted samples of each configured role; missing_roles have none.
    """

    policy: np.ndarray
    kl: np.ndarray
    role_mass: dict[str, float] = field(default_factory=dict)
    role_samples: dict[str, int] = field(default_factory=dict)
    missing_roles: tuple[str, ...] = ()


def apply_scales(samples: Sequence[Sample], rl: RLConfig) -> dict[str, float]:
    """Write both factors into the samples of one scope; returns the metrics of the roles.

    With everything off nothing is counted: the factors stay exactly 1. Raises ValueError as `loss_scales`.
    """
    weighted = rl.batch_size_normalization != "training_texts" or rl.role_weights or rl.role_lengths
    if not weighted and all(sample.loss_weight == 1 for sample in samples):
        for sample in samples:
            sample.loss_weight_scale = sample.kl_weight_scale = 1.0
        return {}
    labels = np.array([sample.trainable_labels for sample in samples], np.int64)
    overflow = np.array([sample.overflow for sample in samples], bool)
    counted = is_counted(labels, overflow, rl.overlong_filtering)
    if rl.role_lengths and (unknown := {sample.role or "" for sample in samples} - rl.role_lengths.keys()):
        raise ValueError(
            f"finetune.rl.role_lengths has no length for the role {min(unknown)!r} of a sample, only for "
            f"{', '.join(sorted(rl.role_lengths))}"
        )
    table = SampleTable.of(samples)
    scales = loss_scales(table, counted, rl.batch_size_normalization, rl.role_weights, rl.loss_scale_scope)
    for sample, policy, kl in zip(samples, scales.policy.tolist(), scales.kl.tolist(), strict=True):
        constant = rl.role_lengths[sample.role or ""] if rl.role_lengths else 1.0
        sample.loss_weight_scale, sample.kl_weight_scale = policy / constant, kl / constant
    metrics = {f"adv/role/{role}/mass": mass for role, mass in scales.role_mass.items()}
    metrics |= {f"adv/role/{role}/texts": float(n) for role, n in scales.role_samples.items()}
    metrics |= {f"adv/role_missing/{role}": 1.0 for role in scales.missing_roles}
    return metrics


def is_counted(n_trainable_labels: np.ndarray, overflow: np.ndarray, overlong_filtering: bool) -> np.ndarray:
    """bool `[N]`: samples with a label that has a weight, and not removed by overlong filtering."""
    counted = n_trainable_labels > 0
    return counted & ~overflow if overlong_filtering else counted


def loss_scales(
    table: SampleTable,
    counted: np.ndarray,
    normalisation: str = "training_texts",
    role_weights: Mapping[str, float] | None = None,
    scope: str = "batch",
) -> LossScales:
    """Scales over the samples of one scope (an optimizer step, or a preprocessing chunk).

    counted bool `[N]`. With T counted samples in R rollouts: `training_texts` gives 1, `rollouts` T/R, and
    `rollout_mean` T/R divided among a rollout's samples by `loss_weight`. Role weights then make each
    role's scales sum to its weight times the total. Raises ValueError for a sample whose role has no weight,
    or (scope `chunk`) a configured role without a sample.
    """
    if normalisation == "training_texts" and not role_weights and bool((table.loss_weight == 1).all()):
        ones = np.ones(len(table))
        return LossScales(ones, ones)
    scale = np.where(counted, _base_scale(table, counted, normalisation), 0.0)
    if not role_weights:
        return LossScales(scale, scale)
    return _apply_roles(table, scale, counted, role_weights, scope)


def _base_scale(table: SampleTable, counted: np.ndarray, normalisation: str) -> np.ndarray:
    if normalisation == "training_texts":
        return table.loss_weight
    rollout = table.rollout_codes()
    weight = np.bincount(rollout, weights=table.loss_weight * counted)
    n_rollouts = int((np.bincount(rollout, weights=counted) > 0).sum())
    unit = int(counted.sum()) / max(n_rollouts, 1)
    if normalisation == "rollouts":
        return unit * table.loss_weight
    total = weight[rollout]
    return unit * table.loss_weight / np.where(total > 0, total, 1.0)


def _apply_roles(
    table: SampleTable, scale: np.ndarray, counted: np.ndarray, role_weights: Mapping[str, float], scope: str
) -> LossScales:
    column = _columns(table, "role_weights", role_weights)
    names = list(role_weights)
    weights = np.array([role_weights[name] for name in names])
    mass = np.bincount(column, weights=scale, minlength=len(names))
    samples = np.bincount(column, weights=counted, minlength=len(names)).astype(int)
    missing = tuple(name for name, n in zip(names, samples) if n == 0)
    if missing and scope == "chunk":
        raise ValueError(
            f"a chunk holds no sample of role {missing[0]}; use finetune.rl.loss_scale_scope=batch"
        )
    total, present = float(mass.sum()), max(int((samples > 0).sum()), 1)
    share = total / np.where(mass > 0, mass, 1.0)
    policy = scale * (weights * share)[column]
    kl = scale * (share / present)[column]
    return LossScales(
        policy,
        kl,
        {name: float(weights[i] * total * (mass[i] > 0)) for i, name in enumerate(names)},
        {name: int(n) for name, n in zip(names, samples)},
        missing,
    )


def check_roles(table: SampleTable, key: str, by_role: Mapping[str, float]) -> None:
    """Raise ValueError naming the first sample whose role `finetune.rl.<key>` lacks; empty asks for none."""
    if by_role:
        _columns(table, key, by_role)


def _columns(table: SampleTable, key: str, by_role: Mapping[str, float]) -> np.ndarray:
    """Index into `by_role`, the value of `finetune.rl.<key>`, for each sample."""
    names = list(by_role)
    lookup = np.array([names.index(r) if r in by_role else NONE for r in table.role_names] + [NONE])
    column = lookup[table.role]  # NONE = -1 picks the last entry
    for row in np.flatnonzero(column == NONE)[:1].tolist():
        role = "no role" if table.role[row] == NONE else f"role {table.role_names[table.role[row]]!r}"
        raise ValueError(f"sample {table.name(row)} has {role}; finetune.rl.{key} knows {', '.join(names)}")
    return column
