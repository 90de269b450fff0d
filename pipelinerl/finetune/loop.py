"""The training loop: read a step's micro-batches, update, publish, announce, save; until the last step.

What is announced is true when it is announced: `weight_update_success` follows the last engine's
confirmation, `samples_processed` follows the backward pass, `training_done` follows the final save.
`finetune/__main__.py` runs one `Trainer` in each rank; publishing, announcing and saving are the main rank's.
"""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from pipelinerl.base.files import write_whole
from pipelinerl.base.logs import REMARK
from pipelinerl.base.tokenizing import tokenizer_folder
from pipelinerl.config import Config
from pipelinerl.finetune.broadcast import Broadcaster, broadcaster_of
from pipelinerl.finetune.build import build_learner
from pipelinerl.finetune.checkpoints import load_state, resume_step, save_checkpoint
from pipelinerl.finetune.collect import (
    Measured,
    StaleInQueue,
    StepRollouts,
    check_announced,
    count_batch,
    fetch,
)
from pipelinerl.finetune.compile_later import LaterCompilation, makes_kernels, warm_up
from pipelinerl.finetune.feed import Feed, Follower
from pipelinerl.finetune.idle import IdleWatch
from pipelinerl.finetune.memory import MemoryDebug
from pipelinerl.finetune.metrics import StepStatistics, step_metrics
from pipelinerl.finetune.peaks import Hardware, copy_bandwidth, peak_flops
from pipelinerl.finetune.ranks import Ranks
from pipelinerl.finetune.rl.batch import PipelineBatchEncoding, sentinel_batch
from pipelinerl.finetune.rl.losses import Coefficients, policy_loss
from pipelinerl.finetune.rl.targets import targets_of
from pipelinerl.finetune.types import TrainingMetrics
from pipelinerl.modeling.compiling import candidates_side_by_side, named_compilations
from pipelinerl.observe.metrics import MetricsWriter
from pipelinerl.observe.mismatch import ArithmeticWatch
from pipelinerl.observe.status import StatusFile
from pipelinerl.run_state.accounting import RolloutLog, log_size
from pipelinerl.run_state.announcements import TrainerAnnouncements
from pipelinerl.run_state.epochs import completed_epochs
from pipelinerl.run_state.resume_point import ResumePoint, stream_end
from pipelinerl.run_state.saved_steps import MODEL, STATE
from pipelinerl.run_state.snapshots import KINDS, replayed_texts, wait_for_snapshots
from pipelinerl.streams import SingleStreamSpec
from pipelinerl.weights.parity import LEAST_MEAN_LIMIT

log = logging.getLogger(__name__)


class Trainer:
    """One rank of the trainer, from start or resume to `training_done`."""

    def __init__(
        self,
        cfg: Config,
        ranks: Ranks,
        writer: MetricsWriter | None = None,
        broadcaster: Broadcaster | None = None,
    ) -> None:
        torch.set_num_threads(cfg.hardware.threads_per_process)
        torch.manual_seed(cfg.seed)
        self.cfg, self.finetune = cfg, cfg.finetune
        self.ranks, self._writer = ranks, writer
        self.output_dir = Path(str(cfg.output_dir))
        self.folder = self.output_dir / "finetune"
        self._recording = cfg.streams_source("finetune")
        # False: `training_data` is a recording, which a resumed trainer goes on reading where it stopped.
        self._follows_preprocess = bool(cfg.jobs_of("preprocessor"))
        # False: the samples are recorded ones, so their versions are those of another trainer's weights.
        self._follows_actor = bool(cfg.jobs_of("actor"))
        self.counters = TrainingMetrics()
        step = ranks.gather(resume_step(self.folder) if ranks.is_main else None)[0]
        source = Path(cfg.policy_path) if step is None else self.folder / MODEL
        self.learner = build_learner(cfg, ranks, source, resumes=step is not None)
        # A hub that has to be asked is asked before anything is trained.
        self._tokenizer = str(tokenizer_folder(cfg.policy_path)) if ranks.is_main else None
        saved: dict[str, Any] = {}
        if step is not None:
            self.counters, saved = load_state(self.folder / STATE, self.learner)
            log.info("resuming at step %d, version %d", step, self.counters.samples)
        self._positions: dict[str, int] = saved.get("positions", {})
        self._accounting_end: int | None = saved.get("accounting_end") if step is not None else 0
        if ranks.is_main and self.finetune.learning_rate == 0:
            log.warning("finetune.learning_rate=0: no step changes the weights", extra=REMARK)
        if broadcaster is None:
            broadcaster = broadcaster_of(self.learner, cfg) if ranks.is_main else Broadcaster()
        self._broadcaster = broadcaster
        self._compilation = LaterCompilation(self.learner, cfg)
        self._memory = MemoryDebug(cfg.finetune.memory_debug, self.learner.device)
        peak = peak_flops(self.learner.device, self.learner.bfloat16)
        sizes = cfg.finetune.seq_length, self.learner.active_elements, peak, cfg.finetune.seq_parallel
        copies = copy_bandwidth(self.learner.device) if ranks.is_main else None
        self._hardware = Hardware(*sizes, copies)
        self._last_rl: dict[str, Any] = {}
        self._update_metrics: dict[str, float] = {}
        self._rounding: dict[str, float] = {}
        self._arithmetic = ArithmeticWatch()
        self._idle = IdleWatch(cfg.finetune.rl, cfg.finetune.attempts)
        self._announcements: TrainerAnnouncements | None = None
        self._status: StatusFile | None = None
        self._stale_in_queue: StaleInQueue | None = None

    def run(self) -> None:
        """Train to the last step; see the module for what is announced when."""
        spec = SingleStreamSpec(
            self._recording or self.output_dir, self.finetune.input, partition=self.ranks.partition
        )
        offset = self._first_record(spec)
        feed = self._feed(spec, offset)
        with ExitStack() as stack:
            stack.enter_context(named_compilations())
            stack.enter_context(candidates_side_by_side())
            stack.callback(self._broadcaster.close)
            stack.callback(feed.close)
            rollout_log = stack.enter_context(RolloutLog(self.output_dir, "finetune"))
            if self.ranks.is_main:
                # What an earlier start trained behind the checkpoint is not in these weights.
                end = self._accounting_end
                if end is not None and log_size(self.output_dir, "finetune") < end:
                    cut = "%s was removed or cut: rollouts that it counted as trained now count as unfinished"
                    log.warning(cut, rollout_log.path, extra=REMARK)
                undone = 0 if end is None else rollout_log.undo_after(end)
                if undone:
                    log.info("%d rollouts trained after the checkpoint are undone", undone)
                self._announcements = stack.enter_context(TrainerAnnouncements(self.output_dir))
                self._status = stack.enter_context(StatusFile(self.output_dir, "finetune"))
                self._stale_in_queue = stack.enter_context(StaleInQueue(self.output_dir))
            if makes_kernels(self.learner, self.cfg):
                warm_up(self.learner, self.cfg)
            self._broadcaster.start()
            self._say_samples(self.counters.samples)
            # Also on a resume: engines that have just loaded the checkpoint know no version, and the other
            # roles begin at this announcement, behind the resume point, which is written by now.
            self._publish()
            while not (self._complete or self._recording_ends(feed)):
                worked_s, batch = self._train_step(feed, rollout_log)
                self._after_step(feed)
                # Behind the update of the engines, which go on meanwhile.
                left = self.finetune.last_step - self.counters.completed_steps
                self._compilation.after_step(worked_s, left, batch)
            self._finish(feed)

    def _feed(self, spec: SingleStreamSpec, offset: int) -> Feed | Follower:
        row = self.ranks.row
        if row is not None and not row.leads:
            return Follower(row)
        name = "finetune" if self._follows_preprocess else ""
        deadline_s = self.cfg.watchdog.input_deadline_s
        return Feed(spec, offset, deadline_s, self._refresh, name, self._recording is not None, row)

    @property
    def _complete(self) -> bool:
        """Whether the run has had its steps or its epochs; every rank finds the same."""
        finetune, counters = self.finetune, self.counters
        epochs = finetune.max_epochs
        return counters.completed_steps >= finetune.last_step or (
            epochs is not None and counters.epoch >= epochs
        )

    def _recording_ends(self, feed: Feed | Follower) -> bool:
        """Whether some rank of a replaying trainer has nothing left; they end together."""
        if self._recording is None or not any(self.ranks.gather(feed.exhausted)):
            return False
        steps, last = self.counters.completed_steps, self.finetune.last_step
        log.warning("the recording ends after step %d of %d", steps, last, extra=REMARK)
        return True

    def _first_record(self, spec: SingleStreamSpec) -> int:
        """Where to read on, and the session file that tells preprocess the same."""
        saved = int(self._positions.get(str(self.ranks.partition), 0))
        offset = stream_end(spec) if self._follows_preprocess else saved
        if self.ranks.is_main:
            actor = SingleStreamSpec(self.output_dir, self.cfg.preprocess.input)
            position = 0 if self._recording else stream_end(actor)
            version, step = self.counters.samples, self.counters.completed_steps
            kept = replayed_texts(self.output_dir, version, step) if self._follows_preprocess else 0
            ResumePoint(version, step, position, kept, self.cfg.attempt).write(self.output_dir)
        if self._follows_preprocess and offset > saved and self.ranks.leads:
            log.info("%d micro-batches after the checkpoint are not trained on", offset - saved)
        return offset

    def _train_step(
        self, feed: Feed | Follower, rollout_log: RolloutLog
    ) -> tuple[float, PipelineBatchEncoding]:
        """One optimizer step over exactly B samples of all ranks.

        Gives the seconds that the slowest rank worked, and a micro-batch of this one.
        """
        counters, rl = self.counters, self.finetune.rl
        if self._status is not None:
            self._status.set(step=counters.completed_steps, version=counters.samples)
        # Not `last_step`: a run that is interrupted and goes on has the schedules of one that is not.
        done, final = counters.completed_steps, self.finetune.max_train_steps
        coefficients = Coefficients(rl.kl_coefficient(done, final), rl.entropy_coefficient(done, final))
        statistics, rollouts = StepStatistics(), StepRollouts()
        measured: list[Measured] = []
        self._memory.begin()
        feed.waited_s, started = 0.0, time.monotonic()
        announced = counters.last_broadcasted_version
        for batch in self._micro_batches(feed):
            targets = targets_of(batch, rl, announced, self.cfg.staleness, counters.samples)
            if self._follows_actor:  # a recording may be one of a run that came further
                check_announced(batch, targets, announced)
            micro = self.learner.accumulate(batch, targets, coefficients)
            if self.ranks.leads:  # of the ranks that compute a row one counts it
                measured.append((batch, targets, micro))
                rollouts.add(batch, targets)
                count_batch(statistics, batch, targets)
            self._say_samples(counters.samples + statistics.texts)
        counters.lr = self.learner.learning_rate  # behind `apply` it is the next step's
        grad_norm = self.learner.apply()
        fetch(statistics, measured, self.learner.routers)
        statistics.waited_s = feed.waited_s
        statistics.worked_s = time.monotonic() - started - feed.waited_s
        statistics.queued = feed.unread
        statistics.memory = self._memory.measure(counters.completed_steps + 1)
        # Each rank knows its own rollouts only, and all must end at the same step.
        statistics.epoch = completed_epochs(self.output_dir, rollouts.trained)
        everyone = self.ranks.gather(statistics)
        total = StepStatistics().merge(everyone)
        expected = self.cfg.derived.texts_per_step
        if total.texts != expected:
            raise ValueError(
                f"step {counters.completed_steps} holds {total.texts} samples, expected {expected}"
            )
        self._note_ends(rollouts, rollout_log)
        counters.epoch = max(counters.epoch, total.epoch)
        dropped = 0 if self._stale_in_queue is None else self._stale_in_queue.take()
        counters.count(total, grad_norm, dropped)
        if (said := self._idle.add(grad_norm, total.texts)) is not None and self.ranks.is_main:
            log.warning(said, extra=REMARK)
        # The last step too: a report has the steps and samples of the last record.
        due = counters.completed_steps % self.finetune.log_each_n_steps == 0
        if self.ranks.is_main and (due or self._complete):
            self._log(total, coefficients)
        return total.worked_s, batch

    def _note_ends(self, rollouts: StepRollouts, rollout_log: RolloutLog) -> None:
        """The update took place: each rank writes down its rollouts, on several hosts the first for all."""
        if not self.cfg.several_hosts:
            rollouts.close(rollout_log)
            return
        # Between the hosts of a shared folder an appended line is not whole.
        for each in self.ranks.gather(rollouts):
            if self.ranks.is_main:
                each.close(rollout_log)

    def _micro_batches(self, feed: Feed | Follower) -> Iterator[PipelineBatchEncoding]:
        """The step's; with a sharded policy a rank that is done goes on with sentinels until all are."""
        step, texts = self.counters.completed_steps, self.cfg.derived.texts_per_step
        share = self.finetune.shares_prefixes
        batches = feed.step(step)
        if not self.learner.sharded:
            yield from batches
            return
        while any(self.ranks.gather((batch := next(batches, None)) is not None)):
            yield sentinel_batch(step, texts, share) if batch is None else batch

    def _log(self, step: StepStatistics, coefficients: Coefficients) -> None:
        counters = self.counters
        loss = policy_loss(self.finetune.rl.policy_loss)
        measured = step_metrics(step, coefficients, self.ranks.count, self._hardware, loss)
        counters.train_loss = measured.get("rl/loss", counters.train_loss)
        rl = {name: value for name, value in measured.items() if name.startswith("rl/")}
        self._last_rl = rl | {"completed_steps": counters.completed_steps}
        values = counters.metrics() | measured | step.memory | self._update_metrics | self._rounding
        if self._follows_actor and (said := self._arithmetic.add(values)) is not None:
            log.warning(said, extra=REMARK)
        if self._writer is not None:
            self._writer.log(values, counters.samples)
        self._update_metrics = {}

    def _after_step(self, feed: Feed | Follower) -> None:
        finetune, counters = self.finetune, self.counters
        if finetune.cuda_empty_cache:
            torch.cuda.empty_cache()
        last = self._complete
        due = counters.samples - counters.last_broadcasted_version >= self.cfg.derived.texts_per_update
        if due or last:
            self._publish()
        self._say_samples(counters.samples)
        # Behind the announcement, at which the other roles keep their state: the checkpoint may wait for it.
        step = counters.completed_steps
        if not last and (step % finetune.save_checkpoint_steps == 0 or step in finetune.also_save_steps):
            self._save(feed, finetune.keep_intermediate_checkpoints, True)

    def _publish(self) -> None:
        """Move the weights, then announce, maybe beside the next step; nothing where moving them fails."""
        version = self.counters.samples
        self.learner.prepare_publishing()
        if self.ranks.is_main:
            self._update_metrics = self._broadcaster.publish(version, self._announce)
            # Here: with several steps between two records most updates are in none.
            if (limit := self._update_metrics.get("weights/parity_limit")) is not None:
                self._rounding = {"mismatch/limit": max(LEAST_MEAN_LIMIT, limit)}
        self.ranks.gather(version)
        self.learner.after_publishing()
        self.counters.last_broadcasted_version = version

    def _announce(self, version: int) -> None:
        if self._announcements is not None:
            self._announcements.weight_update_success(version)

    def _refresh(self) -> None:
        """An engine that was started again is admitted by an announcement behind its start."""
        if self._broadcaster.refresh():
            self._announce(self.counters.last_broadcasted_version)

    def _say_samples(self, samples: int) -> None:
        if self._announcements is not None:
            self._announcements.samples_processed(samples)

    def _save(self, feed: Feed | Follower, keep: bool, with_state: bool) -> None:
        own = {str(self.ranks.partition): feed.position} if self.ranks.leads else {}
        everyone = self.ranks.gather(own)
        extra = {
            "positions": {partition: at for each in everyone for partition, at in each.items()},
            "accounting_end": log_size(self.output_dir, "finetune"),
        }
        if self.ranks.is_main and with_state:
            self._wait_for_snapshots()
        if self.ranks.is_main or self.learner.sharded:
            beside = self._tokenizer, keep, with_state
            save_checkpoint(self.folder, self.learner, self.counters, extra, *beside)
        self.ranks.gather(None)

    def _wait_for_snapshots(self) -> None:
        """With max_lag=0 a run resumes bit for bit, so the others' state of this version must be there first.

        Of a checkpoint between two updates there is none: a resume announces a version of its own.
        """
        version = self.counters.samples
        if self.cfg.staleness.synchronous and version == self.counters.last_broadcasted_version:
            names = {job.name for job in self.cfg.jobs}
            roles = [role for role in KINDS if role in names]
            deadline_s, shared = self.cfg.watchdog.input_deadline_s, self.cfg.several_hosts
            wait_for_snapshots(self.output_dir, roles, version, deadline_s, shared)

    def _finish(self, feed: Feed | Follower) -> None:
        if self._broadcaster.end():
            self._announce(self.counters.last_broadcasted_version)
        self._save(feed, self.finetune.keep_intermediate_checkpoints, self.finetune.save_final_training_state)
        if self.ranks.is_main:
            for name, values in (("summary", self.counters.to_dict()), ("rl_summary", self._last_rl)):
                write_whole(self.folder / f"{name}.json", json.dumps(values, indent=1, sort_keys=True))
        if self._announcements is not None:
            self._announcements.training_done()
