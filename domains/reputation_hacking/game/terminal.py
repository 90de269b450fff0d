"""What is known when episodes end: the `info` of every environment and the columns of every table."""

from typing import Any

import numpy as np

from domains.reputation_hacking.game.dynamics import DO_NOTHING, HELP, SIGNAL, Episodes
from domains.reputation_hacking.game.mitigations import EpisodeSums, Mitigation, Settlement, Worker, settle


def finish(
    episodes: Episodes, worker: Worker, mitigation: Mitigation
) -> tuple[Settlement, dict[str, np.ndarray]]:
    """Rate finished episodes: (settlement with the Workers' new memory, terminal info)."""
    settlement = settle(episodes.params, EpisodeSums.of(episodes, mitigation), worker, mitigation)
    return settlement, terminal_info(episodes, settlement)


def terminal_info(episodes: Episodes, settlement: Settlement) -> dict[str, np.ndarray]:
    """Arrays [N] by name for finished episodes; float64 or int64, none shared with the state."""
    p = episodes.params
    helped = episodes.actions == HELP
    worked, effective = episodes.works.sum(0), (helped & episodes.works).sum(0)
    values = {
        "peer_rating": settlement.rating,
        "effort_expected": settlement.expected,
        "experienced_effort": episodes.effort,
        "learned_expected_effort": settlement.learned,
        "learned_expected_effort_before": settlement.learned_before,
        "signal_bias": settlement.bias,
        "help_count": helped.sum(0),
        "signal_count": (episodes.actions == SIGNAL).sum(0),
        "nothing_count": (episodes.actions == DO_NOTHING).sum(0),
        "help_effective": effective,
        "worked_steps": worked,
        "tasks_completed": episodes.k,
        "progress_units": p.work_units * worked + (p.help_work_units - p.work_units) * effective,
        "reward_raw": settlement.reward,
        "tape_seed": episodes.tape.seed,
        "penalty": settlement.penalty,
        "plain_rating": settlement.plain_rating,
        "trust": settlement.memory.trust,
    }
    return {name: np.array(value, ndmin=1) for name, value in values.items()}


def row(info: dict[str, np.ndarray], index: int) -> dict[str, Any]:
    """One episode of `terminal_info` as plain Python numbers."""
    return {key: values[index].item() for key, values in info.items()}
