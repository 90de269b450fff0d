"""Statistics of the actor on their way to streams, metrics and the status file."""

import logging
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from pipelinerl.actor.evaluation import EvaluationPass
from pipelinerl.actor.groups import Group
from pipelinerl.actor.messages import Pulse
from pipelinerl.actor.scheduler import Scheduler
from pipelinerl.actor.stats import (
    REWARD,
    SUCCESS,
    GroupStats,
    InfiniteWatch,
    LoopLagStats,
    RecentGroups,
    Throughput,
    UnratedWatch,
    UnsolvedWatch,
    domain_mix,
    known_rates,
)
from pipelinerl.base.logs import REMARK
from pipelinerl.config import Config
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.observe.status import StatusFile
from pipelinerl.streams import SingleStreamSpec, write_to_streams

log = logging.getLogger(__name__)


def measured(group: Group) -> dict[str, Any]:
    """What the actor alone knows of each rollout of a group, for the page of rollouts."""
    rollouts = [
        {
            "index": index,
            "reward": _number(rollout.metrics.get(REWARD)),
            "success": _number(rollout.metrics.get(SUCCESS)),
            "seconds": round(rollout.latency_s, 3),
            "retries": rollout.retries,
            "dataset": rollout.dataset,
            "domain": rollout.domain,
            "ending": rollout.ending,
            "reason": rollout.reason,
        }
        for index, rollout in sorted(group.finished.items())
    ]
    record: dict[str, Any] = {"group": group.id, "problem": group.problem, "version": group.version}
    if (known := group.known) is not None:
        record |= {"weight": group.weight, "rate": known.rate, "measured_groups": known.groups}
    return record | {"rollouts": rollouts}


def _number(value: float | list[float] | None) -> float | None:
    return None if value is None or isinstance(value, list) or not math.isfinite(value) else float(value)


class Reporter:
    """Collects what happened; one record per announced version, one per evaluation."""

    def __init__(self, output_dir: Path, cfg: Config, version: int):
        self.start_s = time.monotonic()
        self._stats, self._recent, self._lags = GroupStats(), RecentGroups(), LoopLagStats()
        self._watches: list[UnsolvedWatch | UnratedWatch | InfiniteWatch] = [UnsolvedWatch(), InfiniteWatch()]
        if cfg.actor.sampling == "difficulty":
            self._watches.append(UnratedWatch(cfg.actor.difficulty.metric))
        self.test_digest = ""
        """Of the test problems, beside the values of each."""
        self._throughput = Throughput(cfg.actor.throughput_window_size, self.start_s)
        self._requests: dict[int, dict[str, float]] = {}
        self._metrics = MetricsWriter(output_dir, "actor")
        self._status = StatusFile(output_dir, "actor")
        self._status.set(version=version)
        self._streams = {
            topic: write_to_streams(SingleStreamSpec(output_dir, topic))
            for topic in ("stats", "stats_test", "stats_rollouts")
        }

    def finished_group(self, group: Group) -> None:
        self._stats.add_group(group.finished.values())
        self._recent.add_group(group.finished.values())
        self._status.set(**self._recent.means())
        for watch in self._watches:
            if (line := watch.add_group(group.finished.values())) is not None:
                log.warning(line, extra=REMARK)
        self._throughput.add_group(group.finished.values(), time.monotonic())
        self._streams["stats_rollouts"].write(measured(group))

    def pulse(self, pulse: Pulse) -> None:
        self._lags.add(pulse.loop_lags_s)
        self._requests[pulse.worker] = pulse.requests  # totals since the worker's start

    def stage(self, scheduler: Scheduler) -> None:
        """What the actor is at, for the status file."""
        out = ", ".join(sorted(scheduler.table.slots.out))
        self._status.set(active=scheduler.table.active, engines_out=out or None)
        oldest = scheduler.table.oldest
        # Since when, and not for how long, or the file would change every second.
        name, since = (oldest.name, round(oldest.at, 3)) if oldest else (None, None)
        self._status.set(oldest_rollout=name, oldest_since=since)
        current = scheduler.running_pass
        self._status.set(
            test_problems=current.problems if current else None,
            test_problems_played=len(current.rollouts) if current else None,
        )

    def report(self, scheduler: Scheduler, queued: int) -> None:
        """One record of training since the last one."""
        now_s = time.monotonic()
        record = self._stats.take() | self._throughput.rates(now_s) | self._lags.take()
        record |= {
            "published_samples": scheduler.published_texts,
            "problem_queue_size": scheduler.table.waiting,
            "result_queue_size": queued,
            "finished_groups": scheduler.groups_finished,
            "trainer_model_version": scheduler.version,
            "time_since_start": now_s - self.start_s,
            "active_rollouts": scheduler.table.active,
            "reserved_texts": scheduler.budget.reserved,
            "discarded_texts": scheduler.discarded,
        }
        record |= {f"requests/{name}": value for name, value in self._request_totals().items()}
        if (mixture := scheduler.sampler.mixture) is not None:
            record |= domain_mix(mixture.completed, mixture.targets)
        record |= known_rates(scheduler.sampler.difficulty.values())
        self._status.set(
            version=scheduler.version, texts=scheduler.published_texts, groups=scheduler.groups_finished
        )
        self._streams["stats"].write(record)
        self._metrics.log({f"actor/{name}": value for name, value in record.items()}, step=scheduler.version)

    def _request_totals(self) -> dict[str, float]:
        """Counters are sums over workers; shares and sizes per token the mean of those that have one."""
        values = defaultdict[str, list[float]](list)
        for requests in self._requests.values():
            for name, value in requests.items():
                values[name].append(value)
        # These are ratios: summed like counters they would grow with the number of workers.
        ratios = ("bytes_per_token", "exact_versions", "prefix_cache_share")
        means = (*ratios, "engine_idle_share", "engine_running")
        return {name: sum(of) / (len(of) if name in means else 1) for name, of in values.items()}

    def finished_evaluation(self, evaluation: EvaluationPass, version: int) -> None:
        """One record: means under `test_`, and the values of each problem."""
        stats = GroupStats()
        # One by one: as one group, every test problem would count as an attempt at the same problem.
        for rollout in evaluation.rollouts.values():
            stats.add_group([rollout])
        means = stats.take("test_") | {"trainer_model_version": version}
        means |= {f"test_{name}": count for name, count in evaluation.counts().items()}
        record: dict[str, Any] = {"version": evaluation.version, "start": evaluation.start}
        record |= {"values": evaluation.values(), "problems": self.test_digest, **means}
        self._streams["stats_test"].write(record)
        self._metrics.log({f"actor/{name}": value for name, value in means.items()}, step=evaluation.version)

    def close(self) -> None:
        self._metrics.close()
        self._status.close()
        for stream in self._streams.values():
            stream.close()
