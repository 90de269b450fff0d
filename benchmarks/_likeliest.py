"""What a start reaches with its most likely answers, and with always the same one; `benchmarks.experiment`.

A model that only became surer of what it said most often would end at the former.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._by_task import group_of, test_problems
from benchmarks._figures import Figure
from benchmarks._intervals import paired
from domains.reasoning_gym.families import entry
from pipelinerl.observe.history import read_evaluations
from pipelinerl.observe.intervals import wilson

NAME = "greedy"
"""In place of a seed."""
KEYS = ("test_llm.parameters.temperature=0", "finetune.max_train_steps=1")


def row_of(out: Path) -> dict[str, Any]:
    """Success of each problem in the first evaluation, and what always the same answer would reach."""
    success = [value or 0.0 for value in read_evaluations(out)[0].values["success"]]
    return {"success": success, "constant": best_constant(test_problems(out))}


def answer_of(problem: Mapping[str, Any]) -> Any:
    """What always the same answer would have to be: a number, or of a puzzle an order or who tells the truth.

    None for problems that have many right answers.
    """
    context = problem.get("reward_context", problem)
    if "options" not in context:
        return problem.get("count", problem.get("answer"))
    found = entry(*(context[key] for key in ("task", "options", "seed", "index")))
    if context is problem:
        return found["answer"]
    metadata = found["metadata"]
    if "solution" in metadata:
        return tuple(metadata["solution"])
    return tuple(metadata["transformed_words"].index(word) for word in metadata["sorted_words"])


def best_constant(problems: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of each group the share of its most frequent answer; empty where nothing is always answered so."""
    answers = defaultdict[str, Counter[Any]](Counter)
    for problem in problems:
        if (answer := answer_of(problem)) is not None:
            answers[group_of(problem)][answer] += 1
    return {group: max(one.values()) / one.total() for group, one in answers.items()}


def beside(rows: Sequence[Mapping[str, Any]], likely: Mapping[str, Any]) -> dict[str, Any]:
    """Of an arm: what the most likely answers and always the same one reach; the runs above the former."""
    reached = likely["success"]
    *_, above = paired([reached] * len(rows), [row["after"] for row in rows])
    return {
        "success": wilson(sum(reached), len(reached))._asdict(),
        "difference": above._asdict(),
        "constant": likely["constant"],
    }


def figures_of(arm: str, one: Mapping[str, Any]) -> list[Figure]:
    return [
        Figure(f"{arm}: success before, most likely answers", one["success"]["mean"], ""),
        Figure(f"{arm}: after, above those", one["difference"]["mean"], ""),
        Figure(f"{arm}: after, above those, lower end", one["difference"]["low"], ""),
        Figure(f"{arm}: after, above those, upper end", one["difference"]["high"], ""),
        *(
            Figure(f"{arm} {group}: always the same answer", share, "")
            for group, share in one["constant"].items()
        ),
    ]
