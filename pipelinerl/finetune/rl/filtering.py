"""Which samples go on to the trainer: baseline-only texts and groups without a signal do not."""

from __future__ import annotations

import numpy as np

from pipelinerl.finetune.rl.table import SampleTable


def baseline_only(table: SampleTable) -> np.ndarray:
    """bool `[N]`: samples that only served as siblings in the statistics (`loss_weight` 0)."""
    return table.loss_weight == 0


def zero_advantage_groups(table: SampleTable, advantage: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """bool `[N]`: samples of groups in which no advantage exceeds `epsilon` in absolute value."""
    if len(table) == 0:
        return np.zeros(0, bool)
    largest = np.zeros(int(table.group.max()) + 1)
    np.maximum.at(largest, table.group, np.abs(advantage))
    return (largest <= epsilon)[table.group]
