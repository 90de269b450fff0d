"""The rollout policy of `counting`: one question, one completion, one number.

Upstream's rules: the first `<answer>number</answer>` of a completion is its answer; a right one earns 1,
anything else 0.
"""

import re
from typing import Any

import aiohttp
from omegaconf import DictConfig

from domains.counting.data import load_problems as load_problems  # where upstream has it too
from domains.counting.questions import checked, question
from domains.prompts import question_messages
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.base.thoughts import answer_part
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult

DOMAIN = "counting"
ANSWER = re.compile(r"<answer>(\d{1,18})</answer>", re.ASCII)
FORM = "You may think first; write the number as <answer>number</answer>."


def task_of(problem: dict[str, Any]) -> str:
    """What the model reads of a problem: the question and the form of its answer."""
    return f"{question(checked(problem))} {FORM}"


def answer_of(completion: str) -> int | None:
    """The number that a completion gives behind its thoughts; None if it gives none in this form."""
    found = ANSWER.search(answer_part(completion))
    return None if found is None else int(found[1])


async def generate_counting_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Answer one question; the reward is 1 for the right number and 0 otherwise."""
    call = await llm_async_generate(
        llm, Prompt(messages=question_messages(cfg, task_of(problem), DOMAIN)), session
    )
    answer = answer_of(call.completion)
    success = answer == int(problem["count"])
    text = make_training_text(llm, call)
    text.reward = float(success)
    metrics = BaseMetrics(
        reward=text.reward, success=success, no_error=answer is not None, no_answer=answer is None
    )
    return RolloutResult(
        training_texts=[text],
        metrics=metrics,
        dataset_name=problem.get("dataset"),
        domain=DOMAIN,
    )
