"""The figures of a report, each as a function that draws into a figure; `figure_style` has their look."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pipelinerl.observe.figure_style import DASHES, MARKERS, TEXTS, WIDTH, colour, legend
from pipelinerl.observe.history import Evaluation, Series, series
from pipelinerl.observe.intervals import is_share, known, mean_interval
from pipelinerl.observe.mismatch import AGE_NAMES, AGES

Records = list[dict[str, Any]]


def smooth(y: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average, float64 [n]; windows shrink at the ends."""
    if window <= 1 or len(y) < 3:
        return y
    kernel = np.ones(min(window, len(y)))  # convolve would give as many values as the longer of the two
    return np.convolve(y, kernel, "same") / np.convolve(np.ones_like(y), kernel, "same")


def smallest(y: np.ndarray, window: int) -> np.ndarray:
    """Smallest value in a centred window around each, float64 [n]."""
    half = window // 2
    return np.array([y[max(0, at - half) : at + half + 1].min() for at in range(len(y))])


def _window(data: Series) -> int:
    """Records that a smoothed point stands for."""
    return max(1, len(data) // 12)


def curve(axes: Axes, data: Series, label: str, index: int, raw: bool = True) -> None:
    """A smoothed line over the recorded points, which stay visible in the background."""
    if not len(data):
        return
    line: dict[str, Any] = {"color": colour(index), "linestyle": DASHES[index % len(DASHES)]}
    window = _window(data)
    if raw and window > 1:
        axes.plot(data.x, data.y, ".", color=colour(index), alpha=0.3, markersize=3)
    axes.plot(data.x, smooth(data.y, window), label=label, **line)


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
        color=colour(index),
        linestyle=DASHES[index % len(DASHES)],
        marker=MARKERS[index % len(MARKERS)],
        markersize=5,
        capsize=3,
        linewidth=1.2,
        label=label,
    )


def learning(figure: Any, actor: Records, evaluations: Sequence[Evaluation], metric: str) -> None:
    """One metric over training: that of the training rollouts, and of the evaluations with intervals."""
    axes = figure.subplots()
    trained = series(actor, f"actor/{metric}_mean")
    curve(axes, trained, "training rollouts", 0)
    points(axes, evaluations, metric, "evaluation, 95 % interval", 1)
    axes.set(title=metric, xlabel=TEXTS)
    evaluated = [is_share(known(one.values[metric])) for one in evaluations if metric in one.values]
    if metric == "success" or (evaluated and all(evaluated)):
        axes.set_ylim(-0.03, 1.03)
    legend(axes, below=True)


def evaluation_metrics(
    figure: Any, evaluations: Sequence[Evaluation], metrics: Mapping[str, str], title: str
) -> None:
    """Several evaluation metrics (label -> name) over training, each with intervals."""
    axes = figure.subplots()
    for index, (label, name) in enumerate(metrics.items()):
        points(axes, evaluations, name, label, index, (index - (len(metrics) - 1) / 2) * 0.008)
    axes.set(title=title, xlabel=TEXTS)
    if len(evaluations) == 1:
        axes.set(xticks=[evaluations[0].version], xlim=(evaluations[0].version + np.array([-0.5, 0.5])))
    if axes.get_ylim()[1] <= 1.06:
        axes.set_ylim(-0.03, 1.03)
    legend(axes, below=True)


def optimisation(figure: Any, finetune: Records) -> None:
    """Importance ratio, effective sample size with its minima, divergences and entropy."""
    figure.set_size_inches(WIDTH, 10)
    panels = {
        "importance ratio": {
            "mean": "rl/ratio_new_old",
            "largest": "rl/max_ratio_new_old",
            "smallest": "rl/min_ratio_new_old",
        },
        "effective sample size (share)": {"mean": "rl/ess"},
        "divergence per token": {"old to new": "rl/kl_new_old", "reference": "rl/kl"},
        "entropy and gradient": {"entropy (nats)": "rl/entropy", "gradient norm": "stats/grad_norm"},
    }
    # Their lines differ by orders of magnitude.
    logarithmic = {"importance ratio", "entropy and gradient"}
    for axes, (title, lines) in zip(figure.subplots(4, 1), panels.items()):
        for index, (label, name) in enumerate(lines.items()):
            data = series(finetune, name)
            curve(axes, data, label, index, raw=False)
            if name == "rl/ess" and len(data):  # a mean hides the one step that trained on few samples
                least = smallest(data.y, _window(data))
                axes.plot(data.x, least, color=colour(1), linestyle=DASHES[1], label="smallest")
        axes.set(title=title, xlabel=TEXTS)
        if title in logarithmic and axes.lines:
            axes.set_yscale("log")
        legend(axes)


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
    lowest = min(0, *(one["edges"][0] for one in found))
    highest = max(end for one in found for end, count in zip(one["edges"][1:], one["counts"]) if count)
    width = max(1, int(np.ceil((highest - lowest) / bins)))
    edges = np.arange(lowest, highest + width, width, dtype=np.float64)
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
    figure.set_size_inches(WIDTH, 5.4)
    edges, counts = lag_histogram(finetune)
    left, right = figure.subplots(2, 1)
    if len(counts):
        left.bar(
            edges[:-1],
            counts / counts.sum(),
            width=np.diff(edges),
            align="edge",
            color=colour(0),
            edgecolor=left.get_facecolor(),
        )
    left.set(title="lag of trained tokens", xlabel="lag (samples)", ylabel="share of tokens")
    curve(right, series(finetune, "stats/multi_version_share"), "share of samples", 0)
    right.set(title="samples with several weight versions", xlabel=TEXTS, ylim=(-0.03, 1.03))


def mismatch(figure: Any, finetune: Records) -> None:
    """|log(trainer / engine)| by the age of the weights that sampled a token, and effective sample sizes."""
    figure.set_size_inches(WIDTH, 6)
    left, right = figure.subplots(2, 1)
    for index, group in enumerate(AGES):
        if len(apart := series(finetune, f"mismatch/{group}/mean_abs")):
            curve(left, apart, AGE_NAMES[group], index, raw=False)
            curve(right, series(finetune, f"mismatch/{group}/ess"), AGE_NAMES[group], index, raw=False)
    if len(limit := series(finetune, "mismatch/limit")) and left.lines:
        left.plot(limit.x, limit.y, color="#777777", linewidth=1, label="what rounding may explain")
    left.set(title="mean |log r| by age of weights", xlabel=TEXTS, ylabel="nats")
    if left.lines:
        left.set_yscale("log")  # arithmetic and age differ by orders of magnitude
    right.set(title="effective sample size by age", xlabel=TEXTS, ylabel="share")
    legend(left, below=True)


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
    axes.set(title="throughput", xlabel=TEXTS, ylabel="sampled tokens per second")
    axes.set_yscale("log")  # a trainer that mostly waits is a hundred times as fast while it works
    legend(axes, below=True)


def outcomes(figure: Any, counts: Mapping[str, int]) -> None:
    """Training rollouts by outcome."""
    if not any(counts.values()):
        return
    figure.set_size_inches(WIDTH, 2.6)
    axes = figure.subplots()
    names = list(counts)
    bars = axes.barh(names, [counts[name] for name in names], color=colour(0))
    axes.bar_label(bars, padding=3)
    axes.invert_yaxis()
    axes.set(title="training rollouts by outcome", xlabel="rollouts")
    axes.grid(axis="y", visible=False)
