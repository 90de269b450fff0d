"""Supervisors and agents that look at their children ten times as often as those of a run."""

import pytest

from pipelinerl.launcher.supervision import agent, run


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_LONGEST_WAIT_S", 0.1)
    monkeypatch.setattr(agent, "_LOOK_EVERY_S", 0.1)
