"""One critic group: a pair in a random order, one prompt, G verdicts with their rewards.

Called by the training rollout for the fresh pair and for every pair from the buffer.
"""

from dataclasses import dataclass

from domains.raro.calls import Caller, Completion, together
from domains.raro.config import RaroSettings
from domains.raro.metrics import Judgement, Source
from domains.raro.pairs import Pair
from domains.raro.parser import TIE, parse_verdict
from domains.raro.prompts import critic_prompt, ordered
from domains.raro.rewards import label, reward
from domains.raro.runtime import Runtime
from pipelinerl.async_llm import make_training_text
from pipelinerl.llm import Prompt
from pipelinerl.rollouts import TrainingText


@dataclass(frozen=True, slots=True)
class CriticGroup:
    """Judgements and texts in the order of the samples."""

    source: Source
    judgements: list[Judgement]
    texts: list[TrainingText]
    policy_reward: float | None
    """Mean over the readable verdicts; None without any."""


async def judge(pair: Pair, source: Source, age: int, caller: Caller, runtime: Runtime) -> CriticGroup:
    """Ask the critic G times about one pair; `age` of a replayed pair is in trained samples."""
    settings, rng = runtime.settings, runtime.rng
    position = rng.choice((1, 2))
    situation = f"raro:critic:{pair.sha[:12]}-e{position}-{rng.getrandbits(32):08x}"
    rendered = critic_prompt(
        settings.prompt_set, pair.question, *ordered(pair.expert_answer, pair.policy_answer, position)
    )
    # The ids are fixed here, so that all samples of the group continue the same prompt.
    prompt = Prompt(messages=rendered.messages, token_ids=caller.llm.prompt_ids(rendered).tolist())

    async def ask() -> Completion:
        async with runtime.critic_slots:
            return await caller.complete(prompt, settings.critic.max_tokens)

    samples = await together([ask() for _ in range(settings.critic_group_size)])
    judgements = [judgement(sample, position, settings) for sample in samples]
    texts = [make_training_text(caller.llm, sample.call) for sample in samples]
    for text, found in zip(texts, judgements):
        text.role, text.situation, text.position = "critic", situation, "pool"
        text.reward, text.masked = found.reward or 0.0, found.reward is None
        text.metadata |= {
            "source": source,
            "expert_position": position,
            "label": None if found.label is None else str(found.label),
            "pair_sha": pair.sha,
            "replay_age": age,
        }
    earned = [reward(found.label, settings).policy for found in judgements if found.label is not None]
    return CriticGroup(source, judgements, texts, sum(earned) / len(earned) if earned else None)


def judgement(sample: Completion, position: int, settings: RaroSettings) -> Judgement:
    """What one sample says; its reward is None where the sample is masked."""
    if sample.truncated:  # a tag may stand in it by chance
        return Judgement(truncated=True)
    verdict = parse_verdict(sample.text)
    if verdict is None or (verdict == TIE and not settings.allow_tie):
        return Judgement(reward=0.0 if settings.critic_parse_failure == "zero" else None)
    named = label(verdict, position)
    return Judgement(verdict, named, reward(named, settings).critic)
