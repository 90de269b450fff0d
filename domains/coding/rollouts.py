"""The rollout policy of `coding`: one problem, one completion, the verdicts of its tests."""

import time
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.coding.settings import settings_of
from domains.coding.verifier_api import Context, Verification, evaluate, extract_code
from domains.math.rewards import rollout_reward
from domains.prompts import question_messages
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.extras.sandbox.host import Sandbox
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult
from pipelinerl.utils import PerTree

DOMAIN = "coding"


class CodingMetrics(BaseMetrics):
    """Statistics of one answer."""

    penalty: float
    """Length penalty, at most 0."""
    compile_error: bool
    runtime_error: bool
    timeout_error: bool
    passed: int
    """Tests of the problem that were passed."""
    total: int
    verify_s: float
    """Seconds the tests took, waiting included."""


def _sandbox(cfg: DictConfig) -> Sandbox:
    return settings_of(cfg).sandbox()


_settings = PerTree(settings_of)
_sandboxes = PerTree(_sandbox)


def task_of(problem: dict[str, Any]) -> str:
    """The question, with the name of the function that tests call where the question does not say it."""
    task, name = str(problem["task"]), problem["reward_context"].get("fn_name")
    return f"{task}\n\nYour function should be named `{name}`." if name and name not in task else task


async def generate_coding_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Answer one problem; the reward is that of `rewards`, discounted and shortened by its length."""
    prompt = Prompt(messages=question_messages(cfg, task_of(problem), DOMAIN))
    call = await llm_async_generate(llm, prompt, session)
    asked = time.monotonic()
    completion, limit = call.completion, _settings.of(cfg).max_tests
    found = await evaluate(_sandboxes.of(cfg), completion, problem["reward_context"], limit)
    status = found.answer_status
    text = make_training_text(llm, call)
    text.metadata["coding"] = _remarks(found, completion, problem["reward_context"])
    text.reward, penalty = rollout_reward(cfg, llm, [text], status)
    metrics = CodingMetrics(
        reward=text.reward,
        success=status == "correct",
        no_error=not (found.compile_error or found.runtime_error or found.timeout_error),
        no_answer=found.empty_response,
        penalty=penalty,
        compile_error=found.compile_error,
        runtime_error=found.runtime_error,
        timeout_error=found.timeout_error,
        passed=found.passed,
        total=found.total,
        verify_s=time.monotonic() - asked,
    )
    return RolloutResult(
        training_texts=[text],
        metrics=metrics,
        dataset_name=problem.get("dataset"),
        domain=DOMAIN,
    )


def _remarks(found: Verification, completion: str, context: Context) -> dict[str, Any]:
    """What a reader of the rollout wants to know besides its text."""
    return {
        "passed": found.passed,
        "total": found.total,
        "tests": list(found.statuses),
        "error": found.error,
        "code_characters": len(extract_code(completion, context)),
    }
