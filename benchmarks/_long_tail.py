"""Rollouts of one call whose lengths have a long tail, for `benchmarks.async_sync`; imported by the actor."""

from typing import Any

import aiohttp
import numpy as np
from omegaconf import DictConfig

from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult

PROMPT = 16


def lengths(count: int, median: float, sigma: float, longest: int) -> np.ndarray:
    """int64 [count]: log-normal, cut off at `longest`; the same for equal arguments."""
    drawn = np.random.default_rng(0).lognormal(np.log(median), sigma, count)
    return np.clip(drawn, 1, longest).astype(np.int64)


def load_problems(
    dataset_names: list[str], count: int = 4096, median: float = 48, sigma: float = 1.0, longest: int = 400
) -> list[dict[str, Any]]:
    """Each problem is a number of tokens to sample."""
    return [
        {"id": f"{name}-{index}", "dataset": name, "length": int(length)}
        for name in dataset_names
        for index, length in enumerate(lengths(count, median, sigma, longest))
    ]


async def generate_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One completion of the problem's length; its parity is the reward, which nothing can learn."""
    prompt = Prompt(token_ids=[5 + (len(problem["id"]) + index) % 40 for index in range(PROMPT)])
    call = await llm_async_generate(llm, prompt, session, problem["length"])
    text = make_training_text(llm, call)
    text.reward = float(sum(text.input_ids) % 2)
    metrics = BaseMetrics(reward=text.reward, success=bool(text.reward), no_error=True, no_answer=False)
    return RolloutResult(training_texts=[text], metrics=metrics)
