"""Factors on the loss of each text: how rollouts and roles share an optimizer step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from pipelinerl.config.finetune import Normalisation
from pipelinerl.finetune.rl.text_table import NONE, TextTable


@dataclass(frozen=True, slots=True)
class LossScales:
    """float64 `[N]` factors of the policy term and of the KL and entropy terms; 0 where not counted.

    role_mass and role_texts describe the counted texts of each configured role; missing_roles have none.
    """

    policy: np.ndarray
    kl: np.ndarray
    role_mass: dict[str, float] = field(default_factory=dict)
    role_texts: dict[str, int] = field(default_factory=dict)
    missing_roles: tuple[str, ...] = ()


def is_counted(n_trainable_labels: np.ndarray, overflow: np.ndarray, overlong_filtering: bool) -> np.ndarray:
    """bool `[N]`: texts with a label that has a weight, and not removed by overlong filtering."""
    counted = n_trainable_labels > 0
    return counted & (overflow == 0) if overlong_filtering else counted


def are_off(table: TextTable, normalisation: str, role_weights: Mapping[str, float] | None) -> bool:
    """Whether every scale is exactly 1 without counting anything."""
    return normalisation == "training_texts" and not role_weights and bool((table.loss_weight == 1).all())


def loss_scales(
    table: TextTable,
    counted: np.ndarray,
    normalisation: str = "training_texts",
    role_weights: Mapping[str, float] | None = None,
    scope: str = "batch",
) -> LossScales:
    """Scales over the texts of one scope (an optimizer step, or a preprocessing chunk).

    counted bool `[N]`. With T counted texts in R rollouts: `training_texts` gives 1, `rollouts` T/R, and
    `rollout_mean` T/R divided among a rollout's texts by `loss_weight`. Role weights then make each
    role's scales sum to its weight times the total. Raises ValueError for an unknown mode, a text whose
    role has no weight, or (scope `chunk`) a configured role without a text.
    """
    if normalisation not in (known := get_args(Normalisation)):
        raise ValueError(
            f"finetune.rl.batch_size_normalization={normalisation} is unknown; use one of {', '.join(known)}"
        )
    if are_off(table, normalisation, role_weights):
        ones = np.ones(len(table))
        return LossScales(ones, ones)
    scale = np.where(counted, _base_scale(table, counted, normalisation), 0.0)
    if not role_weights:
        return LossScales(scale, scale)
    return _apply_roles(table, scale, counted, role_weights, scope)


def _base_scale(table: TextTable, counted: np.ndarray, normalisation: str) -> np.ndarray:
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
    table: TextTable, scale: np.ndarray, counted: np.ndarray, role_weights: Mapping[str, float], scope: str
) -> LossScales:
    column = _columns(table, "role_weights", role_weights)
    names = list(role_weights)
    weights = np.array([role_weights[name] for name in names])
    mass = np.bincount(column, weights=scale, minlength=len(names))
    texts = np.bincount(column, weights=counted, minlength=len(names)).astype(int)
    missing = tuple(name for name, n in zip(names, texts) if n == 0)
    if missing and scope == "chunk":
        raise ValueError(
            f"a chunk holds no text of role {missing[0]}; use finetune.rl.loss_scale_scope=batch"
        )
    total, present = float(mass.sum()), max(int((texts > 0).sum()), 1)
    share = total / np.where(mass > 0, mass, 1.0)
    policy = scale * (weights * share)[column]
    kl = scale * (share / present)[column]
    return LossScales(
        policy,
        kl,
        {name: float(weights[i] * total * (mass[i] > 0)) for i, name in enumerate(names)},
        {name: int(n) for name, n in zip(names, texts)},
        missing,
    )


def check_roles(table: TextTable, key: str, by_role: Mapping[str, float]) -> None:
    """Raise ValueError naming the first text whose role `finetune.rl.<key>` lacks; empty asks for none."""
    if by_role:
        _columns(table, key, by_role)


def _columns(table: TextTable, key: str, by_role: Mapping[str, float]) -> np.ndarray:
    """Index into `by_role`, the value of `finetune.rl.<key>`, for each text."""
    names = list(by_role)
    lookup = np.array([names.index(r) if r in by_role else NONE for r in table.role_names] + [NONE])
    column = lookup[table.role]  # NONE = -1 picks the last entry
    for row in np.flatnonzero(column == NONE)[:1].tolist():
        role = "no role" if table.role[row] == NONE else f"role {table.role_names[table.role[row]]!r}"
        raise ValueError(f"text {table.name(row)} has {role}; finetune.rl.{key} knows {', '.join(names)}")
    return column
