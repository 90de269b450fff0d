"""What a run says when engine and trainer are further apart than rounding explains."""

import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.observe.mismatch import LEAST_TOKENS, ArithmeticWatch, mismatch
from pipelinerl.observe.report import write_report
from tests.support.light_figures import draw_light_ones_only


def record(mean_abs: float, tokens: float = LEAST_TOKENS, group: str = "lag_0") -> dict[str, Any]:
    values = {
        "tokens": tokens,
        "mean_abs": mean_abs,
        "mean_square": mean_abs**2,
        "p99": 5 * mean_abs,
        "ess": 0.99,
    }
    return {f"mismatch/{group}/{name}": value for name, value in values.items()}


LIMIT: dict[str, Any] = {"mismatch/limit": 0.05}


def test_a_wrong_engine_is_remarked_once_with_what_to_do() -> None:
    watch = ArithmeticWatch()
    assert watch.add(record(0.2)) is None, "nobody has said yet what rounding explains"
    line = watch.add(record(0.3, 3 * LEAST_TOKENS) | LIMIT)
    assert line is not None and "\n" not in line
    assert line.startswith("engine and trainer are 0.28 nats apart on 8000 tokens of the newest weights,")
    assert "rounding explains 0.05" in line and "kv_cache_dtype" in line
    assert "finetune.rl.correction.mode=mask" in line and "finetune.rl.routing" not in line
    assert watch.add(record(0.3) | LIMIT) is None


@pytest.mark.parametrize(
    "records",
    [
        [record(0.04) | LIMIT],
        [record(0.3, LEAST_TOKENS - 1) | LIMIT],
        [record(0.3, group="lag_1") | LIMIT],
        [record(0.3, group="lag_0_continued") | LIMIT],
        [LIMIT],
    ],
    ids=["rounding", "few tokens", "old weights", "old keys", "nothing new"],
)
def test_a_sound_engine_is_not_remarked(records: list[dict[str, Any]]) -> None:
    watch = ArithmeticWatch()
    assert [watch.add(one) for one in records] == [None] * len(records)


def test_remedies_are_those_that_are_left() -> None:
    more = LIMIT | {"routing/replayed_share": 0.0, "rl/correction_weight": 1.0}
    line = ArithmeticWatch().add(record(0.3) | more)
    assert line is not None and "finetune.rl.routing=replay" in line and "correction.mode" not in line


def test_the_report_has_each_age_the_figure_and_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_light_ones_only(monkeypatch)
    with MetricsWriter(tmp_path, "finetune") as trainer:
        for step, (fresh, tokens) in enumerate(((0.1, 1000.0), (0.2, 3000.0))):
            trainer.log(record(fresh, tokens) | LIMIT, 16 * step)
            trainer.log(record(0.8, 500, "lag_2_3"), 16 * step + 8)
    out = io.StringIO()
    folder = write_report(tmp_path, console=Console(file=out))
    content = json.loads((folder / "report.json").read_text())["mismatch"]
    assert content.keys() == {"lag_0", "lag_2_3"}
    assert content["lag_0"] == pytest.approx(
        {"tokens": 4000, "mean_abs": 0.175, "mean_square": 0.0325, "p99": 0.875, "ess": 0.99}
    )
    markdown = (folder / "report.md").read_text()
    assert "| the newest weights | 4,000 | 0.17 |" in markdown
    assert "| 2 to 3 steps | 1,000 | 0.8 |" in markdown
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    for header, rule in itertools.pairwise(tables):
        if set(rule) == set("| -"):  # Markdown makes a table only of a header with as many cells as its rule
            assert len(re.findall(r"(?<!\\)\|", header)) == rule.count("|"), header
    share = 1 - 0.0325 / ((4000 * 0.0325 + 1000 * 0.64) / 5000)
    assert f"The age of weights explains {share:.1%} of the mean square of log r." in out.getvalue()
    assert "Engine and trainer are 0.17 nats apart on 4000 tokens" in out.getvalue()
    assert (folder / "mismatch.png").is_file() and 'src="mismatch.png"' in markdown
    sound = mismatch([record(0.01) | LIMIT])
    assert sound.text.splitlines()[-1] == "Arithmetic alone makes 0.01 nats; rounding may make 0.05."
    assert mismatch([]).rows()[1:] == [] and mismatch([]).text == ""
