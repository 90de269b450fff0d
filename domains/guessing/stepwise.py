"""Guess a number, the game of `+domain=guessing`: the smallest domain, one file that adds a task.

The agent names numbers between 1 and `highest` and is told to go higher or lower. It wins by naming the right
one within `max_guesses` guesses; each guess earns the share of numbers it can be expected to rule out.
"""

import random
from typing import Any

import aiohttp
from omegaconf import DictConfig

from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.base.thoughts import answer_part
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult, TrainingText


class GuessingMetrics(BaseMetrics):
    """Statistics of one game."""

    guesses: int


def load_problems(
    dataset_names: list[str], highest: int = 100, count: int = 200, max_guesses: int = 8
) -> list[dict[str, Any]]:
    """`count` numbers for each name; equal names give equal numbers. ValueError for what is below 1."""
    if min(highest, count, max_guesses) < 1:
        raise ValueError(f"highest={highest}, count={count}, max_guesses={max_guesses}: all begin at 1")
    problems = []
    for name in dataset_names:
        rng = random.Random(name)
        for index in range(count):
            game = {"answer": rng.randint(1, highest), "highest": highest, "max_guesses": max_guesses}
            problems.append({"id": f"{name}-{index}", "dataset": name, **game})
    return problems


def question(highest: int, low: int, high: int) -> str:
    """What the agent reads when the numbers from `low` to `high` are left."""
    parts = [f"guess 1-{highest}"]
    parts += [f"higher than {low - 1}"] if low > 1 else []
    parts += [f"lower than {high + 1}"] if high < highest else []
    return ", ".join(parts)


def worth(low: int, high: int, guess: int | None) -> float:
    """The share of the numbers left that a guess rules out on average; best in their middle, 0 outside."""
    if guess is None or not low <= guess <= high:
        return 0.0
    return 1.0 - ((guess - low) ** 2 + (high - guess) ** 2) / (high - low + 1) ** 2


def narrow(low: int, high: int, guess: int | None, answer: int) -> tuple[int, int]:
    """The numbers that are left after a guess; None stands for an answer that is no number."""
    if guess is None:
        return low, high
    return (max(low, guess + 1), high) if guess < answer else (low, min(high, guess - 1))


async def generate_guessing_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Play one game. Every guess is a training text with a reward of its own."""
    answer, low, high = problem["answer"], 1, problem["highest"]
    texts, guess, no_error = list[TrainingText](), None, True
    while len(texts) < problem["max_guesses"] and guess != answer:
        prompt = Prompt.from_user_message(question(problem["highest"], low, high))
        call = await llm_async_generate(llm, prompt, session)
        said = answer_part(call.completion).strip()
        guess = int(said) if said.isascii() and said.isdigit() and len(said) < 10 else None
        no_error = no_error and guess is not None
        texts.append(make_training_text(llm, call))
        texts[-1].reward = worth(low, high, guess)
        low, high = narrow(low, high, guess, answer)
    success = guess == answer
    metrics = GuessingMetrics(
        reward=float(success),
        success=success,
        no_error=no_error,
        no_answer=guess is None,
        guesses=len(texts),
    )
    return RolloutResult(training_texts=texts, metrics=metrics)
