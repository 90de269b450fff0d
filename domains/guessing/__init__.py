"""Guess a number: the smallest domain, one file that adds a task to the pipeline.

The agent proposes numbers between 1 and `highest` and hears `higher` or `lower` after each guess. It wins by
naming the number within `max_guesses` guesses, and earns more for needing fewer.
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


def question(highest: int, heard: list[str]) -> str:
    """What the agent reads: the range, and every guess with what it heard."""
    return f"1-{highest}: " + ", ".join(heard)


def reply(guess: int | None, answer: int) -> str:
    """What the agent hears after a guess; None stands for one that is no number."""
    return "invalid" if guess is None else f"{guess} {'higher' if guess < answer else 'lower'}"


async def generate_guessing_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Play one game; every guess becomes a training text with the game's reward."""
    started, calls, heard, guess = time.monotonic(), list[LLMCall](), list[str](), None
    while len(calls) < problem["max_guesses"] and guess != problem["answer"]:
        prompt = Prompt.from_user_message(question(problem["highest"], heard))
        calls.append(await llm_async_generate(llm, prompt, session))
        said = (calls[-1].output.content or "").strip()
        guess = int(said) if said.isascii() and said.isdigit() and len(said) < 10 else None
        heard.append(reply(guess, problem["answer"]))
    success = guess == problem["answer"]
    reward = 1.0 - 0.5 * (len(calls) - 1) / problem["max_guesses"] if success else 0.0
    metrics = GuessingMetrics(
        reward=reward,
        success=success,
        no_error="invalid" not in heard,
        no_answer=guess is None,
        guesses=len(calls),
    )
    texts = make_training_texts_from_llm_calls(llm, calls, reward)
    return RolloutResult(training_texts=texts, metrics=metrics, latency=time.monotonic() - started)
