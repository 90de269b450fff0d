"""The rollout policy of `logic`: one puzzle, one completion, one verdict."""

from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.logic.settings import KEY, LogicSettings, settings_of
from domains.logic.verifier_api import Verdict, ask_verdict, judged
from domains.math.rewards import rollout_reward
from domains.pool import JudgePool
from domains.prompts import question_messages
from domains.reasoning_gym.scoring import make_pool
from domains.verdict_server import any_server
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult
from pipelinerl.utils import PerTree, resolve_environment_key


class LogicMetrics(BaseMetrics):
    """Statistics of one answer."""

    penalty: float
    """Length penalty, at most 0."""
    score: float
    """The family's score of a generated puzzle; 0 or 1 of a published one."""


def _pool(cfg: DictConfig) -> JudgePool:
    settings = settings_of(cfg)
    return make_pool(settings.workers, settings.deadline_s, settings.memory_mb)


_settings: PerTree[LogicSettings] = PerTree(settings_of)
_pools = PerTree(_pool)


async def verdict(
    cfg: DictConfig, problem: dict[str, Any], completion: str, session: aiohttp.ClientSession
) -> Verdict:
    """From one of the run's servers, or without any from this worker's processes."""
    context, form = problem["reward_context"], _settings.of(cfg).answer_format
    server = any_server(cfg, resolve_environment_key(cfg, default=KEY))
    if server is None:
        return await judged(_pools.of(cfg), completion, context, form)
    return await ask_verdict(session, *server, completion, context, form)


async def generate_logic_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Answer one puzzle; the reward is that of `rewards`, discounted and shortened by its length."""
    call = await llm_async_generate(
        llm, Prompt(messages=question_messages(cfg, problem["task"], KEY)), session
    )
    found = await verdict(cfg, problem, call.completion, session)
    status = found["answer_status"]
    text = make_training_text(llm, call)
    text.reward, penalty = rollout_reward(cfg, llm, [text], status)
    metrics = LogicMetrics(
        reward=text.reward,
        success=status == "correct",
        no_error=status != "unparsable",
        no_answer=status == "no_answer",
        penalty=penalty,
        score=float(found["score"]),
    )
    return RolloutResult(
        training_texts=[text],
        metrics=metrics,
        dataset_name=problem.get("dataset"),
        domain=KEY,
    )
