"""Every goal beside what was measured: `python -m benchmarks.goals` prints the tables.

Reads the rows of goals.yaml and the results/*.json that runs and scripts leave. A goal that is missed says
why; one that nobody has measured says so. The status is the number of rows that are missed or open.
`benchmarks.documents` writes the same tables into benchmarks/README.md.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import yaml

from benchmarks._figures import RESULTS
from benchmarks._results import Results

FOLDER = Path(__file__).parent


def share_of_texts(result: Any) -> float:
    """The worst seed's share of the texts that outcome rewards needed; infinite if it never got there."""
    shares = result["gates"]["O3 goal: a third of the texts"]["by_seed"]
    return max(math.inf if one is None else float(one) for one in shares)


def leak_ratio(result: Any) -> float:
    """Leakage with the penalty over leakage of the start."""
    return float(result["table"]["penalty"]["leak"]["mean"] / result["table"]["start"]["leak"]["mean"])


def penalty_cost(result: Any) -> float:
    """Points of success between penalty and outcome rewards, lower end of the interval."""
    return 100 * float(result["gates"]["O5 goal: not 5 points below outcome"]["low"])


def penalty_cost_mean(result: Any) -> float:
    """Points of success between penalty and situational rewards alone."""
    return 100 * float(result["gates"]["O5 at most 3 points below situational"]["value"])


def ppo_share(result: Any) -> float:
    """The worst seed's share of the margin over the best constant policy."""
    rows = [row for row in result["learning"] if row["recipe"] == "base" and row["c_signal"] == 0.7]
    return min(float(row["deterministic"]) for row in rows)


def language_share(result: Any) -> float:
    """The same for the language model, greedy."""
    rows = [row for seed in result["seeds"].values() for row in seed]
    return min(float(row["share_of_margin"]) for row in rows if row["policy"] == "deterministic")


def smollm2_share(result: Any) -> float:
    """The same for the pretrained model."""
    return min(float(row["after"]["share_of_margin"][0]) for row in result["rows"].values())


def raro_gain(result: Any, way: str = "sampled") -> float:
    """RARO minus more supervised training, lower end; by sampled or greedy answers."""
    gain = result["table"][way]["raro - sft"]
    return float(gain["mean"] - gain["half_width"])


FUNCTIONS: Mapping[str, Callable[[Any], float]] = {
    "share_of_texts": share_of_texts,
    "leak_ratio": leak_ratio,
    "penalty_cost": penalty_cost,
    "penalty_cost_mean": penalty_cost_mean,
    "ppo_share": ppo_share,
    "language_share": language_share,
    "smollm2_share": smollm2_share,
    "raro_gain": raro_gain,
    "raro_gain_greedy": partial(raro_gain, way="greedy"),
    "fault_seconds": lambda result: max(float(one["seconds"]) for one in result["cases"]),
    "caught": lambda result: 100.0 * sum(one["caught"] for one in result) / len(result),
}


@dataclass(frozen=True)
class Goal:
    """A row of goals.yaml."""

    row: str
    result: str
    """The JSON that has it: of the script or specification of that name, or of a finished study."""
    unit: str
    figure: str | None = None
    keys: Sequence[str] = ()
    derived: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    why: str = ""

    def value(self, results: Path) -> float | None:
        """What was measured; None if nobody did."""
        path = results / f"{self.result}.json"
        if not path.is_file():
            return None
        result = json.loads(path.read_text())
        if self.derived is not None:
            return FUNCTIONS[self.derived](result)
        keys = self.keys if self.figure is None else ("figures", self.figure, "value")
        try:
            return float(reduce(lambda found, key: found[key], keys, result))
        except KeyError:
            return None

    def met(self, value: float) -> bool:
        """Within both limits, where they are set."""
        enough = self.at_least is None or value >= self.at_least
        return enough and (self.at_most is None or value <= self.at_most)

    def reason(self, results: Path) -> str:
        """Why it is missed, with the numbers of the results."""
        return (self.why or "not explained yet").format_map(Results(results))

    @property
    def wanted(self) -> str:
        """The goal, in the unit of what was measured."""
        sign, limit = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        assert limit is not None
        return f"{sign} {number(limit)}"


def tables() -> dict[str, list[Goal]]:
    """All rows, by name of their table."""
    loaded = yaml.safe_load((FOLDER / "goals.yaml").read_text())
    return {name: [Goal(**row) for row in rows] for name, rows in loaded.items()}


def number(value: float) -> str:
    """As short as it can be told."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def unmet(goals: Sequence[Goal], results: Path) -> int:
    """How many rows are missed or open."""
    values = [(goal, goal.value(results)) for goal in goals]
    return sum(value is None or not goal.met(value) for goal, value in values)


def section(goals: Sequence[Goal], results: Path) -> str:
    """One table as Markdown; the reasons of its misses follow, numbered as in the table."""
    lines = ["| figure | measured | goal | result |", "| --- | --- | --- | --- |"]
    reasons: list[str] = []
    for goal in goals:
        value = goal.value(results)
        found, wanted = "not measured", f"{goal.wanted} {goal.unit}".strip()
        if value is not None:
            found, wanted = f"{number(value)} {goal.unit}".strip(), goal.wanted
            if not goal.met(value):
                reasons.append(f"{len(reasons) + 1}. {goal.reason(results)}")
                wanted += f", **missed** ({len(reasons)})"
        lines.append(f"| {goal.row} | {found} | {wanted} | `{goal.result}` |")
    return "\n".join([*lines, *(["", *reasons] if reasons else [])]) + "\n"


def main(results: Path = RESULTS) -> int:
    rows = tables()
    print("\n".join(section(goals, results) for goals in rows.values()))
    return sum(unmet(goals, results) for goals in rows.values())


if __name__ == "__main__":
    sys.exit(main())
