"""What the report says, as values: evaluations with intervals, rollouts by outcome, throughput, lag."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelinerl.domain import ReportFocus, ReportSection
from pipelinerl.observe.balance import Balance, balance
from pipelinerl.observe.card_limit import CardLimit, card_limit
from pipelinerl.observe.comparisons import KINDS, Totals, label_totals
from pipelinerl.observe.history import Evaluation, evaluated_rollouts, read_evaluations, read_metrics
from pipelinerl.observe.intervals import Interval, is_share, known, mean_interval, paired_difference
from pipelinerl.observe.mismatch import Mismatch, mismatch
from pipelinerl.observe.rates import run_rates
from pipelinerl.run_state.accounting import RolloutCounts, reconcile
from pipelinerl.run_state.restarts import engine_restarts
from pipelinerl.run_state.shared_problems import is_unknown, noted_shared
from pipelinerl.run_state.start_times import launch_times, start_seconds

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
    """By the names in `rates.RATES`; what the run did not record is absent."""
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
    evaluated: int | None = None
    """Evaluation rollouts whose values were recorded, those of repeated passes too; None if not counted."""
    actor_records: bool = True
    """Whether the actor's metrics are there, in a run that has an actor."""
    unknown: bool = False
    """Whether the run trains nothing, so that its model may have been trained on any of them, or its problems
    were not compared."""

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
        if not texts and any(self.versions):
            trained = "steps that are not known (finetune/metrics.jsonl has none of them)"
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
            return f"{said}; the problems were others before, so that this is no comparison."
        mean, low, high, pairs = found.difference
        chance = "" if low > 0 or high < 0 else ", which may be chance"
        if not found.before.n == found.after.n == pairs:  # others failed before than after
            said += f"; on the {pairs} measured at both times"
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


def summarise(output_dir: Path, focus: ReportFocus | None = None) -> Summary:
    """Everything the report says about the run in `output_dir`."""
    evaluations = read_evaluations(output_dir)
    actor, finetune = read_metrics(output_dir, "actor"), read_metrics(output_dir, "finetune")
    preprocess = read_metrics(output_dir, "preprocess")
    launches = sorted(launch_times(output_dir))
    found, rates = balance(finetune, actor, launches), run_rates(actor, finetune, launches)
    trained = (r["time"] for r in finetune if "time" in r and r.get("stats/completed_steps"))
    rates |= start_seconds(output_dir, next(trained, None))
    if restarts := engine_restarts(output_dir):
        rates["engine_restarts"] = float(restarts)
    compared = {kind: totals for kind in KINDS if (totals := label_totals(preprocess, kind))}
    counts = reconcile(output_dir)
    return Summary(
        evaluations=evaluations,
        comparisons=compare(evaluations),
        headline=headline_metrics(evaluations, focus.headline if focus else ()),
        counts=counts,
        rates=rates,
        balance=found if found is not None and found.enough else None,
        compared=compared,
        mismatch=mismatch(finetune),
        limit=card_limit(output_dir, actor, finetune),
        shared=noted_shared(output_dir),
        evaluated=evaluated_rollouts(output_dir),
        actor_records=bool(actor) or not counts.started,
        unknown=is_unknown(output_dir),
    )
