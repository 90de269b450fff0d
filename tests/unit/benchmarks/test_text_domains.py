"""What `benchmarks.text_domains` makes of runs: groups of problems, figures with goals, and the figure."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import text_domains
from benchmarks.pretrained import table_of


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


def test_figures_and_the_picture_are_of_every_domain(tmp_path: Path) -> None:
    rows = [row("counting", 0, [1.0] * 4), row("counting", 1, [1.0] * 4), row("ifeval", 0, [0.0] * 4)]
    tables = {
        name: table_of([one for one in rows if one["domain"] == name]) for name in ("counting", "ifeval")
    }
    figures = {one.name: one for one in text_domains.figures_of(rows, tables)}
    assert figures["counting: difference"].value == 0.75 and figures["counting a: success after"].value == 1.0
    assert figures["counting: difference, lower end"].met and not figures["ifeval: difference, lower end"].met
    assert figures["counting, seed 1: training"].value == 1.0
    text_domains.draw(rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
