"""Processor time of vLLM's HTTP processes: `VLLM_PYTHON=... python -m benchmarks.vllm_front`.

A CPU build serves a tiny model. Only its HTTP processes count, not the engine's behind them, so the numbers
hold before any engine and do not depend on how fast this one is. Long answers give microseconds per token,
short calls microseconds per call: as vLLM does it unasked, as the project's client asks for it
(`SamplingParams.body`), and without log-probabilities; then with two processes. `--python` names several
interpreters, for several versions. Results go to benchmarks/results/vllm_front.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks._figures import ROOT, Figure, report
from benchmarks.gpu.cpu_build import named_vllm
from benchmarks.gpu.served import model_folder, serving
from benchmarks.gpu.usage import cpu_seconds
from pipelinerl.inference.client import SamplingParams
from pipelinerl.inference.vllm import VllmOptions, VllmVersion, installed_version, serve_argv

IN_FLIGHT, CONTEXT, VOCABULARY = 64, 1024, 2000
LONG, SHORT = (256, 512, 64), (100, 8, 512)
"""Prompt tokens, output tokens, requests."""
UNASKED = "output_kind", "flat_logprobs"
ENGINE = "EngineCore", "Worker"
"""Beginnings of the roles of processes that are not counted."""


def asked(output: int) -> dict[str, dict[str, Any]]:
    """`sampling_params` by what is asked for."""
    client = SamplingParams(max_tokens=output, ignore_eos=True).body()
    return {
        "unasked": {name: value for name, value in client.items() if name not in UNASKED},
        "client": client,
        "no log-probabilities": {**client, "logprobs": None},
    }


def front_cpu_s(group: int) -> float:
    """Processor seconds of a server's processes without the engine's."""
    return sum(spent for (role, _), spent in cpu_seconds(group).items() if not role.startswith(ENGINE))


async def ask(url: str, prompt: int, sampling: dict[str, Any], requests: int) -> None:
    """Make the requests, so many at a time."""
    generator, limit = np.random.default_rng(0), asyncio.Semaphore(IN_FLIGHT)

    async def one(http: aiohttp.ClientSession, ids: list[int]) -> None:
        body = {"token_ids": ids, "sampling_params": sampling, "stream": False}
        async with limit, http.post(f"{url}/inference/v1/generate", json=body) as answer:
            if answer.status != 200:
                raise SystemExit(f"status {answer.status}: {(await answer.read())[:300]!r}")
            await answer.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        prompts = generator.integers(5, VOCABULARY, (requests, prompt)).tolist()
        await asyncio.gather(*(one(http, ids) for ids in prompts))


def launch(python: str, servers: int, folder: Path, port: int, flags: dict[str, Any]) -> VllmOptions:
    """What is started: a tiny model with dummy weights."""
    os.environ["PYTHONPATH"] = str(ROOT)
    found = installed_version(python)
    if found is None:
        raise SystemExit(f"{python} has no vLLM")
    site = folder / f"{found}-{servers}"
    named_vllm(site, found)
    if servers > 1:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(site)])
    kwargs = {"load-format": "dummy", "dtype": "float32", "enforce-eager": "", "max-num-seqs": IN_FLIGHT}
    return VllmOptions(
        model=str(model_folder("tiny", folder / "model")),
        served_model_name="bench",
        host="127.0.0.1",
        port=port,
        max_model_len=CONTEXT,
        transport="file",
        version=VllmVersion.parse(found),
        kwargs=kwargs | flags,
        api_server_count=servers,
        python=python,
    )


def measure(options: VllmOptions, log: Path) -> list[Figure]:
    """Figures of one version with so many HTTP processes."""
    figures = []
    servers = options.api_server_count or 1
    before = f"{options.version}, {servers} process{'es' if servers > 1 else ''}"
    with serving(serve_argv(options), "", options.port, log) as (url, group):
        asyncio.run(ask(url, SHORT[0], asked(SHORT[1])["client"], 2 * IN_FLIGHT))
        for name in asked(1) if servers == 1 else ("client",):
            for prompt, output, requests in (LONG, SHORT):
                spent = front_cpu_s(group)
                asyncio.run(ask(url, prompt, asked(output)[name], requests))
                each = 1e6 * (front_cpu_s(group) - spent) / requests
                what, value = (
                    ("a token of 512", each / output) if output == LONG[1] else ("a short call", each)
                )
                figures.append(Figure(f"{before}, {name}: {what}", value, "us CPU"))
                print(figures[-1].line(), flush=True)
    return figures


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
                options = launch(python, servers, Path(folder), given.port, given.flags)
                figures += measure(options, Path(folder) / "log")
    figures += ratios(figures)
    settings = {"in flight": IN_FLIGHT, "long": list(LONG), "short": list(SHORT), "flags": given.flags}
    return report("vllm_front", figures, settings, given.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
