"""What a step did, beside changing weights: how rollouts ended, and counts for the metrics.

Called by the training loop for each micro-batch and once per step.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipelinerl.base.closing import Closing
from pipelinerl.finetune.metrics import StepStatistics
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding
from pipelinerl.finetune.rl.labels import TextStatistics, label_statistics
from pipelinerl.finetune.rl.targets import Targets
from pipelinerl.finetune.step import MicroStatistics
from pipelinerl.modeling.routing import Routers
from pipelinerl.run_state.accounting import Outcome, RolloutLog, rollout_id
from pipelinerl.run_state.announcements import discarded_stream
from pipelinerl.run_state.resume_point import stream_end
from pipelinerl.streams import read_stream

Measured = tuple[PipelineBatchEncoding, Targets, MicroStatistics | None]


@dataclass(slots=True)
class StepRollouts:
    """Rollouts of the step under way by what became of them, for the rollout accounting."""

    trained: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    unweighted: set[str] = field(default_factory=set)

    def add(self, batch: PipelineBatchEncoding, targets: Targets) -> None:
        used, stale = targets.samples_with_gradient(), targets.stale_samples()
        for (group, rollout, _), has_weight, is_stale in zip(batch.text_ids, used, stale):
            chosen = self.trained if has_weight else self.stale if is_stale else self.unweighted
            chosen.add(rollout_id(group, rollout))

    def close(self, rollout_log: RolloutLog) -> None:
        """The update took place: write down the ends of its rollouts."""
        rollout_log.record(Outcome.TRAINED, sorted(self.trained))
        rollout_log.record(Outcome.STALE, sorted(self.stale), "max_lag")
        rollout_log.record(Outcome.FILTERED, sorted(self.unweighted), "no_weight")


class StaleInQueue(Closing):
    """Samples that preprocess drops as too old before the trainer gets them; a context manager."""

    def __init__(self, output_dir: Path) -> None:
        spec = discarded_stream(output_dir)
        self._reader = read_stream(spec, stream_end(spec))
        self._last = 0

    def take(self) -> int:
        """How many since the last call."""
        new = 0
        for record in self._reader.read_available():
            count = int(record["counts"].get("stale", 0))
            new += count - self._last if count >= self._last else count  # it counts from its own start
            self._last = count
        return new

    def close(self) -> None:
        self._reader.close()


def check_announced(batch: PipelineBatchEncoding, targets: Targets, announced: int) -> None:
    """Raises ValueError for a label whose weight version is beyond the newest that the trainer announced.

    Nobody knows which weights sampled it: somebody else gave the engine its number.
    """
    newest = int(batch.token_versions[0][targets.positions].max(initial=announced))
    if newest > announced:
        raise ValueError(
            f"a sample was drawn by weight version {newest}, which was never announced (the newest is "
            f"{announced}): an engine got its version from somebody else; start the run again, which resumes"
        )


def count_batch(statistics: StepStatistics, batch: PipelineBatchEncoding, targets: Targets) -> None:
    """Add one micro-batch's host-side counts."""
    statistics.texts += batch.n_texts
    statistics.tokens.append(batch.n_tokens)
    statistics.computed += batch.n_computed
    statistics.sequences.append(batch.n_texts)
    statistics.padding += batch.padding
    statistics.stale_tokens += int(targets.stale.sum())
    statistics.stale_texts += int(targets.stale_samples().sum())
    weightless = targets.weight == 0
    statistics.masked["max_lag"] += int(targets.stale.sum())
    statistics.masked["overlong"] += int((targets.overlong & ~targets.stale).sum())
    statistics.masked["no_weight"] += int((weightless & ~targets.overlong & ~targets.stale).sum())
    lags, tokens = np.unique(targets.lag[~targets.stale], return_counts=True)
    statistics.lags.update(dict(zip(lags.tolist(), tokens.tolist())))
    versions = batch.token_versions[0][targets.positions]
    pairs = np.unique(np.stack([targets.sample, versions]), axis=1) if len(versions) else np.zeros((2, 0))
    statistics.multi_version_texts += int((np.bincount(pairs[0].astype(np.int64)) > 1).sum())
    statistics.versions += [int(versions.min()), int(versions.max())] if len(versions) else []


def fetch(statistics: StepStatistics, measured: list[Measured], routers: Routers | None = None) -> None:
    """Bring what the micro-batches measured to the host, once per step."""
    for batch, targets, micro in measured:
        if micro is not None and micro.routing is not None and routers is not None:
            counts = routers.counts(micro.routing)
            if counts.replayed and batch.routes is not None:
                counts.disagreeing = batch.disagreeing
                counts.record_bytes = counts.replayed * batch.routes[0].nbytes
            statistics.routing = [sum(statistics.routing, counts)]
        if micro is not None:
            statistics.vectors.append(micro.vector.tolist())
            statistics.mismatch = statistics.mismatch + micro.mismatch.cpu().double().numpy()
            for label, values in label_statistics(batch, targets, *micro.texts_3S.cpu().numpy()).items():
                statistics.labels.setdefault(label, TextStatistics()).add(values)
