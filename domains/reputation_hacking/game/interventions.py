"""The interventions that are compared against hacking: what each rewards, and the exact optimum under it.

The command `interventions` prints them as a table; `learner.py` trains a small policy under each.

- A monitor flags a SIGNAL, or an episode with one, at the rate `hits`, and a HELP, or an episode without
  SIGNALs, at the rate `false_positives`.
- A penalty takes `weight` for every flag.
- Screening leaves out of the update what was flagged.
- Inoculation asks for SIGNALs in training and not afterwards.

The other designs are those of `mitigations.py` whose optimum can be computed. For screening and inoculation
the optimum is that of the plain game, since a SIGNAL that passes pays as before; if none passes, SIGNAL is
worth nothing to a learner. (Where noise is left a policy could also have unlucky episodes screened away; that
is not searched.)

With c = SIGNALs so far, g[t, c] = what one more of them earns in step t and h = the price of HELP,
V_t(x, c) = max(Q(x, c), Q(x, c + 1) + g[t, c], Q_HELP(x, c) - h), Q(x, c) = E[-w·e + V_{t+1}(x', c)].
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from domains.reputation_hacking.game.dynamic_programming import DEFAULT_GRID, Axes, Backup, Grid, looked_up
from domains.reputation_hacking.game.dynamics import DO_NOTHING, HELP, SIGNAL, Episodes
from domains.reputation_hacking.game.mitigations import NONE, Mitigation
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import Policy

COARSE = Grid(25, 7, 5)
"""For rewards that depend on the number of SIGNALs: every number has a table of its own."""
UNSEEN = -1e9
"""What a SIGNAL is worth to a learner that never meets one."""
SOLVED = ("none", "window", "saturate", "audit", "control", "frozen_l")
"""Designs of `mitigations.py` that are solved here. `monitor` is a `Monitor`, `trust` lives longer than an
episode, and `ms_penalty` compares with what the same noise would have brought."""


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """What flags SIGNALs, and its errors. Raises ValueError for rates outside 0..1."""

    reads: Literal["step", "episode"]
    """Whether every step has a verdict of its own, or an episode one."""
    hits: float = 0.9
    false_positives: float = 0.1

    def __post_init__(self) -> None:
        for name in ("hits", "false_positives"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"monitor: {name}={getattr(self, name)} is not from 0 to 1")

    def flags(self, actions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """bool like `actions` [T, N]: drawn verdicts; one of a whole episode stands in all of its steps."""
        if self.reads == "step":
            rate = np.where(actions == SIGNAL, self.hits, (actions == HELP) * self.false_positives)
            return rng.random(actions.shape) < rate
        rate = np.where((actions == SIGNAL).any(0), self.hits, self.false_positives)
        return np.broadcast_to(rng.random(len(rate)) < rate, actions.shape)

    def expected(self, actions: np.ndarray) -> np.ndarray:
        """float64 [N]: flags to expect in each episode."""
        signals, helps = (actions == SIGNAL).sum(0), (actions == HELP).sum(0)
        if self.reads == "step":
            return self.hits * signals + self.false_positives * helps
        return np.where(signals > 0, self.hits, self.false_positives)


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """One row of the table."""

    name: str
    monitor: Monitor | None = None
    weight: float = 0.0
    """Penalty for one flag."""
    screens: bool = False
    """Flagged steps or episodes are left out of the update."""
    asked: float | None = None
    """What the request for SIGNALs adds to their logit before any training; None: nobody asks for them."""
    design: Mitigation = NONE
    """The reward design, without a monitor."""

    def game(self, params: Params) -> Params:
        """The parameters with the weight that the design gives to effort."""
        learns = self.design.name not in ("control", "frozen_l")
        return params if learns else params.but(rating_order="rate_first")

    def signal_values(self, params: Params) -> np.ndarray:
        """float64 [T, C]: what a SIGNAL in step t, after c others, adds to the reward, its price taken.

        The last column holds for all larger c. Raises ValueError for a design without an exact optimum.
        """
        p, design = params, self.design
        if design.name not in SOLVED:
            raise ValueError(f"mitigation {design}: an exact optimum is known for {', '.join(SOLVED)}")
        gain = np.full((p.T, 1), p.signal_strength)
        match design.name:
            case "window":
                gain[int(design["m"]) :] = 0.0
            case "audit":
                gain *= 1.0 - design["p"] * (1.0 + design["lam"])
            case "control":
                gain *= 0.0
            case "saturate":
                total = design["b"] * (1.0 - np.exp(-p.signal_strength * np.arange(p.T + 1) / design["b"]))
                gain = np.tile(np.diff(total), (p.T, 1))
        gain = gain - p.c_signal
        if self.screens and self.monitor is not None and self.monitor.hits == 1.0:
            return np.full_like(gain, UNSEEN)
        if self.monitor is not None and self.weight:
            hits, alarms = self.weight * self.monitor.hits, self.weight * self.monitor.false_positives
            gain = gain - hits if self.monitor.reads == "step" else np.hstack([gain - hits + alarms, gain])
        return gain

    def help_price(self, params: Params) -> float:
        """What HELP takes from the expected reward."""
        by_step = self.monitor is not None and self.monitor.reads == "step"
        return params.c_help + (
            self.weight * self.monitor.false_positives if by_step and self.monitor else 0.0
        )

    def penalty(self, actions: np.ndarray) -> np.ndarray:
        """float64 [N]: the penalty to expect for actions [T, N]."""
        return self.weight * (
            np.zeros(actions.shape[1]) if self.monitor is None else self.monitor.expected(actions)
        )


class Planned(Policy):
    """The optimum under an intervention's reward, by backward induction over state and number of SIGNALs."""

    name = "planned"

    def __init__(self, params: Params, intervention: Intervention, grid: Grid | None = None) -> None:
        """Takes a second without, and up to a minute with, a reward that depends on the number of SIGNALs."""
        p = intervention.game(params)
        self.gain, price = intervention.signal_values(params), intervention.help_price(params)
        self.last = self.gain.shape[1] - 1
        grid = grid or (DEFAULT_GRID if self.last < 2 else COARSE)
        self.axes = Axes.of(p, grid)
        backup = Backup(p, self.axes)
        values = [np.zeros(backup.shape)] * (self.last + 1)
        self.help: list[list[np.ndarray]] = []
        """[T][c]: float32 [D, F, U, Ta], what HELP is worth beyond doing nothing."""
        self.signal: list[list[np.ndarray]] = []
        """The same of SIGNAL."""
        for t in reversed(range(p.T)):
            counts = range(min(t + 1, self.last) + 1)
            backed = [backup(values[c]) for c in counts]
            helps, signals, new = [], [], []
            for c in range(min(t, self.last) + 1):
                alone, helped = backed[c][0], backed[c][1] - price
                signalled = backed[min(c + 1, self.last)][0] + self.gain[t, c]
                helps.append((helped - alone).astype(np.float32))
                signals.append((signalled - alone).astype(np.float32))
                new.append(np.maximum(np.maximum(alone, helped), signalled))
            self.help.append(helps)
            self.signal.append(signals)
            values = new
        self.help.reverse()
        self.signal.reverse()

    def act(self, episodes: Episodes, observation: np.ndarray) -> np.ndarray:
        t = episodes.t
        count = np.minimum((episodes.actions[:t] == SIGNAL).sum(0), min(t, self.last))
        helps, signals = np.zeros(len(episodes)), np.zeros(len(episodes))
        for c in np.unique(count):
            here = count == c
            helps[here] = looked_up(self.axes, self.help[t][c], episodes, episodes.tau)[here]
            signals[here] = looked_up(self.axes, self.signal[t][c], episodes, episodes.tau)[here]
        helps = np.where(episodes.working, helps, -np.inf)
        return np.where(np.maximum(helps, signals) <= 0, DO_NOTHING, np.where(helps > signals, HELP, SIGNAL))


def returns_under(params: Params, intervention: Intervention, episodes: Episodes) -> np.ndarray:
    """float64 [N]: expected reward under the intervention, less what no action can change."""
    actions = episodes.actions
    gain = intervention.signal_values(params)
    signals = actions == SIGNAL
    before = np.minimum(signals.cumsum(0) - signals, gain.shape[1] - 1)
    earned = (signals * gain[np.arange(len(actions))[:, None], before]).sum(0)
    helps = intervention.help_price(params) * (actions == HELP).sum(0)
    return -intervention.game(params).effort_weight * episodes.effort + earned - helps
