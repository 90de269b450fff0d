"""Announcements travel over streams, so they are tried on every backend; three roles record rollouts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.run_state.accounting import RolloutLog
from tests.unit.streams.conftest import choose, redis_port, spec  # noqa: F401


def _log_of(role: str) -> Any:
    @pytest.fixture
    def log(tmp_path: Path) -> Iterator[RolloutLog]:
        with RolloutLog(tmp_path, role) as opened:
            yield opened

    return log


actor, preprocess, trainer = map(_log_of, ("actor", "preprocess", "finetune"))
