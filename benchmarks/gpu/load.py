"""Requests that keep an engine busy, from a process of their own, through the actor's client.

    python -m benchmarks.gpu.load URL IN_FLIGHT VOCABULARY PROMPT OUTPUT

Says THROUGH when each of the first requests has been answered, runs until its standard input is closed, then
prints what happened as JSON. It shares no interpreter with the publisher whose pauses are measured, as actor
and trainer do not.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aiohttp
import numpy as np

from benchmarks.gpu.child import Child
from pipelinerl.inference.client import SamplingParams
from pipelinerl.inference.fleet import Fleet

END_S = 60.0


def session() -> aiohttp.ClientSession:
    """Without a limit of connections, as in the actor's workers."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


class Load:
    """The process as a context manager; `result` afterwards has `tokens` and `errors`."""

    def __init__(self, url: str, in_flight: int, vocab: int, prompt: int, output: int) -> None:
        arguments = [url, *map(str, (in_flight, vocab, prompt, output))]
        self._command = [sys.executable, "-m", "benchmarks.gpu.load", *arguments]
        self.result: dict[str, Any] = {}

    def __enter__(self) -> Load:
        self._child = Child("the load", self._command)
        return self

    def wait_through(self, deadline_s: float) -> None:
        """Until the first request of each stream is answered; RuntimeError at the deadline."""
        self._child.expect("THROUGH", deadline_s)

    def __exit__(self, *_: object) -> None:
        try:
            self._child.no_more()
            self.result = json.loads(self._child.expect("RESULT ", END_S))
        except (RuntimeError, ValueError, BrokenPipeError) as error:
            self.result = {"tokens": 0, "errors": [f"the load did not end: {error}"]}
        finally:
            self._child.close()


async def run(url: str, in_flight: int, vocab: int, prompt: int, output: int) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    tokens = 0
    async with session() as http, Fleet([url], http) as fleet:
        firsts = [asyncio.Event() for _ in range(in_flight)]

        async def stream(length: int, first: asyncio.Event) -> None:
            nonlocal tokens
            try:
                while True:
                    ids = generator.integers(0, vocab, prompt)
                    answer = await fleet.generate(ids, SamplingParams(max_tokens=length, ignore_eos=True))
                    tokens, length = tokens + len(answer.token_ids), output
                    first.set()
            finally:
                first.set()

        async def say_through() -> None:
            for first in firsts:
                await first.wait()
            print("THROUGH", flush=True)

        lengths = generator.integers(1, output, in_flight)  # streams do not end together
        tasks = [asyncio.create_task(stream(int(one), first)) for one, first in zip(lengths, firsts)]
        said = asyncio.create_task(say_through())
        await asyncio.to_thread(sys.stdin.read)
        for task in (*tasks, said):
            task.cancel()
        ended = await asyncio.gather(*tasks, said, return_exceptions=True)
    return {"tokens": tokens, "errors": [str(one) for one in ended if isinstance(one, Exception)]}


if __name__ == "__main__":
    print("RESULT " + json.dumps(asyncio.run(run(sys.argv[1], *map(int, sys.argv[2:6])))))
