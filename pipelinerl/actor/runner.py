"""One rollout from its assignment to its samples: the domain's code, retries, deadline.

Called by the worker for each assignment; what a domain or an engine does wrong is a reason, not an exception.
"""

import asyncio
import contextvars
import inspect
import itertools
import logging
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any

import aiohttp
import numpy as np
from omegaconf import DictConfig

from pipelinerl.actor.blocking import BlockingCalls
from pipelinerl.actor.messages import Assignment, Ending, FinishedRollout
from pipelinerl.actor.retries import backoff_s, one_line, place_of, reason_of, retryable
from pipelinerl.base import faults
from pipelinerl.base.logs import REMARK
from pipelinerl.config.roles import ActorConfig
from pipelinerl.engines.client import EngineUnavailable
from pipelinerl.engines.fleet import Fleet
from pipelinerl.finetune.rl.sample import samples_of
from pipelinerl.llm import TrainableLLM
from pipelinerl.observe.blocked import ROLLOUT
from pipelinerl.rollouts import ROLLOUT_ORIGIN, BaseMetrics, RolloutOrigin, RolloutResult

log = logging.getLogger(__name__)

WATCHED_ROLLOUTS = 64
"""Training rollouts of a process whose problems are looked at again when they end."""

Policy = Callable[[DictConfig, TrainableLLM, dict[str, Any], aiohttp.ClientSession], Any]


class RolloutRunner:
    """Runs one assignment to its end; never raises for what a domain or an engine does."""

    def __init__(
        self,
        policy: Policy,
        cfg: DictConfig,
        train_llm: TrainableLLM,
        test_llm: TrainableLLM,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        limits: ActorConfig,
        threads: int,
        tells_domain: bool = False,
    ):
        """`limits` has the deadline of a rollout and how often it is tried again.

        `tells_domain`: write a rollout's domain into its samples, for preprocess.
        """
        self._policy, self._cfg, self._session, self._fleet = policy, cfg, session, fleet
        self._limits, self.deadline_s = limits, limits.rollout_deadline_s
        self._llms = {True: train_llm, False: test_llm}
        self.frozen_version: int | None = None
        """Version of all samples in a run whose engines keep the weights they started with."""
        self._tells_domain = tells_domain
        self._plain = not inspect.iscoroutinefunction(policy)
        self._executor = ThreadPoolExecutor(threads, "rollout") if self._plain else None
        self._to_watch = WATCHED_ROLLOUTS
        self._said_unread: set[str] = set()

    async def run(self, assignment: Assignment) -> FinishedRollout:
        started = time.monotonic()
        rollout = FinishedRollout(key=assignment.key, ending=Ending.FAILED)
        try:
            # Around all tries: a rollout that is tried for ever holds up its group, which grows too old.
            async with asyncio.timeout(self.deadline_s) as deadline:
                await self._with_retries(assignment, rollout)
        except asyncio.CancelledError as error:
            # `cancelling` tells the scheduler's cancellation, which nobody waits to hear of, from a call
            # inside the domain that was cancelled: that one is a failure like any other.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            rollout.reason = reason_of(error)
        except BaseException as error:
            # Not only Exception: a panic of a Rust library is none, and nobody answers for who dies here.
            self._explain(rollout, error, expired=deadline.expired())
        rollout.latency_s = time.monotonic() - started
        return rollout

    async def _with_retries(self, assignment: Assignment, rollout: FinishedRollout) -> None:
        limits = self._limits
        for attempt in itertools.count():
            try:
                self._finish(assignment, await self._call_policy(assignment), rollout)
                return
            except Exception as error:
                # Without any engine in rotation another try would wait for the same; the run ends instead.
                lost = isinstance(error, EngineUnavailable) and error.reason == "no_engine"
                spent = 0 <= limits.max_rollout_retries <= attempt  # -1: as the deadline allows
                if lost or spent or not retryable(error):
                    raise
                rollout.retries += 1
                rollout.retried.append(reason_of(error))
                name = f"{assignment.group_id}/{assignment.rollout_index}"
                log.info("%s is tried again: %s", name, rollout.retried[-1])
                delays = limits.rollout_retry_initial_delay_s, limits.rollout_retry_max_delay_s
                await asyncio.sleep(backoff_s(attempt, *delays))

    async def _call_policy(self, assignment: Assignment) -> RolloutResult:
        problem = pickle.loads(assignment.problem)  # anew for each try, since the domain may change it
        ROLLOUT_ORIGIN.set(_origin(assignment))
        calls = BlockingCalls(self._session, self.deadline_s)
        llm = self._llms[assignment.training].bind(self._fleet, assignment.engine, assignment.seed, calls)
        faults.hit("worker:mid_rollout")
        try:
            result = await self._play(
                f"{ROLLOUT}{assignment.group_id}/{assignment.rollout_index}", llm, problem
            )
        finally:
            # A thread cannot be cancelled: its next request fails here instead of reaching an engine.
            calls.close()
        if assignment.training and self._to_watch > 0:
            self._look_at_problem(assignment, problem)
        if not isinstance(result, RolloutResult):
            raise TypeError(
                f"the rollout policy returned a {type(result).__name__}, expected a RolloutResult"
            )
        if result.domain is None:
            result.domain = problem.get("domain")
        if result.dataset_name is None:
            result.dataset_name = problem.get("dataset")
        return result

    def _look_at_problem(self, assignment: Assignment, problem: dict[str, Any]) -> None:
        """Say, once in a process, that a policy writes into its problem, which upstream's groups share."""
        self._to_watch -= 1
        if not (written := _changed(pickle.loads(assignment.problem), problem)):
            return
        self._to_watch = 0
        log.warning(
            "the rollout policy writes %s into its problem: each attempt has a problem of its own here, and "
            "upstream's attempts of a group share one; let the loader give what a group shares, or draw it "
            "with random.Random(pipelinerl.rollouts.ROLLOUT_ORIGIN.get().group_id)",
            ", ".join(written),
            extra=REMARK,
        )

    async def _play(self, name: str, llm: TrainableLLM, problem: dict[str, Any]) -> Any:
        arguments = self._policy, self._cfg, llm, problem, self._session
        if not self._plain:
            return await _under_name(_awaited, name)(*arguments)
        # A thread has no context of its own: ROLLOUT_ORIGIN would be missing in the domain's logs.
        inside, called = contextvars.copy_context().run, _under_name(_called, name)
        result = await asyncio.get_running_loop().run_in_executor(self._executor, inside, called, *arguments)
        return await result if inspect.isawaitable(result) else result

    def _finish(self, assignment: Assignment, result: RolloutResult, rollout: FinishedRollout) -> None:
        # A problem may name its dataset by any value.
        rollout.dataset = None if result.dataset_name is None else str(result.dataset_name)
        rollout.domain = None if result.domain is None else str(result.domain)
        if result.failed is not None:
            rollout.reason = one_line(result.failed)
            return
        assert result.metrics is not None
        if rollout.domain is not None and self._tells_domain:
            for text in result.training_texts:
                text.metadata["domain"] = rollout.domain
        self._remark_unread(result)
        samples = samples_of(result.training_texts, _origin(assignment), self.frozen_version)
        rollout.metrics = metric_values(result.metrics)
        rollout.samples = samples
        rollout.ending = Ending.DONE if samples else Ending.EMPTY

    def _remark_unread(self, result: RolloutResult) -> None:
        """Say, once for each, what a policy returns under a name that nothing here knows."""
        measured = (result.metrics and result.metrics.model_extra) or {}
        names = [f"RolloutResult.{name}" for name in result.model_extra or {}]
        unread = [name for name, value in measured.items() if value is not None and _numbers(value) is None]
        names += [f"metrics.{name}" for name in unread]
        if new := [name for name in names if name not in self._said_unread]:
            self._said_unread.update(new)
            log.warning(
                "the rollout policy returns %s, which nothing reads: further fields are left out, except "
                "numbers among the metrics",
                ", ".join(new),
                extra=REMARK,
            )

    def _explain(self, rollout: FinishedRollout, error: BaseException, expired: bool) -> None:
        if isinstance(error, EngineUnavailable) and error.reason == "no_engine":
            rollout.ending, rollout.reason = Ending.NO_ENGINE, str(error)
        elif expired and not self._fleet.in_rotation:
            # The rollout was slow because nobody answered: that is no fault of its domain.
            rollout.ending = Ending.NO_ENGINE
            rollout.reason = f"no engine was in rotation within rollout_deadline_s={self.deadline_s:g}"
        elif expired:
            # The cancellation that the deadline made was raised where the rollout waited.
            place = place_of(error.__cause__ or error.__context__ or error)
            rollout.reason = f"rollout passed actor.rollout_deadline_s={self.deadline_s:g}{place}"
        else:
            rollout.reason = reason_of(error)
            log.warning("rollout failed: %s", rollout.reason, exc_info=error)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Keys that two copies of a problem do not both have, or have with other values."""

    def same(key: str) -> bool:
        if key not in before or key not in after:
            return False
        try:  # by the pickles: arrays have no truth value
            return pickle.dumps(before[key], protocol=5) == pickle.dumps(after[key], protocol=5)
        except Exception:  # what no longer pickles has changed
            return False

    return [str(key) for key in {**before, **after} if not same(key)]


def _under_name(function: Callable[..., Any], name: str) -> FunctionType:
    """The same function, whose frame is called `name` in a stack.

    Only so do the stacks of a process whose interpreter is held say whose call holds it.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=name, co_qualname=name)
    return FunctionType(code, function.__globals__, name)


async def _awaited(policy: Callable[..., Any], *arguments: Any) -> Any:
    return await policy(*arguments)


def _called(policy: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return policy(*arguments)
    except StopIteration as error:
        # No future can hold it, so that nobody would ever hear of it.
        raise RuntimeError("the rollout policy raised StopIteration") from error


def _origin(assignment: Assignment) -> RolloutOrigin:
    return RolloutOrigin(
        assignment.group_id, assignment.rollout_index, assignment.version, assignment.training
    )


def metric_values(metrics: BaseMetrics) -> dict[str, float | list[float]]:
    """Numbers of a metrics object; absent ones (None) are left out, and further fields of another type.

    Its fields are those of its dump, which has computed ones and lacks those with `exclude=True`.

    Raises ValueError for a declared field of another type.
    """
    further = metrics.model_extra or {}
    values: dict[str, float | list[float]] = {}
    for name, value in metrics.model_dump(warnings=False).items():
        numbers = _numbers(value)
        if numbers is not None:
            values[name] = numbers
        elif value is not None and name not in further:
            raise ValueError(
                f"metric {name} is a {type(value).__name__}, expected float, int, bool or a list of them"
            )
    return values


def _numbers(value: Any) -> float | list[float] | None:
    """A metric's value; None for what is none."""
    try:
        if isinstance(value, bool | int | float | np.generic):
            return float(value)
        return [float(item) for item in value] if isinstance(value, list | tuple) else None
    except (TypeError, ValueError):  # texts, or lists of them
        return None
