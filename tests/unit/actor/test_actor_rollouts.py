"""One rollout at a time: retries, deadlines, reasons, in the process of the test."""

import asyncio
import concurrent.futures
import contextlib
import pickle
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from pipelinerl.actor.messages import Assignment, Ending
from pipelinerl.actor.runner import RolloutRunner
from pipelinerl.config.roles import ActorConfig
from pipelinerl.engines.client import EngineUnavailable
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import ROLLOUT_ORIGIN, BaseMetrics, RolloutResult
from tests.support.toy_domain import result, text


def done(texts=1) -> RolloutResult:
    return result([text(weight_versions=[(4, 0, 1)]) for _ in range(texts)])


def doing(behaviour):
    """A policy that does this, whatever the problem."""

    async def policy(cfg, llm, problem, session):
        return behaviour()

    return policy


def fails(error):
    raise error


async def run(
    policy,
    *,
    deadline_s=100.0,
    retries=3,
    rotation=("http://e",),
    problem=None,
    training=True,
    tells_domain=False,
):
    fleet = SimpleNamespace(in_rotation=list(rotation))
    llms = [TrainableLLM(parameters={"name": name}) for name in ("train", "test")]
    limits = ActorConfig(
        rollout_deadline_s=deadline_s,
        max_rollout_retries=retries,
        rollout_retry_initial_delay_s=0.001,
        rollout_retry_max_delay_s=0.01,
    )
    runner = RolloutRunner(policy, None, *llms, fleet, None, limits, 2, tells_domain)  # type: ignore[arg-type]
    payload = pickle.dumps(problem or {"id": 1, "dataset": "d", "domain": "m"})
    return await runner.run(Assignment(7, "0-000001", 2, payload, "http://e", training, None, version=3))


async def test_what_a_policy_returns_becomes_samples_with_their_origin():
    seen = []

    async def policy(cfg, llm, problem, session):
        seen.append((llm.parameters["name"], llm.base_url, ROLLOUT_ORIGIN.get()))
        return done()

    outcome = await run(policy)
    assert (outcome.ending, outcome.key, outcome.dataset, outcome.domain) == (Ending.DONE, 7, "d", "m")
    assert outcome.model_version == 4 and outcome.samples[0].rollout_index == 2
    assert seen[0][:2] == ("train", "http://e")
    assert (seen[0][2].group_id, seen[0][2].version) == ("0-000001", 3)
    await run(policy, training=False)
    assert seen[1][0] == "test"


@pytest.mark.parametrize("asked", [True, False])
async def test_samples_tell_their_domain_where_a_teacher_is_chosen_by_it(asked):
    outcome = await run(doing(done), tells_domain=asked)
    (sample,) = outcome.samples
    metadata = sample.to_record()["metadata"]
    assert metadata.get("domain") == ("m" if asked else None)
    assert Sample.from_record(sample.to_record()).domain == ("m" if asked else None)


async def test_timeouts_are_tried_again_and_counted():
    attempts = []

    async def policy(cfg, llm, problem, session):
        attempts.append(1)
        if len(attempts) < 3:
            raise TimeoutError("slow")
        return done()

    outcome = await run(policy)
    assert (outcome.ending, outcome.retries) == (Ending.DONE, 2)
    assert [one.partition(" (")[0] for one in outcome.retried] == ["TimeoutError: slow"] * 2


def said(outcome) -> str:
    """Why it failed, without the place, which is a line of this file."""
    return outcome.reason.partition(" (actor/test_actor_rollouts.py:")[0]


async def test_retries_are_not_for_ever():
    policy = doing(lambda: fails(TimeoutError("slow")))
    outcome = await run(policy, retries=2)
    assert (outcome.ending, outcome.retries, said(outcome)) == (Ending.FAILED, 2, "TimeoutError: slow")
    endless = await run(policy, retries=-1, deadline_s=0.2)
    assert endless.ending is Ending.FAILED and "rollout_deadline_s=0.2" in endless.reason


async def hang(cfg, llm, problem, session):
    await asyncio.sleep(600)


async def test_a_hanging_rollout_ends_at_its_deadline():
    started = time.monotonic()
    outcome = await run(hang, deadline_s=0.1)
    assert said(outcome) == "rollout passed actor.rollout_deadline_s=0.1" and time.monotonic() - started < 100
    awaits = hang.__code__.co_firstlineno + 1
    assert outcome.reason.endswith(f" (actor/test_actor_rollouts.py:{awaits})"), "where it waited"


async def test_without_an_engine_the_run_ends_instead_of_the_rollout():
    lost = EngineUnavailable("fleet", "no_engine", "wait for an engine in rotation passed its deadline")
    outcome = await run(doing(lambda: fails(lost)))
    assert outcome.ending is Ending.NO_ENGINE and "wait for an engine" in outcome.reason

    assert (await run(hang, deadline_s=0.1, rotation=())).ending is Ending.NO_ENGINE


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (lambda: {}["answer"], "KeyError: 'answer'"),
        (lambda: exit(3), "SystemExit: 3"),
        (lambda: fails(BaseException("a panic of Rust")), "BaseException: a panic of Rust"),
        (lambda: fails(KeyboardInterrupt()), "KeyboardInterrupt"),
        (lambda: {"reward": 1}, "TypeError: the rollout policy returned a dict, expected a RolloutResult"),
        (lambda: RolloutResult(training_texts=[], failed="no sandbox"), "no sandbox"),
        (lambda: RolloutResult(training_texts=[], failed="Traceback:\n  gone\n"), "Traceback: gone"),
    ],
)
async def test_a_bug_in_the_domain_is_one_failed_rollout(behaviour, reason):
    outcome = await run(doing(behaviour))
    assert (outcome.ending, said(outcome), outcome.samples) == (Ending.FAILED, reason, [])


async def test_a_cancelled_call_inside_a_rollout_is_a_failure_and_a_cancelled_rollout_is_none():
    assert (await run(doing(lambda: fails(asyncio.CancelledError())))).ending is Ending.FAILED

    task = asyncio.create_task(run(hang))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_rollout_without_texts_is_empty():
    assert (await run(doing(lambda: done(texts=0)))).ending is Ending.EMPTY


async def test_each_attempt_has_a_problem_of_its_own():
    seen = []

    async def policy(cfg, llm, problem, session):
        seen.append(dict(problem))
        problem["id"] = "spoilt"
        if len(seen) == 1:
            raise TimeoutError
        return done()

    await run(policy)
    assert seen[0] == seen[1]


async def test_what_upstreams_groups_would_share_through_their_problem_is_remarked(caplog):
    def writing(key, value):
        async def policy(cfg, llm, problem, session):
            problem[key] = value
            return done()

        return policy

    kept = {"dataset": "d", "ids": np.arange(3), "history": [1]}
    await run(writing("history", [1]), problem=kept)
    await run(writing("secret", 5), problem=kept, training=False)  # a group of one
    assert not caplog.records
    for key, value in (("secret", 5), ("history", [1, 2]), ("ids", np.arange(4)), ("lock", threading.Lock())):
        caplog.clear()
        await run(writing(key, value), problem=kept)
        (record,) = caplog.records
        assert f"writes {key} into its problem" in record.getMessage() and record.remark


async def test_further_fields_of_a_result_are_metrics_if_they_are_numbers_and_else_remarked(caplog):
    """Versions of upstream keep numbers that `BaseMetrics` does not declare, and read other fields."""

    def policy():
        metrics = BaseMetrics(
            reward=1.0,
            success=True,
            no_error=True,
            no_answer=False,
            num_steps=3,
            delays=[1, 2.5],
            verdict="ok",
            words=["a"],
            unknown=None,
        )
        return RolloutResult(
            training_texts=done().training_texts, metrics=metrics, latency=1, audit={"id": 1}
        )

    outcome = await run(doing(policy))
    assert outcome.ending is Ending.DONE, outcome.reason
    assert {"num_steps": 3.0, "delays": [1.0, 2.5]}.items() <= outcome.metrics.items()
    assert not {"verdict", "words", "unknown"} & set(outcome.metrics)
    (record,) = caplog.records
    assert "RolloutResult.audit, metrics.verdict, metrics.words" in record.getMessage() and record.remark


async def test_plain_functions_run_beside_the_loop_and_know_their_origin():
    def policy(cfg, llm, problem, session):
        assert turned.wait(100)
        assert ROLLOUT_ORIGIN.get().rollout_index == 2
        return done()

    turned = threading.Event()

    async def turn():
        for _ in range(4):
            await asyncio.sleep(0.01)
        turned.set()

    turning = asyncio.create_task(turn())
    outcome = await run(policy)
    assert outcome.ending is Ending.DONE, outcome.reason
    await turning


async def test_a_plain_function_that_runs_out_of_items_fails_at_once():
    def policy(cfg, llm, problem, session):
        return next(iter(()))

    outcome = await asyncio.wait_for(run(policy), 300)
    assert outcome.ending is Ending.FAILED and "raised StopIteration" in outcome.reason


async def test_requests_of_a_plain_function_end_with_its_rollout():
    begun, ended, refused = asyncio.Event(), asyncio.Event(), threading.Event()

    async def request(session):
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    def policy(cfg, llm, problem, session):
        try:
            llm.runner(request)
        except concurrent.futures.CancelledError:
            with contextlib.suppress(concurrent.futures.CancelledError):
                llm.runner(request)
                return
            refused.set()

    task = asyncio.create_task(run(policy))
    await asyncio.wait_for(begun.wait(), 100)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(ended.wait(), 100)
    assert await asyncio.to_thread(refused.wait, 100), "a second request was let through"
