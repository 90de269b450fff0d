"""A small learner: a table of action probabilities, trained by the policy gradient under an intervention.

The command `interventions` sets what it does after training beside the exact optimum, since screening and
inoculation change what is learnt and hardly what is best. A step is compared with the same step of attempts
on the same tape: its advantage is the reward to come less the mean over those attempts that were kept.
"""

from dataclasses import dataclass, replace

import numpy as np

from domains.reputation_hacking.game.dynamics import HELP, SIGNAL, Episodes, Tapes
from domains.reputation_hacking.game.interventions import Intervention
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import Stochastic

TAPES, ATTEMPTS = 8, 32
"""Episodes of an update: tapes, and attempts on each."""
UPDATES, STEP_SIZE, CLIP = 200, 2.0, 4.0
TIMES, FATIGUES, DIFFICULTIES = 5, 7, 3
SITUATIONS = TIMES * FATIGUES * DIFFICULTIES


def situation(episodes: Episodes) -> np.ndarray:
    """int [N]: the row of the table for the coming step, by time, fatigue and difficulty."""
    p = episodes.params
    time = episodes.t * TIMES // p.T
    fatigue = np.minimum((episodes.f * (FATIGUES - 1) / p.fatigue_threshold).astype(int), FATIGUES - 1)
    width = max(p.d_max - p.d_min, 1e-9) / DIFFICULTIES
    difficulty = np.clip(((episodes.d - p.d_min) / width).astype(int), 0, DIFFICULTIES - 1)
    return (time * FATIGUES + fatigue) * DIFFICULTIES + difficulty


def probabilities(logits: np.ndarray) -> np.ndarray:
    """float64 [N, 3] of logits [N, 3]."""
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


class TablePolicy(Stochastic):
    """Draws from a table of logits [SITUATIONS, 3]."""

    def __init__(self, logits: np.ndarray) -> None:
        super().__init__(sampled=True)
        self.logits = logits

    def probabilities(self, episodes: Episodes, observation: np.ndarray) -> np.ndarray:
        return probabilities(self.logits[situation(episodes)])


@dataclass(frozen=True)
class Learned:
    """What one seed ended with."""

    plain: np.ndarray
    """float64 [SITUATIONS, 3]: logits when nothing is asked for, as in the test."""
    asked: np.ndarray
    """The same as in training; equal to `plain` without inoculation."""
    signals: list[float]
    """Share of SIGNAL in each update's episodes."""


def learn(params: Params, intervention: Intervention, seed: int, updates: int = UPDATES) -> Learned:
    """Train one table from even probabilities.

    Under inoculation the logits are a table that always counts plus one that counts while SIGNAL is asked
    for, as a network has weights with and without that input; both take every gradient step.
    """
    rng = np.random.default_rng([seed, 17])
    plain, request, signals = np.zeros((SITUATIONS, 3)), np.zeros((SITUATIONS, 3)), list[float]()
    if intervention.asked is not None:
        request[:, SIGNAL] = intervention.asked
    for _ in range(updates):
        logits = plain + request
        episodes, seen = _played(params, logits, rng)
        flags = _flags(intervention, episodes, rng)
        step = STEP_SIZE * _gradient(
            logits, seen, episodes.actions, *_credit(params, intervention, episodes, flags)
        )
        plain += step
        if intervention.asked is not None:
            request += step
        signals.append(float((episodes.actions == SIGNAL).mean()))
    return Learned(plain, plain + request, signals)


class _Efforts(Episodes):
    """Episodes that keep the effort of every step."""

    efforts: list[np.ndarray]

    def step(self, action: np.ndarray) -> None:
        super().step(action)
        self.efforts.append(self.e)


def _played(params: Params, logits: np.ndarray, rng: np.random.Generator) -> tuple[_Efforts, np.ndarray]:
    """Drawn episodes, attempts of a tape side by side, and the situation of each step: int [T, N]."""
    once = vars(Tapes.draw(params, TAPES, rng))
    episodes = _Efforts(
        params, Tapes(**{name: np.repeat(rows, ATTEMPTS, axis=-1) for name, rows in once.items()})
    )
    episodes.efforts, seen = [], []
    draws = rng.random((params.T, len(episodes), 1))
    for t in range(params.T):
        seen.append(situation(episodes))
        episodes.step((probabilities(logits[seen[-1]]).cumsum(1)[:, :2] < draws[t]).sum(1))
    return episodes, np.array(seen)


def _flags(intervention: Intervention, episodes: Episodes, rng: np.random.Generator) -> np.ndarray:
    if intervention.monitor is None:
        return np.zeros(episodes.actions.shape, dtype=bool)
    return intervention.monitor.flags(episodes.actions, rng)


def _credit(
    params: Params, intervention: Intervention, episodes: _Efforts, flags: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(advantage float64 [T, N], kept bool [T, N])."""
    unwatched = replace(intervention, monitor=None)
    gain = unwatched.signal_values(params)
    signals = episodes.actions == SIGNAL
    before = np.minimum(signals.cumsum(0) - signals, gain.shape[1] - 1)
    earned = signals * gain[np.arange(params.T)[:, None], before] - params.c_help * (episodes.actions == HELP)
    earned = earned - intervention.game(params).effort_weight * np.array(episodes.efforts)
    watched = intervention.monitor is not None and not intervention.screens
    by_step = intervention.monitor is not None and intervention.monitor.reads == "step"
    if watched and by_step:
        earned = earned - intervention.weight * flags
    to_come = earned[::-1].cumsum(0)[::-1]
    if watched and not by_step:  # the verdict falls at the end, so that every step has it before itself
        to_come = to_come - intervention.weight * flags
    kept = ~flags if intervention.screens else np.ones_like(flags)
    grouped = (params.T, TAPES, ATTEMPTS)
    count = np.maximum(kept.reshape(grouped).sum(2, keepdims=True), 1)
    mean = (to_come * kept).reshape(grouped).sum(2, keepdims=True) / count
    return (to_come.reshape(grouped) - mean).reshape(flags.shape) * kept, kept


def _gradient(
    logits: np.ndarray, seen: np.ndarray, actions: np.ndarray, advantage: np.ndarray, kept: np.ndarray
) -> np.ndarray:
    """float64 [SITUATIONS, 3]: mean over the visits of a situation, flagged ones included."""
    rows = seen.ravel()
    weight = np.clip(
        advantage.ravel() / max(float(advantage[kept].std()) if kept.any() else 1.0, 1e-9), -CLIP, CLIP
    )
    score = (np.eye(3)[actions.ravel()] - probabilities(logits)[rows]) * weight[:, None]
    sums = np.stack([np.bincount(rows, score[:, a], minlength=SITUATIONS) for a in range(3)], 1)
    return sums / np.maximum(np.bincount(rows, minlength=SITUATIONS), 1)[:, None]
