"""Optimizer steps of a run, this project's or TRL's, and the engine beside it, as rates of a steady state.

For `benchmarks.gpu.trl`.
"""

import json
import math
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.trl_workload import Workload
from pipelinerl.base.http import get_or_none
from pipelinerl.engines.engine_metrics import parse_prometheus
from pipelinerl.observe.history import read_metrics

LOOK_S = 0.5
COUNTED = ("vllm:num_requests_running", "vllm:generation_tokens_total")


@dataclass(frozen=True)
class Step:
    """An optimizer step: when it was done (seconds since 1970), and what of it was the trainer's own work."""

    at: float
    texts: float
    trainer_s: float
    metrics: dict[str, float]
    """What the trainer itself says of it."""


class EngineWatch(threading.Thread):
    """Looks at engines' metrics until `end`: (seconds since 1970, running, sampled tokens), summed."""

    def __init__(self, *urls: str) -> None:
        super().__init__(daemon=True)
        self.looks: list[tuple[float, float, float]] = []
        self._urls, self._ended = urls, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(LOOK_S):
            with suppress(ValueError):
                answers = [get_or_none(url + "/metrics", 5.0) for url in self._urls]
                pages = [parse_prometheus(one.decode(errors="replace")) for one in answers if one is not None]
                if len(pages) == len(self._urls):
                    running, tokens = (sum(page.get(name, 0.0) for page in pages) for name in COUNTED)
                    self.looks.append((time.time(), running, tokens))

    def end(self) -> None:
        self._ended.set()

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Idle share, mean of running requests and tokens per second; empty with fewer than two looks."""
        looks = [one for one in self.looks if begin <= one[0] <= end]
        if len(looks) < 2:
            return {}
        times, running, tokens = zip(*looks, strict=True)
        return {
            "engine_idle_share": sum(one == 0 for one in running) / len(running),
            "engine_running": statistics.fmean(running),
            "engine_tokens_per_s": (tokens[-1] - tokens[0]) / (times[-1] - times[0]),
        }


def our_steps(folder: Path) -> list[Step]:
    """Of the run in `folder`, from its trainer's metrics; empty before the first."""
    steps, before = [], 0.0
    for row in read_metrics(folder, "finetune"):
        if "stats/completed_steps" in row and "throughput/sec_per_pass" in row:
            texts = row["stats/samples"]
            worked = row["throughput/sec_per_pass"] * row["throughput/micro_batches_per_step"]
            steps.append(Step(row["time"], texts - before, worked, numbers(row)))
            before = texts
    return steps


def trl_steps(lines: Path, work: Workload) -> list[Step]:
    """From what `trl_peer` wrote: a text has so many trained tokens as were sampled."""
    steps = []
    whole, _, _ = lines.read_text(encoding="utf-8").rpartition("\n") if lines.is_file() else ("", "", "")
    for line in whole.splitlines():
        row = json.loads(line)
        if "batch/trained_tokens_per_step" in row:
            texts = row["batch/trained_tokens_per_step"] / work.sampled
            worked = row["perf/fwd_bwd_s"] + row["perf/optimizer_s"]
            steps.append(Step(row["time"], texts, worked, numbers(row)))
    return steps


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """All but histograms."""
    return {name: one for name, one in row.items() if isinstance(one, (int, float))}


def steady(steps: Sequence[Step], skipped: int, watch: EngineWatch | None, tokens: int) -> dict[str, Any]:
    """The steps after the first `skipped` as rates; a sample has so many sampled `tokens`.

    `samples_per_s` is the lower of what was trained and what was sampled meanwhile: while the trainer works
    off what was sampled ahead of its first steps, it is faster than it can stay. ValueError if there are
    fewer than two steps.
    """
    counted = steps[skipped:]
    if len(counted) < 2:
        raise ValueError(f"{len(steps)} steps were made, the first {skipped} do not count")
    begin, end = steps[skipped - 1].at, counted[-1].at
    times = [later.at - one.at for one, later in zip(steps[skipped - 1 :], counted)]
    texts = [one.texts for one in counted]
    rates = [one / seconds for one, seconds in zip(texts, times, strict=True)]
    trained = sum(texts) / (end - begin)
    engine = {} if watch is None else watch.between(begin, end)
    return {
        "steps": len(counted),
        "seconds": end - begin,
        "samples_per_s": min(trained, engine.get("engine_tokens_per_s", math.inf) / tokens),
        "trained_per_s": trained,
        "samples_per_s_median": statistics.median(rates),
        "step_s": statistics.median(times),
        "trainer_s": statistics.median(one.trainer_s for one in counted),
        "trainer_samples_per_s": sum(texts) / sum(one.trainer_s for one in counted),
        "step_times_s": [round(one, 3) for one in times],
        "step_texts": [round(one, 2) for one in texts],
        **engine,
    }
