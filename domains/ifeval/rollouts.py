"""The rollout policy of `ifeval`: one prompt, one response, one verdict on each of its instructions."""

from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.ifeval.verifier_api import Verdict, verify_answer, verify_answer_rpc
from domains.math.rewards import rollout_reward
from domains.prompts import question_messages
from domains.verdict_server import any_server
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult
from pipelinerl.utils import resolve_environment_key

KEY = "ifeval"


class IFEvalMetrics(BaseMetrics):
    """Statistics of one response; `success` is that all instructions are followed, strictly."""

    penalty: float
    """Length penalty, at most 0."""
    instructions_followed: int
    instructions_total: int
    partial_score: float
    """Share of the instructions that are followed, strictly."""
    success_loose: bool
    """All instructions are followed by some variant of the response."""
    partial_score_loose: float
    """Share of the instructions that some variant follows."""
    instructions_undecided: int
    """Of those that are not followed: nobody can tell, such as the language of two words."""


async def verdict(
    cfg: DictConfig, problem: dict[str, Any], completion: str, session: aiohttp.ClientSession
) -> Verdict:
    """From one of the run's servers, or without any from this process."""
    context = problem["reward_context"]
    server = any_server(cfg, resolve_environment_key(cfg, default=KEY))
    if server is None:
        return verify_answer(completion, context)
    return await verify_answer_rpc(session, *server, completion, context)


async def generate_ifeval_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Answer one prompt.

    The reward is that of `rewards`, discounted and shortened by its length; with
    `actor.ifeval_partial_credit` a response that follows some of its instructions has that share of it.
    """
    call = await llm_async_generate(
        llm, Prompt(messages=question_messages(cfg, problem["task"], KEY)), session
    )
    found = await verdict(cfg, problem, call.completion, session)
    status, total = found["answer_status"], max(1, found["total_count"])
    partial = bool(cfg.actor.get("ifeval_partial_credit", True))
    text = make_training_text(llm, call)
    text.reward, penalty = rollout_reward(
        cfg, llm, [text], "wrong" if status == "partial" else status, share=found["score"] if partial else 0.0
    )
    metrics = IFEvalMetrics(
        reward=text.reward,
        success=status == "correct",
        no_error=True,
        no_answer=status == "no_answer",
        penalty=penalty,
        instructions_followed=found["followed_count"],
        instructions_total=found["total_count"],
        partial_score=found["score"],
        success_loose=found["loose_count"] == found["total_count"],
        partial_score_loose=found["loose_count"] / total,
        instructions_undecided=found.get("undecided_count", 0),  # an older server does not say
    )
    return RolloutResult(
        training_texts=[text],
        metrics=metrics,
        dataset_name=problem.get("dataset"),
        domain=KEY,
    )
