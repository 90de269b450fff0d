"""The privacy agent from SmolLM2 over its seeds instead of their chains: what its README says of it."""

import numpy as np

from benchmarks._seeds import ratio_of_means, t_interval
from tests.support.claims import Claim
from tests.support.measured import PRIVACY, result
from tests.support.privacy_claims import fall, seeds_of, smollm2_by_seed


def over_seeds(name: str) -> list[float]:
    """Mean and ends of Student's interval of a gate's differences."""
    mean, half = t_interval(smollm2_by_seed(name))
    assert half is not None
    return [mean, mean - half, mean + half]


def left_over_seeds() -> list[float]:
    """What the penalty leaves of the leakage, with its interval over the means of its seeds."""
    rows = [result("gpu_privacy_language_rows")[f"penalty_{seed}"] for seed in seeds_of("penalty")]
    start, end = ([float(np.mean(row["evaluations"][at][1]["leak"])) for row in rows] for at in (0, -1))
    left, low, high = ratio_of_means(end, start)
    assert low is not None and high is not None
    return [left, low, high]


PRIVACY_SEED_SENTENCES: dict[str, Claim] = {
    "SmolLM2, over seeds": (
        PRIVACY,
        r"\(Student's t\) success rises by (\S+) \[(\S+), (\S+)\] with rewards for\s+outcomes, and leakage "
        r"falls by (\S+) \[(\S+), (\S+)\] under .*? shown so: (\S+) \[(\S+), (\S+)\]\. What the penalty "
        r"leaves is (\S+) \[(\S+), (\S+)\]",
        lambda: [
            *over_seeds("O1 outcome raises success"),
            *fall(over_seeds("O4 penalty lowers leakage")),
            *over_seeds("O2 outcome raises leakage"),
            *left_over_seeds(),
        ],
    )
}
