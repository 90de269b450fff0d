"""One critic group: a pair in a random order, one prompt, G verdicts with their rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from domains.raro.calls import Caller, Completion, together
from domains.raro.config import RaroSettings
from domains.raro.metrics import Source, Verdicts
from domains.raro.pairs import Pair
from domains.raro.parser import TIE, Verdict, parse_verdict
from domains.raro.prompts import critic_prompt, ordered
from domains.raro.rewards import Label, label, reward
from domains.raro.runtime import Runtime
from pipelinerl.async_llm import make_training_text
from pipelinerl.llm import Prompt
from pipelinerl.rollouts import TrainingText

ROLE = "critic"


@dataclass(frozen=True, slots=True)
class CriticGroup:
    """Texts in the order of the samples; `policy_reward` is the mean over readable verdicts, None if none."""

    verdicts: Verdicts
    texts: list[TrainingText]
    policy_reward: float | None


async def judge(pair: Pair, source: Source, age: int, caller: Caller, runtime: Runtime) -> CriticGroup:
    """Ask the critic G times about one pair; `age` of a replayed pair is in trained texts."""
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
    found = score(samples, position, source, settings)
    texts = [make_training_text(caller.llm, sample.call) for sample in samples]
    for text, value, named in zip(texts, found.rewards, found.labels):
        text.role, text.situation, text.position = ROLE, situation, "pool"
        text.reward, text.masked = (0.0, True) if value is None else (value, False)
        text.metadata |= {
            "source": source,
            "expert_position": position,
            "label": None if named is None else str(named),
            "pair_sha": pair.sha,
            "replay_age": age,
        }
    earned = [reward(named, settings).policy for named in found.labels if named is not None]
    return CriticGroup(found, texts, sum(earned) / len(earned) if earned else None)


def score(samples: Sequence[Completion], position: int, source: Source, settings: RaroSettings) -> Verdicts:
    """Verdicts, labels and critic rewards of a group; a reward of None masks the sample."""
    verdicts = [_verdict(sample, settings) for sample in samples]
    labels: list[Label | None] = [None if v is None else label(v, position) for v in verdicts]
    failed = 0.0 if settings.critic_parse_failure == "zero" else None
    rewards = [
        reward(named, settings).critic if named is not None else (None if sample.truncated else failed)
        for named, sample in zip(labels, samples)
    ]
    return Verdicts(source, verdicts, labels, [sample.truncated for sample in samples], rewards)


def _verdict(sample: Completion, settings: RaroSettings) -> Verdict | None:
    if sample.truncated:
        return None
    verdict = parse_verdict(sample.text)
    return None if verdict == TIE and not settings.allow_tie else verdict
