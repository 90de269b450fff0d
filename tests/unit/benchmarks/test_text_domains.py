"""What `benchmarks.text_domains` makes of runs: groups of problems, figures with goals, and the figure."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import text_domains
from benchmarks.pretrained import table_of
from domains.logic import load_problems


def row(domain: str, seed: int, after: list[float]) -> dict[str, Any]:
    curve = [{"texts": 0, "minutes": 0.0, "success": 0.25}, {"texts": 64, "minutes": 1.0, "success": 0.75}]
    kept = {"domain": domain, "seed": seed, "steps": 4, "training_s": 60.0, "curve": curve}
    return kept | {"tasks": ["a", "a", "b", "b"], "before": [0.0, 0.0, 0.0, 1.0], "after": after}


@pytest.mark.parametrize(
    ("problem", "group"),
    [
        ({"dataset": "test_counting_problems/letters"}, "letters"),
        ({"dataset": "ifeval_test", "num_constraints": 2}, "2 instructions"),
        ({"dataset": "fn_calling@validation/parallel"}, "parallel"),
    ],
)
def test_problems_are_told_apart(problem: dict[str, Any], group: str) -> None:
    assert text_domains.group_of(problem) == group


def test_always_the_same_answer_is_the_most_frequent_one_of_each_group() -> None:
    numbers = [{"dataset": f"test/{kind}", "count": count} for kind in "ab" for count in (1, 1, 1, kind)]
    assert text_domains.best_constant([*numbers, {"dataset": "test/c", "answer": "7"}]) == {
        "a": 0.75,
        "b": 0.75,
        "c": 1.0,
    }
    assert text_domains.best_constant([{"dataset": "ifeval", "num_constraints": 1}]) == {}


def test_puzzles_are_always_answered_by_an_order_or_by_who_tells_the_truth() -> None:
    pytest.importorskip("reasoning_gym", reason="pip install 'pipelinerl[reasoning-gym]'")
    tasks = {"web_of_lies": {"n_people": 2}, "word_sorting": {"min_words": 3, "max_words": 3}}
    problems = load_problems(["logic_test"], tasks=tasks, test_count=8)
    assert {type(text_domains.answer_of(one)[0]) for one in problems[:8]} == {bool}
    assert all(sorted(text_domains.answer_of(one)) == [0, 1, 2] for one in problems[8:])


def test_figures_and_the_picture_are_of_every_domain(tmp_path: Path) -> None:
    rows = [row("counting", 0, [1.0] * 4), row("counting", 1, [1.0] * 4), row("ifeval", 0, [0.0] * 4)]
    tables = {
        name: table_of([one for one in rows if one["domain"] == name]) for name in ("counting", "ifeval")
    }
    likely = {"domain": "counting", "success": [1.0, 0.0, 0.0, 1.0], "constant": {"a": 0.5}}
    greedy = {"counting": text_domains.over_greedy(rows[:2], likely)}
    figures = {one.name: one for one in text_domains.figures_of(rows, tables, greedy)}
    assert figures["counting: difference"].value == 0.75 and figures["counting a: success after"].value == 1.0
    assert figures["counting: difference, lower end"].met and not figures["ifeval: difference, lower end"].met
    assert figures["counting, seed 1: training"].value == 1.0
    assert figures["counting: success before, most likely answers"].value == 0.5
    assert figures["counting: after, above those"].value == 0.5
    assert figures["counting a: always the same answer"].value == 0.5
    text_domains.draw(rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
