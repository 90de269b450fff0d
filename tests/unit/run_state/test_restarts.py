"""Restarts of engines, from the launcher's log to the report."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelinerl.base.logs import log_path
from pipelinerl.observe.report import rate_rows
from pipelinerl.observe.summary import summarise
from pipelinerl.run_state.restarts import engine_restarts, restart_line


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logging.Logger]:
    """The launcher's log of a run in `tmp_path`, in the form that its file has."""
    path = log_path(tmp_path, "launcher", "launcher_0")
    path.parent.mkdir()
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.Logger("pipelinerl.launch")
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_the_report_counts_restarts_of_engines_alone(tmp_path: Path, log: logging.Logger) -> None:
    log.info("actor_vllm_0 started (pid 7)")
    assert not any("restarted" in row[0] for row in rate_rows(summarise(tmp_path)))
    log.info(restart_line("actor_vllm_0", "killed by SIGKILL", 1, 3, 1.0))
    log.info(restart_line("services/retrieval_0", "killed by SIGKILL", 1, 3, 1.0))
    log.info("actor_vllm_0: killed by SIGKILL, after 3 restarts; last line: engine: serving (log: x)")
    assert ("engines restarted", "1") in rate_rows(summarise(tmp_path))
    log.info(restart_line("actor_vllm_12", "no new token for 60 s: engine", 2, 3, 0.05))
    assert engine_restarts(tmp_path) == 2


def test_a_run_without_a_launcher_s_log_had_none(tmp_path: Path) -> None:
    assert engine_restarts(tmp_path) == 0
