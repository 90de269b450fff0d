"""The report's tables of advantages by situation and role, from the metrics of preprocess."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipelinerl.observe.comparisons import label_rows, label_totals
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.observe.report import write_report


def record(kind: str, label: str, texts: float, reward: float) -> dict[str, Any]:
    values = {"count": texts, "mean": 0.1, "reward_mean": reward, "abs_mean": 0.2, "frac_zero_texts": 0.5}
    values |= {"mean_bucket_size": 4.0, "frac_singleton_buckets": 0.25}
    return {f"adv/{kind}/{label}/{name}": value for name, value in values.items()}


def test_records_count_by_their_texts() -> None:
    records = [
        record("situation", "a:plan", 30, 1.0),
        {"adv/padding_rows": 3.0},
        record("situation", "a:plan", 10, 0.0),
    ]
    found = label_totals(records, "situation")
    assert found["a:plan"]["count"] == 40
    assert found["a:plan"]["reward_mean"] == pytest.approx(0.75)
    assert label_totals(records, "role") == {}


def test_the_label_with_most_texts_comes_first() -> None:
    totals = label_totals([record("role", "few", 1, 0.0) | record("role", "many", 2000, 0.0)], "role")
    header, *rows = label_rows("role", totals)
    assert header[:2] == ("role", "texts") and all(len(row) == len(header) for row in rows)
    assert [row[:2] for row in rows] == [("many", "2,000"), ("few", "1")]


@pytest.mark.usefixtures("undrawn")
def test_the_report_shows_the_situations_of_a_run_and_no_table_for_roles_without_any(
    run_dir: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_dir, run)
    with MetricsWriter(run, "preprocess") as metrics:
        metrics.log(record("situation", "opening", 64, 0.4), 64)
    folder = write_report(run, console=Console(file=io.StringIO()))
    said = (folder / "report.md").read_text()
    assert "## Advantages by situation" in said and "| opening | 64 | 0.400 |" in said
    table = said.partition("## Advantages by situation")[2].splitlines()[2:5]
    assert len({line.count("|") for line in table}) == 1, table
    assert "Advantages by role" not in said
    assert "Advantages by situation" in (folder / "index.html").read_text()
    assert json.loads((folder / "report.json").read_text())["compared"]["situation"]["opening"]["count"] == 64
