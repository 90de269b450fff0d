"""Rewards by outcome and by situation, which calls become which texts, and with whom these are compared."""

import json

import numpy as np
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
from domains.privacy_hopqa.reward.rewards import StepReward, outcome_reward, step_reward
from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.sample import samples_of
from pipelinerl.preprocess.chunk import process_chunk
from pipelinerl.rollouts import RolloutOrigin, TrainingText
from tests.support.privacy_hopqa import say
from tests.support.privacy_hopqa.agent import AUDIT, TWO_HOPS, Script, Searches, others, play, settings

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


MALFORMED = {"error": ErrorKind.PARSE}
NO_ERROR_REWARD = {"zero_error_step_reward": False}
BONUSES = {"hop_step_doc_bonus": 0.5, "hop_step_source_bonus": 0.1}


@pytest.mark.parametrize(
    ("call", "changes", "reward", "weight"),
    [
        (choose_call(GOLD_ABSENT), {}, 0.0, 0.0),  # only a baseline
        (choose_call(GOLD_ABSENT, **MALFORMED), {}, -1.0, 1.0),
        (plan_call(GOLD_ALREADY, empty=True), {"train_stopping": False}, 1.0, 0.0),
        (plan_call(GOLD_ALREADY, right=True), {"train_stopping": False}, 0.25, 0.0),
        (plan_call(right=True), {"train_stopping": False}, 0.25, 1.0),
        (plan_call(GOLD_ALREADY, **MALFORMED), {"train_stopping": False}, -1.0, 1.0),
        (plan_call(**MALFORMED), NO_ERROR_REWARD, 0.0, 1.0),
        (choose_call(GOLD_VISIBLE, **MALFORMED), NO_ERROR_REWARD, 0.0, 1.0),
        (choose_call(GOLD_ABSENT, **MALFORMED), NO_ERROR_REWARD, 0.0, 0.0),
        (plan_call(gold=True, right=True), BONUSES, 1.5, 1.0),
        (plan_call(right=True), BONUSES, 0.1, 1.0),
    ],
)
def test_baselines_and_rewards_that_settings_change(call, changes, reward, weight):
    assert step_reward(call, SITUATIONAL.model_copy(update=changes)) == StepReward(reward, weight)


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
        Script(plan=say.plan("a", source="nowhere")),
    ],
)
async def test_garbage_never_earns_more_than_zero(script):
    script = Script(script.plan, script.choose)
    gold_first = {"a": [AUDIT, *OTHERS]}
    episode = await play(script, gold_first, choose_top_k=1)
    earned = [text.reward for text in situational_texts(episode.calls, SITUATIONAL, {})]
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


async def test_anchors_keep_a_few_reads_and_resolutions_without_reward():
    episode = await played()
    config = SITUATIONAL.model_copy(update={"anchor_stages": True, "anchor_max_texts": 2})
    texts = situational_texts(episode.calls, config, {})
    anchors = [t for t in texts if t.role == "anchor"]
    assert {t.role for t in texts} == {"policy", "anchor"}
    assert {t.record.stage for t in texts if t.role == "policy"} == {Stage.PLAN, Stage.CHOOSE}
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


RL = RLConfig(step_reward_advantages=True, filter_zero_advantage_groups=True)


def samples(episode, rollout):
    """The samples of a rollout as the actor sends them."""
    texts = []
    for captured in situational_texts(episode.calls, SITUATIONAL, {}):
        text = TrainingText(
            text="abc",
            n_predicted=2,
            reward=captured.reward,
            input_ids=np.arange(3),
            labels=[-100, 1, 2],
            logprobs=[-1.0, -1.0],
            situation=captured.situation,
            loss_weight=captured.loss_weight,
            finish_reason="stop",
            metadata=captured.metadata,
        )
        texts.append(text)
    return samples_of(texts, RolloutOrigin("g", rollout, 0, training=True))


async def chunk_of(*scripts, found, rl=RL, max_iterations=1):
    played = []
    for rollout, script in enumerate(scripts):
        episode = await play(script, found, TWO_HOPS, max_iterations=max_iterations)
        played += samples(episode, rollout)
    return process_chunk(played, rl)


def ready(result):
    """(situation's end, reward, advantage) of every text that is trained."""
    return [(t.situation.split(":", 2)[2], t.reward, round(t.advantage, 6)) for t in result.ready]


async def test_malformed_plans_are_compared_with_good_ones_of_the_same_situation():
    result = await chunk_of(
        Script(plan=say.local("gold")),
        Script(plan=say.local("nothing")),
        Script(plan="garbage"),
        Script(plan='{"type": "web_search"}'),
        found={"gold": [AUDIT]},
    )
    where = "1:stage:plan:gold_not_yet_retrieved"
    assert ready(result) == [
        (where, 1.25, 1.833333),
        (where, 0.25, 0.5),
        (where, -1.0, -1.166667),
        (where, -1.0, -1.166667),
    ]


@pytest.mark.parametrize(("pad", "first"), [(False, 0.0), (True, -1.0)])
async def test_padding_compares_an_early_plan_with_rollouts_that_needed_fewer(pad, first):
    """The first of two plans is alone at its place, unless a rollout that found gold at once stands there."""
    result = await chunk_of(
        Script(plan=[say.local("gold"), "[]"]),
        Script(plan=[say.local("nothing"), say.local("gold")]),
        found={"gold": [AUDIT]},
        rl=RLConfig(step_reward_advantages=True, pad_step_rewards_for_advantage=pad),
        max_iterations=2,
    )
    searching = [
        text for text in result.ready if text.situation.endswith("1:stage:plan:gold_not_yet_retrieved")
    ]
    assert [(t.rollout_index, t.reward) for t in searching] == [(0, 1.25), (1, 0.25), (1, 1.25)]
    assert [round(t.advantage, 6) for t in searching] == [0.0, first, 0.0]
    assert result.advantages.padding_rows == int(pad)


async def test_choices_without_gold_only_give_a_malformed_one_its_siblings():
    good = [Script(plan=say.plan("others"), choose=say.choose(f"d{n}")) for n in (1, 2)]
    bad = Script(plan=say.plan("others"), choose=say.choose("garbage"))
    result = await chunk_of(*good, bad, found={"others": OTHERS})
    trained = [text for text in ready(result) if "choose" in text[0]]
    assert trained == [("1:stage:doc_choose:gold_absent", -1.0, -1.0)]
    assert [reason for _, reason in result.dropped] == ["baseline_only", "baseline_only"]


@pytest.mark.parametrize("attempts", [2, 3])
async def test_every_attempt_at_a_plan_is_a_text_scored_by_its_own_decision(attempts):
    script = Script(plan=[*[say.plan("")] * (attempts - 1), say.local("gold")])
    searches = Searches({"gold": [AUDIT]})
    episode = await play(script, searches, max_iterations=1, hop_plan_attempts=3)
    texts = situational_texts(episode.calls, SITUATIONAL, {})
    assert [text.reward for text in texts] == [0.0] * (attempts - 1) + [1.25]
    assert len({text.situation for text in texts}) == 1
