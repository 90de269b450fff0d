"""The rollout policy of `tir`: a question, programs that the model writes and their output, one verdict."""

import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.math.notes import EXPECTED, VERDICT
from domains.math.rewards import rollout_reward
from domains.math.rollouts import verdict
from domains.prompts import question_messages
from domains.tir.settings import settings_of
from domains.tir.tool import program_of, use
from pipelinerl.async_llm import make_training_text
from pipelinerl.dialogues import dialogue, joined
from pipelinerl.extras.sandbox.host import Sandbox
from pipelinerl.llm import LLMCall, Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult, TrainingText
from pipelinerl.utils import PerTree

DOMAIN = "tir"


class TirMetrics(BaseMetrics):
    """Statistics of one dialogue."""

    penalty: float
    """Length penalty, at most 0."""
    num_python_calls: int
    """Programs that were run."""
    python_errors: int
    """Of these, how many did not run to their end."""
    num_steps: int
    """Answers of the model."""
    verify_s: float
    """Seconds the verdict took, waiting included."""


@dataclass
class Dialogue:
    """What was asked and answered."""

    calls: list[LLMCall] = field(default_factory=list)
    programs: int = 0
    errors: int = 0


def _sandbox(cfg: DictConfig) -> Sandbox:
    return settings_of(cfg).sandbox()


_settings = PerTree(settings_of)
_sandboxes = PerTree(_sandbox)


async def converse(cfg: DictConfig, llm: TrainableLLM, task: str, session: aiohttp.ClientSession) -> Dialogue:
    """Answers until one has no program to run, is cut off, or is the last that is allowed."""
    settings, found = _settings.of(cfg), Dialogue()

    async def run(call: LLMCall) -> list[dict[str, Any]] | None:
        if (program := program_of(call.completion)) is None:
            return None
        result, ran = await use(_sandboxes.of(cfg), program, settings.output_chars)
        found.programs += 1
        found.errors += not ran
        return [{"role": "user", "content": result}]

    prompt = Prompt(messages=question_messages(cfg, task, DOMAIN))
    found.calls = await dialogue(llm, prompt, run, session, max_turns=settings.max_turns)
    return found


async def generate_tir_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Answer one question; every text has the reward of the verdict on the last answer."""
    found = await converse(cfg, llm, problem["task"], session)
    asked = time.monotonic()
    status = await verdict(cfg, problem, found.calls[-1].completion, session)
    texts = [make_training_text(llm, call) for call in found.calls]
    reward, penalty = rollout_reward(cfg, llm, texts, status)
    metrics = TirMetrics(
        reward=reward,
        success=status == "correct",
        no_error=status != "unparsable",
        no_answer=status == "no_answer",
        penalty=penalty,
        num_python_calls=found.programs,
        python_errors=found.errors,
        num_steps=len(texts),
        verify_s=time.monotonic() - asked,
    )
    return RolloutResult(
        training_texts=_finished(texts, reward, status, problem, _settings.of(cfg).join),
        metrics=metrics,
        dataset_name=problem.get("dataset"),
        domain=DOMAIN,
    )


def _finished(
    texts: list[TrainingText], reward: float, status: str, problem: dict[str, Any], join: bool
) -> list[TrainingText]:
    texts[-1].metadata |= {VERDICT: status, EXPECTED: str(problem["answer"])}
    found = joined(texts) if join else texts
    for text in found:
        text.reward = reward
    return found
