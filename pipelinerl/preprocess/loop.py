"""The preprocess loop: groups in, packed optimizer steps out.

Every text that arrives leaves exactly once: published in a step, or dropped with a counted reason. Groups
are taken as they come, never waited for to fill a chunk; a step is written when B texts are ready and the
trainer is not too far behind.
"""

from __future__ import annotations

import logging
import time
from itertools import chain
from typing import Any

import numpy as np

from pipelinerl.base import faults
from pipelinerl.base.waits import waiting
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.observe.status import StatusFile
from pipelinerl.preprocess.assemble import assemble_step
from pipelinerl.preprocess.books import Books
from pipelinerl.preprocess.chunk import ChunkResult, apply_scales, process_chunk, split_bad_groups
from pipelinerl.preprocess.engine_reference import EngineReference
from pipelinerl.preprocess.metrics import PreprocessMetrics
from pipelinerl.preprocess.ready import ReadyBuffer, ReadyText, scale_table
from pipelinerl.preprocess.rejections import Rejections
from pipelinerl.preprocess.settings import PreprocessSettings
from pipelinerl.preprocess.snapshots import Held, Keeper, fitting
from pipelinerl.preprocess.validate import Record, check_group
from pipelinerl.preprocess.wakeup import Wakeup
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
        settings: PreprocessSettings,
        state: TrainerState,
        books: Books,
        session: ResumePoint,
        training_data: StreamWriter,
        scorer: Any = None,
    ) -> None:
        self.settings, self._state, self._books = settings, state, books
        self.keeper = Keeper(settings, session)
        self._training_data, self._scorer = training_data, scorer
        self._buffer, self._rejections = ReadyBuffer(), Rejections()
        self.metrics = PreprocessMetrics()
        self.step = session.step
        self.published = self._start = session.version
        self.received = 0
        self._first = True

    def restore(self) -> Held | None:
        """Take up the texts that an earlier start held at the version from which the run goes on."""
        held = self.keeper.restore()
        texts = held.texts_from(self.step) if held is not None else []
        self._books.restored(texts)
        kept, too_long = fitting(texts, self.settings.limits.seq_length)
        self._books.dropped([(text, "oversize") for text in too_long])
        self._buffer.add(kept)
        if texts:
            log.info("%d texts were kept over the resume", len(kept))
        return held

    def announced(self, version: int | None, position: int) -> None:
        """The newest announced version, and how many groups were taken from the actor before it was asked."""
        self.keeper.announced(version, self._buffer, position)

    def take_groups(self, groups: list[list[Record]]) -> None:
        """Check, score and value a chunk of whole groups, and buffer what can be trained on."""
        kept: list[list[Record]] = []
        for group in groups:
            self.received += len(group)
            self._books.arrived(group)
            checked = check_group(group, self.settings.limits)
            self._books.dropped(checked.dropped)
            kept.append(checked.kept)
        result = self._process(self._with_reference(kept))
        self.metrics.advantages.add_chunk(result)
        self._books.dropped(result.dropped)
        self._buffer.add(result.ready)
        self._drop_oldest()

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
        """B texts are ready, the run needs another step, and the trainer is close enough."""
        return self._enough() and not self.complete and not self.trainer_is_behind

    @property
    def complete(self) -> bool:
        """All texts of the run are published."""
        return self.step >= self.settings.last_step

    @property
    def trainer_is_behind(self) -> bool:
        waiting_texts = self.published - self._state.samples_processed
        return waiting_texts > self.settings.max_ready_samples_per_lead * self.settings.ranks

    @property
    def is_full(self) -> bool:
        """Without a lag bound nothing else limits the buffer, unless old texts may be dropped."""
        unbounded = self.settings.max_lag is None and not self.settings.pop_old_data
        return unbounded and len(self._buffer) >= self._room

    @property
    def _room(self) -> int:
        settings = self.settings
        return max(settings.ring_buffer_size, settings.dataset_buffer_size, settings.texts_per_step)

    def _enough(self) -> bool:
        first = self.settings.dataset_buffer_size if self._first else 0
        return len(self._buffer) >= max(self.settings.texts_per_step, first)

    def _process(self, groups: list[list[Record]]) -> ChunkResult:
        """Value the groups together; those whose labels contradict each other are dropped and named."""
        rl, eos = self.settings.rl, self.settings.eos_token_ids
        try:
            result = process_chunk(list(chain.from_iterable(groups)), rl, eos)
        except ValueError:
            good, bad = split_bad_groups(groups, rl, eos)
            for group, message in bad:
                self._books.dropped([(text, "bad_labels") for text in group])
                self._rejections.rejected(message)
            result, groups = process_chunk(list(chain.from_iterable(good)), rl, eos), [list(g) for g in good]
        self._rejections.accepted(sum(map(bool, groups)))
        return result

    def _with_reference(self, groups: list[list[Record]]) -> list[list[Record]]:
        """The texts with `ref_logprobs`; those that the reference cannot score are dropped."""
        if self._scorer is None:
            for text in chain.from_iterable(groups):
                text["ref_logprobs"] = text["logprobs"]
            return groups
        scores = iter(self._scorer.score(list(chain.from_iterable(groups))))
        scored: list[list[Record]] = [[] for _ in groups]
        for group, kept in zip(groups, scored):
            for text in group:
                found = next(scores)
                if found is None or not np.isfinite(found).all():
                    self._books.dropped([(text, "no_reference")])
                else:
                    kept.append(text | {"ref_logprobs": found})
        return scored

    def _drop_stale(self) -> None:
        """Texts of which every token will be beyond the lag bound; the trainer checks per token again."""
        if self.settings.max_lag is None:
            return
        oldest = self._version_when_trained - self.settings.max_lag
        stale = self._buffer.remove(lambda text: 0 <= int(text.versions.max()) < oldest)
        self._books.dropped([(text, "stale") for text in stale])

    @property
    def _version_when_trained(self) -> int:
        """The last announced version when the next step is trained: every `interval` texts there is one.

        Known beforehand, so that a step written ahead holds nothing that will be too old by then.
        """
        settings, announced = self.settings, self._state.propagated_weight_version or 0
        if not settings.has_trainer:  # its stand-in stays with the version it began with
            return announced
        interval = settings.texts_per_update
        return max(announced, self._start + (self.published - self._start) // interval * interval)

    def _drop_oldest(self) -> None:
        if self.settings.max_lag is None and self.settings.pop_old_data:
            old = self._buffer.remove_oldest(self._room)
            self._books.dropped([(text, "popped") for text in old])

    def _write_step(self) -> None:
        settings = self.settings
        texts, split = self._buffer.take(settings.texts_per_step)
        roles: dict[str, float] = {}
        if settings.rl.loss_scale_scope == "batch":
            roles = apply_scales(texts, scale_table(texts), settings.rl)
        plan = assemble_step(
            texts, self.step, settings.limits.seq_length, settings.ranks, settings.seq_packing
        )
        for rank, batches in enumerate(plan):
            for batch in batches:
                self._training_data.write(batch.to_record(), rank)
                faults.hit("preprocess:mid_step")
        self._books.published(texts)
        self.keeper.written(self.step, texts)
        self._first = False
        self.step += 1
        self.published += len(texts)
        tokens = sum(len(text.input_ids) for text in texts)
        room = sum(len(batches) for batches in plan) * settings.limits.seq_length
        self.metrics.published(len(texts), tokens, tokens / room)
        self.metrics.advantages.add_step(np.array([t.loss_scale for t in texts]), split, roles)
        self._last_version = _newest_version(texts)

    def discarded(self) -> dict[str, float]:
        """Texts dropped so far by reason, as `discarded/<reason>`."""
        return {f"discarded/{reason}": float(n) for reason, n in self._books.counts.items()}

    def gauges(self) -> dict[str, float]:
        """Values for `preprocessor/*`."""
        dropped = self._books.dropped_texts
        return {
            "published_samples": self.published,
            "published_model_version": getattr(self, "_last_version", 0),
            "queue/raw_samples": 0,
            "queue/raw": 0,
            "queue/output_samples": len(self._buffer),
            "queue/output": len(self._buffer) // self.settings.texts_per_step,
            "total_filtered_out_samples": dropped,
        }


def _newest_version(texts: list[ReadyText]) -> int:
    return max(int(text.versions.max()) for text in texts)


def run(settings: PreprocessSettings, writer: MetricsWriter | None = None) -> None:
    """Run until the trainer says that training is done."""
    out = StreamRangeSpec(settings.output_dir, settings.output_topic, partition_range=(0, settings.ranks))
    wakeup = Wakeup()
    _warn_about_role_weights(settings)
    with (
        TrainerState(settings.output_dir, wakeup.notify) as state,
        RolloutLog(settings.output_dir, "preprocess") as ledger,
        StatusFile(settings.output_dir, "preprocess") as status,
        write_to_streams(out) as training_data,
        write_to_streams(SingleStreamSpec(settings.output_dir, "preprocessor_stats")) as stats,
    ):
        scorer = _reference_scorer(settings)
        state.wait_for_version(settings.start_deadline_s)
        session = ResumePoint.read(settings.output_dir)
        source = SingleStreamSpec(settings.streams_from or settings.output_dir, settings.input_topic)
        discarded = DiscardedTexts(settings.output_dir, "preprocess")
        preprocess = Preprocess(settings, state, Books(ledger, discarded), session, training_data, scorer)
        reporter = _Reporter(preprocess, writer, stats, status)
        held = preprocess.restore()
        name, first = "preprocess", session.actor_position
        if settings.streams_from:
            # A recording is nobody's to mark, and is read on where the last start stopped.
            name, first = "", held.position if held else 0
        try:
            with (
                AnnouncedVersion(settings.output_dir) as version,
                read_stream(source, first, name) as groups,
            ):
                _loop(preprocess, state, version, groups, wakeup, reporter)
        finally:
            reporter.report()
            discarded.close()


def _warn_about_role_weights(settings: PreprocessSettings) -> None:
    weights = settings.rl.role_weights
    total = sum(weights.values())
    if weights and abs(total - 1) > 1e-9:
        log.warning("finetune.rl.role_weights sum to %g, not 1; the loss is scaled by that", total)


def _loop(
    preprocess: Preprocess,
    state: TrainerState,
    version: AnnouncedVersion,
    groups: StreamReader,
    wakeup: Wakeup,
    reporter: _Reporter,
) -> None:
    settings = preprocess.settings
    while not state.training_done:
        name = "training_done" if preprocess.complete else f"groups of rollouts for step {preprocess.step}"
        with waiting(name, settings.data_deadline_s) as wait:
            while not state.training_done:
                wakeup.clear()
                reads = not preprocess.is_full and not preprocess.complete
                batch: list[Any] = groups.read_available(settings.chunk_n_groups) if reads else []
                preprocess.announced(version.newest(), groups.position - len(batch))
                if batch:
                    preprocess.take_groups(batch)
                wrote = preprocess.write_steps()
                reporter.tick()
                if batch or wrote:
                    break
                if settings.streams_from and reads and not preprocess.trainer_is_behind:
                    _recording_ends(preprocess)
                    return
                wait.check(groups.describe_end() if wait.expired else "")
                # Unread groups keep their descriptor readable, so it is left out while nothing is read.
                sources: list[Any] = [groups, wakeup] if reads else [wakeup]
                wait_any(sources, min(POLL_S, wait.remaining_s))


def _recording_ends(preprocess: Preprocess) -> None:
    """Without a trainer the work is done; a trainer would wait for ever, so the run ends by name."""
    settings = preprocess.settings
    said = f"the recording {settings.streams_from} ends after {preprocess.step} of {settings.last_step} steps"
    if settings.has_trainer:
        raise ValueError(f"{said}; set finetune.max_train_steps={preprocess.step} or lower")
    log.warning("%s; %d texts are left over", said, preprocess.gauges()["queue/output_samples"])


class _Reporter:
    """Writes metrics every `log_every_n_samples` published texts."""

    def __init__(
        self, preprocess: Preprocess, writer: MetricsWriter | None, stats: StreamWriter, status: StatusFile
    ) -> None:
        self._preprocess, self._writer, self._stats, self._status = preprocess, writer, stats, status
        self._reported, self._dropped = preprocess.published, 0
        self._time = time.monotonic()

    def tick(self) -> None:
        published = self._preprocess.published
        self._status.set(step=self._preprocess.step, published=published)
        if published - self._reported >= self._preprocess.settings.log_every_n_samples:
            self.report()

    def report(self) -> None:
        gauges = self._preprocess.gauges()
        total = gauges["total_filtered_out_samples"]
        gauges["filtered_out_samples"] = total - self._dropped
        self._reported, self._dropped = self._preprocess.published, int(total)
        record = self._preprocess.metrics.record(gauges) | self._preprocess.discarded()
        self._stats.write(record)
        if self._writer is not None:
            self._writer.log(record, self._preprocess.published)


def _reference_scorer(settings: PreprocessSettings) -> Any:
    """A frozen reference when the KL term needs one; torch is imported only when it is scored here."""
    if not settings.rl.uses_reference:
        return None
    if settings.reference_urls:
        return EngineReference(settings.reference_urls, settings.start_deadline_s, settings.n_workers)
    from pipelinerl.preprocess.reference import ReferenceScorer

    return ReferenceScorer(
        settings.model_path,
        settings.rl.temperature,
        settings.limits.seq_length,
        settings.threads,
        settings.reference_device,
        settings.bfloat16,
        settings.flash_attention,
    )
