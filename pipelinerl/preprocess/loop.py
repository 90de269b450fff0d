"""The preprocess loop: groups in, packed optimizer steps out. Run by `python -m pipelinerl.preprocess`.

Every sample that arrives leaves exactly once: published in a step, or dropped with a counted reason. Groups
are taken as they come, never waited for to fill a chunk: with a lag bound the actor may be allowed fewer. A
step is written when B samples are ready and the trainer is not too far behind.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from pipelinerl.base import faults
from pipelinerl.base.logs import REMARK
from pipelinerl.base.waits import ROLLOUTS, Wait
from pipelinerl.config import Config
from pipelinerl.finetune.rl.batch import assemble_step
from pipelinerl.finetune.rl.loss_scale import apply_scales
from pipelinerl.finetune.rl.sample import UNSAMPLED, Sample
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.observe.status import StatusFile
from pipelinerl.preprocess.accounting import SampleAccounting
from pipelinerl.preprocess.buffer import SampleBuffer
from pipelinerl.preprocess.chunk import ChunkResult, process_groups
from pipelinerl.preprocess.kept import KeptRollouts
from pipelinerl.preprocess.metrics import PreprocessMetrics
from pipelinerl.preprocess.reading import (
    Record,
    Rejections,
    SampleLimits,
    Vocabulary,
    model_vocabulary,
    read_groups,
    rollout_of,
)
from pipelinerl.preprocess.scoring import (
    Scorer,
    Teachers,
    reference_scorer,
    score_reference,
    start_deadline_s,
    teachers,
)
from pipelinerl.preprocess.signal import SignalWatch, warn_about_role_weights
from pipelinerl.preprocess.snapshots import Held, Keeper
from pipelinerl.run_state.accounting import RolloutLog
from pipelinerl.run_state.announcements import AnnouncedVersion, DiscardedTexts, TrainerState
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.streams import (
    SingleStreamSpec,
    StreamRangeSpec,
    StreamReader,
    StreamWriter,
    read_stream,
    wait_any,
    write_to_streams,
)

log = logging.getLogger(__name__)
POLL_S = 1.0


class Preprocess:
    """Owns the buffer between actor and trainer; see the module."""

    def __init__(
        self,
        cfg: Config,
        keeper: Keeper,
        state: TrainerState,
        accounting: SampleAccounting,
        session: ResumePoint,
        training_data: StreamWriter,
        vocabulary: Vocabulary,
        kept: KeptRollouts,
        scorer: Scorer | None = None,
        teachers: Teachers | None = None,
    ) -> None:
        self.cfg, self.keeper, self._state, self.accounting = cfg, keeper, state, accounting
        self._training_data, self._kept, self._scorer = training_data, kept, scorer
        self._teachers = teachers
        self._eos_token_ids = vocabulary.eos_token_ids
        self._limits = SampleLimits(
            vocabulary.size, cfg.finetune.seq_length, cfg.attempts, needs_versions=cfg.staleness.bounded
        )
        self.buffer, self._rejections, self._signal = SampleBuffer(), Rejections(), SignalWatch(cfg)
        self.metrics = PreprocessMetrics()
        self.step = session.step
        self.published = self._start = session.version
        kept.total = cfg.total_texts(session.step, session.version)
        self._last_version = 0
        self._due = 0
        """Further steps of a buffer that has filled (`preprocess.dataset_buffer_size`)."""

    def restore(self) -> Held | None:
        """Take up the samples that an earlier start held at the version from which the run goes on."""
        held = self.keeper.restore()
        if held is None and (version := self.keeper.resumes_from):
            missing = (
                "no snapshot of preprocess up to version %d (preprocess/state was removed): samples that "
            )
            log.warning(missing + "waited for the trainer then are discarded", version, extra=REMARK)
        samples = held.samples_from(self.step) if held is not None else []
        self.accounting.restored(samples)
        self.buffer.add(samples)
        # Of a run whose rows were longer: this start's cannot hold them.
        too_long = self.buffer.remove(lambda sample: len(sample.input_ids) > self.cfg.finetune.seq_length)
        self._drop(too_long, "oversize")
        if samples:
            log.info("%d samples were kept over the resume", len(self.buffer))
        return held

    def take_groups(self, groups: Sequence[Sequence[Record]]) -> None:
        """Read, score and value a chunk of whole groups, and buffer what can be trained on."""
        self.accounting.arrived(map(rollout_of, chain.from_iterable(groups)))
        self._kept.groups(groups, self.published)
        read = read_groups(groups, self._limits)
        for group in read:
            self.accounting.dropped(group.dropped)
        result = self._process(self._scored([group.samples for group in read]), [g.error for g in read])
        self.metrics.add_chunk(result)
        self._signal.chunk(read, result)
        self.accounting.dropped((sample.rollout, reason) for sample, reason in result.dropped)
        self.buffer.add(result.ready)
        self._drop_oldest()

    def _drop(self, samples: Iterable[Sample], reason: str) -> None:
        self.accounting.dropped((sample.rollout, reason) for sample in samples)

    def write_steps(self) -> bool:
        """Write every step that is complete and wanted; True when at least one was written."""
        wrote = False
        while self.wants_step():
            self._drop_stale()
            if not self._enough():
                break
            self._write_step()
            wrote = True
        return wrote

    def wants_step(self) -> bool:
        """B samples are ready, the run needs another step, and the trainer is close enough."""
        return self._enough() and not self.complete and not self.trainer_is_behind

    @property
    def complete(self) -> bool:
        """All samples of the run are published."""
        return self.step >= self.cfg.finetune.last_step

    @property
    def trainer_is_behind(self) -> bool:
        unprocessed = self.published - self._state.samples_processed
        return unprocessed > self.cfg.preprocess.max_ready_samples_per_lead * self.cfg.rows_at_once

    @property
    def is_full(self) -> bool:
        """Without a lag bound nothing else limits the buffer, unless old samples may be dropped."""
        unbounded = not (self.cfg.staleness.bounded or self._drops_oldest)
        return unbounded and len(self.buffer) >= self._room

    @property
    def _drops_oldest(self) -> bool:
        """Not of a recording: it can wait, and nothing newer than its end would take their place."""
        return self.cfg.pop_old_data and self.cfg.streams_source("preprocessor") is None

    @property
    def _room(self) -> int:
        sizes = self.cfg.preprocess
        return max(sizes.ring_buffer_size, sizes.dataset_buffer_size, self.cfg.derived.texts_per_step)

    def _enough(self) -> bool:
        """A step's samples are here; unless steps of a full buffer are due, those of all that it makes."""
        texts, left = self.cfg.derived.texts_per_step, self.cfg.finetune.last_step - self.step
        filled = 0 if self._due else min(self.cfg.preprocess.dataset_buffer_size, left * texts)
        return len(self.buffer) >= max(texts, filled)

    def _process(self, groups: list[list[Sample]], errors: Sequence[str]) -> ChunkResult:
        """Value the groups together; one whose samples cannot be compared is dropped and named.

        `errors`: why a group was refused as it was read, else empty.
        """
        result, bad = process_groups(groups, self.cfg.finetune.rl, self._eos_token_ids)
        messages = {id(group): message for group, message in bad}
        for group, error in zip(groups, errors, strict=True):
            if message := messages.get(id(group)):
                self._drop(group, "bad_labels")
            if message or error:
                self._rejections.rejected(message or error)
            elif group:
                self._rejections.accepted()
        if self.cfg.teacher.alone:
            for sample in result.ready:
                sample.advantage = 0.0
        return result

    def _scored(self, groups: list[list[Sample]]) -> list[list[Sample]]:
        """The samples with what frozen models say of them; those that one cannot score are dropped."""
        groups = self._without(groups, "no_reference", score_reference(_flat(groups), self._scorer))
        if self._teachers is None:
            return groups
        unscored = self._teachers.advise(_flat(groups), self.metrics.add_teacher)
        return self._without(groups, "no_teacher", unscored)

    def _without(self, groups: list[list[Sample]], reason: str, unscored: list[Sample]) -> list[list[Sample]]:
        self._drop(unscored, reason)
        names = {sample.name for sample in unscored}
        return [[sample for sample in group if sample.name not in names] for group in groups]

    def _drop_stale(self) -> None:
        """Samples of which every token will be beyond the lag bound; the trainer checks per token again."""
        staleness, last = self.cfg.staleness, self._version_when_trained

        def stale(sample: Sample) -> bool:
            newest = sample.newest_version
            return newest != UNSAMPLED and bool(staleness.too_old(last - newest))

        if staleness.bounded:
            self._drop(self.buffer.remove(stale), "stale")

    @property
    def _version_when_trained(self) -> int:
        """The last announced version when the next step is trained: every `interval` samples there is one.

        Known beforehand, so that a step written ahead holds nothing that will be too old by then.
        """
        announced = self._state.propagated_weight_version or 0
        if not self.cfg.jobs_of("finetune"):  # its stand-in stays with the version it began with
            return announced
        interval = self.cfg.derived.texts_per_update
        return max(announced, self._start + (self.published - self._start) // interval * interval)

    def _drop_oldest(self) -> None:
        if self._drops_oldest and not self.cfg.staleness.bounded:
            self._drop(self.buffer.remove_oldest(self._room), "popped")

    def _write_step(self) -> None:
        tune, derived = self.cfg.finetune, self.cfg.derived
        samples, split = self.buffer.take(derived.texts_per_step)
        roles: dict[str, float] = {}
        if tune.rl.loss_scale_scope == "batch":
            roles = apply_scales(samples, tune.rl)
        ranks = assemble_step(
            samples,
            self.step,
            tune.seq_length,
            self.cfg.rows_at_once,
            tune.seq_packing,
            tune.shares_prefixes,
        )
        for rank, batches in enumerate(ranks):
            for batch in batches:
                self._training_data.write(batch.to_record(), rank)
                faults.hit("preprocess:mid_step")
        self.accounting.published(samples)
        self._kept.step(self.step, self.published, samples)
        self.keeper.written(self.step, samples)
        self._due = (self._due or max(1, self.cfg.preprocess.dataset_buffer_size // len(samples))) - 1
        self.step += 1
        self.published += len(samples)
        rows = list(chain.from_iterable(ranks))
        fill = sum(row.n_computed for row in rows if not row.sentinel) / (len(rows) * tune.seq_length)
        self.metrics.add_step(samples, fill, split, roles)
        self._last_version = max(sample.newest_version for sample in samples)

    def gauges(self) -> dict[str, float]:
        """Values for `preprocessor/*`."""
        return {
            "published_samples": self.published,
            "published_model_version": self._last_version,
            "queue/raw_samples": 0,
            "queue/raw": 0,
            "queue/output_samples": len(self.buffer),
            "queue/output": len(self.buffer) // self.cfg.derived.texts_per_step,
            "total_filtered_out_samples": sum(self.accounting.discarded.counts.values()),
        }


def _flat(groups: list[list[Sample]]) -> list[Sample]:
    return list(chain.from_iterable(groups))


def run(cfg: Config, output_dir: Path, writer: MetricsWriter | None = None) -> None:
    """Run until the trainer says that training is done."""
    ranks = (0, cfg.rows_at_once)
    out = StreamRangeSpec(output_dir, cfg.preprocess.output, partition_range=ranks)
    recording = cfg.streams_source("preprocessor")
    warn_about_role_weights(cfg.finetune.rl)
    with (
        os.fdopen(os.eventfd(0, os.EFD_NONBLOCK), "rb", buffering=0) as news,
        TrainerState(output_dir) as state,
        RolloutLog(output_dir, "preprocess") as rollout_log,
        StatusFile(output_dir, "preprocess") as status,
        write_to_streams(out) as training_data,
        write_to_streams(SingleStreamSpec(output_dir, "preprocessor_stats")) as stats,
        KeptRollouts(cfg, output_dir) as kept,
    ):
        state.subscribe(lambda: os.eventfd_write(news.fileno(), 1))
        vocabulary, scorer, advisers = model_vocabulary(cfg.policy_path), reference_scorer(cfg), teachers(cfg)
        state.wait_for_version(start_deadline_s(cfg))
        session = ResumePoint.read(output_dir)  # written before the first version is announced
        discarded = DiscardedTexts(output_dir)
        preprocess = Preprocess(
            cfg,
            Keeper(cfg, output_dir, session),
            state,
            SampleAccounting(rollout_log, discarded),
            session,
            training_data,
            vocabulary,
            kept,
            scorer,
            advisers,
        )
        reporter = _Reporter(preprocess, writer, stats, status)
        held = preprocess.restore()
        name, first = "preprocess", session.actor_position
        if recording:
            # A recording is nobody's to mark, and is read on where the last start stopped.
            name, first = "", held.position if held else 0
        source = SingleStreamSpec(recording or output_dir, cfg.preprocess.input)
        try:
            with AnnouncedVersion(output_dir) as version, read_stream(source, first, name) as groups:
                _loop(preprocess, state, version, groups, news.fileno(), reporter)
        finally:
            reporter.report()
            discarded.close()


def _loop(
    preprocess: Preprocess,
    state: TrainerState,
    version: AnnouncedVersion,
    groups: StreamReader,
    news: int,
    reporter: "_Reporter",
) -> None:
    cfg = preprocess.cfg
    recording = cfg.streams_source("preprocessor")
    while not state.training_done:
        name = (
            "the end of training" if preprocess.complete else f"groups of rollouts for step {preprocess.step}"
        )
        with Wait(name, cfg.watchdog.input_deadline_s, normal=ROLLOUTS) as wait:
            while not state.training_done:
                with suppress(BlockingIOError):
                    os.eventfd_read(news)  # before the state is looked at: what comes later wakes again
                reads = not preprocess.is_full and not preprocess.complete
                batch: list[Any] = groups.read_available(cfg.preprocess.chunk_n_groups) if reads else []
                preprocess.keeper.announced(version.newest(), preprocess.buffer, groups.position - len(batch))
                if batch:
                    preprocess.take_groups(batch)
                wrote = preprocess.write_steps()
                reporter.tick()
                if batch or wrote:
                    break
                if recording and reads and not preprocess.trainer_is_behind:
                    _recording_ends(preprocess, recording)
                    return
                wait.check(groups.describe_end)
                # Unread groups keep their descriptor readable, so it is left out while nothing is read.
                wait_any([groups] if reads else [], min(POLL_S, wait.remaining_s), news)


def _recording_ends(preprocess: Preprocess, recording: Path) -> None:
    """Without a trainer the work is done; a trainer would wait for ever, so the run ends by name."""
    last_step = preprocess.cfg.finetune.last_step
    said = f"the recording {recording} ends after {preprocess.step} of {last_step} steps"
    if preprocess.cfg.jobs_of("finetune"):
        lower = f"set finetune.max_train_steps={preprocess.step} or lower"
        none = "give one with more samples, or lower finetune.gradient_accumulation_passes"
        raise ValueError(f"{said}; {lower if preprocess.step else none}")
    log.warning("%s; %d samples are left over", said, preprocess.gauges()["queue/output_samples"])


class _Reporter:
    """Writes metrics every `log_every_n_samples` published samples."""

    def __init__(
        self, preprocess: Preprocess, writer: MetricsWriter | None, stats: StreamWriter, status: StatusFile
    ) -> None:
        self._preprocess, self._writer, self._stats, self._status = preprocess, writer, stats, status
        self._reported, self._dropped = preprocess.published, 0

    def tick(self) -> None:
        published = self._preprocess.published
        self._status.set(step=self._preprocess.step, published=published)
        if published - self._reported >= self._preprocess.cfg.preprocess.log_every_n_samples:
            self.report()

    def report(self) -> None:
        gauges = self._preprocess.gauges()
        total = gauges["total_filtered_out_samples"]
        gauges["filtered_out_samples"] = total - self._dropped
        self._reported, self._dropped = self._preprocess.published, int(total)
        record = self._preprocess.metrics.record(gauges)
        self._preprocess.metrics = PreprocessMetrics()
        counts = self._preprocess.accounting.discarded.counts
        record |= {f"discarded/{reason}": float(n) for reason, n in counts.items()}
        self._stats.write(record)
        if self._writer is not None:
            self._writer.log(record, self._preprocess.published)
