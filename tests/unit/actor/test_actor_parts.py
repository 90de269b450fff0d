"""Small parts of the actor: sampler, snapshots, statistics, retries, stamped texts, difficulty, loop lag."""

import asyncio
import ctypes
import logging
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import Field, computed_field
from safetensors.numpy import save_file

from pipelinerl.actor.difficulty import scale_penalties
from pipelinerl.actor.failures import FailureMonitor
from pipelinerl.actor.loop_lag import LoopLag, stood_still
from pipelinerl.actor.messages import Ending, FinishedRollout, Pulse
from pipelinerl.actor.publishing import StreamWriterThread
from pipelinerl.actor.reporting import Reporter
from pipelinerl.actor.retries import backoff_s, reason_of, retryable
from pipelinerl.actor.run import _remark_keys, _remark_model, _remark_others
from pipelinerl.actor.runner import metric_values
from pipelinerl.actor.sampler import ProblemSampler
from pipelinerl.actor.stats import (
    LAGS_KEPT,
    GroupStats,
    InfiniteWatch,
    LoopLagStats,
    RecentGroups,
    Throughput,
    UnsolvedWatch,
    describe,
)
from pipelinerl.actor.worker import policies_session
from pipelinerl.async_llm import RetryableAbortedCompletionError
from pipelinerl.base.digests import model_digest
from pipelinerl.config import Config
from pipelinerl.config.base import leaves_of
from pipelinerl.domain_sampling import DomainWeightedSampler
from pipelinerl.engines.client import EngineRequestError, EngineUnavailable
from pipelinerl.engines.requests import RequestCounts
from pipelinerl.finetune.rl.sample import BadSample, Sample, samples_of
from pipelinerl.rollouts import BaseMetrics, RolloutOrigin, TrainingText
from pipelinerl.run_state.accounting import Outcome, RolloutCounts, kind_of
from pipelinerl.run_state.snapshots import Snapshots
from tests.support.tiny_model import hub_snapshot
from tests.support.toy_domain import text

PROBLEMS = [{"id": i, "domain": "abc"[i % 3]} for i in range(9)]


@pytest.mark.parametrize("mix", [None, {"a": 1, "b": 3, "c": 0}])
def test_a_restored_sampler_draws_what_the_other_would_have_drawn(mix):
    one, two = ProblemSampler(PROBLEMS, 7, mix), ProblemSampler(PROBLEMS, 7, mix)
    for _ in range(60):
        one.record_completion(one.draw().problem)
    two.load_state_dict(one.state_dict())
    assert [one.draw() for _ in range(30)] == [two.draw() for _ in range(30)]
    with pytest.raises(ValueError, match="seed 7, the configuration says 8"):
        ProblemSampler(PROBLEMS, 8).load_state_dict(one.state_dict())


def test_problems_are_drawn_uniformly_with_replacement():
    sampler = ProblemSampler(PROBLEMS, 1)
    counts = Counter(sampler.draw().problem for _ in range(4500))
    assert len(counts) == 9 and min(counts.values()) > 400


def test_a_mixture_is_followed_and_corrected_by_completions():
    sampler = DomainWeightedSampler(PROBLEMS, {"a": 1, "b": 1, "c": 0}, random.Random(1))
    assert {sampler.sample()["domain"] for _ in range(50)} == {"a", "b"}
    for _ in range(49):
        sampler.record_completion("a")
    assert sampler.current_weights() == {"a": 0.5, "b": 0.5}
    sampler.record_completion("b")
    weights = sampler.current_weights()
    assert weights["a"] == pytest.approx(0.5 * 0.5 / 0.98) and weights["b"] == 0.5 * 10
    fixed = DomainWeightedSampler(PROBLEMS, {"a": 1, "b": 1, "c": 0}, adaptive=False)
    fixed.completed.update({"a": 100})
    assert fixed.current_weights() == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"z": 1}, "domain_mix.z: no problem has that domain; problems have a, b, c"),
        ({"a": 1}, "has no weight for b, c, and problems have that domain"),
        ({"a": -1}, "is -1"),
        ({}, "no pos"),
    ],
)
def test_impossible_mixtures_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        DomainWeightedSampler(PROBLEMS, weights)


def test_a_resume_takes_the_newest_snapshot_not_newer_than_the_trainer(tmp_path):
    snapshots = Snapshots(tmp_path, "actor", keep=3)
    assert snapshots.restore(5, dict) is None
    for version in (0, 4, 8, 12):
        snapshots.save(version, {"drawn": version})
    assert snapshots.versions() == [4, 8, 12]
    assert snapshots.restore(11, dict)["drawn"] == 8
    assert snapshots.versions() == [4, 8]
    assert [snapshots.next_start() for _ in range(3)] == [0, 1, 2]


def sampled(tokens=2, finished=True, reward=0.0):
    (sample,) = samples_of([text(output_tokens=tokens, prompt_tokens=4, finished=finished)], ORIGIN)
    sample.reward = reward
    return sample


def rollout(reward, *, dataset="d", success=None, ending=Ending.DONE, samples=None, **metrics):
    success = reward > 0 if success is None else success
    values = {"reward": reward, "success": float(success), **metrics}
    samples = [sampled()] if samples is None else samples
    return FinishedRollout(key=0, ending=ending, samples=samples, metrics=values, dataset=dataset)


def test_statistics_pool_values_and_name_them_as_dashboards_expect():
    stats = GroupStats()
    stats.add_group([rollout(1.0, guesses=[1.0, 3.0]), rollout(0.0)])
    stats.add_group([rollout(1.0, dataset="e", overlong=1.0)])
    stats.add_group([FinishedRollout(key=0, ending=Ending.FAILED, reason="bug")])
    record = stats.take()
    assert record["reward_mean"] == pytest.approx(2 / 3) and record["reward_max"] == 1
    assert record["reward_var"] == pytest.approx(2 / 9)
    assert record["d/reward_mean"] == 0.5 and record["e/reward_mean"] == 1 and "e/reward_var" not in record
    assert record["guesses_mean"] == 2 and record["success_given_overlong"] == 1
    assert (record["always_success"], record["sometimes_success"], record["never_success"]) == (0.5, 0.5, 0)
    assert record["rollouts_failed"] == 1 and record["rollouts_done"] == 3
    assert "reward_mean" not in stats.take()


@pytest.mark.parametrize(("ended", "overflow"), [((True, True), 0), ((False, True), 1), ((False, False), 1)])
def test_a_rollout_overflows_if_one_of_its_samples_was_cut(ended, overflow):
    stats = GroupStats()
    stats.add_group([rollout(1.0, samples=[sampled(finished=finished) for finished in ended])])
    assert stats.take()["overflow_mean"] == overflow


def test_a_domain_s_own_metric_of_a_measured_name_is_not_mixed_in():
    stats = GroupStats()
    others = [rollout(1.0, latency=value, model_version=value) for value in (5.0, 7.0)]
    stats.add_group(others)
    record = stats.take()
    assert record["latency_mean"] == 0 and record["model_version_mean"] == ORIGIN.version
    assert not {"latency_max", "model_version_var", "d/latency_mean", "d/model_version_mean"} & record.keys()
    stats.add_group([rollout(1.0, overflow=1.0, num_turns=9.0, prompt_tokens=[70.0], output_tokens=80.0)])
    record = stats.take()
    assert [record[f"{name}_mean"] for name in ("overflow", "num_turns")] == [0, 1]
    assert [record[f"d/{name}_tokens_mean"] for name in ("prompt", "output")] == [4, 2]


def test_evaluation_records_have_a_prefix_but_for_datasets():
    stats = GroupStats()
    stats.add_group([rollout(1.0)])
    record = stats.take("test_")
    assert record["test_reward_mean"] == 1 and record["d/reward_mean"] == 1 and "test_latency_mean" in record


def test_recent_means_look_back_on_a_number_of_groups_and_not_on_a_version():
    recent = RecentGroups(3)
    assert recent.means() == {}
    recent.add_group([FinishedRollout(key=0, ending=Ending.FAILED, reason="bug")])
    assert recent.means() == {}, "nothing was measured"
    recent.add_group([rollout(1.0), rollout(0.0), FinishedRollout(key=0, ending=Ending.FAILED, reason="bug")])
    assert recent.means()["recent_groups"] == 1 and recent.means()["recent_reward"] == 0.5
    for value in (0.0, 0.0, 1.0, 1.0):
        recent.add_group([rollout(value), rollout(value)])
    assert recent.means() == {
        "recent_groups": 3,
        "recent_success": pytest.approx(2 / 3),
        "recent_reward": pytest.approx(2 / 3),
        "recent_success_spread": pytest.approx(3**-0.5),
        "recent_reward_spread": pytest.approx(3**-0.5),
    }


def test_what_is_no_number_is_not_among_the_recent_means():
    """They are shown, and a file has no word for them."""
    recent = RecentGroups(3)
    recent.add_group([rollout(float("nan"))])
    assert "recent_reward" not in recent.means()
    recent.add_group([rollout(0.5)])
    assert recent.means()["recent_reward"] == 0.5 and "recent_reward_spread" not in recent.means()


def test_what_is_no_number_takes_no_part_in_a_record():
    stats, watch = GroupStats(), UnsolvedWatch(2)
    nan = float("nan")
    unmeasured, unsolved, solved = rollout(nan, success=nan), rollout(0.0), rollout(1.0)
    stats.add_group([unmeasured, unsolved, solved, solved])
    stats.add_group([unmeasured])
    record = stats.take()
    assert record["success_mean"] == record["reward_mean"] == pytest.approx(2 / 3)
    assert record["sometimes_success"] == 1.0 and all(map(math.isfinite, record.values()))
    assert watch.add_group([unmeasured, unsolved]) is None
    assert "no success in 2 groups" in (watch.add_group([unmeasured, unsolved]) or "")


def test_metrics_that_are_infinite_are_told_once_each():
    watch, infinite, nan = InfiniteWatch(), float("inf"), float("nan")
    assert watch.add_group([rollout(1.0, ratio=nan, many=[0.5, nan])]) is None
    first = watch.add_group([rollout(1.0), rollout(1.0, ratio=-infinite, many=[0.5, infinite])])
    assert first is not None and "infinite (many, ratio)" in first
    assert watch.add_group([rollout(1.0, ratio=infinite)]) is None
    assert "infinite (reward)" in (watch.add_group([rollout(infinite, ratio=infinite)]) or "")


def test_rates_are_over_the_window():
    throughput = Throughput(2, start_s=0.0)
    assert throughput.rates(1.0) == {}
    for now in (10.0, 20.0, 30.0):
        throughput.add_group([rollout(1.0), rollout(1.0)], now)
    rates = throughput.rates(30.0)
    assert rates["samples_per_second"] == pytest.approx(4 / 20)
    assert rates["total_tokens_per_second"] == pytest.approx(24 / 20)
    (sample, *_) = rollout(1.0).samples
    attended = [sample.prompt_tokens + before for before in range(sample.output_tokens)]
    assert rates["context_tokens"] == pytest.approx(sum(attended) / len(attended))


def test_the_context_of_a_dialogue_does_not_hold_what_comes_later():
    throughput = Throughput(2, start_s=0.0)
    dialogue, masked = sampled(), -100
    dialogue.labels = np.array([masked, masked, 5, 5, masked, masked, masked, masked, masked, 5])
    dialogue.prompt_tokens, dialogue.output_tokens = 7, 3  # two tokens of the question, five of a tool
    throughput.add_group([rollout(1.0, samples=[dialogue])], 1.0)
    assert throughput.rates(1.0)["context_tokens"] == pytest.approx((2 + 3 + 9) / 3)


def test_the_context_of_an_answer_of_which_some_is_masked_is_that_of_all_of_it():
    throughput = Throughput(2, start_s=0.0)
    answer = sampled()
    answer.labels = np.array([-100, -100, -100, -100, 5, 5])
    answer.prompt_tokens, answer.output_tokens = 2, 4
    throughput.add_group([rollout(1.0, samples=[answer])], 1.0)
    assert throughput.rates(1.0)["context_tokens"] == pytest.approx((2 + 3 + 4 + 5) / 4)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (TimeoutError(), True),
        (RetryableAbortedCompletionError(), True),
        (ConnectionResetError(), True),
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.ClientResponseError(None, (), status=502), True),  # type: ignore[arg-type]
        (ExceptionGroup("calls", [TimeoutError(), ConnectionResetError()]), True),
        (ExceptionGroup("calls", [TimeoutError(), ValueError()]), False),
        (aiohttp.ClientResponseError(None, (), status=404), False),  # type: ignore[arg-type]
        (EngineUnavailable("e", "server_error", "x"), True),
        (EngineRequestError("e", 400, "x"), False),
        (KeyError("answer"), False),
    ],
)
def test_only_infrastructure_is_tried_again(error, again):
    assert retryable(error) is again


def test_pauses_double_up_to_the_longest():
    for attempt in range(12):
        assert 0.5 * min(30, 2**attempt) <= backoff_s(attempt, 1, 30) <= min(30, 2**attempt)


def test_rollouts_that_fail_at_once_are_no_majority_while_others_run():
    """Of 60 that begin together 20 fail at once: a third. When 31 have failed, more than half of 60 have."""
    monitor, running = FailureMonitor(0.5), set(range(60))
    for key in range(59, 29, -1):
        running.remove(key)
        monitor.record("bug", key)
        assert monitor.complaint(running) is None
    running.remove(29)
    monitor.record("bug", 29)
    assert "31 of the last 31 rollouts failed" in (monitor.complaint(running) or "")
    later = FailureMonitor(0.5)
    for key in range(20):
        later.record("bug", key)
    assert later.complaint(range(20, 80)) is not None, "those that began behind all that ended say nothing"


def test_failures_are_judged_over_recent_rollouts():
    monitor = FailureMonitor(0.5)
    for _ in range(19):
        monitor.record("bug")
    assert monitor.complaint() is None
    monitor.record("other")
    assert "20 of the last 20" in monitor.complaint() and "(19 times): bug" in monitor.complaint()
    for _ in range(200):
        monitor.record(None)
    assert monitor.complaint() is None


def test_the_mean_of_equal_values_is_that_value():
    for value in (0.1, 0.7, 1e12 / 3, -0.0):
        assert describe([value] * 3, "reward") == {"reward_mean": value}
    assert str(describe([-0.0], "reward")["reward_mean"]) == "0.0"


def test_failures_are_counted_by_kind_and_named_with_the_place_of_the_rollout_code():
    def rollout(number):
        if number % 3:
            raise ValueError(f"problem {number} ('0-{number:06d}') has no answer after {number / 7:.3f} s")
        raise KeyError("gold")

    monitor, reasons = FailureMonitor(0.5), {}
    for number in range(60):
        try:
            rollout(number)
        except (ValueError, KeyError) as error:
            reason = reason_of(error)
        monitor.record(reason)
        reasons[reason] = reasons.get(reason, 0) + 1
    line = rollout.__code__.co_firstlineno + 2
    assert len(reasons) == 41 and all("(actor/test_actor_parts.py:" in reason for reason in reasons)
    counts = replace(RolloutCounts(), reasons={Outcome.FAILED: reasons})
    (row,) = [row for row in counts.lines() if row.startswith("failed: ")]
    assert row.count("actor/test_actor_parts.py:") == 2
    assert f"(actor/test_actor_parts.py:{line}) 40, KeyError: 'gold'" in row
    assert "(40 times): ValueError: problem 59 " in monitor.complaint()


def test_words_of_single_rollouts_are_one_kind_at_one_place():
    """Four texts or more of one type and place are of the data; three are told apart, as are other places."""
    words = ("Paris", "Rome", "Berlin", "Oslo")
    reasons = {f"AssertionError: answer={word} (my/x.py:9)": 2 for word in words}
    reasons |= {f"KeyError: '{word}' (my/x.py:3)": 1 for word in words[:3]}
    reasons |= {"AssertionError: answer=Bern (my/x.py:12)": 1}
    counts = replace(RolloutCounts(), reasons={Outcome.FAILED: reasons})
    (row,) = [row for row in counts.lines() if row.startswith("failed: ")]
    most = "AssertionError: answer=Paris, and others (my/x.py:9) 8"
    assert row.startswith(f"failed: {most}, KeyError: 'Paris' (my/x.py:3) 1, ")
    assert row.count("KeyError") == 3 and "answer=Bern (my/x.py:12) 1" in row
    monitor = FailureMonitor(0.5)
    for number in range(24):
        monitor.record(f"ValueError: no {words[number % 4]} here (my/x.py:9)" if number < 16 else "late")
    assert "(16 times): ValueError: no Oslo here" in (monitor.complaint() or "")


def _failed(reasons: dict[str, int]) -> str:
    counts = replace(RolloutCounts(), reasons={Outcome.FAILED: reasons})
    return next(row for row in counts.lines() if row.startswith("failed: "))


WORDS = ("Paris", "Rome", "Berlin", "Oslo", "Bern", "Wien", "Prag", "Kiel")


def test_the_commonest_at_a_place_is_named_whatever_else_fails_there():
    """Forty of one kind, and each of six others once, the newest of all."""
    reasons = {f"RuntimeError: out of memory at step {n} (my/x.py:9)": 1 for n in range(40)}
    reasons |= {f"RuntimeError: no {word} (my/x.py:9)": 1 for word in WORDS[:6]}
    assert _failed(reasons) == (
        "failed: RuntimeError: out of memory at step # (my/x.py:9) 40, "
        "RuntimeError: no Paris, and others (my/x.py:9) 6"
    )
    monitor = FailureMonitor(0.5)
    for reason in reasons:
        monitor.record(reason)
    complaint = monitor.complaint() or ""
    assert complaint.endswith("(40 times): RuntimeError: out of memory at step 39 (my/x.py:9)")


def test_a_status_is_a_kind_whatever_bodies_come_with_it():
    reasons = {f"ApiError: HTTP 503: {word} (my/x.py:9)": 2 for word in WORDS}
    reasons |= {f"ApiError: HTTP 429: {word} (my/x.py:9)": 1 for word in WORDS}
    reasons |= {"ApiError: HTTP 404: not here (my/x.py:9)": 6}
    assert _failed(reasons) == (
        "failed: ApiError: HTTP 503: Paris, and others (my/x.py:9) 16, "
        "ApiError: HTTP 429: Paris, and others (my/x.py:9) 8, ApiError: HTTP 404: not here (my/x.py:9) 6"
    )


def test_faults_that_come_often_stay_apart_at_one_place():
    """A server's client raises them all in one line."""
    reasons = {f"ToolError: {said} (my/x.py:9)": 30 for said in ("denied", "no such tool", "locked", "died")}
    assert _failed(reasons).count(" 30") == 4


def test_a_long_reason_is_one_kind_wherever_it_was_cut():
    """What belongs to one rollout is not equally long in all, so that they end at other words."""
    reasons = set()
    for number in (7, 77, 777, 7777, 77777):
        with pytest.raises(RuntimeError) as raised:
            raise RuntimeError(f"item {number} of {number} could not be read, because " + "it is so " * 60)
        reasons.add(reason_of(raised.value))
    assert len(set(map(kind_of, reasons))) == 1 < len(reasons)
    assert all(len(reason) <= 300 and "… (actor/test_actor_parts.py:" in reason for reason in reasons)


def test_a_cause_that_says_more_is_part_of_the_reason():
    def rollout(bad: str, said: str) -> None:
        try:
            int(bad) if bad else {}["gold"]
        except (ValueError, KeyError) as error:
            raise RuntimeError(said.format(error)) from error

    def reason(*given: str) -> str:
        with pytest.raises(RuntimeError) as raised:
            rollout(*given)
        return reason_of(raised.value).partition(" (actor/")[0]

    invalid = "invalid literal for int() with base 10: 'x'"
    assert reason("", "it failed") == "RuntimeError: it failed, from KeyError: 'gold'"
    assert reason("x", "it failed") == f"RuntimeError: it failed, from ValueError: {invalid}"
    assert reason("x", "not read: {}") == f"RuntimeError: not read: {invalid}"


def test_a_text_of_the_policy_makes_no_kind_whatever_quotes_and_length_it_has():
    """One of both quotation marks is written with a backslash, and a long one is cut before its last mark."""
    words = "so that's it, and then again "
    said = ["ten", "it's ten", 'he said "ten"', "it's \"ten\", or 'so'", words * 30, f'"{words}"' * 30]
    kinds = set()
    for answer in said:
        with pytest.raises(ValueError) as raised:
            float(answer)
        kinds.add(kind_of(reason_of(raised.value)).partition(" (actor/")[0])
    assert kinds == {"ValueError: could not convert string to float: '…'"}


async def test_a_timeout_has_no_other_cause():
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0):
            await asyncio.sleep(9)
    assert reason_of(raised.value).startswith("TimeoutError (actor/test_actor_parts.py:")


async def test_a_request_of_a_policy_may_take_as_long_as_its_rollout():
    """Also longer than the 5 minutes after which aiohttp's own sessions end one: judges can be slow."""
    async with policies_session(Config().actor.rollout_deadline_s) as session:
        assert session.timeout.total == 3600, "as upstream's session"
    server = await asyncio.start_server(lambda reader, writer: asyncio.sleep(1), "127.0.0.1", 0)
    async with server, policies_session(0.05) as session:
        with pytest.raises(asyncio.TimeoutError):
            await session.get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def test_a_policy_passes_cookies_on_itself():
    async def asked(request: web.Request) -> web.Response:
        response = web.json_response(dict(request.cookies))
        response.set_cookie("login", "7")
        return response

    app = web.Application()
    app.router.add_get("/", asked)
    async with TestServer(app) as server, policies_session(9) as session:
        url = f"http://localhost:{server.port}"  # aiohttp never keeps cookies of addresses
        first = await session.get(url)
        assert await (await session.get(url)).json() == {}
        assert await (await session.get(url, cookies=first.cookies)).json() == {"login": "7"}


def test_a_place_is_known_in_any_folder_and_of_an_installed_domain(tmp_path: Path):
    """The runner calls the frame above the policy's by the rollout's name."""
    code = "def helper():\n    {}['gold']\n\ndef policy():\n    helper()\n"
    caller = (
        "def called(f): f()\ndef caught(f):\n    try: called(f)\n    except KeyError as error: return error\n"
    )
    for folder in ("proj (1)", "site-packages/mine"):
        place = tmp_path / folder / "rollouts.py"
        given = {}
        exec(compile(code, place, "exec"), given)
        exec(compile(caller, "/site-packages/core.py", "exec"), given)
        called = given["called"]
        called.__code__ = called.__code__.replace(co_name="rollout 0-000001/2")
        reason = reason_of(given["caught"](given["policy"]))
        assert reason == f"KeyError: 'gold' ({folder.rpartition('/')[2].replace(' ', '_')}/rollouts.py:2)"
        assert kind_of(reason) == reason


def test_a_kind_keeps_a_status_and_its_place():
    assert kind_of("HTTPError: 500 Server Error for url: http://a.b/c?d=e") == (
        "HTTPError: 500 Server Error for url: …"
    )
    assert kind_of("E: file /tmp/run_ab/out.txt is gone, not 3/4") == "E: file … is gone, not #/#"
    assert kind_of("Error: HTTP 503 of 10.0.0.7:8080 (a/b.py:12)") == "Error: HTTP 503 of #.#:# (a/b.py:12)"
    assert kind_of("no_texts") == "no_texts"
    assert kind_of("E: Client error '404 Not Found' for url 'http://a/b'") == (
        "E: Client error '404 Not Found' for url '…'"
    )


@pytest.mark.parametrize(
    "reasons",
    [
        ["RuntimeError: task 7f3b9c2e1d failed", "RuntimeError: task 1a2b3c4d5e failed"],
        [
            "ValueError: could not convert string to float: 'ten'",
            "ValueError: could not convert string to float: 'x'",
        ],
        ["ValueError: loss is 1e-05", "ValueError: loss is 0.25"],
        ["ApiError: no user with code 100234", "ApiError: no user with code 100235"],
        ["ValueError: the search returned 404 rows", "ValueError: the search returned 503 rows"],
        ["KeyError: 404", "KeyError: 503"],
    ],
)
def test_what_belongs_to_one_rollout_makes_no_kind(reasons: list[str]) -> None:
    assert len(set(map(kind_of, reasons))) == 1


@pytest.mark.parametrize(
    "reasons",
    [
        [
            "ClientResponseError: 500, message='Internal Server Error'",
            "ClientResponseError: 503, message='Service Unavailable'",
        ],
        ["InternalServerError: Error code: 500 - gone", "InternalServerError: Error code: 503 - gone"],
        [
            "Failed: Server error '500 Internal Server Error' for url",
            "Failed: Server error '502 Bad Gateway' for url",
        ],
        ["RuntimeError: server answered 500: gone", "RuntimeError: server answered 404: gone"],
        ["RuntimeError: request failed: 503", "RuntimeError: request failed: 429"],
        ["RuntimeError: bad response [503]", "RuntimeError: bad response [429]"],
        ["HTTPError: HTTP Error 404: no", "HTTPError: HTTP Error 500: no"],
        ["ProgramFailed: exit code 1", "ProgramFailed: exit code 137"],
        ["DockerError: container exited with code 1", "DockerError: container exited with code 137"],
        ["ApiError: failed (code=401)", "ApiError: failed (code=503)"],
        ["ApiError: HTTP/1.1 429", "ApiError: HTTP/1.1 503"],
        ["ApiError: statusCode: 429", "ApiError: statusCode: 503"],
        ["ProgramFailed: status -9", "ProgramFailed: status -11"],
        ["ProgramFailed: rc=1", "ProgramFailed: rc=137"],
        ["ApiError: status: 404, no body", "ApiError: status: 500, no body"],
        ["TypeError: can't add 'a'", "TypeError: can't multiply 'a'"],
        ["KeyError: 'answer'", "KeyError: 'question'"],
        ["RuntimeError: no, from KeyError: 'answer'", "RuntimeError: no, from KeyError: 'question'"],
    ],
)
def test_what_is_another_fault_is_another_kind(reasons: list[str]) -> None:
    assert len(set(map(kind_of, reasons))) == 2


async def test_a_group_of_errors_is_named_by_its_first():
    async def fail() -> None:
        raise ValueError("no gold")

    async def rollout() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    try:
        await rollout()
    except* ValueError as group:
        reason = reason_of(group)
    assert reason == f"ValueError: no gold (actor/test_actor_parts.py:{fail.__code__.co_firstlineno + 1})"


def test_an_error_that_shows_no_place_has_that_of_its_group_or_cause():
    """A group that was built by hand, and what Python makes of a StopIteration within a coroutine."""

    def built() -> None:
        raise ExceptionGroup("both", [ValueError("no gold"), KeyError("b")])

    def ended() -> None:
        next(iter(()))

    with pytest.raises(ExceptionGroup) as group:
        built()
    place = f"(actor/test_actor_parts.py:{built.__code__.co_firstlineno + 1})"
    assert reason_of(group.value) == f"ValueError: no gold {place}"
    with pytest.raises(StopIteration) as stop:
        ended()
    outer = RuntimeError("coroutine raised StopIteration")
    outer.__cause__ = stop.value
    place = f"(actor/test_actor_parts.py:{ended.__code__.co_firstlineno + 1})"
    assert reason_of(outer) == f"RuntimeError: coroutine raised StopIteration {place}"


def test_an_error_without_a_text_still_has_a_reason():
    class Odd(Exception):
        def __str__(self) -> str:
            raise KeyError("detail")

    assert reason_of(Odd()) == "Odd: its text cannot be made"


def test_the_lags_of_a_long_wait_for_a_version_are_not_all_kept():
    lags = LoopLagStats()
    lags.add([9.0])
    lags.add([0.5] * 2 * LAGS_KEPT)
    assert len(lags._lags_s) == LAGS_KEPT
    assert lags.take() == {"loop_lag_p99_s": 0.5, "loop_lag_max_s": 9.0}
    assert lags.take() == {}


ORIGIN = RolloutOrigin("0-000001", 3, version=8, training=True)


def test_samples_know_their_origin_and_versions_come_from_the_engine():
    samples = samples_of([text(weight_versions=[(16, 0, 1)]), text()], ORIGIN)
    assert [sample.exact_versions for sample in samples] == [True, False]
    assert [sample.name for sample in samples] == ["0-000001/3/0", "0-000001/3/1"]
    records = [sample.to_record() for sample in samples]
    assert [r["metadata"]["model_version"] for r in records] == [16, 8]
    assert [(r["metadata"]["rollout_index"], r["metadata"]["step_index"]) for r in records] == [
        (3, 0),
        (3, 1),
    ]
    assert records[0]["group_id"] == "0-000001" and records[1]["weight_versions"] == [(8, 0, 1)]
    assert records[1]["metadata"]["exact_versions"] is False


def test_engines_whose_weights_stay_have_exact_versions_also_where_they_name_none():
    given = text(weight_versions=[(8, 0, 1)], metadata={"exact_versions": False})
    (sample,) = samples_of([given], ORIGIN, frozen_version=4)
    assert sample.weight_versions == [(4, 0, 1)] and sample.exact_versions
    assert "exact_versions" not in sample.to_record()["metadata"]


@pytest.mark.parametrize(
    "fields",
    [
        {"input_ids": [1, 2, 3], "labels": [-100, -100, 3], "logprobs": [-0.25]},
        {"input_ids": [1, 2, 3, 4, 5], "labels": [-100, 2, 3, 4, 5], "logprobs": [-0.25] * 4},
    ],
    ids=["the beginning of the output masked", "another call appended"],
)
def test_a_text_that_a_policy_masked_or_joined_is_as_old_as_its_rollout(fields):
    (sample,) = samples_of([text(weight_versions=[(16, 0, 1), (17, 1, 2)], **fields)], ORIGIN)
    assert sample.weight_versions == [(8, 0, len(fields["logprobs"]))] and not sample.exact_versions
    assert sample.old_logprobs.tolist() == fields["logprobs"]


def test_a_record_has_the_fields_of_a_text_in_their_order_and_gives_the_sample_back():
    given = text(situation="S", role="policy", padding_value=0.5, loss_weight=2.0, finish_reason="length")
    (sample,) = samples_of([given], ORIGIN)
    record = sample.to_record()
    assert list(record) == [name for name in TrainingText.model_fields if name != "routed_experts"]
    again = TrainingText.from_record(record)
    assert again.to_record() == {**record, "weight_versions": [[8, 0, 1]]}
    read = Sample.from_record(record)
    for name in ("name", "reward", "situation", "role", "padding_value", "loss_weight", "weight_versions"):
        assert getattr(read, name) == getattr(sample, name), name
    assert (read.local_index, read.segment_length, read.is_cut()) == (0, 1, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reward": float("nan")}, "reward is nan"),
        ({"logprobs": [float("inf")]}, "not finite"),
        ({"logprobs": [-1.0, -1.0]}, "2 logprobs but 1 labelled"),
        ({"labels": [-100]}, "2 input_ids but 1 labels"),
        ({"labels": [-100, 1]}, "a label differs from the token"),
        ({"labels": [-100, -100], "logprobs": []}, "no label is learnt"),
        ({"weight_versions": [(1, 1, 1)]}, "not contiguous"),
        ({"weight_versions": [(-1, 0, 1)]}, "not contiguous"),
    ],
)
def test_texts_nobody_could_learn_from_are_refused_by_name(fields, message):
    with pytest.raises(BadSample, match=f"sample 0-000001/3/0: .*{message}"):
        samples_of([text(**fields)], ORIGIN)


class Odd(BaseMetrics):
    extra: object = None


def test_metrics_are_numbers_or_lists_of_them():
    base = {"reward": 1, "success": True, "no_error": True, "no_answer": False}
    assert metric_values(Odd(**base))["success"] == 1.0
    assert metric_values(Odd(**base, extra=[1, 2]))["extra"] == [1.0, 2.0]
    with pytest.raises(ValueError, match="metric extra is a str"):
        metric_values(Odd(**base, extra="text"))


class Dumped(BaseMetrics):
    tokens: int
    trace: dict[str, int] = Field(default_factory=dict, exclude=True)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def long(self) -> bool:
        return self.tokens > 10


def test_metrics_are_those_of_a_dump():
    base = {"reward": 1, "success": True, "no_error": True, "no_answer": False}
    expected = {"reward": 1.0, "success": 1.0, "no_error": 1.0, "no_answer": 0.0, "tokens": 12.0, "long": 1.0}
    assert metric_values(Dumped(**base, tokens=12, trace={"turn": 1})) == expected


def test_penalties_are_scaled_by_the_solve_rate():
    def made(success, tokens, finished=True):
        return rollout(1.0, success=success, samples=[sampled(tokens, finished, 1.0)])

    group = [made(True, 90), made(False, 90), made(False, 100, False), made(False, 10)]
    cfg = Config.model_validate(
        {
            "actor": {"difficulty_aware_penalty": {"gamma": 2, "failure_scale": 0.5}},
            "rewards": {"buffer_tokens": 20},
            "llm": {"parameters": {"max_tokens": 100}},
        }
    )
    scale_penalties(group, cfg)
    rewards = [ended.samples[0].reward for ended in group]
    assert rewards == pytest.approx([1 + 0.5 * (1 - 1 / 16), 1 + 0.5 * 0.5, 1.0, 1.0])
    assert [ended.metrics["reward"] for ended in group] == pytest.approx(rewards)
    assert [ended.metrics["overlong"] for ended in group] == [1, 1, 1, 0]


def test_a_writer_thread_hands_its_error_to_the_loop():
    def write(topic, record):
        raise OSError("disk full")

    writer = StreamWriterThread(write, 2, lambda: None)
    writer.put("actor", [])
    with pytest.raises(OSError, match="disk full"):
        writer.close(100)


def test_a_slow_disk_fills_the_queue_and_nothing_is_lost():
    written, go_on = [], threading.Event()
    writer = StreamWriterThread(
        lambda topic, record: (go_on.wait(100), written.append(record)), 2, lambda: None
    )
    for number in range(6):
        writer.put("actor", number)
    assert writer.full
    go_on.set()
    writer.close(100)
    assert written == list(range(6))


async def test_the_rollout_that_blocks_the_loop_is_named(caplog):
    noted, told, over = [], threading.Event(), threading.Event()

    def note(block):
        noted.append(block)
        (over if "until" in block else told).set()

    lag = LoopLag(note)
    lag.start()
    await asyncio.sleep(0.05)

    async def blocking():
        end = time.monotonic() + 100
        while not told.is_set() and time.monotonic() < end:
            time.sleep(0.05)  # noqa: ASYNC251

    with caplog.at_level(logging.WARNING):
        await asyncio.create_task(blocking(), name="rollout 0-000001/3")
        await asyncio.to_thread(over.wait, 100)
    lag.stop()
    assert [block["who"] for block in noted] == ["rollout 0-000001/3"] * 2
    assert noted[1]["until"] > noted[1]["since"] == noted[0]["since"] and "blocking" in noted[0]["where"]
    assert "rollout 0-000001/3 blocks the event loop" in caplog.text and "blocking" in caplog.text
    assert max(lag.take()) > 1.0


async def test_a_block_deep_in_a_library_names_the_line_of_the_domain(tmp_path, caplog):
    noted = []

    def note(block):
        noted.append(block)
        (tmp_path / "told").touch()

    lag = LoopLag(note)
    lag.start()
    await asyncio.sleep(0.05)
    waits = f"for _ in $(seq 1000); do [ -e {tmp_path / 'told'} ] && exit; sleep 0.1; done"

    async def waits_for_a_program():
        subprocess.run(["sh", "-c", waits], check=True)  # noqa: ASYNC221

    with caplog.at_level(logging.WARNING):
        await asyncio.create_task(waits_for_a_program(), name="rollout 0-000001/3")
    lag.stop()
    *library, called = noted[0]["where"].split(" < ")
    assert all("subprocess.py:" in one for one in library[:3])
    assert called.endswith(" waits_for_a_program") and "test_actor_parts.py:" in called


async def test_rollouts_that_block_one_after_another_are_not_laid_on_the_first_alone():
    noted, second = [], threading.Event()

    def note(block):
        noted.append(block)
        if "then by rollout 2" in block["where"]:
            second.set()

    lag = LoopLag(note)
    lag.start()
    await asyncio.sleep(0.05)

    async def blocks(until):
        end = time.monotonic() + 100
        while not until() and time.monotonic() < end:
            time.sleep(0.05)  # noqa: ASYNC251

    first = asyncio.create_task(blocks(lambda: noted), name="rollout 1")
    await asyncio.gather(first, asyncio.create_task(blocks(second.is_set), name="rollout 2"))
    lag.stop()
    assert noted[0]["who"] == "rollout 1" and "then by" not in noted[0]["where"]
    assert noted[1]["who"] == "rollout 1" and second.is_set()


def test_a_program_that_was_stopped_blames_no_rollout():
    """As a laptop that slept, or a machine that is too busy: the loop did not run, and nothing else did."""
    code = """
import asyncio, logging, os, sys
from pipelinerl.actor.loop_lag import LoopLag
logging.basicConfig(stream=sys.stdout)

async def plays():
    print("ready", flush=True)
    for _ in range(500):
        await asyncio.sleep(0.002)
        sum(range(10_000))

async def main():
    lag = LoopLag()
    lag.start()
    await asyncio.gather(*(asyncio.create_task(plays(), name=f"rollout {n}") for n in range(8)))
    await asyncio.sleep(0.6)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "ready\n"
        for _ in range(2):
            time.sleep(0.5)
            program.send_signal(signal.SIGSTOP)
            time.sleep(2.5)
            program.send_signal(signal.SIGCONT)
        said, _ = program.communicate(timeout=300)
    assert program.returncode == 0 and "blocks the event loop" not in said


def test_who_kept_a_program_from_running():
    """Seconds since the last look, and of them those that the loop's thread computed."""
    assert stood_still(3.25, 0.1), "nothing ran"
    assert not stood_still(3.25, 3.1), "a call that keeps the interpreter"
    assert not stood_still(0.26, 0.0), "this thread ran in time, so the loop's own waits in a call"


async def test_a_hold_that_is_over_is_in_the_log_with_its_stacks(tmp_path, caplog, monkeypatch):
    """`PyDLL` keeps the interpreter while C sleeps, so that no other thread runs."""
    noted, over = [], threading.Event()

    def note(block):
        noted.append(block)
        over.set()

    monkeypatch.setattr("pipelinerl.actor.loop_lag.HELD_AFTER_S", 0.5)
    lag = LoopLag(note, tmp_path / "held.txt")
    lag.start()
    await asyncio.sleep(0.05)

    def rollout_that_holds():
        ctypes.PyDLL(None).sleep(3)

    # As the worker names the frame of a rollout, by which it is told from other threads.
    rollout_that_holds.__code__ = rollout_that_holds.__code__.replace(co_name="rollout 7")
    with caplog.at_level(logging.WARNING):
        rollout_that_holds()
        await asyncio.to_thread(over.wait, 100)
    lag.stop()
    assert noted[0]["who"] == "rollout 7" and " rollout 7 < " in noted[0]["where"]
    assert noted[0]["until"] > noted[0]["since"]
    assert "held the interpreter for " in caplog.text and caplog.text.count("Thread 0x") > 1
    assert (tmp_path / "held.txt").read_text() == "", "it goes on no longer"


def test_twenty_groups_without_a_success_are_said_once():
    watch = UnsolvedWatch()

    def told(success, count, **metrics):
        one = FinishedRollout(key=1, ending=Ending.DONE, metrics={"reward": 0.5, **metrics})
        if success is not None:
            one.metrics["success"] = success
        return [watch.add_group([one, one]) for _ in range(count)]

    assert set(told(0.0, 19) + told(1.0, 1) + told(0.0, 19)) == {None}
    assert set(told(None, 30)) == {None}, "a domain without success"
    (line,) = told(0.0, 1, no_answer=1.0)
    assert "no success in 20 groups in a row (40 rollouts, mean reward 0.5, 2 without an answer" in line
    assert set(told(0.0, 40)) == {None}


def test_a_domain_may_have_no_notion_of_success():
    without = BaseMetrics(reward=0.5, success=None, no_error=True, no_answer=False)
    assert metric_values(without) == {"reward": 0.5, "no_error": 1.0, "no_answer": 0.0}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (RolloutOrigin("0-000001", 3, 0, True), "g/0/0: it is one of rollout 0-000001/3"),
        (RolloutOrigin("g", 1, 0, True), "g/0/0: it is one of rollout g/1"),
        (RolloutOrigin("g", 0, 0, True), ""),
    ],
    ids=["another_problem", "another_attempt", "its_own"],
)
def test_a_text_of_another_rollout_is_refused(other, words):
    kept = text()
    samples_of([kept], other)
    mine = RolloutOrigin("g", 0, 0, True)
    if not words:  # such as one that was tried again
        assert samples_of([kept], mine)[0].rollout == "g/0"
        return
    for given in (kept, kept.model_copy(deep=True)):
        with pytest.raises(BadSample, match=words):
            samples_of([given], mine)


@pytest.mark.parametrize("made", [True, False], ids=["by_make_training_text", "by_hand"])
def test_a_policys_own_names_of_group_and_attempt_are_overwritten(made):
    origin = RolloutOrigin("g", 2, 0, True)
    own = text()
    if made:
        own.made_in = "g", 2
        own.metadata["rollout_index"] = 0
    own.group_id = "own"
    (sample,) = samples_of([own], origin)
    assert (sample.group_id, sample.rollout_index, own.group_id) == ("g", 2, "g")
    assert own.metadata["rollout_index"] == 2
    kept = text()
    kept.made_in = "other", 2
    kept.group_id = "g"
    with pytest.raises(BadSample, match="it is one of rollout other/2"):
        samples_of([kept], origin)


def test_a_text_that_is_returned_twice_is_refused():
    one = text()
    with pytest.raises(BadSample, match="rollout g/0: training_texts holds one sample twice"):
        samples_of([one, text(), one], RolloutOrigin("g", 0, 0, True))


def test_other_problems_than_in_the_last_start_are_remarked(tmp_path, caplog):
    began = {"training": "50 aa", "test": "20 bb"}
    assert [_remark_others(tmp_path, began) for _ in range(2)] == [[], []]
    assert not caplog.records
    assert _remark_others(tmp_path, {"training": "5 cc", "test": ""}) == ["training"]
    (record,) = caplog.records
    assert record.remark and "the training problems are others than in the last start (5, before 50)" in (
        record.getMessage()
    )
    caplog.clear()
    _remark_others(tmp_path, {"training": "5 cc", "test": "20 bb"})
    assert not caplog.records, "a start without evaluation says nothing of its problems"
    _remark_others(tmp_path, {"training": "5 cc", "test": "20 dd"})
    assert "the test problems are others" in caplog.text and "not compared problem by problem" in caplog.text


def test_another_model_under_the_same_name_is_remarked(tmp_path, caplog):
    model = tmp_path / "model"
    model.mkdir()
    files = {"config.json": b"{}", "tokenizer.json": b'{"a": 0}', "model.safetensors": bytes(3 << 20)}
    for name, content in files.items():
        (model / name).write_bytes(content)
    for _ in range(2):
        _remark_model(tmp_path, str(model))
    (model / "README.md").write_text("what nobody loads")
    (model / "tokenizer.old").symlink_to("nowhere")
    os.mkfifo(model / "vocab.pipe")
    _remark_model(tmp_path, str(model))
    assert not caplog.records
    for name, changed in (
        ("tokenizer.json", b'{"b": 0}'),
        ("model.safetensors", bytes(3 << 20)[:-1] + b"\1"),
        ("config.json", b'{"rope_theta": 1}'),
    ):
        (model / name).write_bytes(changed)
        _remark_model(tmp_path, str(model))
        (record,) = caplog.records
        assert record.remark and "holds another model than in the last start" in record.getMessage(), name
        caplog.clear()
    _remark_model(tmp_path, "owner/name")
    assert not caplog.records, "a name on a hub holds nothing here"


def test_a_model_with_a_merged_adapter_is_another_one(tmp_path):
    """It changes a projection between the embedding and the head."""
    (tmp_path / "config.json").write_text("{}")
    wide, small = np.zeros((700, 512), np.float32), np.zeros((64, 64), np.float32)
    found = []
    for middle in (small, small, small + 1e-3):
        tensors = {"a.embed": wide, "b.q_proj": middle, "c.head": wide}
        save_file(tensors, tmp_path / "model.safetensors")
        found.append(model_digest(str(tmp_path)))
    assert found[0] == found[1] != found[2]


def test_another_revision_under_a_hub_s_name_is_remarked(tmp_path, caplog, monkeypatch):
    snapshot = hub_snapshot(monkeypatch, tmp_path / "hub", "owner/name")
    (snapshot / "config.json").write_text("{}")
    for _ in range(2):
        _remark_model(tmp_path, "owner/name")
    assert not caplog.records
    newer = snapshot.with_name("4567")
    newer.mkdir()
    (newer / "config.json").write_text('{"rope_theta": 1}')
    (snapshot.parents[1] / "refs/main").write_text(newer.name)
    _remark_model(tmp_path, "owner/name")
    assert "model_path=owner/name holds another model than in the last start" in caplog.text


def test_keys_of_a_domain_that_came_or_went_are_remarked(tmp_path, caplog):
    for names in (["mine.depth"], ["mine.depth"]):
        _remark_keys(tmp_path, names)
    assert not caplog.records
    _remark_keys(tmp_path, ["mine.depth", "mine.bonus"])
    _remark_keys(tmp_path, ["mine.bonus"])
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" since")[0] for line in said] == ["mine.bonus is new", "mine.depth is gone"]
    assert list(dict(leaves_of({"mine": {"a": {"b": "secret"}, "c": []}}))) == ["mine.a.b", "mine.c"]


@pytest.mark.parametrize("damaged", [b"\xff\xfe", b"[1", b"[{}]", b"3"])
def test_a_damaged_note_of_keys_is_remarked_and_ends_nothing(
    damaged: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "keys_digest").write_bytes(damaged)
    _remark_keys(tmp_path, ["mine.depth"])
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "actor/keys_digest is damaged"
    ]


def test_a_worker_without_tokens_does_not_lower_the_mean_over_workers(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, Config(), 0)
    found = [RequestCounts(sent=3, tokens=10, exact_tokens=10, answer_bytes=40), RequestCounts(sent=1)]
    for worker, counts in enumerate(found):
        reporter.pulse(Pulse(worker, [], [], counts.as_dict()))
    totals = reporter._request_totals()
    reporter.close()
    assert (totals["exact_versions"], totals["bytes_per_token"], totals["sent"]) == (1.0, 4.0, 4)
    assert "prefix_cache_share" not in totals, "no engine was looked at"
