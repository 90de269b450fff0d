"""Rollout policies for the actor's tests; problems say how to behave."""

import asyncio
import ctypes
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelinerl.async_llm import llm_async_generate, make_training_text, make_training_texts_from_llm_calls
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import ROLLOUT_ORIGIN, BaseMetrics, RolloutResult, TrainingText


def load(names: Sequence[str], count: int = 10, **problem: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"{name}{i}", "dataset": name, "number": i, **problem} for name in names for i in range(count)
    ]


def load_when_told(names: Sequence[str], file: str) -> list[dict[str, Any]]:
    """Blocks until the file is there, and leaves a thread behind that never ends."""
    while not Path(file).exists():
        time.sleep(0.05)
    threading.Thread(target=threading.Event().wait).start()
    return load(names, count=3)


def text(**fields: Any) -> TrainingText:
    """One token of a prompt and one that was sampled."""
    base = {"text": "ab", "n_predicted": 1, "input_ids": [1, 2], "labels": [-100, 2], "logprobs": [-0.5]}
    return TrainingText(**(base | fields))


def result(texts: list[TrainingText], reward: float = 1.0) -> RolloutResult:
    metrics = BaseMetrics(reward=reward, success=reward > 0, no_error=True, no_answer=False)
    return RolloutResult(training_texts=texts, metrics=metrics)


async def play(cfg: Any, llm: TrainableLLM, problem: dict[str, Any], session: Any) -> RolloutResult:
    if problem.get("raise"):
        raise RuntimeError(problem["raise"])
    if problem.get("sleep"):
        await asyncio.sleep(problem["sleep"])
    calls = []
    prompt = Prompt.from_user_message(f"say {problem['number']}")
    for _ in range(problem.get("turns", 1)):
        call = await llm_async_generate(llm, prompt, session)
        calls.append(call)
        prompt = llm.continue_prompt(call, [{"role": "user", "content": "more"}])
    return result(
        make_training_texts_from_llm_calls(llm, calls, reward=float(problem["number"])), problem["number"]
    )


async def hang_in_the_first_group(
    cfg: Any, llm: TrainableLLM, problem: dict[str, Any], session: Any
) -> RolloutResult:
    """The first rollout of all blocks its loop for some seconds; no rollout of its group ever returns."""
    origin = ROLLOUT_ORIGIN.get()
    if origin is not None and origin.group_id.endswith("-000000"):
        if origin.rollout_index == 0:
            time.sleep(2.5)  # noqa: ASYNC251
        await asyncio.Event().wait()
    return await play(cfg, llm, problem, session)


async def hold_the_interpreter(
    cfg: Any, llm: TrainableLLM, problem: dict[str, Any], session: Any
) -> RolloutResult:
    """The second rollout of all calls C code that lets no thread of its process run."""
    origin = ROLLOUT_ORIGIN.get()
    if origin is not None and origin.group_id.endswith("-000000") and origin.rollout_index == 1:
        ctypes.PyDLL(None).sleep(600)
    return await play(cfg, llm, problem, session)


def play_plain(cfg: Any, llm: TrainableLLM, problem: dict[str, Any], session: Any) -> RolloutResult:
    call = llm.generate(Prompt.from_user_message(f"say {problem['number']}")).get_llm_call()
    return result([make_training_text(llm, call)])
