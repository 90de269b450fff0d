"""The rollout policy of `reasoning_gym`: one question, one completion, the score of the family's verifier."""

import time
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.pool import JudgePool
from domains.prompts import question_messages
from domains.reasoning_gym.scoring import RIGHT, make_pool, score
from domains.reasoning_gym.settings import settings_of
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult
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
    call = await llm_async_generate(
        llm, Prompt(messages=question_messages(cfg, problem["question"])), session
    )
    asked = time.monotonic()
    given = await score(_pools.of(cfg), problem, call.output.content or "", settings.answer_format)
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
