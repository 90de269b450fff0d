"""Rewards by outcome and by situation, and which calls become which texts."""

import json

import pytest

from domains.privacy_hopqa.agent.episode import (
    ANCHOR,
    GOLD_ABSENT,
    GOLD_ALREADY,
    GOLD_NOT_YET,
    GOLD_VISIBLE,
    CallRecord,
    ChooseFacts,
    PlanFacts,
)
from domains.privacy_hopqa.agent.errors import ErrorKind
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.reward.capture import (
    anchor_calls,
    captured_calls,
    outcome_texts,
    situational_texts,
)
from domains.privacy_hopqa.reward.rewards import StepReward, outcome_reward, situation_label, step_reward
from tests.support.privacy_hopqa import say
from tests.support.privacy_hopqa.agent import AUDIT, Script, others, play, settings

SITUATIONAL = settings(training_reward_mode="hop_step_situational")
OTHERS = others(4)


def plan_call(situation=GOLD_NOT_YET, sources=(), *, empty=False, right=False, gold=False, error=None):
    facts = None if error else PlanFacts(empty, sources, (), {}, right, gold)
    return CallRecord(0, Stage.PLAN, 2, 1, situation, error, "clean", facts, call="call")


def choose_call(situation, selected=False, error=None):
    facts = None if error else ChooseFacts(situation == GOLD_VISIBLE, False, selected, 0)
    return CallRecord(0, Stage.CHOOSE, 1, 1, situation, error, "clean", facts, call="call")


@pytest.mark.parametrize(
    ("call", "reward"),
    [
        (plan_call(right=True, gold=True), 1.25),
        (plan_call(gold=True), 1.25),
        (plan_call(right=True), 0.25),
        (plan_call(), 0.0),
        (plan_call(empty=True), 0.0),
        (plan_call(error=ErrorKind.PARSE), -1.0),
        (plan_call(GOLD_ALREADY, empty=True), 1.0),
        (plan_call(GOLD_ALREADY, right=True), 0.25),
        (plan_call(GOLD_ALREADY, right=True, gold=True), 0.25),
        (plan_call(GOLD_ALREADY), 0.0),
        (plan_call(GOLD_ALREADY, error=ErrorKind.WRONG_TYPE), -1.0),
        (choose_call(GOLD_VISIBLE, True), 1.0),
        (choose_call(GOLD_VISIBLE), 0.0),
        (choose_call(GOLD_VISIBLE, error=ErrorKind.INVALID_IDS), -1.0),
    ],
)
def test_step_rewards(call, reward):
    assert step_reward(call, SITUATIONAL) == StepReward(reward, 1.0)


def test_stopping_may_be_left_untrained_and_then_only_serves_as_a_baseline():
    left = settings(training_reward_mode="hop_step_situational", train_stopping=False)
    assert step_reward(plan_call(GOLD_ALREADY, empty=True), left) == StepReward(1.0, 0.0)
    assert step_reward(plan_call(GOLD_ALREADY, right=True), left) == StepReward(0.25, 0.0)
    assert step_reward(plan_call(right=True), left) == StepReward(0.25, 1.0)
    assert step_reward(plan_call(GOLD_ALREADY, error=ErrorKind.PARSE), left) == StepReward(-1.0, 1.0)


def test_a_choice_without_gold_only_serves_as_a_baseline_unless_malformed():
    assert step_reward(choose_call(GOLD_ABSENT), SITUATIONAL) == StepReward(0.0, 0.0)
    assert step_reward(choose_call(GOLD_ABSENT, error=ErrorKind.PARSE), SITUATIONAL) == StepReward(-1.0, 1.0)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (plan_call(error=ErrorKind.PARSE), StepReward(0.0, 1.0)),
        (choose_call(GOLD_VISIBLE, error=ErrorKind.PARSE), StepReward(0.0, 1.0)),
        (choose_call(GOLD_ABSENT, error=ErrorKind.PARSE), StepReward(0.0, 0.0)),
    ],
)
def test_without_error_rewards_the_last_row_of_the_situation_counts(call, expected):
    assert step_reward(call, SITUATIONAL.model_copy(update={"zero_error_step_reward": False})) == expected


def test_the_document_bonus_may_differ_from_the_source_bonus():
    config = SITUATIONAL.model_copy(update={"hop_step_doc_bonus": 0.5, "hop_step_source_bonus": 0.1})
    assert step_reward(plan_call(gold=True, right=True), config) == StepReward(1.5)
    assert step_reward(plan_call(right=True), config) == StepReward(0.1)


def test_the_situation_label():
    assert situation_label(plan_call()) == "privacy_hopqa:hop:2:stage:plan:gold_not_yet_retrieved"
    assert situation_label(choose_call(GOLD_ABSENT)) == "privacy_hopqa:hop:1:stage:choose:gold_absent"


@pytest.mark.parametrize(
    ("correct", "mode", "fatal", "reward"),
    [
        ([True, False], "hop_accuracy", False, 0.5),
        ([True, True], "hop_accuracy", False, 1.0),
        ([True, False], "all_hops_correct", False, 0.0),
        ([True, True], "all_hops_correct", False, 1.0),
        ([True, True], "hop_accuracy", True, 0.0),
        ([True, True], "all_hops_correct", True, 0.0),
    ],
)
def test_outcome_reward(correct, mode, fatal, reward):
    assert outcome_reward(correct, mode, fatal) == reward


@pytest.mark.parametrize(
    "script",
    [
        Script(plan='{"type":"web_search"}'),
        Script(plan="[[]]"),
        Script(plan='["garbage"]'),
        Script(plan="garbage []ooh []"),
        Script(plan=[say.local("a"), say.local("a")], choose=say.choose("d99")),
        Script(plan=say.plan("a", source="nowhere")),
    ],
)
async def test_garbage_never_earns_more_than_zero(script):
    script = Script(script.plan, script.choose)
    gold_first = {"a": [AUDIT, *OTHERS]}
    episode = await play(script, gold_first, choose_top_k=1)
    earned = [text.reward for text in situational_texts(episode.calls, SITUATIONAL, {})]
    if script.plan == [say.local("a"), say.local("a")]:
        assert earned == [1.25, -1.0]  # the first plan is good, the choice by a garbage id is not
    else:
        assert earned
        assert max(earned) <= 0


async def played():
    script = Script(plan=[say.local("a"), say.plan("b")], read=say.yes("15%"), resolve=say.done("15%"))
    return await play(script, {"a": OTHERS, "b": OTHERS})


async def test_planning_only_captures_plans_and_choices_and_all_calls_everything():
    episode = await played()
    stages = {r.stage for r in captured_calls(episode.calls, settings())}
    assert stages == {Stage.PLAN, Stage.CHOOSE}
    everything = captured_calls(episode.calls, settings(capture_mode="all_calls"))
    assert len(everything) == len(episode.calls)
    texts = outcome_texts(episode.calls, 0.5, settings(), {})
    assert {(t.reward, t.situation, t.role, t.loss_weight) for t in texts} == {(0.5, None, None, 1.0)}


async def test_situational_mode_drops_reads_and_resolutions():
    episode = await played()
    config = SITUATIONAL.model_copy(update={"capture_mode": "all_calls"})
    texts = situational_texts(episode.calls, config, {})
    assert {t.record.stage for t in texts} == {Stage.PLAN, Stage.CHOOSE}
    assert {t.role for t in texts} == {None}
    assert all(t.situation for t in texts)


async def test_anchors_keep_a_few_reads_and_resolutions_without_reward():
    episode = await played()
    config = SITUATIONAL.model_copy(update={"anchor_stages": True, "anchor_max_texts": 2})
    texts = situational_texts(episode.calls, config, {})
    anchors = [t for t in texts if t.role == "anchor"]
    assert {t.role for t in texts} == {"policy", "anchor"}
    assert [t.record.stage for t in anchors] == [Stage.READ, Stage.RESOLVE]
    assert {(t.reward, t.loss_weight) for t in anchors} == {(0.0, 1.0)}
    assert all(t.situation.endswith(":anchor") for t in anchors)
    assert [t.record.index for t in texts] == sorted(t.record.index for t in texts)


@pytest.mark.parametrize(
    ("reads", "resolves", "limit", "kept"),
    [(6, 3, 4, (2, 2)), (6, 1, 4, (3, 1)), (1, 6, 4, (1, 3)), (1, 1, 4, (1, 1)), (3, 3, 1, (1, 0))],
)
def test_anchors_are_shared_between_reads_and_resolutions(reads, resolves, limit, kept):
    stages = [Stage.READ] * reads + [Stage.RESOLVE] * resolves
    calls = [CallRecord(i, stage, 1, 1, ANCHOR, call="c") for i, stage in enumerate(stages)]
    chosen = anchor_calls(calls, limit)
    assert chosen == anchor_calls(calls, limit)
    assert (sum(c.stage == Stage.READ for c in chosen), sum(c.stage == Stage.RESOLVE for c in chosen)) == kept


async def test_a_call_without_an_answer_gives_no_text():
    episode = await played()
    episode.calls[0].call = None
    texts = situational_texts(episode.calls, SITUATIONAL, {})
    assert 0 not in {t.record.index for t in texts}


async def test_metadata_stay_small():
    long = Script(plan=say.plan(*(letter * 1000 for letter in "üöäßéè")))
    episode = await play(long, max_iterations=1, max_parallel_retrieval_actions=6)
    (text,) = situational_texts(episode.calls, SITUATIONAL, {})
    assert len(json.dumps(text.metadata).encode()) <= 8192 - 512
    assert text.metadata["web_queries_left_out"] == text.metadata["actions"] == 6
    short = await play(Script(plan=say.plan("x", "y")), max_iterations=1)
    assert situational_texts(short.calls, SITUATIONAL, {})[0].metadata["web_queries"] == ["x", "y"]
