"""Reasons of missed goals about RARO, as `benchmarks.goals` prints them: what their JSON says."""

from tests.support.claims import Claim
from tests.support.measured import result
from tests.support.raro_claims import above_sft, at_the_end
from tests.support.raro_tables import raro_curves

PAGE = "benchmarks/README.md"


def behind_the_verifier(evaluation: int) -> list[float]:
    """Points between verifier RL and RARO at the reference values, sampled, by seed."""
    own, verified = (raro_curves(arm, file="raro_reference") for arm in ("raro", "rlvr"))
    return [above[evaluation] - below[evaluation] for below, above in zip(own, verified, strict=True)]


def undecided() -> list[float]:
    """Ends of the gain ratio; points behind after a quarter and at the end; what weights of 1/2 add."""
    ratio = result("raro_reference")["table"]["sampled"]["gain ratio"]
    first, last = behind_the_verifier(1), behind_the_verifier(-1)
    half, own = (at_the_end(arm, "sampled")[0] for arm in ("half", "raro"))
    return [ratio["low"], ratio["high"], min(first), max(first), *last, half - own]


def greedy_of_the_miniature() -> list[float]:
    """RARO above more SFT by greedy answers: least and most, mean, half width; more SFT's range."""
    gain, ahead = result("raro_reference")["table"]["greedy"]["raro - sft"], above_sft("greedy")
    supervised = at_the_end("sft", "greedy")
    return [min(ahead), max(ahead), gain["mean"], gain["half_width"], min(supervised), max(supervised)]


def greedy_of_two_verdicts() -> list[float]:
    """Ends of the gain ratio, and of RARO's greedy answers."""
    ratio = result("raro")["table"]["greedy"]["gain ratio"]
    ends = [run["after"]["greedy"] for run in result("raro")["runs"] if run["arm"] == "raro"]
    return [ratio["low"], ratio["high"], min(ends), max(ends)]


GOAL_SENTENCES: dict[str, Claim] = {
    "goals, RARO's reference values": (
        PAGE,
        r"do not decide it \((\S+) to (\S+)\)\. .*? it is (\S+) to (\S+) points behind, at the end (\S+), "
        r"(\S+) and (\S+); with weights of 1/2 each seed 0 ends (\S+) points higher",
        undecided,
    ),
    "goals, RARO's reference values, greedy": (
        PAGE,
        r"ahead with every seed, by (\S+) to (\S+) points, but .*? three seeds, (\S+) with half a width of "
        r"(\S+), holds 0\. .*? by validation, (\S+) to (\S+) percent",
        greedy_of_the_miniature,
    ),
    "goals, RARO's two verdicts, greedy": (
        PAGE,
        r"seeds hardly bound it \((\S+) to (\S+)\), because RARO's greedy answers end "
        r"between (\S+) and (\S+) percent",
        greedy_of_two_verdicts,
    ),
}

GOAL_OTHERS = {
    r"with (16) verdicts the share": "a setting",
    r"with weights of (1)/(2) each seed (0) ends": "the name of an arm, and a seed",
    r"with half a width of \S+, holds (0)\.": "zero",
}
"""Numbers of reasons that are not measured, and what they are."""
