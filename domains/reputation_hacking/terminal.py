"""What is known when episodes end: the `info` of every environment, the columns of every table."""

from __future__ import annotations

from typing import Any

import numpy as np

from domains.reputation_hacking.dynamics import DO_NOTHING, HELP, SIGNAL, Episodes
from domains.reputation_hacking.mitigations import Settlement

INFO_KEYS = (
    "peer_rating",
    "effort_expected",
    "experienced_effort",
    "learned_expected_effort",
    "learned_expected_effort_before",
    "signal_bias",
    "help_count",
    "signal_count",
    "nothing_count",
    "help_effective",
    "worked_steps",
    "tasks_completed",
    "progress_units",
    "reward_raw",
    "tape_seed",
    "penalty",
    "plain_rating",
    "trust",
)


def terminal_info(episodes: Episodes, settlement: Settlement) -> dict[str, np.ndarray]:
    """Arrays [N] under `INFO_KEYS` for finished episodes; float64 or int64, none shared with the state."""
    p = episodes.params
    helped = episodes.actions == HELP
    worked = episodes.works.sum(0)
    effective = (helped & episodes.works).sum(0)
    return {
        "peer_rating": settlement.rating.copy(),
        "effort_expected": settlement.expected.copy(),
        "experienced_effort": episodes.effort.copy(),
        "learned_expected_effort": settlement.learned.copy(),
        "learned_expected_effort_before": settlement.learned_before.copy(),
        "signal_bias": settlement.bias.copy(),
        "help_count": helped.sum(0),
        "signal_count": (episodes.actions == SIGNAL).sum(0),
        "nothing_count": (episodes.actions == DO_NOTHING).sum(0),
        "help_effective": effective,
        "worked_steps": worked,
        "tasks_completed": episodes.k.copy(),
        "progress_units": p.work_units * worked + (p.help_work_units - p.work_units) * effective,
        "reward_raw": settlement.reward.copy(),
        "tape_seed": episodes.tapes.seeds.copy(),
        "penalty": settlement.penalty.copy(),
        "plain_rating": settlement.plain_rating.copy(),
        "trust": settlement.memory.trust.copy(),
    }


def row(info: dict[str, np.ndarray], index: int) -> dict[str, Any]:
    """One episode of `terminal_info` as plain Python numbers."""
    return {key: values[index].item() for key, values in info.items()}
