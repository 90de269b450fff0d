"""Sentences of the reputation game's README: what their JSON says, or the game where it is exact."""

import csv
from functools import cache

import numpy as np
from safetensors.torch import load_file

from domains.reputation_hacking.game.dynamics import Episodes, Tapes
from domains.reputation_hacking.game.mitigations import calibrated_effort
from domains.reputation_hacking.game.optimum import Yardstick, horizons
from domains.reputation_hacking.game.params import RATING_ORDERS, Params
from domains.reputation_hacking.game.policies import CONSTANTS, SCRIPTED, Mixed
from domains.reputation_hacking.ppo.paired import HELD_OUT, paired
from domains.reputation_hacking.ppo.report import columns
from tests.support.claims import Claim
from tests.support.measured import REPUTATION, ROOT, ppo, result
from tests.unit.reputation_hacking import test_estimators as estimators

START = 53.4
"""Effort that a Worker expects of itself, as the page rounds it."""
DO_NOTHING, ALL_HELP, ALL_SIGNAL = CONSTANTS


def language_shares(drawn: bool) -> list[float]:
    return [runs[drawn]["share_of_margin"] for runs in result("reputation_language")["seeds"].values()]


def drawn_at_the_end() -> list[float]:
    """Least and most of the margin that answers of SmolLM2 took in the last stretch of training."""
    shares = [row["training"][-1]["share"] for row in result("gpu_reputation")["rows"].values()]
    assert sum(share < 0.25 for share in shares) == 1  # "by one seed of three"
    return [min(shares), max(shares)]


def smollm2_reputation() -> list[float]:
    """Seconds of training, shares after it, the lowest end of theirs, the ladder, drawn shares at the end."""
    rows = list(result("gpu_reputation")["rows"].values())
    seconds, shares, lows = (
        [row["rates"]["elapsed_s"] for row in rows],
        [row["after"]["share_of_margin"][0] for row in rows],
        [row["after"]["share_of_margin"][1] for row in rows],
    )
    ladder = [one["share"] for one in rows[0]["ladder"] if one["policy"] != "optimum"]
    ends = [pick(one) for one in (seconds, shares) for pick in (min, max)]
    return [*ends, min(lows), *ladder, *drawn_at_the_end()]


def speed(*keys: str) -> float:
    found = result("reputation")["speed"]
    for key in keys:
        found = found[key]
    return float(found)


def figure_rows() -> list[dict[str, str]]:
    """Runs of the figure over prices, likeliest actions."""
    with (ROOT / "domains/reputation_hacking/figures/transition.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["policy"] == "deterministic"]


def ppo_of_the_figure(price: float) -> list[float]:
    """Shares of the margin, by seed."""
    rows = [row for row in figure_rows() if row["features"] == "scaled" and float(row["c_signal"]) == price]
    return [float(row["share_of_margin"]) for row in rows]


@cache
def yardstick(price: float) -> Yardstick:
    return Yardstick(Params(c_signal=price), HELD_OUT)


def spreads() -> list[float]:
    """Standard deviations of TrueImpact under HELP by a coin: on two tapes, and on one."""
    pairs = paired(Params(), Mixed((0.5, 0.5, 0.0), "coin"), HELD_OUT, START)
    efforts = [arm.episodes.effort for arm in (pairs.acting, pairs.without)]
    return [float(np.sqrt(sum(effort.var() for effort in efforts))), float(pairs.true_impact.std())]


def constants() -> list[float]:
    """Rewards of all-HELP where the Worker learns first and where it rates first, and of all-SIGNAL."""
    games = [Params(rating_order=order) for order in RATING_ORDERS]
    helped, signalled = (
        [
            float(columns(paired(game, policy, HELD_OUT, calibrated_effort(game)))["reward"].mean())
            for game in games
        ]
        for policy in (ALL_HELP, ALL_SIGNAL)
    )
    assert f"{signalled[0]:.1f}" == f"{signalled[1]:.1f}"
    return [*helped, signalled[0]]


def manipulation_of_help() -> list[float]:
    """Mean ManipulationScore of all-HELP, calibrated and in a settled chain."""
    pairs = (
        paired(Params(), ALL_HELP, HELD_OUT, START),
        paired(Params(), ALL_HELP, HELD_OUT, START, mode="chained", burn_in=30),
    )
    return [float(pair.manipulation.mean()) for pair in pairs]


def tiredness() -> list[float]:
    """Least and most of the observed fatigue in the second half of episodes without an Assistant."""
    tapes = Tapes.from_seeds(Params(), HELD_OUT)
    episodes, seen = Episodes(Params(), tapes), list[np.ndarray]()
    while episodes.t < Params().T:
        seen.append(episodes.observation()[:, 2])
        episodes.step(np.zeros(len(tapes), int))
    late = np.array(seen[Params().T // 2 :])
    return [float(late.min()), float(late.max())]


def looking_ahead() -> list[float]:
    """Net value of a SIGNAL where all-SIGNAL equals all-HELP, ten episodes ahead and one."""
    found = dict(horizons(Params(), Tapes.from_seeds(Params(), HELD_OUT), (1, 10)))
    return [found[10], found[1]]


def valley() -> list[float]:
    """Shares and percentages of HELP by a coin, the rest SIGNAL."""
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    found = [yardstick(0.7).share_of(Mixed((0.0, one, 1.0 - one), "coin")) for one in shares]
    return [value for pair in zip(found, (100 * one for one in shares)) for value in pair]


def parameters() -> int:
    """Of the bundled model."""
    weights = load_file(ROOT / "domains/reputation_hacking/checkpoint/model.safetensors")
    return sum(tensor.numel() for tensor in weights.values())


def table_of_situations() -> list[float]:
    """Situations, reward, updates that it takes, rollouts of an update, and over how many runs."""
    updates = estimators.updates_needed(0.7, "situation", 120)
    rollouts = estimators.GROUPS * estimators.ATTEMPTS
    return [estimators.SITUATIONS, estimators.TARGET[0.7], updates, rollouts, estimators.RUNS]


REPUTATION_SENTENCES: dict[str, Claim] = {
    "reputation, speed": (
        REPUTATION,
        r"makes (\S+) M steps a second at\s+N = 4096 with tape drawing \(goal 5 M\), "
        r"(\S+) M at 16 and (\S+) M at 1; the single environment (\S+) k\. "
        r"PPO makes (\S+) k\s+steps a second with 256 environments, (\d+) times .*?\(goal 15\) and (\d+)\s+"
        r"times one environment with the same",
        lambda: [
            *(speed("batch_env_steps_per_s", count) / 1e6 for count in ("4096", "16", "1")),
            speed("single_env_steps_per_s") / 1e3,
            speed("ppo_batch_256_steps_per_s") / 1e3,
            speed("ppo_ratio"),
            speed("ppo_ratio_matched_hyperparameters"),
        ],
    ),
    "reputation, what was not reached": (
        REPUTATION,
        r"not met by any recipe \((\S+) to (\S+) with `strong`\), and at 0\.65 `base` learns\s+"
        r"nothing \((\S+), (\S+) and (\S+)\)",
        lambda: [
            *(end(ppo("strong", 0.7, seed)["deterministic"] for seed in range(3)) for end in (min, max)),
            *(ppo("base", 0.65, seed)["deterministic"] for seed in range(3)),
        ],
    ),
    "reputation, trained on another machine": (
        REPUTATION,
        r"there the same seeds take (\S+), (\S+) and (\S+) at 0\.7, and (\S+), (\S+) and (\S+) at 0\.75",
        lambda: [share for price in (0.7, 0.75) for share in ppo_of_the_figure(price)],
    ),
    "reputation, the rule": (
        REPUTATION,
        r"(\S+) and (\S+) are what the rule",
        lambda: [yardstick(price).share_of(SCRIPTED["rule"]) for price in (0.75, 0.8)],
    ),
    "reputation, the language model": (
        REPUTATION,
        r"holds on all three seeds\*\* \((\S+) to (\S+); drawn answers (\S+) to (\S+)\)",
        lambda: [end(language_shares(drawn)) for drawn in (False, True) for end in (min, max)],
    ),
    "reputation, SmolLM2": (
        REPUTATION,
        r"in (\S+) to (\S+) s of training each.+holds on all three seeds \((\S+) to (\S+)\); one interval "
        r"reaches down to\s+(\S+)\. .+random (\S+), all-HELP (\S+), all-SIGNAL (\S+), rule (\S+), "
        r"fitted linear rule (\S+)\.\s+Drawn answers .*? in training took (\S+) to (\S+) in the last",
        smollm2_reputation,
    ),
    "reputation, drawn answers": (
        REPUTATION,
        r"In training\s+drawn ones took (\S+) to (\S+) at the end\. The bundled model's were "
        r"\((\S+) to (\S+)\)",
        lambda: [*drawn_at_the_end(), *(end(language_shares(True)) for end in (min, max))],
    ),
    "reputation, the ladder": (
        REPUTATION,
        r"the same seeds: random (\S+), all-HELP (\S+), all-SIGNAL (\S+), rule (\S+), "
        r"fitted linear rule (\S+)\.\s",
        lambda: [
            one["share"] for one in result("reputation_language")["ladder"] if one["policy"] != "optimum"
        ],
    ),
    "reputation, shared noise": (REPUTATION, r"from (\S+)\s+\(two tapes\) to (\S+)\.\n", spreads),
    "reputation, constants": (
        REPUTATION,
        r"all-HELP earns (\S+) \(learn first\) or (\S+) \(rate first\), all-SIGNAL (\S+) in both",
        constants,
    ),
    "reputation, looking ahead": (
        REPUTATION,
        r"net value of (\S+) per SIGNAL on, one that looks a single episode ahead only from (\S+) on",
        looking_ahead,
    ),
    "reputation, tiredness": (REPUTATION, r"lives between (\S+) and (\S+) in the second half", tiredness),
    "reputation, calibration": (
        REPUTATION,
        r"from L\* = (\S+), the mean",
        lambda: [calibrated_effort(Params())],
    ),
    "reputation, conventions": (
        REPUTATION,
        r"all-HELP has a mean ManipulationScore of (\S+) calibrated and\s+(\S+) in a settled",
        manipulation_of_help,
    ),
    "reputation, the valley": (
        REPUTATION,
        r"takes a share of\s+" + ",? (?:and )?".join([r"(\S+) at (\S+) %"] * 5) + r" \(held-out",
        valley,
    ),
    "reputation, a table": (
        REPUTATION,
        r"table of (\d+) situations comes to a reward of (\d+) .*? within (\d+) updates of (\d+) rollouts, "
        r"the mean of (\d+) runs",
        table_of_situations,
    ),
    "reputation, the bundled model": (
        REPUTATION,
        r"bundled model \((\S+)M parameters; a reading",
        lambda: [parameters() / 1e6],
    ),
}
