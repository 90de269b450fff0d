"""What the report says, as values: evaluations with intervals, rollouts by outcome, throughput, lag."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelinerl.domain import ReportFocus, ReportSection
from pipelinerl.observe.balance import Balance, balance
from pipelinerl.observe.card_limit import CardLimit, card_limit
from pipelinerl.observe.comparisons import KINDS, Totals, label_totals
from pipelinerl.observe.history import Evaluation, read_evaluations, read_metrics, series
from pipelinerl.observe.intervals import Interval, is_share, known, mean_interval, paired_difference
from pipelinerl.observe.mismatch import Mismatch, mismatch
from pipelinerl.run_state.accounting import RolloutCounts, reconcile
from pipelinerl.run_state.restarts import engine_restarts
from pipelinerl.run_state.shared_problems import is_unknown, noted_shared
from pipelinerl.run_state.start_times import launch_times, start_seconds

Record = Mapping[str, Any]

_FIRST = ("success", "reward")
_MOST_HEADLINES = 12


@dataclass(frozen=True)
class Comparison:
    """One metric in the first and the last evaluation; `difference` is paired by problem, if it could be."""

    before: Interval
    after: Interval
    difference: Interval | None


@dataclass(frozen=True, kw_only=True)
class Section(ReportSection):
    """A part of the report, as the terminal, report.md and the page show it."""

    short: list[tuple[str, ...]] | None = None
    """The table for the terminal, where it is another."""
    printed: bool = True
    """Whether the terminal shows it."""
    folded: bool = False
    """Shown on the page as its heading until it is opened, and behind the figures."""


@dataclass(frozen=True)
class Summary:
    evaluations: list[Evaluation]
    comparisons: dict[str, Comparison]
    headline: list[str]
    counts: RolloutCounts
    rates: dict[str, float]
    """Throughput and staleness by name; what the run did not record is absent."""
    balance: Balance | None
    """How trainer and engines spent the run, None if it was not recorded or over too few steps."""
    compared: dict[str, Totals]
    """Advantages by situation and by role; a kind that no sample has is absent."""
    mismatch: Mismatch
    """How far engine and trainer are apart."""
    limit: CardLimit | None = None
    """What share of their cards' limit the engines reached; None where it is not known."""
    shared: str = ""
    """How many test problems are trained on too, such as `12 of 40`; empty for none."""
    unknown: bool = False
    """Whether the run trains nothing, so that its model may have been trained on any of them."""

    @property
    def evaluated_on(self) -> str:
        """What the evaluation is one of, for headings."""
        if self.shared:
            return f"test problems ({self.shared} trained on too)"
        return "test problems" if self.unknown else "held-out problems"

    @property
    def sentence(self) -> str:
        """What came of the run, in its headline metric."""
        steps, texts = (self.rates.get(name, 0) for name in ("optimizer_steps", "trained_texts"))
        trained = f"{steps:,.0f} steps on {texts:,.0f} samples"
        name = next((name for name in self.headline if name in self.comparisons), None)
        if name is None:
            return f"The run trained {trained}; no evaluation tells what came of it."
        found, asked = self.comparisons[name], len(self.evaluations[-1].values[name])
        # Of a rollout that failed nothing is measured.
        of = "" if found.after.n == asked else f"{found.after.n} of "
        on = f"{of}{asked} {self.evaluated_on}"
        if self.versions[0] == self.versions[-1]:
            mean, low, high, _ = found.after
            return f"On {on} {name} is {mean:.2f} (95 % interval {low:.2f} to {high:.2f})."
        said = f"On {on} {name} went from {found.before.mean:.2f} to {found.after.mean:.2f} in {trained}"
        if found.difference is None:
            return f"{said}."
        mean, low, high, _ = found.difference
        chance = "" if low > 0 or high < 0 else ", which may be chance"
        return f"{said}: {mean:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}{chance}."

    @property
    def versions(self) -> list[int]:
        return [evaluation.version for evaluation in self.evaluations]

    def to_json(self) -> dict[str, Any]:
        """Plain data for report.json."""
        intervals = {
            name: {side: None if value is None else value._asdict() for side, value in vars(c).items()}
            for name, c in self.comparisons.items()
        }
        curves = {
            str(e.version): {n: mean_interval(v)._asdict() for n, v in e.values.items() if len(known(v))}
            for e in self.evaluations
        }
        return {
            "sentence": self.sentence,
            "headline": self.headline[0] if self.headline else None,
            "versions": self.versions,
            "comparisons": intervals,
            "evaluations": curves,
            "rollouts": asdict(self.counts) | {"adds_up": self.counts.adds_up},
            "rates": self.rates,
            "balance": None if self.balance is None else asdict(self.balance) | {"limit": self.balance.side},
            "card_limit": None if self.limit is None else asdict(self.limit) | {"share": self.limit.share},
            "compared": self.compared,
            "mismatch": self.mismatch.groups,
            "shared_problems": self.shared,
        }


def compare(evaluations: Sequence[Evaluation]) -> dict[str, Comparison]:
    """Each metric of the first and last evaluation; empty without evaluations."""
    if not evaluations:
        return {}
    first, last = evaluations[0], evaluations[-1]
    found: dict[str, Comparison] = {}
    for name, after in last.values.items():
        before = first.values.get(name, [])
        if len(known(before)) and len(known(after)):
            difference = _difference(first, last, name)
            found[name] = Comparison(mean_interval(before), mean_interval(after), difference)
    return found


def _difference(first: Evaluation, last: Evaluation, name: str) -> Interval | None:
    others = first.problems != last.problems and first.problems and last.problems
    if first.version == last.version or others:
        return None
    try:
        return paired_difference(first.values[name], last.values[name])
    except ValueError:  # the problems are others since a resume, or none is known in both
        return None


def headline_metrics(evaluations: Sequence[Evaluation], wanted: Sequence[str]) -> list[str]:
    """The wanted metrics that exist; by default success, reward and the distinct yes/no metrics."""
    if not evaluations:
        return []
    values = evaluations[-1].values
    if wanted:
        return [name for name in wanted if name in values]
    chosen = [name for name in _FIRST if name in values]
    seen = {tuple(values[name]) for name in chosen}
    for name in sorted(values):
        column = tuple(values[name])
        if name not in chosen and column not in seen and len(known(column)) and is_share(known(column)):
            chosen.append(name)
            seen.add(column)
    return chosen[:_MOST_HEADLINES]


def run_rates(
    actor: list[dict[str, Any]], finetune: list[dict[str, Any]], launches: Sequence[float] = ()
) -> dict[str, float]:
    """Throughput, lag and version mixing of a whole run; the names say the units.

    `launches` are when its starts began: the time from the last record of one to the first of the next is
    nobody's work.
    """
    rates: dict[str, float] = {}
    # A value that was no number stands as null in the file.
    last = {name: value for record in finetune for name, value in record.items() if value is not None}
    for label, name in (
        ("trained_texts", "stats/samples"),
        ("trained_tokens", "stats/tokens"),
        ("trained_sampled_tokens", "stats/sampled_tokens"),
        ("optimizer_steps", "stats/completed_steps"),
        ("tokens_too_old_to_train", "stats/tokens_too_old_to_train"),
    ):
        if name in last:
            rates[label] = float(last[name])
    if missing := last.get("weights/excluded_engines"):
        rates["engines_left_out_at_the_end"] = float(missing)
    for label, records, name, reduce in (
        ("generated_tokens_per_second_median", actor, "actor/output_tokens_per_second", np.median),
        ("trainer_tokens_per_second_while_working", finetune, "throughput/working_tokens_per_sec", np.median),
        ("lag_max_texts", finetune, "stats/lag_max", np.max),
        ("effective_sample_size_min", finetune, "rl/ess", np.min),
    ):
        if len(found := series(records, name)):
            rates[label] = float(reduce(found.y))
    for label, records, name, weight in (
        ("rollout_latency_mean_s", actor, "actor/latency_mean", _rollouts),
        ("lag_mean_texts", finetune, "stats/lag", _trained_tokens),
        ("multi_version_share_of_texts", finetune, "stats/multi_version_share", _samples),
        ("importance_ratio_mean", finetune, "rl/ratio_new_old", _samples),
    ):
        if (mean := _mean(records, name, weight)) is not None:
            rates[label] = mean
    times = [record["time"] for record in actor + finetune if record.get("time") is not None]
    if (elapsed := _elapsed_s(times, launches)) > 0:
        rates["elapsed_s"] = elapsed
        if "trained_texts" in rates:
            rates["trained_texts_per_second"] = rates["trained_texts"] / elapsed
    return rates


def _elapsed_s(times: Sequence[float], launches: Sequence[float]) -> float:
    """From the first to the last record of each start, added up."""
    of_start: dict[int, list[float]] = {}
    for at in times:
        of_start.setdefault(bisect_right(launches, at), []).append(at)
    return sum(max(some) - min(some) for some in of_start.values())


def _mean(records: Iterable[Record], name: str, weight: Callable[[Record], float]) -> float | None:
    """Of everything that the records' means are of, however many each is of; None where nothing is known."""
    known = [record for record in records if record.get(name) is not None]
    weights = [weight(record) for record in known]
    return float(np.average([r[name] for r in known], weights=weights)) if sum(weights) else None


def _rollouts(record: Record) -> float:
    return float(record.get("actor/rollouts_done", 1))


def _trained_tokens(record: Record) -> float:
    """Of the step, prompts not among them."""
    return float(sum((record.get("stats/lag_histogram") or {}).get("counts", [1])))


def _samples(record: Record) -> float:
    """Of the step itself: `stats/samples` grows over all steps since the last record."""
    rate, seconds = record.get("throughput/samples_per_sec"), record.get("throughput/sec_per_step")
    return 1.0 if rate is None or seconds is None else float(rate * seconds)


def summarise(output_dir: Path, focus: ReportFocus | None = None) -> Summary:
    """Everything the report says about the run in `output_dir`."""
    evaluations = read_evaluations(output_dir)
    actor, finetune = read_metrics(output_dir, "actor"), read_metrics(output_dir, "finetune")
    preprocess = read_metrics(output_dir, "preprocess")
    found, rates = balance(finetune, actor), run_rates(actor, finetune, sorted(launch_times(output_dir)))
    trained = (r["time"] for r in finetune if "time" in r and r.get("stats/completed_steps"))
    rates |= start_seconds(output_dir, next(trained, None))
    if restarts := engine_restarts(output_dir):
        rates["engine_restarts"] = float(restarts)
    compared = {kind: totals for kind in KINDS if (totals := label_totals(preprocess, kind))}
    return Summary(
        evaluations=evaluations,
        comparisons=compare(evaluations),
        headline=headline_metrics(evaluations, focus.headline if focus else ()),
        counts=reconcile(output_dir),
        rates=rates,
        balance=found if found is not None and found.enough else None,
        compared=compared,
        mismatch=mismatch(finetune),
        limit=card_limit(output_dir, actor, finetune),
        shared=noted_shared(output_dir),
        unknown=is_unknown(output_dir),
    )
