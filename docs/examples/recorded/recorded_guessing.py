"""A program as a domain: it plays, and each of its calls is a text with the reward that it printed."""

import json
import random
import sys
from pathlib import Path
from typing import Any, Literal

import aiohttp
from omegaconf import DictConfig
from pydantic import Field

from domains.blocks import Block, block_of
from pipelinerl.extras import recorder
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult
from pipelinerl.utils import PerTree


class RecordedSettings(Block):
    """The block `recorded` of a run."""

    program: str = "player"
    """A file beside this one."""
    python: str | None = None
    """The interpreter that runs it, such as that of an environment with its packages; null = the run's."""
    deadline_s: float = Field(120.0, gt=0)
    """Of one game."""
    at_deadline: Literal["fail", "keep"] = "fail"
    """Whether the guesses that were made by then are samples."""


_settings = PerTree(lambda cfg: block_of(cfg, "recorded", RecordedSettings))


def load_problems(dataset_names: list[str], count: int) -> list[dict[str, Any]]:
    """One dict per problem; equal names give equal problems."""
    problems = []
    for name in dataset_names:
        numbers = random.Random(name)
        problems += [{"id": f"{name}-{i}", "answer": numbers.randint(1, 100)} for i in range(count)]
    return problems


async def play(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One game."""
    settings = _settings.of(cfg)
    program = [settings.python or sys.executable, str(Path(__file__).with_name(f"{settings.program}.py"))]
    limits: Any = {"deadline_s": settings.deadline_s, "at_deadline": settings.at_deadline}
    async with recorder.session(llm) as recorded:
        printed = await recorded.run([*program, str(problem["answer"])], **limits)
        texts = recorded.texts()
    guesses = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    # An answer of the engine that came just before the deadline may not have become a guess.
    texts = texts[: len(guesses)] if recorded.expired else texts
    for text, guess in zip(texts, guesses, strict=True):
        text.reward = guess["reward"]
    won = bool(guesses) and guesses[-1]["won"]
    metrics = BaseMetrics(reward=float(won), success=won, no_error=True, no_answer=not guesses)
    return RolloutResult(training_texts=texts, metrics=metrics)
