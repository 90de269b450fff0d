"""Rollout policies for the actor's tests; problems say how to behave."""

import asyncio

from pipelinerl.async_llm import llm_async_generate, make_training_text, make_training_texts_from_llm_calls
from pipelinerl.llm import Prompt
from pipelinerl.rollouts import BaseMetrics, RolloutResult


def load(names, count=10, **problem):
    return [
        {"id": f"{name}{i}", "dataset": name, "number": i, **problem} for name in names for i in range(count)
    ]


def result(texts, reward=1.0):
    metrics = BaseMetrics(reward=reward, success=reward > 0, no_error=True, no_answer=False)
    return RolloutResult(training_texts=texts, metrics=metrics, latency=0.0)


async def play(cfg, llm, problem, session):
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


def play_plain(cfg, llm, problem, session):
    call = llm.generate(Prompt.from_user_message(f"say {problem['number']}")).get_llm_call()
    return result([make_training_text(llm, call)])
