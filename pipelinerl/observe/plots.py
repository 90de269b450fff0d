"""The figures of a report. Colours are Okabe and Ito's, and lines also differ in dash and marker, so that the
figures survive a black-and-white printer and every kind of colour vision."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from pipelinerl.observe.history import Evaluation, Series, series
from pipelinerl.observe.intervals import known, mean_interval
from pipelinerl.observe.mismatch import AGE_NAMES, AGES

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_STYLE: dict[str, Any] = {
    "figure.dpi": 130,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "savefig.bbox": "tight",
}
_TEXTS = "samples trained on"

Records = list[dict[str, Any]]


def smooth(y: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average, float64 [n]; windows shrink at the ends."""
    if window <= 1 or len(y) < 3:
        return y
    kernel = np.ones(min(window, len(y)))  # convolve would give as many values as the longer of the two
    return np.convolve(y, kernel, "same") / np.convolve(np.ones_like(y), kernel, "same")


def curve(axes: Axes, data: Series, label: str, index: int, raw: bool = True) -> None:
    """A smoothed line over the recorded points, which stay visible in the background."""
    if not len(data):
        return
    colour = COLOURS[index % len(COLOURS)]
    window = max(1, len(data) // 12)
    if raw and window > 1:
        axes.plot(data.x, data.y, ".", color=colour, alpha=0.25, markersize=3)
    axes.plot(
        data.x, smooth(data.y, window), color=colour, linestyle=DASHES[index % len(DASHES)], label=label
    )


def points(
    axes: Axes, evaluations: Sequence[Evaluation], metric: str, label: str, index: int, shift: float = 0.0
) -> None:
    """Evaluation means with 95 % intervals, if any evaluation has the metric.

    `shift` moves the points sideways, as a share of the axis.
    """
    found = [
        (e.version, mean_interval(e.values[metric]))
        for e in evaluations
        if metric in e.values and len(known(e.values[metric]))
    ]
    if not found:
        return
    # Markers side by side, or the intervals of several metrics would hide each other.
    x = np.array([version for version, _ in found], np.float64) + shift * max(found[-1][0] - found[0][0], 1)
    mean = np.array([interval.mean for _, interval in found])
    error = np.array([[i.mean - i.low for _, i in found], [i.high - i.mean for _, i in found]])
    axes.errorbar(
        x,
        mean,
        yerr=np.maximum(error, 0),
        color=COLOURS[index % len(COLOURS)],
        linestyle=DASHES[index % len(DASHES)],
        marker=MARKERS[index % len(MARKERS)],
        markersize=5,
        capsize=3,
        linewidth=1.2,
        label=label,
    )


def save(path: Path, draw: Callable[[Any], None]) -> bool:
    """Write the figure that `draw` makes; no file, and False, if it had nothing to show."""
    with plt.rc_context(_STYLE):
        figure = plt.figure(figsize=(6.5, 3.6))
        try:
            draw(figure)
            if not any(axes.has_data() for axes in figure.axes):
                return False
            for axes in figure.axes:
                if axes.get_xlabel() == _TEXTS and axes.get_xlim()[1] >= 10_000:
                    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 125k: six digits run together
            figure.savefig(path)
        finally:
            plt.close(figure)
    return True


def _legend(axes: Axes, beside: bool = False) -> None:
    """A legend, beside the axes where lines could run under it."""
    if axes.get_legend_handles_labels()[0]:
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)} if beside else {}
        axes.legend(fontsize=9, **place)


def learning(figure: Any, actor: Records, evaluations: Sequence[Evaluation]) -> None:
    """Training reward and success, and the same of the evaluations with intervals."""
    figure.set_size_inches(9, 3.6)
    for axes, metric in zip(figure.subplots(1, 2), ("success", "reward")):
        curve(axes, series(actor, f"actor/{metric}_mean"), "training rollouts", 0)
        points(axes, evaluations, metric, "evaluation, 95 % interval", 1)
        axes.set(title=metric, xlabel=_TEXTS)
        if metric == "success":
            axes.set_ylim(-0.03, 1.03)
        _legend(axes)
    figure.tight_layout()


def evaluation_metrics(
    figure: Any, evaluations: Sequence[Evaluation], metrics: Mapping[str, str], title: str
) -> None:
    """Several evaluation metrics (label -> name) over training, each with intervals."""
    axes = figure.subplots()
    for index, (label, name) in enumerate(metrics.items()):
        points(axes, evaluations, name, label, index, (index - (len(metrics) - 1) / 2) * 0.008)
    axes.set(title=title, xlabel=_TEXTS)
    if len(evaluations) == 1:
        axes.set(xticks=[evaluations[0].version], xlim=(evaluations[0].version + np.array([-0.5, 0.5])))
    if axes.get_ylim()[1] <= 1.06:
        axes.set_ylim(-0.03, 1.03)
    _legend(axes, beside=True)


def optimisation(figure: Any, finetune: Records) -> None:
    """Importance ratio, effective sample size, divergences and entropy."""
    figure.set_size_inches(11, 6)
    panels = {
        "importance ratio": {
            "mean": "rl/ratio_new_old",
            "largest": "rl/max_ratio_new_old",
            "smallest": "rl/min_ratio_new_old",
        },
        "effective sample size (share)": {"ESS": "rl/ess"},
        "divergence per token": {"old to new": "rl/kl_new_old", "reference": "rl/kl"},
        "entropy and gradient": {"entropy (nats)": "rl/entropy", "gradient norm": "stats/grad_norm"},
    }
    # Their lines differ by orders of magnitude.
    logarithmic = {"importance ratio", "entropy and gradient"}
    for axes, (title, lines) in zip(figure.subplots(2, 2).flat, panels.items()):
        for index, (label, name) in enumerate(lines.items()):
            curve(axes, series(finetune, name), label, index, raw=False)
        axes.set(title=title, xlabel=_TEXTS)
        if title in logarithmic and axes.lines:
            axes.set_yscale("log")
        if len(lines) > 1:
            _legend(axes, beside=True)
    figure.tight_layout()


def lag_histogram(
    records: Records, name: str = "stats/lag_histogram", bins: int = 24
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens by lag over all steps: edges [bins + 1] and counts [bins]; both empty without records.

    Steps record histograms with edges of their own; the tokens of a bin lie evenly within it.
    """
    found = [record[name] for record in records if isinstance(record.get(name), dict)]
    found = [one for one in found if sum(one["counts"])]
    if not found:
        return np.zeros(0), np.zeros(0)
    highest = max(end for one in found for end, count in zip(one["edges"][1:], one["counts"]) if count)
    edges = np.arange(0, highest + (width := max(1, int(np.ceil(highest / bins)))), width, dtype=np.float64)
    counts = np.zeros(len(edges) - 1)
    for one in found:
        counts += np.diff(np.interp(edges, one["edges"], np.concatenate([[0.0], np.cumsum(one["counts"])])))
    return edges, counts


def pace(records: Records, name: str = "stats/sampled_tokens") -> Series:
    """Growth of a total per second of wall time around each record, over windows of a sixth of the run.

    Whatever happens between two records counts, updates of the engines too.
    """
    tokens, times = series(records, name), series(records, "time")
    if len(tokens) < 2 or len(times) != len(tokens):
        return Series(np.zeros(0), np.zeros(0))
    done, half = tokens.y, max(1, len(tokens) // 12)
    last = len(tokens) - 1
    first, behind = (np.clip(np.arange(last + 1) + shift, 0, last) for shift in (-half, half))
    seconds = np.maximum(times.y[behind] - times.y[first], 1e-9)
    return Series(tokens.x, (done[behind] - done[first]) / seconds)


def staleness(figure: Any, finetune: Records) -> None:
    """How old trained tokens were, and how many sequences carry several versions."""
    figure.set_size_inches(9, 3.6)
    edges, counts = lag_histogram(finetune)
    left, right = figure.subplots(1, 2)
    if len(counts):
        left.bar(
            edges[:-1],
            counts / counts.sum(),
            width=np.diff(edges),
            align="edge",
            color=COLOURS[0],
            edgecolor="white",
        )
    left.set(title="lag of trained tokens", xlabel="lag (samples)", ylabel="share of tokens")
    curve(right, series(finetune, "stats/multi_version_share"), "share of samples", 0)
    right.set(title="samples with several weight versions", xlabel=_TEXTS, ylim=(-0.03, 1.03))
    figure.tight_layout()


def mismatch(figure: Any, finetune: Records) -> None:
    """|log(trainer / engine)| by the age of the weights that sampled a token, and effective sample sizes."""
    figure.set_size_inches(11, 3.6)
    left, right = figure.subplots(1, 2)
    for index, group in enumerate(AGES):
        if len(apart := series(finetune, f"mismatch/{group}/mean_abs")):
            curve(left, apart, AGE_NAMES[group], index, raw=False)
            curve(right, series(finetune, f"mismatch/{group}/ess"), AGE_NAMES[group], index, raw=False)
    if len(limit := series(finetune, "mismatch/limit")) and left.lines:
        left.plot(limit.x, limit.y, color="#777777", linewidth=1, label="what rounding may explain")
    left.set(title="mean |log r| by age of weights", xlabel=_TEXTS, ylabel="nats")
    if left.lines:
        left.set_yscale("log")  # arithmetic and age differ by orders of magnitude
    right.set(title="effective sample size by age", xlabel=_TEXTS, ylabel="share")
    handles, labels = left.get_legend_handles_labels()
    if handles:
        right.legend(handles, labels, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.tight_layout()


def _sampled_while_working(records: Records) -> Series:
    """Sampled tokens that the trainer takes per second in which it does not wait."""
    every, sampled = "throughput/tokens_per_step", "rl/num_output_tokens_sum"
    shares = [
        record | {"rate": record["throughput/working_tokens_per_sec"] * record[sampled] / record[every]}
        for record in records
        if record.get("throughput/working_tokens_per_sec") and record.get(every) and record.get(sampled)
    ]
    return series(shares, "rate")


def throughput(figure: Any, actor: Records, finetune: Records) -> None:
    """Sampled tokens per second of engines and trainer; prompts, which only the latter computes, left out."""
    axes = figure.subplots()
    lines = {
        "generated": series(actor, "actor/output_tokens_per_second"),
        "trained on": pace(finetune),
        "trainer while working": _sampled_while_working(finetune),
    }
    for index, (label, data) in enumerate(lines.items()):
        curve(axes, data, label, index)
    axes.set(title="throughput", xlabel=_TEXTS, ylabel="sampled tokens per second")
    axes.set_yscale("log")  # a trainer that mostly waits is a hundred times as fast while it works
    _legend(axes)


def outcomes(figure: Any, counts: Mapping[str, int]) -> None:
    """Training rollouts by outcome."""
    if not any(counts.values()):
        return
    figure.set_size_inches(6.5, 2.6)
    axes = figure.subplots()
    names = list(counts)
    bars = axes.barh(names, [counts[name] for name in names], color=COLOURS[0])
    axes.bar_label(bars, padding=3)
    axes.invert_yaxis()
    axes.set(title="training rollouts by outcome", xlabel="rollouts")
    axes.grid(axis="y", visible=False)
