"""How long a run took to start, from the launcher's log to the report."""

import logging
import time
from pathlib import Path

import pytest

from pipelinerl.base.logs import log_path, setup_logging
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.observe.report import rate_rows
from pipelinerl.observe.summary import summarise
from pipelinerl.run_state.start_times import launched_line, start_seconds

TWO_LAUNCHES = """\
2026-07-29 10:00:00,000 INFO pipelinerl.launch: launched at 1000.000, 4.0 s ago
2026-07-29 10:00:01,000 INFO pipelinerl.launch: actor_vllm_0 started (pid 7)
2026-07-29 10:00:01,500 INFO pipelinerl.launch: actor_vllm_1 started (pid 8)
2026-07-29 10:00:02,000 INFO pipelinerl.launch: services/retrieval_0 is healthy
2026-07-29 10:00:31,250 INFO pipelinerl.launch: actor_vllm_0 is healthy
2026-07-29 10:00:41,500 INFO pipelinerl.launch: actor_vllm_1 is healthy
2026-07-29 10:00:50,000 INFO pipelinerl.launch: actor_vllm_0: killed by SIGKILL; restart 1 of 3 in 1 s
2026-07-29 10:00:51,000 INFO pipelinerl.launch: actor_vllm_0 started (pid 9)
2026-07-29 10:03:51,000 INFO pipelinerl.launch: actor_vllm_0 is healthy
2026-07-29 11:00:00,000 INFO pipelinerl.launch: launched at 4600.000, 4.0 s ago
2026-07-29 11:00:01,000 INFO pipelinerl.launch: actor_vllm_0 started (pid 7)
2026-07-29 11:00:13,000 INFO pipelinerl.launch: actor_vllm_0 is healthy
"""


@pytest.mark.parametrize(
    ("first_step_at", "found"),
    [
        (1090.5, {"engine_ready_s_max": 40.0, "engine_ready_s_min": 30.25, "first_step_s": 90.5}),
        (4630.0, {"engine_ready_s_max": 12.0, "first_step_s": 30.0}),
        (None, {"engine_ready_s_max": 12.0}),
        (999.0, {}),
    ],
    ids=["first launch", "the first was stopped before a step", "no step", "before any launch"],
)
def test_the_launch_that_trained_the_first_step_counts(
    tmp_path: Path, first_step_at: float | None, found: dict[str, float]
) -> None:
    path = log_path(tmp_path, "launcher", "launcher_0")
    path.parent.mkdir()
    path.write_text(TWO_LAUNCHES)
    assert start_seconds(tmp_path, first_step_at) == pytest.approx(found)


def test_a_part_of_a_run_has_no_such_times(tmp_path: Path) -> None:
    assert start_seconds(tmp_path, 1000.0) == {}


def test_the_report_says_it_from_the_lines_that_a_launcher_writes(tmp_path: Path) -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    setup_logging(tmp_path, "launcher", "launcher_0")
    began = time.time()
    logging.getLogger("pipelinerl.launch").info(launched_line())
    for handler in root.handlers:
        handler.close()
    root.handlers = before
    with MetricsWriter(tmp_path, "finetune") as writer:
        writer.log({"stats/completed_steps": 0}, step=0)
        writer.log({"stats/completed_steps": 1}, step=8)
        writer.log({"stats/completed_steps": 2}, step=16)
    (row,) = [row for row in rate_rows(summarise(tmp_path)) if "first trained step" in row[0]]
    # This process is that of the tests: it began before this test and is younger than a day.
    assert 0 < float(row[1].replace(",", "")) < 86_400
    launched_at = float(log_path(tmp_path, "launcher", "launcher_0").read_text().split()[6].rstrip(","))
    assert began - 86_400 < launched_at < began
