"""A wave: so many requests at once, through the actor's client, until the last is answered.

    python -m benchmarks.gpu.wave URL VOCABULARY PROMPT

The same work as `LLM.generate` of a list, which is what the offline engine is asked for. It is sent by
processes of their own, as by the actor's workers: for each wave they read a line of JSON (`requests`,
`output`, `seed`), make prompts, say READY, and begin when they read the next line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.child import Child
from benchmarks.gpu.load import session
from pipelinerl.inference.client import SamplingParams
from pipelinerl.inference.fleet import Fleet

READY_S = 120.0
WAVE_S = 240.0


@dataclass(frozen=True)
class Wave:
    """What happened between the first request and the last answer."""

    requests: int
    tokens: int
    """Sampled ones."""
    seconds: float
    cpu_s: Sequence[float]
    """Of each client process."""
    errors: Sequence[str]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def merged(parts: Sequence[dict[str, Any]]) -> Wave:
    """One wave of what several processes sent; their clocks are the machine's monotonic one."""
    return Wave(
        requests=sum(part["requests"] for part in parts),
        tokens=sum(part["tokens"] for part in parts),
        seconds=max(part["ended"] for part in parts) - min(part["begun"] for part in parts),
        cpu_s=[part["cpu_s"] for part in parts],
        errors=[error for part in parts for error in part["errors"]],
    )


class Clients:
    """Processes that send waves; as a context manager."""

    def __init__(self, url: str, processes: int, vocab: int, prompt: int) -> None:
        self._command = [sys.executable, "-m", "benchmarks.gpu.wave", url, str(vocab), str(prompt)]
        self._processes = processes
        self._children: list[Child] = []

    def __enter__(self) -> Clients:
        self._children = [Child(f"client {number}", self._command) for number in range(self._processes)]
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.close()

    def wave(self, requests: int, output: int) -> Wave:
        """RuntimeError if a process does not answer by its deadline."""
        shares = [len(part) for part in np.array_split(np.arange(requests), len(self._children))]
        busy = [(child, share) for child, share in zip(self._children, shares) if share]
        for seed, (child, share) in enumerate(busy):
            child.tell(json.dumps({"requests": share, "output": output, "seed": seed}))
        for child, _ in busy:
            child.expect("READY", READY_S)
        for child, _ in busy:
            child.tell("go")
        return merged([json.loads(child.expect("WAVE ", WAVE_S)) for child, _ in busy])


async def send(fleet: Fleet, prompts: Sequence[np.ndarray], output: int) -> dict[str, Any]:
    """All at once; answers that failed are in `errors`."""
    sampling = SamplingParams(max_tokens=output, ignore_eos=True)
    begun, cpu = time.monotonic(), time.process_time()
    answers = await asyncio.gather(
        *(fleet.generate(ids, sampling) for ids in prompts), return_exceptions=True
    )
    return {
        "requests": len(prompts),
        "tokens": sum(len(one.token_ids) for one in answers if not isinstance(one, BaseException)),
        "begun": begun,
        "ended": time.monotonic(),
        "cpu_s": time.process_time() - cpu,
        "errors": [str(one) for one in answers if isinstance(one, BaseException)],
    }


async def serve(url: str, vocab: int, prompt: int) -> None:
    """Send what the standard input asks for, until it ends."""
    async with session() as http, Fleet([url], http) as fleet:
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            generator = np.random.default_rng(asked["seed"])
            prompts = [generator.integers(0, vocab, prompt) for _ in range(asked["requests"])]
            print("READY", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            print("WAVE " + json.dumps(await send(fleet, prompts, asked["output"])), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], *map(int, sys.argv[2:4])))
