"""textarena is an extra (`pip install 'pipelinerl[textarena]'`); `arena` skips without it."""

import pytest

from tests.unit.launcher.conftest import dry_run, model  # noqa: F401, fixtures of launches


@pytest.fixture
def arena() -> None:
    pytest.importorskip("textarena", reason="pip install 'pipelinerl[textarena]'")
