"""Upstream's guessing game: a number between 1 and 1024, one reward for the whole rollout.

For configurations written for upstream, which name it `pipelinerl.domains.guessing`. Its numbers, limits and
rewards are upstream's and stay as they are; `stepwise.py` is the game to copy or to change.
"""

import re
from collections.abc import Sequence
from typing import Any

import aiohttp
from omegaconf import DictConfig

from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.base.thoughts import answer_part
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult

DOMAIN = "guessing"
HIGHEST = 1024
MAX_GUESSES = 13
STRIDE = 191
"""Odd, so that its multiples modulo `HIGHEST` visit every number once."""
FIRST = {"train": 0, "test": 1}
"""Training numbers are the even multiples, those of the evaluation the odd ones."""
GUESS = re.compile(r"<answer>(\d{1,18})</answer>")
TASK = (
    f"Find the number that was drawn from 1 to {HIGHEST}. Write your guess as <answer>number</answer>; "
    "you are told whether it is lower or higher than the number, and may guess again."
)


def load_problems(dataset_names: Sequence[str]) -> list[dict[str, Any]]:
    """The 512 odd numbers for `train` and the 512 even ones for `test`, in upstream's order.

    Raises ValueError for any other name.
    """
    problems = []
    for name in dataset_names:
        if name not in FIRST:
            raise ValueError(f"dataset {name!r}: this game has train and test; name one of them")
        problems += [
            {"answer": STRIDE * multiple % HIGHEST + 1, "dataset": name, "domain": DOMAIN}
            for multiple in range(FIRST[name], HIGHEST, 2)
        ]
    return problems


def messages(guesses: Sequence[int], answer: int) -> list[dict[str, Any]]:
    """What the agent reads: the task, and then what each guess so far was told."""
    told = [
        {"role": "system", "content": "You play a game with numbers."},
        {"role": "user", "content": TASK},
    ]
    if guesses:
        lines = (
            f"{guess} is {'lower' if guess < answer else 'higher'} than the number." for guess in guesses
        )
        told.append({"role": "user", "content": "\n".join(("Your guesses so far:", *lines))})
    return told


async def generate_guessing_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """Play one game; every text has the reward of the game.

    The right number at guess `i`, counted from 0, earns 2 - i/10. An answer of another form ends the game
    with -2 + i/10, and 13 wrong guesses earn 0.
    """
    answer = int(problem["answer"])
    calls, guesses = [], list[int]()
    reward, success, readable = 0.0, False, True
    for turn in range(MAX_GUESSES):
        call = await llm_async_generate(llm, Prompt(messages=messages(guesses, answer)), session)
        calls.append(call)
        written = GUESS.search(answer_part(call.completion))
        if written is None:
            reward, readable = -2 + turn / 10, False
            break
        if (guess := int(written[1])) == answer:
            reward, success = 2 - turn / 10, True
            break
        guesses.append(guess)
    texts = [make_training_text(llm, call) for call in calls]
    for text in texts:
        text.reward = reward
    return RolloutResult(
        training_texts=texts,
        metrics=BaseMetrics(reward=reward, success=success, no_error=readable, no_answer=not readable),
        dataset_name=problem.get("dataset"),
        domain=DOMAIN,
    )
