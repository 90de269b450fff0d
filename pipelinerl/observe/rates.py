"""The figures of a whole run: RATES has a row for each, in the order of the report.

Called by `summary.summarise`. Every metric of a role is in `metrics.jsonl` and wandb; one of actor or trainer
with a row here is also in the report.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelinerl.observe.history import series

Record = Mapping[str, Any]
Records = list[dict[str, Any]]


class Rate(NamedTuple):
    """A row: a name in report.json, which has the unit, and the words of the report."""

    name: str
    text: str
    metric: str = ""
    """Of the actor if it begins so, otherwise of the trainer; empty for what is computed otherwise."""
    of: Callable[[Records, str], float | None] = lambda records, metric: None
    """From the role's records; None for what was not recorded."""


def last(records: Records, metric: str) -> float | None:
    """The last value; one that was no number stands as null in the file."""
    return next((float(r[metric]) for r in reversed(records) if r.get(metric) is not None), None)


def last_but_0(records: Records, metric: str) -> float | None:
    """The last value, None for 0."""
    return last(records, metric) or None


def over_steps(reduce: Callable[[Any], Any]) -> Callable[[Records, str], float | None]:
    """`reduce` over the values of all steps, each counted once."""

    def of(records: Records, metric: str) -> float | None:
        return float(reduce(found.y)) if len(found := series(records, metric)) else None

    return of


def mean_over(weight: Callable[[Record], float]) -> Callable[[Records, str], float | None]:
    """The mean over everything that the records' means are of, `weight` of them in each."""

    def of(records: Records, metric: str) -> float | None:
        known = [record for record in records if record.get(metric) is not None]
        weights = [weight(record) for record in known]
        return float(np.average([r[metric] for r in known], weights=weights)) if sum(weights) else None

    return of


def rollouts(record: Record) -> float:
    return float(record.get("actor/rollouts_done", 1))


def trained_tokens(record: Record) -> float:
    """Of the step, prompts not among them."""
    return float(sum((record.get("stats/lag_histogram") or {}).get("counts", [1])))


def samples(record: Record) -> float:
    """Of the step itself: `stats/samples` grows over all steps since the last record."""
    rate, seconds = record.get("throughput/samples_per_sec"), record.get("throughput/sec_per_step")
    return 1.0 if rate is None or seconds is None else float(rate * seconds)


MEDIAN, LARGEST, SMALLEST = over_steps(np.median), over_steps(np.max), over_steps(np.min)
RATES: tuple[Rate, ...] = (
    Rate("engine_ready_s_max", "seconds until an engine was ready (slowest)"),
    Rate("engine_ready_s_min", "seconds until an engine was ready (fastest)"),
    Rate("first_step_s", "seconds from the launch to the first trained step"),
    Rate("elapsed_s", "seconds from first to last record, without pauses between starts"),
    Rate("optimizer_steps", "optimizer steps", "stats/completed_steps", last),
    Rate("trained_texts", "samples trained on", "stats/samples", last),
    Rate("trained_tokens", "tokens of these samples, prompts included", "stats/tokens", last),
    Rate("trained_sampled_tokens", "sampled tokens trained on", "stats/sampled_tokens", last),
    Rate("trained_texts_per_second", "samples trained on per second"),
    Rate(
        "generated_tokens_per_second_median",
        "generated tokens per second (median)",
        "actor/output_tokens_per_second",
        MEDIAN,
    ),
    Rate(
        "trainer_tokens_per_second_while_working",
        "trainer's tokens per second while working, prompts included (median)",
        "throughput/working_tokens_per_sec",
        MEDIAN,
    ),
    Rate("rollout_latency_mean_s", "seconds per rollout (mean)", "actor/latency_mean", mean_over(rollouts)),
    Rate("lag_mean_texts", "lag of trained tokens, mean (samples)", "stats/lag", mean_over(trained_tokens)),
    Rate("lag_max_texts", "lag of trained tokens, largest (samples)", "stats/lag_max", LARGEST),
    Rate(
        "multi_version_share_of_texts",
        "share of samples with several weight versions",
        "stats/multi_version_share",
        mean_over(samples),
    ),
    Rate("tokens_too_old_to_train", "tokens too old to train", "stats/tokens_too_old_to_train", last),
    Rate("engine_restarts", "engines restarted"),
    Rate(
        "engines_left_out_at_the_end",
        "engines left out of the last update",
        "weights/excluded_engines",
        last_but_0,
    ),
    Rate("importance_ratio_mean", "importance ratio (mean)", "rl/ratio_new_old", mean_over(samples)),
    Rate("effective_sample_size_min", "effective sample size, smallest (share)", "rl/ess", SMALLEST),
)


def run_rates(actor: Records, finetune: Records, launches: Sequence[float] = ()) -> dict[str, float]:
    """Those rates of a whole run that its metrics tell.

    `launches` are when its starts began: the time from the last record of one to the first of the next is
    nobody's work.
    """
    found: dict[str, float] = {}
    for rate in RATES:
        value = rate.of(actor if rate.metric.startswith("actor/") else finetune, rate.metric)
        if value is not None:
            found[rate.name] = value
    times = [record["time"] for record in actor + finetune if record.get("time") is not None]
    if (elapsed := _elapsed_s(times, launches)) > 0:
        found["elapsed_s"] = elapsed
        if "trained_texts" in found:
            found["trained_texts_per_second"] = found["trained_texts"] / elapsed
    return found


def _elapsed_s(times: Sequence[float], launches: Sequence[float]) -> float:
    """From the first to the last record of each start, added up."""
    of_start: dict[int, list[float]] = {}
    for at in times:
        of_start.setdefault(bisect_right(launches, at), []).append(at)
    return sum(max(some) - min(some) for some in of_start.values())
