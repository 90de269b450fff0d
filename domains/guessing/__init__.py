"""Guess a number: the smallest domain, one file that adds a task to the pipeline.

The agent proposes numbers between 1 and `highest` and hears `higher` or `lower` after each guess. It wins by
naming the number within `max_guesses` guesses, and earns more for needing fewer.

    python -m pipelinerl.launch +domain=guessing
"""

import random
import re
import time
from typing import Any

import aiohttp
from omegaconf import DictConfig

from pipelinerl.async_llm import llm_async_generate, make_training_texts_from_llm_calls
from pipelinerl.llm import LLMCall, Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult

GUESS = re.compile(r"\d{1,9}")


class GuessingMetrics(BaseMetrics):
    """Statistics of one game."""

    guesses: int


def load_problems(
    dataset_names: list[str], highest: int = 100, count: int = 200, max_guesses: int = 8
) -> list[dict[str, Any]]:
    """`count` numbers for each name; equal names give equal numbers, `train` and `test` differ."""
    problems = []
    for name in dataset_names:
        rng = random.Random(name)
        for index in range(count):
            answer = rng.randint(1, highest)
            game = {"answer": answer, "highest": highest, "max_guesses": max_guesses}
            problems.append({"id": f"{name}-{index}", "dataset": name, **game})
    return problems


def opening(highest: int) -> str:
    """The first message to the model."""
    return f"guess 1-{highest}"


def answer_to(guess: int | None, answer: int) -> str:
    """What the game says to a guess; None is one that names no number."""
    if guess is None:
        return "number?"
    return "higher" if guess < answer else "lower"


async def generate_guessing_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Play one game; every guess becomes a training text with the game's reward."""
    started, calls, guess, no_error = time.monotonic(), list[LLMCall](), None, True
    prompt = Prompt.from_user_message(opening(problem["highest"]))
    while len(calls) < problem["max_guesses"] and guess != problem["answer"]:
        call = await llm_async_generate(llm, prompt, session)
        calls.append(call)
        found = GUESS.fullmatch((call.output.content or "").strip())
        guess, no_error = (int(found[0]), no_error) if found else (None, False)
        reply = {"role": "user", "content": answer_to(guess, problem["answer"])}
        prompt = llm.continue_prompt(call, [reply])
    success = guess == problem["answer"]
    reward = 1.0 - 0.5 * (len(calls) - 1) / problem["max_guesses"] if success else 0.0
    return RolloutResult(
        training_texts=make_training_texts_from_llm_calls(llm, calls, reward),
        metrics=GuessingMetrics(
            reward=reward, success=success, no_error=no_error, no_answer=guess is None, guesses=len(calls)
        ),
        latency=time.monotonic() - started,
        dataset_name=problem["dataset"],
    )
