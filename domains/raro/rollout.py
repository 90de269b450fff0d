"""The rollout policy of `raro`: one attempt of the policy, judged by the critic beside earlier pairs.

The actor calls `generate_raro_rollout` for every attempt at a question and for evaluation.
Order of a training rollout: watermark, policy completion, answer, draw of earlier pairs, insertion of the
new one, critic groups. Drawing before inserting, at or below the watermark, keeps a rollout's own pair and
those of siblings that are sampled beside it out of what counts as earlier.
"""

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.raro.calls import Caller, Completion, together
from domains.raro.config import RaroSettings
from domains.raro.critic import CriticGroup, judge
from domains.raro.evaluate import evaluate, is_correct
from domains.raro.expert import expert_rollout
from domains.raro.metrics import Tally, length_rule
from domains.raro.normalize import normalize
from domains.raro.pairs import Pair, PairBuffer
from domains.raro.parser import extract_answer, holds_verdict
from domains.raro.prompts import policy_prompt
from domains.raro.runtime import Runtime, runtime_of
from pipelinerl.async_llm import make_training_text
from pipelinerl.base.tokenizing import encode
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import ROLLOUT_ORIGIN, RolloutResult, TrainingText

TRAIN_SPLIT = "train"


async def generate_raro_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One attempt at one question; on other splits than `train`, and in evaluation, nothing is trained."""
    runtime, caller = runtime_of(cfg), Caller(llm, session)
    if not trains(problem):
        return await evaluate(caller, problem, runtime.settings, runtime.pool)
    if runtime.settings.reward == "expert":
        return expert_rollout(llm, problem, runtime.settings)
    return await play(caller, problem, runtime)


def trains(problem: dict[str, Any]) -> bool:
    """Whether this rollout may train and touch the buffer."""
    origin = ROLLOUT_ORIGIN.get()
    return problem.get("split") == TRAIN_SPLIT and (origin is None or origin.training)


@dataclass(slots=True)
class Attempt:
    """The policy's completion; `answer` is normalised, `event` the counter of what ended it early."""

    completion: Completion
    text: TrainingText
    answer: str | None = None
    event: str | None = None


async def play(caller: Caller, problem: dict[str, Any], runtime: Runtime) -> RolloutResult:
    """The training rollout."""
    settings, buffer, tally = runtime.settings, runtime.buffer, Tally()
    watermark = await asyncio.to_thread(buffer.watermark) if buffer is not None else 0
    attempt = await attempt_question(caller, problem, settings)
    groups: list[CriticGroup] = []
    if attempt.answer is not None and buffer is None:
        right = await is_correct(problem, attempt.answer, runtime.pool, settings.short_answers)
        attempt.text.reward = float(right)
    elif attempt.answer is not None and buffer is not None:
        groups = await _judged(caller, attempt, problem, runtime, watermark, tally)
        earned = groups[0].policy_reward
        if earned is None:
            attempt.event, attempt.text.masked = "policy_unjudged", True
        else:
            attempt.text.reward = earned
    tally.attempt(attempt.event, judged=bool(groups))
    if not attempt.text.masked:
        tally.add("policy_reward", attempt.text.reward)
    tally.add("policy_tokens", attempt.text.output_tokens)
    tally.add("critic_tokens", *(text.output_tokens for group in groups for text in group.texts))
    reward = attempt.text.reward
    metrics = tally.metrics(
        reward=reward,
        success=attempt.answer is not None and reward >= settings.tau_pol,
        no_error=attempt.event is None,
        no_answer=attempt.event == "policy_answerless",
    )
    texts = [attempt.text, *(text for group in groups for text in group.texts)]
    return RolloutResult(training_texts=texts, metrics=metrics)


async def attempt_question(caller: Caller, problem: dict[str, Any], settings: RaroSettings) -> Attempt:
    """Sample one completion and read its answer; what is cut off or too long is masked."""
    prompt = policy_prompt(settings.prompt_set, problem["task"], problem["question"])
    completion = await caller.complete(prompt, settings.policy.max_tokens)
    text = make_training_text(caller.llm, completion.call)
    text.role, text.situation = "policy", "raro:policy"
    attempt = Attempt(completion, text)
    if completion.truncated:
        attempt.event, text.masked = "policy_truncated", settings.overlength == "mask"
        return attempt
    answer = read_answer(completion.text, problem, caller.llm)
    if answer is None:
        attempt.event, text.masked = "policy_answerless", settings.answerless == "mask"
    elif len(encode(caller.llm.load_tokenizer(), answer)) > settings.max_answer_tokens:
        attempt.event, text.masked = "policy_answer_too_long", True
    else:
        attempt.answer = answer
    return attempt


def read_answer(completion: str, problem: dict[str, Any], llm: TrainableLLM) -> str | None:
    """The normalised answer of a finished completion. One that spells a control token counts as none, and so
    does one that becomes a verdict tag by normalising."""
    found = extract_answer(completion)
    if found is None:
        return None
    answer = normalize(problem["task"], found)
    if holds_verdict(answer):
        return None
    control = (t.content for t in llm.load_tokenizer().added_tokens_decoder.values() if t.special)
    return None if not answer or any(token in answer for token in control) else answer


async def _judged(
    caller: Caller,
    attempt: Attempt,
    problem: dict[str, Any],
    runtime: Runtime,
    watermark: int,
    tally: Tally,
) -> list[CriticGroup]:
    """Critic groups, the fresh pair's first."""
    assert runtime.buffer is not None and attempt.answer is not None
    version, now_s = attempt.completion.version or 0, time.time()
    expert = normalize(problem["task"], problem["expert_answer"])
    fresh = Pair(
        question_id=str(problem["id"]),
        question=problem["question"],
        expert_answer=expert,
        policy_answer=attempt.answer,
        task=problem["task"],
        model_version=version,
        created_at=now_s,
    )
    wanted = replay_groups(runtime.rng, runtime.settings)
    earlier = await asyncio.to_thread(draw_then_put, runtime.buffer, runtime.rng, fresh, wanted, watermark)
    ages = [max(0, version - pair.model_version) for pair in earlier]
    for pair, age in zip(earlier, ages, strict=True):
        tally.add("replay_age", age)
        tally.add("replay_age_s", max(0.0, now_s - pair.created_at))
    if wanted:
        tally.add("replay_empty", not earlier)
    replayed = (judge(pair, "replay", age, caller, runtime) for pair, age in zip(earlier, ages))
    groups = await together([judge(fresh, "fresh", 0, caller, runtime), *replayed])
    rule = length_rule(expert, attempt.answer)
    tally.add("identical_rate", expert == attempt.answer)
    tally.add("length_rule_accuracy", rule)
    stats = await asyncio.to_thread(runtime.buffer.stats)
    tally.add("replay_size", stats.size)
    tally.add("replay_dup_rate", stats.duplicate_rate)
    for group in groups:
        tally.group(group.source, group.judgements)
        verdicts = [found.verdict for found in group.judgements]
        runtime.watch.add(verdicts, rule if group is groups[0] else None)
    return groups


def draw_then_put(buffer: PairBuffer, rng: Random, fresh: Pair, wanted: int, watermark: int) -> list[Pair]:
    """Earlier pairs up to the watermark; only then the fresh pair goes in."""
    earlier = buffer.sample(rng, wanted, watermark) if wanted else []
    buffer.put(fresh)
    return earlier


def replay_groups(rng: Random, settings: RaroSettings) -> int:
    """Replay groups beside one judged answer: x = f/(1-f) on average, floor(x) or one more."""
    expected = settings.replay.fraction / (1.0 - settings.replay.fraction)
    whole = int(expected + 1e-9)
    return whole + (rng.random() < expected - whole)
