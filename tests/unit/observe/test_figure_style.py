"""The look of figures: the dark one of a pair takes the places of the light one."""

from pathlib import Path
from typing import Any

import numpy as np

from pipelinerl.observe.figure_style import TEXTS, legend, plt, save, style


def draw(figure: Any) -> None:
    """What moves axes: a legend below, wide labels, several axes, numbers that are written shorter."""
    first, second = figure.subplots(2, 1)
    first.plot([0, 20_000], [1, 1e-4], label="a line with a long name")
    first.set(xlabel=TEXTS, yscale="log", title="one")
    second.plot([0, 3], [-1_234_567, 7], label="another")
    second.set(ylabel="large")
    legend(first)
    legend(second, below=True)


def test_a_dark_figure_is_what_it_would_be_if_it_were_drawn_alone(tmp_path: Path) -> None:
    drawn = save(tmp_path / "pair.png", draw)
    assert drawn is not None
    with plt.rc_context(style(dark=True)):
        figure = plt.figure()
        draw(figure)
        figure.axes[0].xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
        figure.savefig(tmp_path / "alone.png", bbox_inches="tight")
        plt.close(figure)
    light, dark, alone = (plt.imread(path) for path in (drawn.light, drawn.dark, tmp_path / "alone.png"))
    assert np.array_equal(dark, alone)
    assert light.shape == dark.shape and not np.array_equal(light, dark)
