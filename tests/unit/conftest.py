"""What all unit tests share."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A property is tried with the same examples each time, however long one takes: what a run says depends on the
# code, not on chance or on what else the machine does.
settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and not drawn, which is most of their time; their files hold nothing."""
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    def save(_: Figure, path: Path, **__: Any) -> None:
        path.touch()

    monkeypatch.setattr(Figure, "savefig", save)
    monkeypatch.setattr(Figure, "get_tightbbox", lambda _: Bbox.unit())
