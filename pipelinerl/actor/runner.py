"""One rollout from its assignment to its outcome: the domain's code, retries, deadline, checked texts."""

import asyncio
import contextvars
import inspect
import itertools
import logging
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import aiohttp
from omegaconf import DictConfig

from pipelinerl.actor.blocking import BlockingCalls
from pipelinerl.actor.messages import Assignment, Ending, Outcome
from pipelinerl.actor.retries import backoff_s, reason_of, retryable
from pipelinerl.actor.texts import Stamp, metric_values, stamped_records
from pipelinerl.base import faults
from pipelinerl.inference.client import EngineUnavailable
from pipelinerl.inference.fleet import Fleet
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import ROLLOUT_ORIGIN, RolloutOrigin, RolloutResult, summarize_training_texts

log = logging.getLogger(__name__)

Policy = Callable[[DictConfig, TrainableLLM, dict[str, Any], aiohttp.ClientSession], Any]


@dataclass(frozen=True)
class RetryRules:
    """`max_retries` -1: as often as the deadline allows."""

    deadline_s: float
    max_retries: int
    initial_delay_s: float
    max_delay_s: float


class RolloutRunner:
    """Runs one assignment to its outcome; never raises for what a domain or an engine does."""

    def __init__(
        self,
        policy: Policy,
        cfg: DictConfig,
        train_llm: TrainableLLM,
        test_llm: TrainableLLM,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        rules: RetryRules,
        threads: int,
    ):
        self._policy, self._cfg, self._session, self._fleet, self._rules = policy, cfg, session, fleet, rules
        self._llms = {True: train_llm, False: test_llm}
        self.frozen_version: int | None = None
        """Version of all texts in a run whose engines keep the weights they started with."""
        self._plain = not inspect.iscoroutinefunction(policy)
        self._executor = ThreadPoolExecutor(threads, "rollout") if self._plain else None

    async def run(self, assignment: Assignment) -> Outcome:
        started = time.monotonic()
        outcome = Outcome(assignment.key, Ending.FAILED)
        try:
            async with asyncio.timeout(self._rules.deadline_s) as deadline:
                outcome = await self._with_retries(assignment, outcome)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            outcome.reason = reason_of(error)
        except (Exception, SystemExit) as error:
            self._explain(outcome, error, expired=deadline.expired())
        outcome.latency_s = time.monotonic() - started
        return outcome

    async def _with_retries(self, assignment: Assignment, outcome: Outcome) -> Outcome:
        rules = self._rules
        for attempt in itertools.count():
            try:
                return self._finished(assignment, await self._call_policy(assignment), outcome)
            except Exception as error:
                lost = isinstance(error, EngineUnavailable) and error.reason == "no_engine"
                spent = 0 <= rules.max_retries <= attempt
                if lost or spent or not retryable(error):
                    raise
                outcome.retries += 1
                log.info(
                    "%s/%d is tried again: %s",
                    assignment.group_id,
                    assignment.rollout_index,
                    reason_of(error),
                )
                await asyncio.sleep(backoff_s(attempt, rules.initial_delay_s, rules.max_delay_s))
        raise AssertionError("unreachable")

    async def _call_policy(self, assignment: Assignment) -> RolloutResult:
        problem = pickle.loads(assignment.problem)
        ROLLOUT_ORIGIN.set(
            RolloutOrigin(
                assignment.group_id, assignment.rollout_index, assignment.version, assignment.training
            )
        )
        calls = BlockingCalls(self._session, self._rules.deadline_s)
        llm = self._llms[assignment.training].bind(self._fleet, assignment.engine, assignment.seed, calls)
        faults.hit("worker:mid_rollout")
        try:
            result = await self._play(llm, problem)
        finally:
            calls.close()
        if not isinstance(result, RolloutResult):
            raise TypeError(
                f"the rollout policy returned a {type(result).__name__}, expected a RolloutResult"
            )
        if result.domain is None:
            result.domain = problem.get("domain")
        if result.dataset_name is None:
            result.dataset_name = problem.get("dataset")
        return result

    async def _play(self, llm: TrainableLLM, problem: dict[str, Any]) -> Any:
        if not self._plain:
            return await self._policy(self._cfg, llm, problem, self._session)
        inside = contextvars.copy_context().run
        result = await asyncio.get_running_loop().run_in_executor(
            self._executor, inside, self._policy, self._cfg, llm, problem, self._session
        )
        return await result if inspect.isawaitable(result) else result

    def _finished(self, assignment: Assignment, result: RolloutResult, outcome: Outcome) -> Outcome:
        outcome.dataset, outcome.domain = result.dataset_name, result.domain
        if result.failed is not None:
            outcome.reason = result.failed
            return outcome
        assert result.metrics is not None
        stamp = Stamp(assignment.group_id, assignment.rollout_index, assignment.version, self.frozen_version)
        outcome.texts, outcome.inexact_texts = stamped_records(result.training_texts, stamp)
        outcome.metrics = metric_values(result.metrics)
        summary = summarize_training_texts(result.training_texts)
        outcome.prompt_tokens, outcome.output_tokens = summary.prompt_tokens, summary.output_tokens
        outcome.overflow = summary.overflow
        versions = [text["metadata"]["model_version"] for text in outcome.texts]
        outcome.model_version = min(versions) if versions else None
        outcome.ending = Ending.DONE if outcome.texts else Ending.EMPTY
        return outcome

    def _explain(self, outcome: Outcome, error: BaseException, expired: bool) -> None:
        if isinstance(error, EngineUnavailable) and error.reason == "no_engine":
            outcome.ending, outcome.reason = Ending.NO_ENGINE, str(error)
        elif expired and not self._fleet.in_rotation:
            outcome.ending = Ending.NO_ENGINE
            outcome.reason = f"no engine was in rotation within rollout_deadline_s={self._rules.deadline_s:g}"
        elif expired:
            outcome.reason = f"rollout passed actor.rollout_deadline_s={self._rules.deadline_s:g}"
        else:
            outcome.reason = reason_of(error)
            log.warning("rollout failed: %s", outcome.reason, exc_info=error)
