"""What the recording endpoint adds to a call, beside asking the rollout's llm directly.

    python -m benchmarks.recorder [--calls 300] [--rounds 5]

An engine in another process answers every call at once with 8 tokens, so that what remains is the client's
part. The ways take turns in one process; the program is in that process too, so a call over HTTP pays for
both of its ends. `openai` is OpenAI's own client, `aiohttp` a bare one. Times are medians over the calls of
each round.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import aiohttp
import openai

from benchmarks._figures import Figure, at_most, command_line, report
from benchmarks._instant import CONTEXT, TOKENS, serve
from benchmarks._processes import function
from pipelinerl.async_llm import llm_async_generate
from pipelinerl.extras import recorder
from pipelinerl.llm import Prompt, TrainableLLM

MODEL = "domains/guessing/checkpoint"
QUESTION = "guess 1-100, higher than 50"
Ask = Callable[[], Awaitable[object]]


async def median_ms(ask: Ask, calls: int) -> float:
    """Milliseconds of one call after another."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        await ask()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


async def cpu_ms(ask: Ask, calls: int, together: int = 32) -> float:
    """Milliseconds of a core for a call of this process, many at a time."""
    start = time.process_time()
    for _ in range(calls // together):
        await asyncio.gather(*(ask() for _ in range(together)))
    return 1e3 * (time.process_time() - start) / (calls // together * together)


async def measure(port: int, calls: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """By way, the median and the CPU time of each round."""
    llm = TrainableLLM(model_name=MODEL, base_url=f"http://127.0.0.1:{port}", context_size=CONTEXT)
    llm.parameters["max_tokens"] = 16
    messages = [{"role": "user", "content": QUESTION}]
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        recorder.session(llm) as session,
        openai.AsyncOpenAI(base_url=session.base_url, api_key="none") as client,
    ):

        async def direct() -> None:
            await llm_async_generate(llm, Prompt(messages=messages), http)

        async def bare() -> None:
            body = {"model": "m", "messages": messages}
            async with http.post(f"{session.base_url}/chat/completions", json=body) as answer:
                await answer.json()

        async def openais() -> None:
            await client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]

        ways = {"llm": direct, "aiohttp": bare, "openai": openais}
        found: dict[str, dict[str, list[float]]] = {way: {"median": [], "cpu": []} for way in ways}
        for ask in ways.values():
            await median_ms(ask, 20)
        for _ in range(rounds):
            for way, ask in ways.items():
                found[way]["median"].append(await median_ms(ask, calls))
                found[way]["cpu"].append(await cpu_ms(ask, calls))
    await recorder.close()
    return found


def main() -> int:
    options = command_line(__doc__)
    with function(serve, 0.0, TOKENS) as engine:
        found = asyncio.run(measure(engine.recv(), options.calls, options.rounds))
    median = {way: {name: statistics.median(of) for name, of in one.items()} for way, one in found.items()}
    figures = [Figure("a call to the llm directly, median", median["llm"]["median"], "ms")]
    for way, goal in (("aiohttp", None), ("openai", 45.0)):
        added = [one - other for one, other in zip(found[way]["median"], found["llm"]["median"], strict=True)]
        figures += [
            at_most(f"added to a call, {way}, worst round", max(added), "ms", goal),
            Figure(f"added to a call, {way}, median round", statistics.median(added), "ms"),
            Figure(f"added CPU time, {way}", median[way]["cpu"] - median["llm"]["cpu"], "ms/core"),
        ]
    return report("recorder", figures, vars(options))


if __name__ == "__main__":
    sys.exit(main())
