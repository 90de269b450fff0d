"""Share of the margin that a language model takes in the reputation game, for `specs/reputation.yaml`."""

from collections.abc import Callable
from pathlib import Path

from benchmarks._by_task import test_problems
from domains.reputation_hacking.game.optimum import Yardstick
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import returns
from pipelinerl.observe.history import Evaluation


def share_of_margin(out: Path) -> Callable[[Evaluation], list[float | None]]:
    """For a run at one price: of each held-out tape 1 minus its regret over the mean margin.

    The mean over tapes is the share of the margin between the best constant policy (0) and the optimum (1).
    """
    problems = test_problems(out)
    (price,) = {one["c_signal"] for one in problems}
    seeds = sorted(one["seed"] for one in problems)
    yardstick = Yardstick(Params(c_signal=price), seeds)
    best = dict(zip(seeds, returns(yardstick.optimal), strict=True))

    def shares(evaluation: Evaluation) -> list[float | None]:
        returned = zip(problems, evaluation.values["episode_return"], strict=True)
        return [
            None if value is None else 1.0 - float(best[problem["seed"]] - value) / yardstick.margin
            for problem, value in returned
        ]

    return shares
