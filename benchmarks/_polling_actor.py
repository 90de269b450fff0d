"""The naive actor: two processes that look into each other's queues every 10 ms, and JSON lines on the disk.

The structure of upstream's actor in small: the scheduling coroutine sleeps 10 ms whenever no slot is free or
no problem is there, so does the publishing loop whenever no group is complete. It has neither books nor lag
budget, checks no text and keeps nothing for a resume. `python -m benchmarks.actor` runs it beside ours.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import queue
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from benchmarks.actor import ATTEMPTS, CONTEXT, TOKENS, http_rollout, ready_rollout
from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import RolloutResult

POLL_S = 0.01
QUEUED = 64


async def make_rollouts(
    problems: Any, results: Any, policy: str, url: str, model: str, in_flight: int
) -> None:
    """Start rollouts for ever, one per free slot; complete groups go to the other process."""
    groups: dict[int, list[RolloutResult]] = {}
    lags: list[float] = []
    active, number = [0], 0
    rollout = {"ready": ready_rollout, "http": http_rollout}[policy]
    llm = TrainableLLM(model_name=model, tokenizer_name=model, base_url=url, collect_logprobs=True)
    llm.parameters, llm.context_size = {"max_tokens": TOKENS, "temperature": 1.0}, CONTEXT

    async def run(session: aiohttp.ClientSession, group: int, problem: dict[str, Any]) -> None:
        done = groups[group]
        done.append(await rollout(None, llm, problem, session))  # type: ignore[arg-type]
        active[0] -= 1
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
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        while not watch.done():
            try:
                problem = problems.get_nowait() if active[0] + ATTEMPTS <= in_flight else None
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
            active[0] += ATTEMPTS
            number += 1


def worker(*arguments: Any) -> None:
    asyncio.run(make_rollouts(*arguments))


def publish(problems: Any, results: Any, seconds: float, file: Any, process: Any) -> dict[str, float]:
    """Feed problems and write groups until time is up; the first second is not counted."""
    family = [psutil.Process(), psutil.Process(process.pid)]
    rollouts, lags, begin, cpu = 0, [], 0.0, 0.0
    while begin == 0 or time.monotonic() < begin + seconds:
        with contextlib.suppress(queue.Full):
            problems.put_nowait({"id": 0, "dataset": "bench"})
        try:
            texts, new_lags = results.get_nowait()
        except queue.Empty:
            time.sleep(POLL_S)
            continue
        file.write(json.dumps(texts) + "\n")
        file.flush()
        rollouts += len(texts)
        lags += new_lags
        if begin == 0 and rollouts >= 512:
            begin, cpu, rollouts, lags = time.monotonic(), _cpu(family), 0, []
    spent, elapsed = _cpu(family) - cpu, time.monotonic() - begin
    return {
        "rollouts": rollouts,
        "rollouts_per_s": rollouts / elapsed,
        "rollouts_per_cpu_s": rollouts / spent,
        "cores_used": spent / elapsed,
        "loop_lag_p99_ms": 1e3 * float(np.quantile(lags, 0.99)) if lags else 0.0,
    }


def _cpu(family: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in family)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", choices=["ready", "http"], required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    problems, results = context.Queue(QUEUED), context.Queue(QUEUED)
    arguments = (problems, results, args.policy, args.url, args.model, args.in_flight)
    process = context.Process(target=worker, args=arguments, daemon=True)
    process.start()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "actor.jsonl").open("w") as file:
        found = publish(problems, results, args.seconds, file, process)
    process.kill()
    process.join()
    results.cancel_join_thread()
    problems.cancel_join_thread()
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
