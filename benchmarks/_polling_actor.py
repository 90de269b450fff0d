"""The naive actor: two processes that look into each other's queues every 10 ms, and JSON lines on the disk.

The structure of upstream's actor in small: the scheduling coroutine sleeps 10 ms whenever no slot is free or
no problem is there, so does the publishing loop whenever no group is complete. It has neither accounting nor
lag budget, checks no text and keeps nothing for a resume. `python -m benchmarks.actor` runs it beside ours.
"""

import asyncio
import contextlib
import json
import multiprocessing
import queue
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from benchmarks._instant import CONTEXT, TOKENS, http_rollout, ready_rollout
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import RolloutResult

ATTEMPTS = 8
POLL_S = 0.01
QUEUED = 64
POLICIES = {"ready_rollout": ready_rollout, "http_rollout": http_rollout}


async def make_rollouts(
    problems: Any, results: Any, policy: str, url: str, model: str, in_flight: int
) -> None:
    """Start rollouts for ever, one per free slot; complete groups go to the other process."""
    groups: dict[int, list[RolloutResult]] = {}
    lags: list[float] = []
    active = number = 0
    llm = TrainableLLM(model_name=model, tokenizer_name=model, base_url=url, collect_logprobs=True)
    llm.parameters, llm.context_size = {"max_tokens": TOKENS, "temperature": 1.0}, CONTEXT

    async def run(session: aiohttp.ClientSession, group: int, problem: dict[str, Any]) -> None:
        nonlocal active
        done = groups[group]
        done.append(await POLICIES[policy](None, llm, problem, session))  # type: ignore[arg-type]
        active -= 1
        if len(done) == ATTEMPTS:
            texts = [text for one in groups.pop(group) for text in one.training_texts]
            results.put(([text.model_dump(mode="json") for text in texts], lags.copy()))
            lags.clear()

    async def watch_lag() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(POLL_S)
            lags.append(time.monotonic() - before - POLL_S)

    watch, tasks = asyncio.create_task(watch_lag()), set()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        while not watch.done():
            try:
                problem = problems.get_nowait() if active + ATTEMPTS <= in_flight else None
            except queue.Empty:
                problem = None
            if problem is None:
                await asyncio.sleep(POLL_S)
                continue
            groups[number] = []
            for _ in range(ATTEMPTS):
                task = asyncio.create_task(run(session, number, problem))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            active += ATTEMPTS
            number += 1


def worker(*arguments: Any) -> None:
    asyncio.run(make_rollouts(*arguments))


def measure_polling(
    policy: str, url: str, model: Path, in_flight: int, seconds: float, file: Path
) -> dict[str, float]:
    """Feed problems and write groups to `file` for so long, once 512 rollouts have been made."""
    context = multiprocessing.get_context("spawn")
    problems, results = context.Queue(QUEUED), context.Queue(QUEUED)
    arguments = (problems, results, policy, url, str(model), in_flight)
    process = context.Process(target=worker, args=arguments, daemon=True)
    process.start()
    making = psutil.Process(process.pid)

    def cpu_s() -> float:
        return time.process_time() + sum(making.cpu_times()[:2])

    rollouts, lags, begin, cpu = 0, list[float](), 0.0, 0.0
    with file.open("w") as out:
        while begin == 0 or time.monotonic() < begin + seconds:
            with contextlib.suppress(queue.Full):
                problems.put_nowait({"id": 0, "dataset": "bench"})
            try:
                texts, new_lags = results.get_nowait()
            except queue.Empty:
                time.sleep(POLL_S)
                continue
            out.write(json.dumps(texts) + "\n")
            out.flush()
            rollouts += len(texts)
            lags += new_lags
            if begin == 0 and rollouts >= 512:
                begin, cpu, rollouts, lags = time.monotonic(), cpu_s(), 0, []
    spent, elapsed = cpu_s() - cpu, time.monotonic() - begin
    process.kill()
    process.join()
    for one in (problems, results):
        one.cancel_join_thread()
    return {
        "rollouts_per_s": rollouts / elapsed,
        "rollouts_per_cpu_s": rollouts / spent,
        "loop_lag_p99_ms": 1e3 * float(np.quantile(lags, 0.99)) if lags else 0.0,
    }
