"""Statistics of finished groups, under the names that dashboards know.

Values are pooled over the groups since the last record; rates are over the last groups of a sliding window.
Nothing here reads a clock: times come in.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pipelinerl.actor.known_rates import DifficultySampler, measured_rate
from pipelinerl.actor.messages import Ending, FinishedRollout
from pipelinerl.config.card_limit import mean_context
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.rollouts import MASKED_TOKEN_ID

SUCCESS, REWARD, OVERLONG, NO_ANSWER = "success", "reward", "overlong", "no_answer"
_TIMED = ("latency", "model_version")
"""What the actor measures of all rollouts together."""
RECENT_GROUPS = 20
"""Groups that the progress line looks back on: with four rollouts each, success is known to about 0.05."""
LAGS_KEPT = 100_000
"""Delays of event loops between two records: a quarter of an hour of one worker, a minute of sixteen."""


def describe(values: Sequence[float], name: str) -> dict[str, float]:
    """`<name>_mean`, and `_max`, `_min`, `_var` (population variance) unless all values are equal.

    A value that is no finite number, such as the mean of nothing, is left out.
    """
    if not len(array := _finite(values)):
        return {}
    low, high = float(array.min()), float(array.max())
    if low == high:  # the mean of equal values may differ from them by rounding
        return {f"{name}_mean": low + 0.0}  # not -0.0
    described = {f"{name}_mean": float(array.mean())}
    if (variance := float(array.var())) > 0:
        described |= {f"{name}_max": high, f"{name}_min": low, f"{name}_var": variance}
    return described


def _finite(values: Sequence[float]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    array = np.asarray(values, np.float64)
    return array[np.isfinite(array)]


def _success(rollout: FinishedRollout) -> float | None:
    """None where the domain measures none, or what is no number."""
    value = rollout.metrics.get(SUCCESS)
    return value if isinstance(value, float) and math.isfinite(value) else None


class _Pool(defaultdict[str, list[float]]):
    """Values by metric."""

    def __init__(self) -> None:
        super().__init__(list)

    def add(self, rollout: FinishedRollout) -> None:
        samples = rollout.samples
        measured: dict[str, float | list[float]] = {
            "overflow": float(any(not sample.finished for sample in samples)),
            "num_turns": float(len(samples)),
            "prompt_tokens": [sample.prompt_tokens for sample in samples],
            "output_tokens": [sample.output_tokens for sample in samples],
        }
        # A domain's own metric of one of these names is not mixed in.
        for name, value in (rollout.metrics | measured).items():
            if name not in _TIMED:
                self[name].extend(value if isinstance(value, list) else [value])

    def describe(self, prefix: str = "") -> dict[str, float]:
        described: dict[str, float] = {}
        for name, values in self.items():
            described |= describe(values, prefix + name)
        return described


class GroupStats:
    """Pools rollouts until `take` turns them into one record."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._all = _Pool()
        self._parts: dict[str, _Pool] = defaultdict(_Pool)
        self._latencies: list[float] = []
        self._versions: list[float] = []
        self._overlong_success: list[float] = []
        self._group_success: list[float] = []
        self._endings: dict[str, int] = defaultdict(int)
        self._retries = 0
        self._inexact = 0

    def add_group(self, rollouts: Iterable[FinishedRollout]) -> None:
        """All rollouts of one problem; failed ones enter counts only."""
        successes = []
        for rollout in rollouts:
            self._endings[rollout.ending] += 1
            self._retries += rollout.retries
            if rollout.ending not in (Ending.DONE, Ending.EMPTY):
                continue  # it has no metrics; a mean over those that have is what dashboards expect
            self._add(rollout)
            if (success := _success(rollout)) is not None:
                successes.append(success)
        if successes:
            self._group_success.append(float(np.mean(successes)))

    def _add(self, rollout: FinishedRollout) -> None:
        self._all.add(rollout)
        # A set: where a domain's only dataset has its name, a rollout counts once.
        for part in {rollout.dataset, rollout.domain} - {None}:
            self._parts[str(part)].add(rollout)
        self._latencies.append(rollout.latency_s)
        self._inexact += sum(not sample.exact_versions for sample in rollout.samples)
        if rollout.model_version is not None:
            self._versions.append(float(rollout.model_version))
        if rollout.metrics.get(OVERLONG):
            success = _success(rollout)
            self._overlong_success.extend([] if success is None else [success])

    def take(self, prefix: str = "") -> dict[str, float]:
        """The record, and begin anew. `prefix` (`test_`) is put before all but per-dataset keys."""
        record = self._all.describe(prefix)
        for part, pool in self._parts.items():
            record |= pool.describe(f"{part}/")
        record |= describe(self._latencies, f"{prefix}latency")
        record |= describe(self._versions, f"{prefix}model_version")
        if self._overlong_success:
            record[f"{prefix}success_given_overlong"] = float(np.mean(self._overlong_success))
        if self._group_success:
            solved = np.asarray(self._group_success)
            record[f"{prefix}always_success"] = float((solved == 1).mean())
            record[f"{prefix}never_success"] = float((solved == 0).mean())
            record[f"{prefix}sometimes_success"] = float(((solved > 0) & (solved < 1)).mean())
        record |= {f"{prefix}rollouts_{ending}": float(n) for ending, n in self._endings.items()}
        record[f"{prefix}rollout_retries"] = float(self._retries)
        record[f"{prefix}inexact_version_texts"] = float(self._inexact)
        self._reset()
        return record


class RecentGroups:
    """Success and reward of the last groups: what the launcher shows while they finish.

    A record is written once per version, of few groups where the machine is slow: its mean jumps between 0
    and 1, and says nothing of how the run is doing.
    """

    def __init__(self, window: int = RECENT_GROUPS) -> None:
        self._groups: deque[dict[str, float]] = deque(maxlen=window)
        """Means over the rollouts of each group, by metric."""

    def add_group(self, rollouts: Iterable[FinishedRollout]) -> None:
        """A group of which nothing was measured, such as one that failed whole, is left out."""
        pool = _Pool()
        for rollout in rollouts:
            if rollout.ending in (Ending.DONE, Ending.EMPTY):
                pool.add(rollout)
        # A domain may measure what is no number, such as the mean reward of no samples.
        found = {name: _finite(pool[name]) for name in (SUCCESS, REWARD)}
        if means := {name: float(values.mean()) for name, values in found.items() if len(values)}:
            self._groups.append(means)

    def means(self) -> dict[str, float]:
        """`recent_success` and `recent_reward` over `recent_groups` groups, and `..._spread`, the standard
        deviation of the groups' means; empty before the first, without a spread before the second."""
        described: dict[str, float] = {"recent_groups": len(self._groups)} if self._groups else {}
        for name in (SUCCESS, REWARD):
            if values := [means[name] for means in self._groups if name in means]:
                described[f"recent_{name}"] = float(np.mean(values))
                if len(values) > 1:
                    described[f"recent_{name}_spread"] = float(np.std(values, ddof=1))
        return described


class UnsolvedWatch:
    """Groups in a row in which no rollout succeeds; told once, when they are `window`."""

    def __init__(self, window: int = RECENT_GROUPS) -> None:
        self._window, self._said = window, False
        self._row: list[FinishedRollout] = []
        self._groups = 0

    def add_group(self, rollouts: Iterable[FinishedRollout]) -> str | None:
        """What to say behind this group; one without a measured success says nothing."""
        measured = [one for one in rollouts if _success(one) is not None]
        if self._said or not measured:
            return None
        if any(one.metrics[SUCCESS] for one in measured):
            self._row, self._groups = [], 0
            return None
        self._row += measured
        self._groups += 1
        if self._groups < self._window:
            return None
        self._said = True
        return self._line()

    def _line(self) -> str:
        unanswered = sum(bool(one.metrics.get(NO_ANSWER)) for one in self._row)
        cut = sum(any(not sample.finished for sample in one.samples) for one in self._row)
        rewards = [one.metrics[REWARD] for one in self._row if REWARD in one.metrics]
        mean = f", mean reward {np.mean(rewards):.3g}" if rewards else ""
        return (
            f"no success in {self._groups} groups in a row ({len(self._row)} rollouts{mean}, {unanswered} "
            f"without an answer, {cut} cut by length): the policy solves none of these problems, or the "
            "domain's judge does not see that it does; look at some with python -m pipelinerl.view, then "
            "give easier problems, more tokens or another model"
        )


class UnratedWatch:
    """Whether `actor.sampling=difficulty` learns anything: told once, when no rollout has its metric."""

    def __init__(self, metric: str, window: int = RECENT_GROUPS) -> None:
        self._metric, self._left = metric, window

    def add_group(self, rollouts: Iterable[FinishedRollout]) -> str | None:
        """What to say behind this group; one that failed whole counts neither way."""
        rollouts = list(rollouts)
        if measured_rate(rollouts, self._metric) is not None:
            self._left = 0
        if self._left == 0 or not any(one.ending in (Ending.DONE, Ending.EMPTY) for one in rollouts):
            return None
        self._left -= 1
        if self._left:
            return None
        return (
            f"no rollout has the metric {self._metric}, by which actor.sampling=difficulty knows a problem: "
            "problems are drawn alike; set actor.difficulty.metric=reward and the band in its unit, or "
            "actor.sampling=uniform"
        )


class InfiniteWatch:
    """Metrics of rollouts that are infinite: each is told once, because means leave such values out."""

    def __init__(self) -> None:
        self._said = set[str]()

    def add_group(self, rollouts: Iterable[FinishedRollout]) -> str | None:
        """What to say behind this group; NaN says that nothing was measured, and is no fault."""
        found = {
            name
            for rollout in rollouts
            for name, value in rollout.metrics.items()
            if any(map(math.isinf, value if isinstance(value, list) else [value]))
        }
        if not (new := sorted(found - self._said)):
            return None
        self._said |= found
        return (
            f"metrics of rollouts are infinite ({', '.join(new)}), and means leave such values out; let the "
            "domain bound them, or give NaN where there is nothing to measure"
        )


def _tokens_read(sample: Sample) -> float:
    """The tokens before each sampled token of a sample, in all.

    A joined dialogue is read token by token: what stands between its answers is before the later ones only.
    """
    (labelled,) = (sample.labels != MASKED_TOKEN_ID).nonzero()
    if len(labelled) == sample.output_tokens:
        return float(labelled.sum())
    # Where the domain masked some of an answer, its tokens are the last ones.
    return sample.output_tokens * mean_context(sample.prompt_tokens, sample.output_tokens)


class Throughput:
    """Rates over the last `window` groups."""

    def __init__(self, window: int, start_s: float):
        self._groups: deque[tuple[float, int, int, int, float]] = deque(maxlen=window)
        """When a group was complete; its samples, their prompt tokens, their output tokens, and what all of
        these attended to together, in tokens."""
        self._before_s = start_s

    def add_group(self, rollouts: Iterable[FinishedRollout], now_s: float) -> None:
        # The window begins when the group before it was complete, or one group would have no duration.
        if len(self._groups) == self._groups.maxlen:
            self._before_s = self._groups[0][0]
        samples = [sample for rollout in rollouts for sample in rollout.samples]
        prompt, output = sum(s.prompt_tokens for s in samples), sum(s.output_tokens for s in samples)
        read = sum(map(_tokens_read, samples))
        self._groups.append((now_s, len(samples), prompt, output, read))

    def rates(self, now_s: float) -> dict[str, float]:
        """Per second, and the mean context of a sampled token; empty before the first group."""
        elapsed = now_s - self._before_s
        if not self._groups or elapsed <= 0:
            return {}
        samples, prompt, output, read = (sum(column) / elapsed for column in list(zip(*self._groups))[1:])
        return ({"context_tokens": read / output} if output else {}) | {
            "samples_per_second": samples,
            "prompt_tokens_per_second": prompt,
            "output_tokens_per_second": output,
            "total_tokens_per_second": prompt + output,
        }


class LoopLagStats:
    """Delays of the workers' event loops since the last record; the quantile is that of the latest."""

    def __init__(self) -> None:
        self._lags_s: deque[float] = deque(maxlen=LAGS_KEPT)
        self._max_s = 0.0

    def add(self, lags_s: Iterable[float]) -> None:
        for lag_s in lags_s:
            self._lags_s.append(lag_s)
            self._max_s = max(self._max_s, lag_s)

    def take(self) -> dict[str, float]:
        if not self._lags_s:
            return {}
        found = {"loop_lag_p99_s": float(np.quantile(self._lags_s, 0.99)), "loop_lag_max_s": self._max_s}
        self._lags_s.clear()
        self._max_s = 0.0
        return found


def domain_mix(completed: Mapping[str, int], targets: Mapping[str, float]) -> dict[str, float]:
    """Counts and shares of completed groups by domain, beside the wanted shares."""
    total = sum(completed.get(domain, 0) for domain in targets)
    record: dict[str, float] = {}
    for domain, target in targets.items():
        count = completed.get(domain, 0)
        record[f"domain_mix_count/{domain}"] = float(count)
        record[f"domain_mix_actual/{domain}"] = count / total if total else 0.0
        record[f"domain_mix_target/{domain}"] = target
    return record


def known_rates(pools: Iterable[DifficultySampler]) -> dict[str, float]:
    """What `actor.sampling=difficulty` knows and drew since the last record; empty without it."""
    pools = list(pools)
    taken = [pool.take() for pool in pools]
    draws, in_band, first = (sum(one[n] for one in taken) for n in range(3))
    rated = [(pool.in_band(problem), one.rate) for pool in pools for problem, one in pool.known.items()]
    rates = [(inside, rate) for inside, rate in rated if rate is not None]
    record = {"sampling/known": float(len(rates))} if pools else {}
    if draws:
        record |= {"sampling/in_band": in_band / draws, "sampling/first": first / draws}
    if rates:
        inside, values = zip(*rates, strict=True)
        record |= {"sampling/known_in_band": float(np.mean(inside))}
        record |= {"sampling/known_rate_mean": float(np.mean(values))}
    return record
