"""Figures for dark pages are made and not drawn, which is a third of the time of a report's."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure


def draw_light_ones_only(patch: pytest.MonkeyPatch) -> None:
    """The files of dark ones hold nothing; tests/unit/observe/test_figure_style.py compares a whole pair."""
    draw = Figure.savefig

    def save(figure: Figure, path: Path, **how: Any) -> None:
        if path.stem.endswith("_dark"):
            path.touch()
        else:
            draw(figure, path, **how)

    patch.setattr(Figure, "savefig", save)
