"""reasoning-gym is an extra (`pip install 'pipelinerl[reasoning-gym]'`); `families` skips without it."""

import pytest

from tests.unit.launcher.conftest import dry_run, model  # noqa: F401, fixtures of launches


@pytest.fixture
def families() -> None:
    pytest.importorskip("reasoning_gym", reason="pip install 'pipelinerl[reasoning-gym]'")
