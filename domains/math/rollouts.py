"""The rollout policy of `math`: one question, one completion, one verdict."""

import time
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.math.client import verify_answer_rpc
from domains.math.environment import MathEnvironment
from domains.math.notes import EXPECTED, VERDICT
from domains.math.pool import VerifierPool
from domains.math.rewards import RewardTable, get_reward, length_penalty, rollout_reward
from domains.prompts import question_messages
from domains.verdict_server import any_server
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.config.environments import environment_specs
from pipelinerl.launcher.environment_server import make_environment
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult
from pipelinerl.utils import PerTree, resolve_environment_key

__all__ = ["MathMetrics", "RewardTable", "generate_math_rollout", "get_reward", "length_penalty"]
"""The rewards stand in `rewards.py`; rollout policies written for upstream import them from here."""

KEY = "math"


class MathMetrics(BaseMetrics):
    """Statistics of one answer."""

    penalty: float
    """Length penalty, at most 0."""
    verify_s: float
    """Seconds the verdict took, waiting included."""


def environment_key(cfg: DictConfig) -> str | None:
    """The verifier's key: `math` where environments have keys, else the only one."""
    return KEY if KEY in environment_specs(cfg) else resolve_environment_key(cfg)


def _pool(cfg: DictConfig) -> VerifierPool:
    key = environment_key(cfg)
    environment = make_environment(cfg, key) if key is not None else MathEnvironment()
    if not isinstance(environment, MathEnvironment):
        raise ValueError(f"environment {key}: a {type(environment).__name__} verifies no answers")
    return environment.pool()


_pools = PerTree(_pool)


async def verdict(
    cfg: DictConfig, problem: dict[str, Any], content: str, session: aiohttp.ClientSession
) -> str:
    """Status of an answer, from one of the verification servers, or without any from this process's pool."""
    server = any_server(cfg, environment_key(cfg))
    if server is None:
        return await _pools.of(cfg).verify(content, str(problem["answer"]))
    return await verify_answer_rpc(session, *server, content, str(problem["answer"]))


async def generate_math_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Answer one question; the reward is that of `rewards`, discounted and shortened by its length."""
    call = await llm_async_generate(
        llm, Prompt(messages=question_messages(cfg, problem["task"], KEY)), session
    )
    asked = time.monotonic()
    status = await verdict(cfg, problem, call.completion, session)
    text = make_training_text(llm, call)
    text.metadata |= {VERDICT: status, EXPECTED: str(problem["answer"])}
    text.reward, penalty = rollout_reward(cfg, llm, [text], status)
    metrics = MathMetrics(
        reward=text.reward,
        success=status == "correct",
        no_error=status != "unparsable",
        no_answer=status == "no_answer",
        penalty=penalty,
        verify_s=time.monotonic() - asked,
    )
    return RolloutResult(
        training_texts=[text],
        metrics=metrics,
        dataset_name=problem.get("dataset"),
    )
