"""Supervising a planned run until it is complete, has failed or is interrupted."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType

from pipelinerl.base import faults
from pipelinerl.base.errors import drop_output, printable
from pipelinerl.base.waits import Wait, WaitExpired
from pipelinerl.engines.wire import SHARED_MEMORY, claim, outside_directory, remove_abandoned
from pipelinerl.launcher import early
from pipelinerl.launcher.made_again import RESUMES
from pipelinerl.launcher.plan import RunPlan
from pipelinerl.launcher.supervision import STOPPED_DEADLINE_S, ChildFailed, ChildHost, Supervisor
from pipelinerl.observe.stages import ProgressWatch, progress_trace
from pipelinerl.run_state import lost_engines
from pipelinerl.run_state.replacements import Replacements

PREPROCESS_END_S = 60.0
WATCH_EVERY_S = 2.0
FULL_BELOW_BYTES = 64 * 1024
NOTHING_STARTED = "nothing was started"


class Interrupted(BaseException):
    """One of `early.STOPS` arrived; `name` is the signal's name, `status` the exit status.

    Not an Exception: it comes in the middle of any line, also of those that expect errors of their own.
    """

    def __init__(self, number: int, resumes: str = RESUMES) -> None:
        self.name = signal.Signals(number).name
        self.status = 128 + number
        self.resumes = resumes
        """What can be done about it."""
        super().__init__(f"stopped by {self.name}")


@contextmanager
def interruptible(resumes: str = RESUMES) -> Iterator[None]:
    """Turn `early.STOPS` into one Interrupted; further ones are ignored while children are stopped.

    `resumes` is what is said of it. In another thread than the main one nothing changes. Before anything was
    started, an error that comes of the interruption (a library's `finally` over half of its work) is that
    interruption.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in early.STOPS:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGHUP:
            _drop_closed()
        raise Interrupted(number, resumes)

    before = {number: signal.signal(number, interrupt) for number in early.stops()}
    try:
        yield
    except Exception as error:
        behind: BaseException | None = error
        while behind is not None:
            if isinstance(behind, Interrupted) and behind.resumes == NOTHING_STARTED:
                raise behind from None
            behind = behind.__context__
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _drop_closed() -> None:
    """What goes to a terminal that was closed goes nowhere: a line that fails would end what stops the run.

    The launcher's log has the reason.
    """
    for fd in (1, 2):
        try:
            os.write(fd, b"")
        except OSError:
            drop_output(fd)


class Completion:
    """When a run is complete: the trainer has ended, then the others, each within its deadline.

    Without a trainer (partial runs) it is complete when every role has ended.
    """

    def __init__(self, plan: RunPlan, supervisor: Supervisor) -> None:
        jobs_of = plan.cfg.jobs_of
        self._trainer = [job.name for job in jobs_of("finetune")]
        self._others = [job.name for job in (*jobs_of("actor"), *jobs_of("preprocessor"))]
        self._rollout_s = plan.cfg.actor.rollout_deadline_s
        self._output_dir, self._trace = plan.output_dir, tuple[int, ...]()
        self._supervisor = supervisor
        self._waits: dict[str, Wait] = {}

    def reached(self) -> bool:
        """Whether nothing is left to wait for. Raises WaitExpired when a role does not end in time."""
        ended = self._supervisor.ended()
        if not ended.issuperset(self._trainer):
            return False
        left = [name for name in self._others if name not in ended]
        for name in (self._waits.keys() - set(left)) | self._still_evaluating():
            self._waits.pop(name).end()
        for name in left if self._trainer else []:
            if name not in self._waits:
                self._waits[name] = self._wait(name).start()
            self._waits[name].check()
        return not left

    def _still_evaluating(self) -> set[str]:
        """The actor, if a rollout has ended since the last look: the pass takes as long as it takes."""
        before, self._trace = self._trace, progress_trace(self._output_dir)
        return {name for name in self._waits if name == "actor" and before != self._trace}

    def _wait(self, name: str) -> Wait:
        if name == "actor":
            name = "actor to end a rollout of its last evaluation"
            return Wait(name, self._rollout_s, normal="the longest rollout of an evaluation")
        return Wait(f"{name} to end after the trainer", PREPROCESS_END_S, normal="seconds")


class Watchdog:
    """What no process can tell by its own death: no progress, and engines that the trainer gave up."""

    def __init__(self, plan: RunPlan, supervisor: Supervisor) -> None:
        output_dir = plan.output_dir
        self._supervisor = supervisor
        started = {child.name for child in plan.children}
        engines = plan.cfg.jobs_of("actor_llm")
        self._engines = {job.url.rstrip("/"): job.name for job in engines if job.name in started}
        self._trainers = [job.name for job in plan.cfg.jobs_of("finetune")]
        self._output_dir, self._told_lost = output_dir, set[str]()
        self._replacements = Replacements(output_dir, shared=plan.cfg.several_hosts)
        self._progress = ProgressWatch(output_dir, plan.cfg.watchdog.progress_deadline_s)

    def check(self) -> None:
        """Replace broken engines, tell the trainer of lost ones.

        Raises WaitExpired with the stuck stage while the trainer works.
        """
        if lost := self._supervisor.left_out - self._told_lost:
            self._told_lost |= lost
            lost_engines.tell_lost(self._output_dir, [u for u, name in self._engines.items() if name in lost])
        for url, cause in self._replacements.take().items():
            if url in self._engines:
                self._supervisor.replace(self._engines[url], cause)
        if self._supervisor.ended().isdisjoint(self._trainers):
            self._progress.check(time.monotonic())


def supervise(
    plan: RunPlan,
    say: Callable[[str], None],
    progress: Callable[[], None],
    others: Mapping[int, ChildHost] | None = None,
) -> None:
    """Start everything, watch until complete, stop everything; nothing is left, however this ends.

    `others` are the run's hosts beside this one, by rank. Raises ChildFailed, WaitExpired or Interrupted.
    """
    # Weights outside the run's folder would outlive a trainer, or a launcher, that was killed.
    configured = Path(plan.cfg.weights.directory) if plan.cfg.weights.directory else None
    weights = outside_directory(plan.output_dir, configured)
    for folder, size in remove_abandoned().items():
        say(f"removed {folder} ({size / 1e6:.1f} MB), which a run that was killed had left")
    stopped_s = min(STOPPED_DEADLINE_S, plan.cfg.watchdog.silent_deadline_s)
    lost_engines.begin(plan.output_dir)
    faults.hit("launcher:start")
    with (
        interruptible(),
        claim(weights) if configured is None and SHARED_MEMORY.is_dir() else nullcontext(),
        Supervisor(
            plan.children,
            others=others,
            announce=say,
            leftovers=[weights],
            stopped_deadline_s=stopped_s,
            stop_deadline_s=plan.cfg.engine.shutdown_deadline_s,
        ) as supervisor,
    ):
        supervisor.start(tick=progress)
        completion = Completion(plan, supervisor)
        watchdog = Watchdog(plan, supervisor)

        def tick() -> None:
            progress()
            watchdog.check()

        supervisor.watch(until=completion.reached, tick=tick, tick_s=WATCH_EVERY_S)


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since this machine or container started."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


_OOM_KILLS_BEFORE = oom_kills()
_NO_MEMORY = ("MemoryError", "cannot allocate memory", "can't allocate memory", "can't start new thread")
_MORE_MEMORY = "give it more (ulimit -v and -u, or the container's limit), then the same command resumes"


def _refused_by_machine(error: ChildFailed, line: str) -> str:
    """What is said besides of a child that the machine refused memory or files, or that the kernel ended."""
    if "too many open files" in line.lower():
        return "; allow more open files (ulimit -n), then the same command resumes"
    if any(words.lower() in line.lower() for words in _NO_MEMORY):
        return f"; the machine refused it memory: {_MORE_MEMORY}"
    if error.cause == "killed by SIGKILL" and oom_kills() > _OOM_KILLS_BEFORE:
        return f"; the kernel has killed processes for want of memory meanwhile: {_MORE_MEMORY}"
    return ""


def failure_line(error: Exception) -> str:
    """One line that names the process and the cause."""
    if isinstance(error, WaitExpired):
        return f"launcher: {error}"
    line = printable(" ".join(str(error).split()))
    if isinstance(error, ChildFailed):
        line += _refused_by_machine(error, line)
        with suppress(OSError):  # the folder may be gone
            if shutil.disk_usage(error.log_path.parent).free < FULL_BELOW_BYTES:
                line += f"; no space is left at {error.log_path.parent}"  # its last words may not have fitted
    return line
