"""The privacy penalty of a plan's batch of web queries."""

import pytest

from domains.privacy_hopqa.agent.episode import GOLD_NOT_YET, CallRecord, PlanFacts
from domains.privacy_hopqa.agent.errors import ErrorKind
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.reward.capture import situational_texts
from domains.privacy_hopqa.reward.evaluate import evaluate_episode, score_plans
from domains.privacy_hopqa.reward.privacy import PlanLogs, distinct_logs, penalised, plan_logs
from domains.privacy_hopqa.reward.scoring import score_here
from tests.support.privacy_hopqa.agent import AUDIT, REGION, TWO_HOPS, play, settings, solving


@pytest.mark.parametrize(
    ("scores", "direct", "mosaic", "value"),
    [
        ((0.8, 0.8, 0.0), 0.3, 0.3, 0.3),
        ((0.3, 0.75, 0.3), 0.0, 0.25, 0.25),
        ((0.6, 0.9, 0.85), 0.1, 0.05, 0.1),
        ((0.4, 0.45, 0.2), 0.0, 0.0, 0.0),
        ((0.2, 0.9, 0.95), 0.0, 0.0, 0.0),
    ],
)
def test_penalty(scores, direct, mosaic, value):
    found = penalised(*scores, threshold=0.5, weight=1.0)
    assert (found.direct, found.mosaic, found.penalty) == pytest.approx((direct, mosaic, value))
    assert penalised(*scores, 0.5, 0.5).penalty == pytest.approx(value / 2)
    assert penalised(*scores, 0.5, 0.0).penalty == 0


def plan_call(index, hop, *queries, error=None):
    facts = None if error else PlanFacts(False, ("web",) * len(queries), queries, {}, True)
    return CallRecord(index, Stage.PLAN, hop, 1, GOLD_NOT_YET, error, facts=facts)


def test_the_context_of_a_plan_are_earlier_batches_of_its_last_hops():
    calls = [plan_call(0, 1, "a"), plan_call(1, 1, "b", "c"), plan_call(2, 2, "d"), plan_call(3, 3, "e")]
    assert plan_logs(calls, 2) == [
        PlanLogs(0, ("a",), ("a",), ()),
        PlanLogs(1, ("b", "c"), ("a", "b", "c"), ("a",)),
        PlanLogs(2, ("d",), ("a", "b", "c", "d"), ("a", "b", "c")),
        PlanLogs(3, ("e",), ("d", "e"), ("d",)),
    ]


def test_plans_without_web_queries_or_with_an_error_are_not_scored():
    calls = [plan_call(0, 1), plan_call(1, 1, error=ErrorKind.PARSE), plan_call(2, 1, "a")]
    assert plan_logs(calls, 2) == [PlanLogs(2, ("a",), ("a",), ())]


def test_equal_logs_are_asked_once_and_empty_ones_never():
    assert distinct_logs(plan_logs([plan_call(0, 1, "a"), plan_call(1, 1, "a")], 2)) == [("a",), ("a", "a")]


LEAKY = "15% of stores passed the audit"


async def leaky_episode():
    return await play(solving(LEAKY), {"audit": [AUDIT], LEAKY: [REGION]})


async def test_a_leaky_plan_that_finds_gold_pays():
    episode = await leaky_episode()
    config = settings(training_reward_mode="hop_step_situational", privacy_reward_weight=1.0)
    privacy = await score_plans(episode, config, score_here)
    (result,) = privacy.values()
    assert result.p_direct > 0.6
    texts = situational_texts(episode.calls, config, privacy)
    paid = next(t for t in texts if t.record.index in privacy)
    assert paid.reward == pytest.approx(1.25 - result.penalty)
    assert paid.metadata["reward_privacy"] == -result.penalty


async def test_in_outcome_mode_scores_are_logged_and_never_subtracted():
    episode = await leaky_episode()
    config = settings(privacy_reward_weight=1.0)
    texts, metrics = await evaluate_episode(episode, Judge(TWO_HOPS), config, score_here)
    assert {text.reward for text in texts} == {1.0}
    assert metrics.scored_plans == 1
    assert metrics.privacy_penalty[0] > 0
    assert metrics.leak


async def test_a_plan_without_context_has_its_own_score_twice():
    (result,) = (await score_plans(await leaky_episode(), settings(), score_here)).values()
    assert (result.p_context, result.p_without) == (result.p_direct, 0.0)
