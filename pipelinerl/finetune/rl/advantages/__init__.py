"""Advantage estimators by their configuration name: one file each, or an object of another package.

Called by preprocess with the samples of whole groups. Pure functions of a `SampleTable` in float64 numpy;
expansion to tokens, filter and loss weights do not depend on the estimator.
"""

import numpy as np

from pipelinerl.config.finetune import RLConfig
from pipelinerl.domain import resolve_dotted
from pipelinerl.finetune.rl.advantages.base import AdvantageEstimator, Advantages
from pipelinerl.finetune.rl.table import SampleTable
from pipelinerl.situations import LARGEST

__all__ = ["ESTIMATORS", "AdvantageEstimator", "Advantages", "compute_advantages", "declared"]

ESTIMATORS = ("rollout", "situation")
"""Names of the files with an estimator; the others of this folder are what they share."""
_KEY = "finetune.rl.advantage_estimator"


def declared(name: str) -> AdvantageEstimator:
    """The estimator for what it declares; one of another package is taken to read everything."""
    return _estimator(name) if name in ESTIMATORS else AdvantageEstimator()


def _estimator(name: str) -> AdvantageEstimator:
    found: AdvantageEstimator = resolve_dotted(name if "." in name else f"{__name__}.{name}.{name}", _KEY)
    return found


def compute_advantages(table: SampleTable, rl: RLConfig) -> Advantages:
    """Advantages of the unmasked samples of whole groups.

    Raises ValueError for samples that the estimator cannot compare, for an advantage that float32 gradients
    cannot hold, and for an estimator of another package that returns anything but one finite number per
    sample.
    """
    name = rl.estimator
    found = _estimator(name)(table, rl)
    if not isinstance(found, Advantages):
        raise ValueError(f"{_KEY}={name} returned a {type(found).__name__}, expected Advantages")
    if found.advantage.shape != (len(table),) or not np.isfinite(found.advantage).all():
        raise ValueError(
            f"{_KEY}={name} returned advantages of shape {found.advantage.shape}, "
            f"expected {len(table)} finite numbers"
        )
    weighted = np.abs(found.advantage) * np.maximum(table.loss_weight, 1.0)
    for row in np.flatnonzero(weighted > 2 * LARGEST)[:1].tolist():
        raise ValueError(
            f"sample {table.name(row)}: advantage {found.advantage[row]:g} with loss_weight "
            f"{table.loss_weight[row]:g} is beyond {2 * LARGEST:g}, which float32 gradients cannot hold"
        )
    return found
