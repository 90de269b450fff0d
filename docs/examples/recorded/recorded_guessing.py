"""A program as a domain: `player.py` plays, each of its calls is a text with the reward that it printed."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import aiohttp
from omegaconf import DictConfig

from pipelinerl.extras import recorder
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult

PLAYER = Path(__file__).with_name("player.py")


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
    async with recorder.session(llm) as recorded:
        program = [sys.executable, str(PLAYER), str(problem["answer"])]
        printed = json.loads(await recorded.run(program, deadline_s=120))
        texts = recorded.texts()
    for text, reward in zip(texts, printed["rewards"], strict=True):
        text.reward = reward
    won = printed["won"]
    metrics = BaseMetrics(reward=float(won), success=won, no_error=True, no_answer=False)
    return RolloutResult(training_texts=texts, metrics=metrics)
