"""Which texts go on to the trainer: baseline-only texts and groups without a signal do not."""

from __future__ import annotations

import numpy as np

from pipelinerl.finetune.rl.text_table import TextTable


def baseline_only(table: TextTable) -> np.ndarray:
    """bool `[N]`: texts that only served as siblings in the statistics (`loss_weight` 0)."""
    return table.loss_weight == 0


def zero_advantage_groups(table: TextTable, advantage: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """bool `[N]`: texts of groups in which no advantage exceeds `epsilon` in absolute value."""
    if len(table) == 0:
        return np.zeros(0, bool)
    largest = np.zeros(int(table.group.max()) + 1)
    np.maximum.at(largest, table.group, np.abs(advantage))
    return (largest <= epsilon)[table.group]
