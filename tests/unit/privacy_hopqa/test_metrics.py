"""Metrics of a rollout, and the privacy penalty of a plan's batch of web queries."""

import pytest

from domains.privacy_hopqa.agent.episode import GOLD_NOT_YET, CallRecord, PlanFacts
from domains.privacy_hopqa.agent.errors import ErrorKind
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.reward.capture import situational_texts
from domains.privacy_hopqa.reward.evaluate import evaluate_episode, score_plans
from domains.privacy_hopqa.reward.privacy import PlanLogs, distinct_logs, penalised, plan_logs
from domains.privacy_hopqa.reward.rewards import judge_outcome
from domains.privacy_hopqa.reward.scoring import score_here
from tests.support.privacy_hopqa import say
from tests.support.privacy_hopqa.agent import (
    AUDIT,
    GOLD_LOCAL,
    REGION,
    TWO_HOPS,
    Script,
    answering,
    chain_of,
    document,
    hop,
    others,
    play,
    settings,
    solving,
)

OTHERS = others(4)


async def measured(script, found, chain=TWO_HOPS, **changes):
    config = settings(training_reward_mode="hop_step_situational", **changes)
    episode = await play(script, found, chain, **changes)
    return (await evaluate_episode(episode, Judge(chain), config, score_here))[1]


async def test_a_perfect_rollout():
    m = await measured(
        solving(choose=say.choose("d2")), {"audit": [OTHERS[0], AUDIT, *OTHERS[1:]], "coverage": [REGION]}
    )
    assert m.success and m.strict_chain_success and m.well_formed and m.no_error
    assert m.reward == 1
    assert m.success_if_well_formed == [1.0]
    assert (m.correct_hops, m.total_hops, m.prefix_hops, m.blocked_hops) == (2, 2, 2, 0)
    assert m.first_incorrect_hop is None
    assert m.gold_retrieved_before_cut == m.gold_retrieved_after_cut == m.gold_read == [1.0, 1.0]
    assert m.plan_gold_retrieved == m.plan_right_source == [1.0, 1.0]
    assert m.choose_correct == m.choose_correct_gold_not_first == [1.0]
    assert m.read_correct_when_held == [1.0, 1.0]
    assert m.resolve_accuracy == [1.0, 1.0]
    assert m.parse_valid == [1.0] * m.llm_calls
    assert (m.searches_local, m.searches_web, m.web_queries) == (1, 1, 1)
    assert (m.captured_texts, m.trained_texts) == (3, 3)
    assert m.model_extra["success_hops_2"] == m.model_extra["success_pattern_LW"] == 1.0
    assert m.model_extra["hop_plan_reward"] == [1.25, 1.25]
    assert not m.leak


async def test_a_false_positive_read_and_a_blocked_hop():
    script = answering("99%", plan=[say.local("audit"), "[]"], resolve=[say.done("99%"), say.SEARCH_MORE])
    m = await measured(script, {"audit": OTHERS[:1]}, max_iterations=2)
    assert m.read_false_positive == [1.0, 1.0]
    assert m.read_accuracy == [0.0, 0.0]
    assert m.resolve_answers_when_not[0] == 1.0
    assert (m.correct_hops, m.blocked_hops, m.prefix_hops, m.first_incorrect_hop) == (0, 1, 0, 1)
    assert m.conditional_accuracy == [0.0]
    assert not m.no_answer
    assert not m.chain_complete


async def test_a_stage_error():
    m = await measured(Script(plan="garbage"), {})
    assert (m.no_error, m.well_formed, m.no_answer, m.reward) == (False, False, True, 0.0)
    assert m.success_if_well_formed == []
    assert m.parse_valid == [0.0]
    assert m.model_extra["errors_parse"] == 1
    assert m.model_extra["hop_plan_errors"] == 1
    assert m.model_extra["hop_plan_reward"] == [-1.0]


async def test_errors_are_counted_per_stage_and_kind_and_recovered_ones_too():
    script = Script(
        plan=[say.local("audit"), say.local("more"), "garbage"],
        choose=['{"selected_doc_ids": ["d99", "d1"]}', say.choose("d1")],
        read=["garbage", say.NO],
        resolve=[say.done("made up"), '{"answered": false, "next_step": "read_more"}'],
    )
    found = {"audit": OTHERS, "more": [*OTHERS, document("web/2")]}
    m = await measured(script, found, max_iterations=3)
    extra = m.model_extra
    assert extra["hop_plan_errors_parse"] == extra["doc_read_errors_parse"] == 1
    assert extra["errors_parse"] == 2
    assert (extra["hop_resolve_errors_resolver_wipe"], m.resolver_wipes) == (1, 1)
    assert extra["hop_resolve_errors_invalid_ids"] == extra["errors_invalid_ids"] == 1
    assert (extra["doc_choose_unknown_ids"], m.invalid_ids) == (1, 1)
    assert (extra["hop_plan_errors"], extra["hop_resolve_errors"], extra["doc_read_errors"]) == (1, 0, 1)
    assert extra["doc_choose_valid"] == [1.0, 1.0]


async def test_how_a_rollout_ended_and_what_its_iterations_were_spent_on():
    m = await measured(Script(plan=["[]", say.plan(""), "garbage"]), {}, max_iterations=3)
    assert (m.ended_complete, m.ended_at_cap, m.ended_by_error) == (False, False, True)
    assert (m.stopped_plans, m.spent_iterations, m.read_more_rounds) == (1, 2, 0)
    read_on = Script(
        plan=say.local("audit"),
        resolve=lambda r: say.read_more(r.context.unread[0].doc_id),
        choose=say.choose("d1"),
    )
    m = await measured(read_on, {"audit": OTHERS}, max_iterations=1, max_read_rounds=2)
    assert (m.ended_at_cap, m.read_more_rounds, m.read_rounds_exhausted) == (True, 1, 1)


async def test_leakage_is_measured_online_and_sliced_like_success():
    m = await measured(Script(plan=say.plan("15% of stores passed the audit")), {}, max_iterations=1)
    assert (m.leak, m.leak_answer, m.leak_full) == (True, True, True)
    assert m.privacy_direct[0] > 0
    for name in ("hops_2", "pattern_LW", "task_DR90001", "split_train"):
        assert (m.model_extra[f"success_{name}"], m.model_extra[f"leak_{name}"]) == (0.0, 1.0)


async def test_finished_hops_count_after_a_fatal_error_but_earn_nothing():
    m = await measured(answering("15%", plan=[say.local("audit"), "garbage"]), {"audit": [AUDIT]})
    assert (m.correct_hops, m.reward, m.no_error) == (1, 0.0, False)


async def test_a_malformed_read_is_not_well_formed_but_no_fatal_error():
    m = await measured(Script(plan=say.local("audit"), read="garbage"), {"audit": [AUDIT]}, max_iterations=1)
    assert (m.well_formed, m.no_error) == (False, True)


async def test_a_rightly_refused_window_of_a_question_with_a_wrong_value_is_no_miss():
    script = Script(
        plan=[say.local("audit"), say.plan("coverage")],
        read=[say.yes("99%"), say.NO, say.NO],
        resolve=[say.done("99%"), say.SEARCH_MORE],
    )
    m = await measured(script, {"audit": [AUDIT], "coverage": [REGION]}, max_iterations=2)
    assert m.read_correct_when_held == [0.0]
    assert m.read_accuracy[1:] == [1.0] * len(m.read_accuracy[1:])


async def test_a_chain_without_private_hops_is_counted_and_never_penalised():
    chain = chain_of(hop(1, "Q?", "a", "web/1"))
    m = await measured(Script(plan=say.plan("anything")), {}, chain)
    assert m.chain_without_facts
    assert m.scored_plans == 0
    assert not m.leak


async def test_the_final_answer_counts_for_strict_success():
    chain = chain_of(hop(1, "Q?", "15%", GOLD_LOCAL), global_answer="something else")
    episode = await play(answering("15%"), {"audit": [AUDIT]}, chain)
    outcome = judge_outcome(episode, Judge(chain), settings())
    assert outcome.correct == (True,)
    assert not outcome.strict_success


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
