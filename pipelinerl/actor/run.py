"""The actor's process: connects the scheduler to workers, trainer, streams, accounting and metrics."""

import asyncio
import json
import logging
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from pipelinerl.actor.budget import LagBudget
from pipelinerl.actor.evaluation import EvaluationPass
from pipelinerl.actor.groups import Group, GroupTable, Slots
from pipelinerl.actor.messages import Announced, Cancel, FinishedRollout, Message, Pulse
from pipelinerl.actor.pool import WorkerPool
from pipelinerl.actor.problems import Problem, load_problems
from pipelinerl.actor.publishing import StreamWriterThread
from pipelinerl.actor.reporting import Reporter
from pipelinerl.actor.scheduler import Effects, RunFailed, Scheduler
from pipelinerl.base.digests import model_digest
from pipelinerl.base.logs import REMARK
from pipelinerl.base.waits import Wait
from pipelinerl.config import Config, load_tree
from pipelinerl.config.base import leaves_of
from pipelinerl.domain import Domain, load_domain
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.run_state.accounting import Outcome, RolloutLog, log_size
from pipelinerl.run_state.announcements import TrainerState
from pipelinerl.run_state.epochs import note_problems
from pipelinerl.run_state.resume_point import ResumePoint
from pipelinerl.run_state.shared_problems import (
    digest,
    has_former,
    note_digest,
    note_former,
    note_shared,
    note_unknown,
    shared,
)
from pipelinerl.run_state.snapshots import Snapshots
from pipelinerl.streams import SingleStreamSpec, write_to_streams

log = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0
CLOSE_DEADLINE_S = 60.0
RISK_EVERY_S = 10.0
"""While the first rollouts do not end, one further group may start each time this has passed."""


class Actor:
    """One run of the actor, from the first version to the end of training."""

    def __init__(
        self, cfg: Config, output_dir: Path, job: int, state: TrainerState, version: int, pool: WorkerPool
    ):
        self.cfg, self.output_dir, self.state = cfg, output_dir, state
        self._told_at = 0.0
        self.reporter = Reporter(output_dir, cfg, version)  # first: its status file tells what is waited for
        self.domain: Domain = load_domain(cfg.domain_hooks)
        with self._waiting(f"attach of {cfg.domain_hooks}"):
            self.domain.attach(load_tree(output_dir, job), output_dir)
        with self._waiting(f"the problems of {cfg.dataset_loader}"):
            train, test = load_problems(cfg)
        if train:
            note_problems(output_dir, len(train))
        # A resume takes the snapshot of the checkpoint's version, which may lie a checkpoint interval back.
        keep = max(200, 2 * cfg.finetune.save_checkpoint_steps + 8)
        self.snapshots = Snapshots(output_dir, "actor", keep)
        self.pool = pool
        self.accounting = RolloutLog(output_dir, "actor")
        self.reporter.test_digest = digest(test)
        others = _remark_others(output_dir, {"training": digest(train), "test": self.reporter.test_digest})
        if "training" in others and version:
            note_former(output_dir)
        _compare(output_dir, train, test if cfg.evaluates else [])
        _remark_model(output_dir, cfg.model_path)
        _remark_keys(output_dir, dict(leaves_of(cfg.model_extra or {})))
        self.streams = {
            topic: write_to_streams(SingleStreamSpec(output_dir, topic)) for topic in ("actor", "actor_test")
        }
        self.loop = asyncio.get_running_loop()
        self.writer = StreamWriterThread(
            lambda topic, record: self.streams[topic].write(record),
            cfg.actor.result_queue_size,
            self._wake_from_thread,
        )
        self.scheduler = self._scheduler(train, test, version)
        self.finished: asyncio.Future[None] = self.loop.create_future()
        self._idle: Wait | None = None
        self._awake = False
        self._closed = False
        pool.attach(self._on_messages, self._fail)

    def _scheduler(self, train: list[Problem], test: list[Problem], version: int) -> Scheduler:
        cfg, point = self.cfg, ResumePoint.read(self.output_dir)
        # The trainer's version decides, not our newest snapshot: what came after its checkpoint is undone.
        saved = self.snapshots.restore(point.version, dict)
        if saved is None and point.version > 0:
            # Training goes on: what is lost is where the draws stood, so problems come again.
            missing = (
                "no snapshot of the actor up to version %d (actor/state was removed): problems are drawn "
            )
            log.warning(missing + "from the start, and the domain has no state", point.version, extra=REMARK)
        recent = saved["recent_texts"] if saved is not None else ()
        budget = LagBudget(cfg.staleness.admitted, point.version, recent, point.replayed)
        log.info("lag bound in samples: %s (%s)", budget.bound, cfg.staleness)
        # It begins the ids of groups: no group of this start has the name of one that an earlier start lost.
        start = self.snapshots.next_start(cfg.attempt, bool(log_size(self.output_dir, "actor")))
        if start:
            # Before anything starts: the accounting takes all that stands above this line for lost or kept.
            self.accounting.record(Outcome.RESUMED)
        engines = [entry.url.rstrip("/") for entry in cfg.jobs_of("actor_llm")]
        slots = Slots(engines, cfg.actor.llm_max_rollouts, cfg.actor.rollout_workers)
        effects = Effects(
            publish=self._publish,
            can_publish=lambda: not self.writer.full,
            finished_group=self.reporter.finished_group,
            finished_evaluation=self._finished_evaluation,
        )
        table = GroupTable(slots)
        scheduler = Scheduler(cfg, str(start), train, test, table, budget, self.accounting, effects, version)
        scheduler.total_texts = cfg.total_texts(point.step, point.version)
        if saved is not None:
            scheduler.load_state_dict(saved)
            with self._waiting(f"restore of {cfg.domain_hooks}"):
                self.domain.restore(saved["domain"])
        return scheduler

    def _waiting(self, name: str) -> Wait:
        """For code of the domain, which nobody can interrupt; the launcher ends a run that stays in it."""
        return Wait(name, self.cfg.watchdog.progress_deadline_s, normal="seconds")

    async def run(self, workers: "asyncio.Task[None]") -> None:
        """Until training is done and the last version evaluated; `workers` is the pool's start.

        Raises RunFailed, WorkerDied, WaitExpired.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._fail, RunFailed(f"stopped by {number.name}"))
        checks = asyncio.create_task(self._check_regularly(), name="checks")
        try:
            await self._unless_failed(workers)
            self._tell_workers()
            # Before the first rollout: a run killed before its second version resumes from here.
            self._snapshot()
            self.state.subscribe(self._wake_from_thread)
            self._turn()
            await self.finished
        finally:
            # Before the workers stop: threads that still call would wake a loop that is about to end.
            self._closed = True
            checks.cancel()
            self.finished.cancel()
            await self.pool.stop()
            self.reporter.stage(self.scheduler)  # the last look was amid an evaluation
            self.reporter.report(self.scheduler, self.writer.size)

    async def _unless_failed(self, task: "asyncio.Task[None]") -> None:
        """Await `task`, or raise what ends the run before it is done."""
        await asyncio.wait({task, self.finished}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.finished.result()
        task.result()

    def close(self) -> None:
        """Flush and close what was opened; after `run`."""
        # The writer first, since it uses the streams; they are closed even if it fails with its last groups.
        try:
            self.writer.close(CLOSE_DEADLINE_S)
        finally:
            self.reporter.close()
            self.accounting.close()
            for stream in self.streams.values():
                stream.close()

    def _fail(self, error: BaseException) -> None:
        if not self.finished.done():
            self.finished.set_exception(error)
            self.finished.exception()  # while workers start nobody awaits it yet; `start` raises by itself

    def _wake_from_thread(self) -> None:
        if not self._closed:
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """Take a turn once, however many events call for it."""
        if not self._awake:
            self._awake = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Take in the trainer's news and start whatever may start."""
        self._awake = False
        if self.finished.done():
            return
        try:
            self.writer.check()
            # News first: a new version, or samples that others dropped, make room in the lag budget.
            self._observe()
            while (started := self.scheduler.next_assignment()) is not None:
                self.pool.channels[started[0].worker].send(started[1])
            if self.scheduler.done:
                self.finished.set_result(None)
        except Exception as error:
            self._fail(error)

    def _observe(self) -> None:
        version = self.state.propagated_weight_version
        assert version is not None
        news = version > self.scheduler.version
        self.scheduler.observe(version, self.state.discarded, self.state.samples_processed)
        # Told again without a new version when an engine was started again: it has the weights only now.
        if news or self.state.announced_at > self._told_at:
            self._tell_workers()
        if news:
            self._snapshot()
            self.reporter.report(self.scheduler, self.writer.size)
        if self.state.training_done and not self.scheduler.training_done:
            # Nobody would train on what still runs, and the engines are needed for the last evaluation.
            by_worker: dict[int, list[int]] = {}
            for start in self.scheduler.finish_training():
                by_worker.setdefault(start.worker, []).append(start.key)
            for worker, keys in by_worker.items():
                self.pool.channels[worker].send(Cancel(keys))

    def _tell_workers(self) -> None:
        self._told_at = self.state.announced_at
        for channel in self.pool.channels:
            channel.send(Announced(self.scheduler.version, self._told_at))

    def _on_messages(self, worker: int, messages: list[Message]) -> None:
        try:
            for message in messages:
                if isinstance(message, Pulse):
                    # Each worker looks at the engines for itself; the latest word counts.
                    slots = self.scheduler.table.slots
                    slots.out = slots.engines.keys() - message.in_rotation
                    self.reporter.pulse(message)
                elif isinstance(message, FinishedRollout) and not self.finished.done():
                    self.scheduler.finish(message)
        except Exception as error:
            self._fail(error)
        self._turn()

    def _publish(self, group: Group, samples: list[Sample]) -> None:
        """Hand a group to the writer's thread; records are made here, because rewards change no more."""
        topic = "actor" if group.training else "actor_test"
        self.writer.put(topic, [sample.to_record() for sample in samples])

    def _finished_evaluation(self, evaluation: EvaluationPass) -> None:
        self.reporter.finished_evaluation(evaluation, self.scheduler.version)
        self._snapshot()  # or a resume would evaluate this version again

    def _snapshot(self) -> None:
        with self._waiting(f"checkpoint of {self.cfg.domain_hooks}"):
            state = self.scheduler.state_dict() | {"domain": self.domain.checkpoint()}
        self.snapshots.save(self.scheduler.version, state)

    async def _check_regularly(self) -> None:
        """Deadlines of waits that end through somebody else: the trainer's news, a worker's pulse."""
        limit_s, silent_s = self.cfg.actor.rollout_deadline_s, self.cfg.watchdog.silent_deadline_s
        # A block ends the rollouts behind their deadline; the run it ends only if its worker seems lost.
        blocked_s = max(limit_s, silent_s)
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                self.reporter.stage(self.scheduler)
                self._risk_more()
                if (line := self.scheduler.name_straggler(time.time())) is not None:
                    log.warning(line, extra=REMARK)
                    self._wake()
                self.pool.check_alive(blocked_s, silent_s)
                self._check_idle(limit_s)
            except Exception as error:
                self._fail(error)

    def _risk_more(self) -> None:
        """A first group that does not end, perhaps never, holds up no other one."""
        budget, oldest = self.scheduler.budget, self.scheduler.table.oldest
        if budget.texts_per_rollout is None and oldest is not None:
            risked = 1 + int((time.time() - oldest.at) / RISK_EVERY_S)
            if risked > budget.risked_groups:
                budget.risked_groups = risked
                self._wake()

    def _check_idle(self, limit_s: float) -> None:
        """While nothing runs, the actor waits for an engine (`limit_s`) or for the trainer's next version."""
        slots, budget = self.scheduler.table.slots, self.scheduler.budget
        name, detail, normal = "", "", ""
        # An engine that is out explains why nothing runs; only if all are in is it the trainer's turn.
        if not self.scheduler.table.active and slots.out >= set(slots.engines):
            name, detail = "an engine in rotation", f"out are {', '.join(sorted(slots.out))}"
            normal = "a minute or two while an engine is started again"
        elif self.scheduler.waits_for_trainer:
            name = f"a weight version after {self.scheduler.version} from the trainer"
            limit_s, normal = self.cfg.watchdog.input_deadline_s, "a step of the trainer"
            discarded = self.scheduler.discarded
            detail = f"{budget.reserved:.0f} samples reserved, {discarded} discarded, bound {budget.bound}"
        # One wait as long as its reason stays the same, however often it is looked at.
        if self._idle is not None and self._idle.name != name:
            self._idle.end()
            self._idle = None
        if name and self._idle is None:
            self._idle = Wait(name, limit_s, normal=normal).start()
        if self._idle is not None:
            self._idle.check(detail)


def _compare(output_dir: Path, train: list[Problem], test: list[Problem]) -> None:
    """Note and remark test problems that are trained on too, under whatever name."""
    count = shared(train, test) if train else 0
    if not train or (has_former(output_dir) and not count):
        note_unknown(output_dir)
        return
    note_shared(output_dir, count, len(test))
    if count:
        line = "%d of %d test problems are trained on too: their evaluation is not held out (%s)"
        log.warning(line, count, len(test), "train_dataset_names, test_dataset_names", extra=REMARK)


def _remark_others(output_dir: Path, digests: dict[str, str]) -> list[str]:
    """Remark problems that are others than in the last start: numbers of problems mean others now.

    Returns the kinds that are others.
    """
    meaning = {
        "training": "draws, epochs, rates of success and groups under way go on with these, and test "
        "problems are not compared with the former ones",
        "test": "evaluations before and after are not compared problem by problem",
    }
    others = []
    for kind, now in digests.items():
        before = note_digest(output_dir, f"{kind}_problems", now)
        if before and now and before != now:
            counts = f"{now.partition(' ')[0]}, before {before.partition(' ')[0]}"
            line = "the %s problems are others than in the last start (%s): %s; give the data as before, or "
            line += "force_restart=true"
            log.warning(line, kind, counts, meaning[kind], extra=REMARK)
            others.append(kind)
    return others


def _remark_model(output_dir: Path, path: str) -> None:
    """Remark other files of the model than in the last start, under the same name."""
    now = model_digest(path)
    before = note_digest(output_dir, "model", now)
    if before and now and before != now:
        line = "model_path=%s holds another model than in the last start, whose checkpoint and evaluations "
        line += "go on with this tokenizer and this reference; put the model back, or force_restart=true"
        log.warning(line, path, extra=REMARK)


def _remark_keys(output_dir: Path, names: Iterable[str]) -> None:
    """Remark keys of a domain that came or went since the last start; a changed value is refused earlier.

    Values may be secrets, and are not noted.
    """
    now = set(names)
    last = note_digest(output_dir, "keys", json.dumps(sorted(now)))
    try:
        before = set(json.loads(last)) if last else now
    except (ValueError, TypeError):
        before = now
        line = "actor/keys_digest is damaged: keys that the domain gained or lost are not named"
        log.warning(line, extra=REMARK)
    for said, keys in (("new", now - before), ("gone", before - now)):
        for key in sorted(keys):
            line = "%s is %s since the last start, and the run goes on so; start it as before, or "
            log.warning(line + "force_restart=true", key, said, extra=REMARK)


async def run_actor(cfg: Config, output_dir: Path, job: int) -> None:
    """Run the actor of `output_dir` to its end."""
    with TrainerState(output_dir) as state:
        started = time.monotonic()
        pool = WorkerPool(output_dir, job, cfg.actor.rollout_workers)
        # While the trainer puts the first version into the engines, which takes as long as the imports here.
        workers = asyncio.create_task(pool.start(cfg.engine.start_deadline_s + CLOSE_DEADLINE_S))
        try:
            version = await asyncio.to_thread(state.wait_for_version, cfg.engine.start_deadline_s)
            log.info("first version %d after %.1f s", version, time.monotonic() - started)
            actor = Actor(cfg, output_dir, job, state, version, pool)
            try:
                await actor.run(workers)
            finally:
                actor.close()
        finally:
            workers.cancel()
            await asyncio.gather(workers, return_exceptions=True)
            await pool.stop()
