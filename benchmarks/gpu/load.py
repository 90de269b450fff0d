"""Requests that keep an engine busy, from a process of their own, through the actor's client.

    python -m benchmarks.gpu.load URL IN_FLIGHT VOCABULARY PROMPT OUTPUT

Runs until its standard input is closed, then prints what happened as JSON. It shares no interpreter with the
publisher whose pauses are measured, as actor and trainer do not.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import aiohttp
import numpy as np

from pipelinerl.inference.client import SamplingParams
from pipelinerl.inference.fleet import Fleet


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
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        try:
            printed = self._process.communicate("", timeout=60)[0]
            self.result = json.loads(printed.strip().splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
            self._process.kill()
            self.result = {"tokens": 0, "errors": [f"the load did not end: {type(error).__name__}"]}


async def run(url: str, in_flight: int, vocab: int, prompt: int, output: int) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    tokens = 0
    async with session() as http, Fleet([url], http) as fleet:

        async def stream(first: int) -> None:
            nonlocal tokens
            length = first  # streams do not end together
            while True:
                ids = generator.integers(0, vocab, prompt)
                answer = await fleet.generate(ids, SamplingParams(max_tokens=length, ignore_eos=True))
                tokens, length = tokens + len(answer.token_ids), output

        firsts = generator.integers(1, output, in_flight)
        tasks = [asyncio.create_task(stream(int(first))) for first in firsts]
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    return {"tokens": tokens, "errors": [str(one) for one in ended if isinstance(one, Exception)]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], *map(int, sys.argv[2:6])))))
