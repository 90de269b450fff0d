"""Requests through the actor's client, from processes of their own: waves, and streams that go on.

    python -m benchmarks.gpu.clients URL VOCABULARY PROMPT

A wave is so many requests at once until the last is answered, the same work as `LLM.generate` of a list. The
streams ask for one answer after the other, so that an engine stays busy. The processes share no interpreter
with the publisher whose pauses are measured, as actor and trainer do not. They are told what to do by lines
of JSON: `{"requests", "output", "seed"}` makes prompts, says READY, begins with the next line and says WAVE;
`{"streams", "output"}` says THROUGH when the first answer of each is there, and RESULT after the next line.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import aiohttp
import numpy as np

from benchmarks._processes import Child
from pipelinerl.engines.client import SamplingParams
from pipelinerl.engines.fleet import Fleet

READY_S, WAVE_S, END_S = 120.0, 240.0, 60.0


@contextmanager
def clients(count: int, url: str, vocab: int, prompt: int) -> Iterator[list[Child]]:
    """So many processes that ask an engine for answers to prompts of `prompt` tokens."""
    command = [sys.executable, "-m", "benchmarks.gpu.clients", url, str(vocab), str(prompt)]
    started = [Child(f"client {number}", command) for number in range(count)]
    try:
        yield started
    finally:
        for child in started:
            child.close()


def wave(children: Sequence[Child], requests: int, output: int) -> dict[str, Any]:
    """What happened between the first request and the last answer; RuntimeError at a deadline."""
    shares = [len(part) for part in np.array_split(np.arange(requests), len(children))]
    busy = [(child, share) for child, share in zip(children, shares) if share]
    for number, (child, share) in enumerate(busy):
        child.tell(json.dumps({"requests": share, "output": output, "seed": number}))
    for child, _ in busy:
        child.expect("READY", READY_S)
    for child, _ in busy:
        child.tell("go")
    return merged([json.loads(child.expect("WAVE ", WAVE_S)) for child, _ in busy])


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One wave of what several processes sent; their clocks are the machine's monotonic one."""
    return {
        "tokens": sum(part["tokens"] for part in parts),
        "seconds": max(part["ended"] for part in parts) - min(part["begun"] for part in parts),
        "cpu_s": [part["cpu_s"] for part in parts],
        "errors": [error for part in parts for error in part["errors"]],
    }


@contextmanager
def load(url: str, streams: int, vocab: int, prompt: int, output: int) -> Iterator[Child]:
    """A process whose streams keep an engine busy; it says THROUGH."""
    with clients(1, url, vocab, prompt) as (child,):
        child.tell(json.dumps({"streams": streams, "output": output}))
        yield child


def end_load(child: Child) -> dict[str, Any]:
    """`tokens` and `errors` of the streams, which end."""
    try:
        child.tell("end")
        return json.loads(child.expect("RESULT ", END_S))
    except RuntimeError as error:
        return {"tokens": 0, "errors": [f"the load did not end: {error}"]}


class Client:
    """The other side, in its process."""

    def __init__(self, fleet: Fleet, vocab: int, prompt: int) -> None:
        self._fleet, self._vocab, self._prompt = fleet, vocab, prompt

    async def _answer(self, ids: np.ndarray, output: int) -> int:
        """Tokens of the answer."""
        sampling = SamplingParams(max_tokens=output, ignore_eos=True)
        return len((await self._fleet.generate(ids, sampling)).token_ids)

    async def send(self, requests: int, output: int, seed: int) -> None:
        """All at once; answers that failed are in `errors`."""
        generator = np.random.default_rng(seed)
        prompts = [generator.integers(0, self._vocab, self._prompt) for _ in range(requests)]
        print("READY", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        begun, cpu = time.monotonic(), time.process_time()
        answers = await asyncio.gather(
            *(self._answer(ids, output) for ids in prompts), return_exceptions=True
        )
        errors = [str(one) for one in answers if isinstance(one, BaseException)]
        found = {"tokens": sum(one for one in answers if isinstance(one, int)), "errors": errors}
        found |= {"begun": begun, "ended": time.monotonic(), "cpu_s": time.process_time() - cpu}
        print("WAVE " + json.dumps(found), flush=True)

    async def stream(self, streams: int, output: int) -> None:
        """Until the next line."""
        generator = np.random.default_rng(0)
        counts: list[int] = []
        begun = 0

        async def ask(length: int) -> None:
            counts.append(await self._answer(generator.integers(0, self._vocab, self._prompt), length))

        async def one(length: int) -> None:
            nonlocal begun
            try:
                await ask(length)
            finally:
                begun += 1
                if begun == streams:  # also when one has failed
                    print("THROUGH", flush=True)
            while True:
                await ask(output)

        lengths = generator.integers(1, output, streams)  # streams do not end together
        tasks = [asyncio.create_task(one(int(length))) for length in lengths]
        await asyncio.to_thread(sys.stdin.readline)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [str(one) for one in ended if isinstance(one, Exception)]
        print("RESULT " + json.dumps({"tokens": sum(counts), "errors": errors}), flush=True)


async def serve(url: str, vocab: int, prompt: int) -> None:
    """Do what the standard input asks for, until it ends."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http, Fleet([url], http) as fleet:
        client = Client(fleet, vocab, prompt)
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            await (client.stream(**asked) if "streams" in asked else client.send(**asked))


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], *map(int, sys.argv[2:4])))
