"""From what the agent did to advantages: errors and choices without gold meet in their own buckets."""

import numpy as np
import pytest

from domains.privacy_hopqa.reward.capture import situational_texts
from pipelinerl.config.finetune import RLConfig
from pipelinerl.finetune.rl.sample import samples_of
from pipelinerl.preprocess.chunk import process_chunk
from pipelinerl.rollouts import RolloutOrigin, TrainingText
from tests.support.privacy_hopqa import say
from tests.support.privacy_hopqa.agent import AUDIT, TWO_HOPS, Script, Searches, others, play, settings

SITUATIONAL = settings(training_reward_mode="hop_step_situational")
RL = RLConfig(step_reward_advantages=True, filter_zero_advantage_groups=True)
OTHERS = others(4)


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


async def chunk_of(*scripts, found):
    played = []
    for rollout, script in enumerate(scripts):
        episode = await play(script, found, TWO_HOPS, max_iterations=1)
        played += samples(episode, rollout)
    return process_chunk(played, RL)


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


async def test_choices_without_gold_only_give_a_malformed_one_its_siblings():
    good = [Script(plan=say.plan("others"), choose=say.choose(f"d{n}")) for n in (1, 2)]
    bad = Script(plan=say.plan("others"), choose=say.choose("garbage"))
    result = await chunk_of(*good, bad, found={"others": OTHERS})
    trained = [text for text in ready(result) if "choose" in text[0]]
    assert trained == [("1:stage:choose:gold_absent", -1.0, -1.0)]
    assert [reason for _, reason in result.dropped] == ["baseline_only", "baseline_only"]


@pytest.mark.parametrize("attempts", [2, 3])
async def test_every_attempt_at_a_plan_is_a_text_scored_by_its_own_decision(attempts):
    script = Script(plan=[*[say.plan("")] * (attempts - 1), say.local("gold")])
    searches = Searches({"gold": [AUDIT]})
    episode = await play(script, searches, max_iterations=1, hop_plan_attempts=3)
    texts = situational_texts(episode.calls, SITUATIONAL, {})
    assert [text.reward for text in texts] == [0.0] * (attempts - 1) + [1.25]
    assert len({text.situation for text in texts}) == 1
