"""Rollouts of one call for `benchmarks.gpu.trl` and `.sizes`; imported by this project's actor."""

from dataclasses import replace
from typing import Any

import aiohttp
from omegaconf import DictConfig

from benchmarks.gpu.trl_workload import WORKLOADS, prompts, reward
from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult


def load_problems(dataset_names: list[str], workload: str) -> list[dict[str, Any]]:
    """One problem for each prompt of the workload of this name."""
    return [
        {"id": f"{name}-{index}", "dataset": name, "prompt": text}
        for name in dataset_names
        for index, text in enumerate(prompts(WORKLOADS[workload]))
    ]


def load_sized(dataset_names: list[str], tokens: int) -> list[dict[str, Any]]:
    """The same for prompts of so many tokens."""
    work = replace(WORKLOADS["gpu"], prompt=tokens)
    return [
        {"id": f"{name}-{index}", "dataset": name, "prompt": text}
        for name in dataset_names
        for index, text in enumerate(prompts(work, 1024))
    ]


async def generate_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One completion; `llm.parameters` have its length."""
    prompt = Prompt(messages=[{"role": "user", "content": problem["prompt"]}])
    call = await llm_async_generate(llm, prompt, session)
    text = make_training_text(llm, call)
    text.reward = reward(list(text.input_ids[call.prompt_length_tokens :]))
    metrics = BaseMetrics(reward=text.reward, success=bool(text.reward), no_error=True, no_answer=False)
    return RolloutResult(training_texts=[text], metrics=metrics)
