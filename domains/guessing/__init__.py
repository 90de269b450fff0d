"""Guess a number: the smallest domain, one file that adds a task to the pipeline.

The agent names numbers between 1 and `highest` and is told to go higher or lower. It wins by naming the right
one within `max_guesses` guesses, and earns more for needing fewer.
"""

import random
import time
from typing import Any

import aiohttp
from omegaconf import DictConfig

from pipelinerl.async_llm import llm_async_generate, make_training_texts_from_llm_calls
from pipelinerl.llm import LLMCall, Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult


class GuessingMetrics(BaseMetrics):
    """Statistics of one game."""

    guesses: int


def load_problems(
    dataset_names: list[str], highest: int = 100, count: int = 200, max_guesses: int = 8
) -> list[dict[str, Any]]:
    """`count` numbers for each name; equal names give equal numbers."""
    problems = []
    for name in dataset_names:
        rng = random.Random(name)
        for index in range(count):
            game = {"answer": rng.randint(1, highest), "highest": highest, "max_guesses": max_guesses}
            problems.append({"id": f"{name}-{index}", "dataset": name, **game})
    return problems


def question(highest: int, guesses: list[int], answer: int) -> str:
    """What the agent reads: the range, and the closest guesses that were too low and too high."""
    too_low, too_high = [g for g in guesses if g < answer], [g for g in guesses if g > answer]
    parts = [f"guess 1-{highest}"]
    parts += [f"higher than {max(too_low)}"] if too_low else []
    parts += [f"lower than {min(too_high)}"] if too_high else []
    return ", ".join(parts)


async def generate_guessing_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Play one game; every guess becomes a training text with the game's reward."""
    started, answer = time.monotonic(), problem["answer"]
    calls, guesses = list[LLMCall](), list[int]()
    while len(calls) < problem["max_guesses"] and answer not in guesses:
        prompt = Prompt.from_user_message(question(problem["highest"], guesses, answer))
        calls.append(await llm_async_generate(llm, prompt, session))
        said = (calls[-1].output.content or "").strip()
        if said.isascii() and said.isdigit() and len(said) < 10:
            guesses.append(int(said))
    success = answer in guesses
    reward = 1.0 - 0.5 * (len(calls) - 1) / problem["max_guesses"] if success else 0.0
    metrics = GuessingMetrics(
        reward=reward,
        success=success,
        no_error=len(guesses) == len(calls),
        no_answer=not guesses,
        guesses=len(calls),
    )
    texts = make_training_texts_from_llm_calls(llm, calls, reward)
    return RolloutResult(training_texts=texts, metrics=metrics, latency=time.monotonic() - started)
