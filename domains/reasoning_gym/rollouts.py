"""The rollout policy of `reasoning_gym`: one question, one completion, the score of the family's verifier.

With `reasoning_gym.reward=gold` training samples nothing: it imitates the families' own answers.
"""

import time
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.imitation import text_to_imitate
from domains.pool import JudgePool
from domains.prompts import question_messages
from domains.reasoning_gym.answers import in_format
from domains.reasoning_gym.families import entry
from domains.reasoning_gym.scoring import RIGHT, make_pool, score
from domains.reasoning_gym.settings import KEY, ReasoningGymSettings, settings_of
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import ROLLOUT_ORIGIN, BaseMetrics, RolloutResult
from pipelinerl.utils import PerTree


class ReasoningGymMetrics(BaseMetrics):
    """Statistics of one answer."""

    verify_s: float
    """Seconds the verdict took, waiting included."""


def _pool(cfg: DictConfig) -> JudgePool:
    settings = settings_of(cfg)
    return make_pool(settings.workers, settings.deadline_s, settings.memory_mb)


_settings = PerTree(settings_of)
_pools = PerTree(_pool)


async def generate_reasoning_gym_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Answer one question; the reward is the score, or 1 and 0 with `partial_credit=false`."""
    settings = _settings.of(cfg)
    prompt = Prompt(messages=question_messages(cfg, problem["question"], KEY))
    origin = ROLLOUT_ORIGIN.get()
    if settings.reward == "gold" and (origin is None or origin.training):
        return gold_rollout(llm, prompt, problem, settings)
    call = await llm_async_generate(llm, prompt, session)
    asked = time.monotonic()
    given = await score(_pools.of(cfg), problem, call.completion, settings.answer_format)
    found, answered = given
    success = found is not None and found >= RIGHT
    text = make_training_text(llm, call)
    text.reward = (found or 0.0) if settings.partial_credit else float(success)
    metrics = ReasoningGymMetrics(
        reward=text.reward,
        success=success,
        no_error=found is not None,
        no_answer=not answered,
        verify_s=time.monotonic() - asked,
    )
    return RolloutResult(
        training_texts=[text],
        metrics=metrics,
        dataset_name=problem["dataset"],
    )


def gold_rollout(
    llm: TrainableLLM, prompt: Prompt, problem: dict[str, Any], settings: ReasoningGymSettings
) -> RolloutResult:
    """The question with the family's own answer as one text to imitate (`finetune.rl.policy_loss=sft`).

    Raises ValueError for a family without answers, which a run of several domains finds only here.
    """
    found = entry(problem["task"], problem["options"], problem["seed"], problem["index"])
    if found["answer"] is None:
        raise ValueError(f"family {problem['task']}: has no answer that {KEY}.reward=gold could imitate")
    text = text_to_imitate(llm, prompt, in_format(str(found["answer"]), settings.answer_format))
    metrics = ReasoningGymMetrics(reward=1.0, success=True, no_error=True, no_answer=False, verify_s=0.0)
    return RolloutResult(training_texts=[text], metrics=metrics, dataset_name=problem["dataset"])
