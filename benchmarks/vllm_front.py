"""Processor time of vLLM's HTTP processes: `VLLM_PYTHON=... python -m benchmarks.vllm_front`.

A CPU build serves a tiny model. Only its HTTP processes count, not the engine's behind them, so the numbers
hold before any engine and do not depend on how fast this one is. Long answers give microseconds per token,
short calls microseconds per call: as vLLM does it unasked, as the project's client asks for it
(`SamplingParams.body`), and without log-probabilities; then with two processes. A call of 512 + 1 tokens is
the beginning of a wave; its end are answers whose last token comes in the same step, as the client asks for
them and streamed in pieces (`--stream-interval`). `--python` names several interpreters (versions);
each takes some five minutes. Results go to benchmarks/results/vllm_front.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks._ending import end_together
from benchmarks._figures import ROOT, Figure, report
from benchmarks.gpu.cpu_build import named_vllm
from benchmarks.gpu.served import engine_options, model_folder, serving
from benchmarks.gpu.usage import cpu_seconds
from pipelinerl.inference.client import SamplingParams
from pipelinerl.inference.vllm import VllmOptions, installed_version, serve_argv

IN_FLIGHT, CONTEXT, VOCABULARY = 64, 1024, 2000
LONG, SHORT, TAKEN_IN, TOGETHER = (256, 512, 64), (100, 8, 512), (512, 1, 512), (16, 512, 64)
"""Prompt tokens, output tokens, requests; prompts of the last are small enough for one step."""
ENDINGS = 3
"""Times that requests end together; the median counts."""
PIECE = 64
"""Tokens of a piece of a streamed answer."""
UNASKED = "output_kind", "flat_logprobs"
ENGINE = "EngineCore", "Worker"
"""Beginnings of the roles of processes that are not counted."""


def asked(output: int) -> dict[str, dict[str, Any]]:
    """Bodies of a request, without its prompt, by what is asked for."""
    client = SamplingParams(max_tokens=output, ignore_eos=True).body()
    unasked = {name: value for name, value in client.items() if name not in UNASKED}
    return {
        "unasked": {"sampling_params": unasked, "stream": False},
        "client": {"sampling_params": client, "stream": False},
        "no log-probabilities": {"sampling_params": {**client, "logprobs": None}, "stream": False},
        "streamed": {"sampling_params": client, "stream": True},
    }


def prompts_of(length: int, requests: int) -> list[list[int]]:
    """The same random token ids each time."""
    return np.random.default_rng(0).integers(5, VOCABULARY, (requests, length)).tolist()


def front_cpu_s(group: int) -> float:
    """Processor seconds of a server's processes without the engine's."""
    return sum(spent for (role, _), spent in cpu_seconds(group).items() if not role.startswith(ENGINE))


async def ask(url: str, prompt: int, asked_for: dict[str, Any], requests: int) -> None:
    """Make the requests, so many at a time."""
    limit = asyncio.Semaphore(IN_FLIGHT)

    async def one(http: aiohttp.ClientSession, ids: list[int]) -> None:
        body = {"token_ids": ids, **asked_for}
        async with limit, http.post(f"{url}/inference/v1/generate", json=body) as answer:
            if answer.status != 200:
                raise SystemExit(f"status {answer.status}: {(await answer.read())[:300]!r}")
            await answer.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*(one(http, ids) for ids in prompts_of(prompt, requests)))


def launch(python: str, servers: int, folder: Path, port: int, flags: dict[str, Any]) -> VllmOptions:
    """What is started: a tiny model with dummy weights."""
    os.environ["PYTHONPATH"] = str(ROOT)
    kwargs = {"max-model-len": CONTEXT, "max-num-seqs": IN_FLIGHT, "dtype": "float32", "enforce-eager": ""}
    kwargs |= {"enable-prefix-caching": None, **flags}
    options = engine_options(model_folder("tiny", folder / "model"), port, "file", kwargs, servers, python)
    if servers > 1:
        found = str(installed_version(python))
        site = folder / f"{found}-{servers}"
        named_vllm(site, found)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(site)])
    return options


def measure(options: VllmOptions, log: Path, streamed: bool = False) -> list[Figure]:
    """Figures of one version with so many HTTP processes; `streamed`: of streamed answers only."""
    figures = []
    servers = options.api_server_count or 1
    before = f"{options.version}, {servers} process{'es' if servers > 1 else ''}"
    ways = ["streamed"] if streamed else ["unasked", "client", "no log-probabilities"]

    def keep(name: str, value: float, unit: str) -> None:
        figures.append(Figure(f"{before}, {name}", value, unit))
        print(figures[-1].line(), flush=True)

    with serving(serve_argv(options), "", options.port, log) as (url, group):
        asyncio.run(ask(url, SHORT[0], asked(SHORT[1])[ways[-1]], 2 * IN_FLIGHT))
        for name in ways if servers == 1 else ("client",):
            for kind in (LONG, SHORT, TAKEN_IN) if name == "client" and servers == 1 else (LONG, SHORT):
                prompt, output, requests = kind
                spent = front_cpu_s(group)
                asyncio.run(ask(url, prompt, asked(output)[name], requests))
                each = 1e6 * (front_cpu_s(group) - spent) / requests
                if kind is LONG:
                    keep(f"{name}: a token of {output}", each / output, "us CPU")
                else:
                    what = "a short call" if kind is SHORT else f"a call of {prompt} + {output}"
                    keep(f"{name}: {what}", each, "us CPU")
            if servers == 1 and name in ("client", "streamed"):
                endings(url, group, name, keep)
    return figures


def endings(url: str, group: int, name: str, keep: Callable[[str, float, str], None]) -> None:
    """Of answers that end in the same step: seconds until the last, and processor time of each."""
    prompt, output, requests = TOGETHER
    bodies = [{"token_ids": ids, **asked(output)[name]} for ids in prompts_of(prompt, requests)]
    cpu = partial(front_cpu_s, group)
    found = [asyncio.run(end_together(url, bodies, cpu)) for _ in range(ENDINGS)]
    what = f"{name}: {requests} answers of {output} that end together"
    keep(f"{what}, until the last", 1e3 * statistics.median(one.seconds for one in found), "ms")
    keep(f"{what}, first to last", 1e3 * statistics.median(one.spread_s for one in found), "ms")
    spent = statistics.median(one.cpu_s for one in found) / requests
    keep(f"{what}, each", 1e3 * spent, "ms CPU")
    keep(f"{what}, a token", 1e6 * spent / output, "us CPU")


def ratios(figures: Sequence[Figure]) -> list[Figure]:
    """The client's way against vLLM's own, where both were measured."""
    values = {one.name: one.value for one in figures}
    return [
        Figure(name.replace("client", "client / unasked"), value / values[other], "x")
        for name, value in values.items()
        if "client" in name and (other := name.replace("client", "unasked")) in values
    ]


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; returns how many goals are missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_front", description=__doc__)
    parser.add_argument("--python", nargs="+", default=[os.environ.get("VLLM_PYTHON")])
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--flags", type=json.loads, default={}, help="further flags of vLLM, as JSON")
    parser.add_argument("--port", type=int, default=18400)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(argv)
    if None in given.python:
        parser.error("set VLLM_PYTHON to an interpreter that has vLLM")
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for python in given.python:
            for servers in given.servers:
                options = launch(python, servers, Path(folder) / "whole", given.port, given.flags)
                figures += measure(options, Path(folder) / "log")
            flags = given.flags | {"stream-interval": PIECE}
            options = launch(python, 1, Path(folder) / "streamed", given.port, flags)
            figures += measure(options, Path(folder) / "log", streamed=True)
    figures += ratios(figures)
    settings = {"in flight": IN_FLIGHT, "long": list(LONG), "short": list(SHORT), "together": list(TOGETHER)}
    settings |= {"tokens of a streamed piece": PIECE, "flags": given.flags}
    return report("vllm_front", figures, settings, given.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
