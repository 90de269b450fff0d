"""The optimum as a ruler: how far a policy is from it, its table over prices, how looking ahead shifts it.

Evaluation, ablations and the report of a run use `Yardstick`; the commands `optimum` and `ablate` the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from domains.reputation_hacking.game.dynamic_programming import Optimal, solve
from domains.reputation_hacking.game.dynamics import HELP, Episodes, Tapes, effort_without, played
from domains.reputation_hacking.game.mitigations import EpisodeSums, Worker, initial_effort, settle
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import CONSTANTS, SCRIPTED, Policy, fitted_rule, play, returns

PRICES = (0.0, 0.2, 0.4, 0.5, 0.55, 0.6, 0.65, 0.675, 0.7, 0.725, 0.75, 0.8, 0.9, 1.0, 1.1, 1.3)
HORIZONS = (1, 5, 10, 20, 50, 200)
MIN_MARGIN = 0.02
"""Below this margin of the optimum over the best constant policy a share of it means nothing."""


class Yardstick:
    """The optimum and the best constant policy on one set of seeds."""

    def __init__(self, params: Params, seeds: Iterable[int]) -> None:
        self.params, self.tapes = params, Tapes.from_seeds(params, sorted(seeds))
        self.optimal = play(params, self.tapes, Optimal(solve(params)))
        self.best = float(returns(self.optimal).mean())
        scores = {one.name: returns(played(params, self.tapes, one.action)).mean() for one in CONSTANTS}
        self.constant_name = max(scores, key=scores.__getitem__)
        self.constant = float(scores[self.constant_name])
        self.without = effort_without(params, self.tapes)
        """float64 [N]: effort felt when the Assistant does nothing."""

    @property
    def margin(self) -> float:
        return self.best - self.constant

    def share(self, value: float) -> float | None:
        """Share of the margin that J = `value` takes; None where the margin is too small to divide by."""
        return (value - self.constant) / self.margin if self.margin >= MIN_MARGIN else None

    def share_of(self, policy: Policy) -> float:
        """The same for what a policy earns on these seeds; NaN where there is none."""
        share = self.share(float(returns(play(self.params, self.tapes, policy)).mean()))
        return float("nan") if share is None else share

    def rung(self, name: str, episodes: Episodes) -> dict[str, Any]:
        """One line of the ladder."""
        value = float(returns(episodes).mean())
        return {
            "policy": name,
            "true_impact": float((self.without - episodes.effort).mean()),
            "help": float((episodes.actions == HELP).sum(0).mean()),
            "J": value,
            "share": self.share(value),
        }

    def ladder(self) -> list[dict[str, Any]]:
        """Chance, constants, the rule, the fitted linear rule and the optimum on the same seeds."""
        policies = [SCRIPTED["random"], *CONSTANTS[1:], SCRIPTED["rule"], fitted_rule(self.params)]
        rungs = [self.rung(policy.name, play(self.params, self.tapes, policy)) for policy in policies]
        return [*rungs, self.rung("optimum", self.optimal)]


def number(value: float | None, digits: int = 3) -> str:
    """The number, or n/a for None and NaN."""
    return "n/a" if value is None or value != value else f"{value:.{digits}f}"


def optimum_row(params: Params, seeds: Iterable[int]) -> dict[str, float]:
    """The optimum at one price from calibrated memory: a row of the table, NaN for a share of no margin."""
    yardstick = Yardstick(params, seeds)
    episodes, sums = yardstick.optimal, EpisodeSums.of(yardstick.optimal)
    settlement = settle(params, sums, Worker.new(initial_effort(params), len(yardstick.tapes)))
    impact = float((yardstick.without - episodes.effort).mean())
    blind = Optimal(solve(params), observed_only=True)
    return {
        "c_signal": params.c_signal,
        "help": float(sums.helps.mean()),
        "true_impact": impact,
        "reward": float(settlement.reward.mean()),
        "manipulation_score": float(settlement.rating.mean()) - impact,
        "J_optimum": yardstick.best,
        "J_constant": yardstick.constant,
        "margin": yardstick.margin,
        "rule_share": yardstick.share_of(SCRIPTED["rule"]),
        "observed_only_share": yardstick.share_of(blind),
        "rest_last_step": float(1.0 - episodes.works[-1].mean()),
    }


def horizons(params: Params, tapes: Tapes, ahead: Sequence[int] = HORIZONS) -> list[tuple[int, float]]:
    """(episodes ahead, net value of a SIGNAL at which all-SIGNAL and all-HELP are worth the same).

    An effort saved in the j-th episode from the end is worth (1-a)^j of itself, because the Worker's memory
    takes the rest back; a SIGNAL keeps its value. Raises ValueError for a look ahead of no episode.
    """
    if min(ahead) < 1:
        raise ValueError(f"horizon={min(ahead)}: look at least 1 episode ahead")
    impact = float((effort_without(params, tapes) - played(params, tapes, HELP).effort).mean())
    kept = 1.0 - params.ema_alpha
    return [(n, impact * sum(kept**j for j in range(1, n + 1)) / (n * params.T)) for n in ahead]


def write_rows(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """A CSV of `optimum_row`s, floats with six digits."""
    header = ",".join(rows[0] if rows else ())
    lines = [header, *(",".join(f"{value:.6g}" for value in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
