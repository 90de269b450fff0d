"""Values of the claims about SmolLM2 in sentences; `tests/unit/docs/test_claims.py` compares them."""

import numpy as np

from benchmarks._seeds import t_interval
from pipelinerl.config.serving import WeightsConfig
from tests.support.claims import Claim
from tests.support.measured import ENGINE, GYM, figure, result

STEP_TEXTS = 512


def gain_over_seeds(file: str) -> list[float]:
    """Mean and ends of Student's interval of the gain in success."""
    rows = result(file)["rows"]
    mean, half = t_interval([float(np.mean(row["after"]) - np.mean(row["before"])) for row in rows])
    assert half is not None and len(rows) == 3
    return [mean, mean - half, mean + half]


def gain_by_halves() -> list[float]:
    """What came with the first 50 steps, how many these are, and what came with the others, and how many."""
    rows = result("pretrained_gpu")["rows"]
    at_50 = [one["success"] for row in rows for one in row["curve"] if one["texts"] == 50 * STEP_TEXTS]
    start, end = (np.mean([row["curve"][index]["success"] for row in rows]) for index in (0, -1))
    assert len(at_50) == len(rows)
    return [float(np.mean(at_50) - start), 50, float(end - np.mean(at_50)), rows[0]["steps"] - 50]


def minutes(file: str, key: str = "total_s") -> list[float]:
    """The shortest and the longest of the seeds."""
    found = [row[key] / 60 for row in result(file)["rows"]]
    return [min(found), max(found)]


def apart(file: str, which: str) -> float:
    """Nats between engine and trainer, the most of all seeds."""
    return max(row["parity"][f"weights/parity_{which}_abs"] for row in result(file)["rows"])


def imitating_s() -> list[float]:
    """Seconds of training, the shortest and the longest, at the rate that validation chose."""
    found = result("pretrained_supervised")
    chosen = [row["training_s"] for row in found["rows"] if row["rate"] == found["reported"]["best"]["rate"]]
    return [min(chosen), max(chosen)]


PRETRAINED_SENTENCES: dict[str, Claim] = {
    "SmolLM2 imitates, how long": (
        GYM,
        r"and quicker: (\S+) to (\S+) s of training a seed",
        imitating_s,
    ),
    "SmolLM2 imitates, in the summary": (
        "README.md",
        r"imitating as many of them does better, [^:]+: (\S+) \[(\S+), (\S+)\]",
        lambda: [
            result("pretrained_supervised")["reported"]["end"]["table"]["all"]["after"][key]
            for key in ("mean", "low", "high")
        ],
    ),
    "SmolLM2 made from its wheel": (
        GYM,
        r"The first command took (\d+) to (\d+) seconds on two cores",
        lambda: [figure("pretrained_model", f"made from the wheel, {end}") for end in ("fastest", "slowest")],
    ),
    "SmolLM2 on two cores, whole runs and parity": (
        GYM,
        r"a seed took (\S+) to (\S+) minutes\. The embedded.*?"
        r"differed by (\S+) nats on average and (\S+) at most \(allowed: (\S+)\)\.",
        lambda: [
            *minutes("pretrained_cpu"),
            apart("pretrained_cpu", "mean"),
            apart("pretrained_cpu", "max"),
            WeightsConfig().parity_max_abs,
        ],
    ),
    "SmolLM2 on two cores, over seeds": (
        GYM,
        r"how much runs differ: over the three seeds \(Student's t\) the gain is (\S+) \[(\S+), (\S+)\]\.",
        lambda: gain_over_seeds("pretrained_cpu"),
    ),
    "SmolLM2 on cards, over seeds and by halves": (
        GYM,
        r"Over the three seeds \(Student's t\) the gain is (\S+) \[(\S+), (\S+)\]\. Of it (\S+) "
        r"came with the first (\d+) steps and (\S+)\s+with the other (\d+)\. ",
        lambda: [*gain_over_seeds("pretrained_gpu"), *gain_by_halves()],
    ),
    "SmolLM2 on cards, whole runs": (
        GYM,
        r"A run took (\S+) to (\S+) minutes from start to report, of which (\S+) were\s+training",
        lambda: [*minutes("pretrained_gpu"), minutes("pretrained_gpu", "training_s")[1]],
    ),
    "SmolLM2 on cards, parity": (
        GYM,
        r"differed by (\S+) nats at most on average over a probe, by (\S+) on one token\..*?"
        r"scores of this\s+model by (\S+) nats, so that (\S+) are allowed",
        lambda: [
            apart("pretrained_gpu", "mean"),
            apart("pretrained_gpu", "max"),
            figure("pretrained_model", "trainer in bfloat16: rounding, mean"),
            figure("pretrained_model", "trainer in bfloat16: limit of the mean difference"),
        ],
    ),
    "SmolLM2's forward beside Qwen3's": (
        ENGINE,
        r"with (\d) of its layers a Qwen3 takes (\S+), (\S+) and\s+(\S+) times the Llama's time",
        lambda: [
            6,
            *(
                figure("pretrained_model", f"SmolLM2, 6 layers: {kind}, ratio")
                for kind in ("32 decodes", "one decode", "a prompt of 256")
            ),
        ],
    ),
}
