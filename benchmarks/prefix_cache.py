"""The embedded engine's prefix cache on the privacy agent's own requests.

    python -m benchmarks.prefix_cache [--seeds 0 1 2] [--steps 3] [--updates 128]
                                      [--rounds 5] [--only both|requests|decoding]

Records what the agent of the quickstart asks an engine in a run of `--steps` steps (no weights are sent),
once for each seed. The recording is then asked of engines without and with a prefix cache in turn: each
request once as many have ended as had when it came, with as many tokens to sample as it got. The same again
with an update after every `--updates` requests (in the quickstart 70 to 130 lie between two). Requests that
share nothing and are nearly all decoding are asked `--rounds` times; a round differs from the next by some
per cent, so the times of all are added up.

An engine is asked without HTTP, and times are CPU seconds of this process, which others disturb least. The
ratio is without cache to with it; of the recordings the worst counts.
"""

import argparse
import asyncio
import json
import queue
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from aiohttp import web

from benchmarks._figures import ROOT, Figure, at_least, command_line, report
from benchmarks.gpu.runs import launcher
from pipelinerl.base.child import wrapped
from pipelinerl.engines.cpu.backend import CpuBackend
from pipelinerl.engines.cpu.settings import EngineSettings
from pipelinerl.engines.openai.protocol import SamplingFields
from pipelinerl.engines.received import FileUpdateInfo
from pipelinerl.engines.serving.sequence import Request, Result
from pipelinerl.engines.serving.server import EngineServer, listening
from pipelinerl.engines.serving.thread import Engine
from pipelinerl.weights.transports.file import FileTransport

MODEL = ROOT / "domains" / "privacy_hopqa" / "checkpoint"
IN_FLIGHT = 64
DEADLINE_S = 600.0
GOAL = 1.5
DECODING = {"count": 128, "prompt": 16, "output": 200}
DECODING_GOAL = 0.97
"""Saving what nobody will ask for is about a hundredth of decoding."""


@dataclass(slots=True)
class Call:
    """One request of a recording."""

    ids: list[int]
    before: int
    """Requests that had ended when it came."""
    sampled: int = 0


def settings(prefix_cache: bool) -> EngineSettings:
    return EngineSettings(
        model=MODEL,
        served_model_name=str(MODEL),
        max_num_seqs=IN_FLIGHT,
        enable_prefix_caching=prefix_cache,
    )


async def record(seed: int, steps: int, out: Path) -> list[Call]:
    """What the actor of a run asks, in order."""
    chosen = settings(prefix_cache=False)
    server = EngineServer(CpuBackend(chosen))
    calls: list[Call] = []
    ended = 0

    @web.middleware
    async def note(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        nonlocal ended
        if request.path != "/inference/v1/generate":
            return await handler(request)
        call = Call(json.loads(await request.read())["token_ids"], ended)
        calls.append(call)
        answer = await handler(request)
        assert isinstance(answer, web.Response) and isinstance(answer.body, bytes)
        call.sampled = len(json.loads(answer.body)["choices"][0]["token_ids"])
        ended += 1
        return answer

    server.app.middlewares.append(note)
    async with listening(server, "127.0.0.1", 0) as port:
        asked = ["+domain=privacy_hopqa", "hardware=cpu", "max_lag=null", f"seed={seed}"]
        asked += ["debug.mode=actor", "debug.use_existing_llms=true", f"engine.port={port}"]
        asked += [f"finetune.max_train_steps={steps}", "eval_every_n_versions=0", "eval_at_end=false"]
        run = await asyncio.create_subprocess_exec(
            *wrapped(launcher(out, asked)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        if await asyncio.wait_for(run.wait(), DEADLINE_S):
            raise RuntimeError(f"the run to be recorded ended with status {run.returncode}: {out}")
    # The end of the run cuts the last ones off.
    return [call for call in calls if call.sampled]


def random_calls(count: int, prompt: int, output: int) -> list[Call]:
    """Requests that share nothing, as many at a time as an engine takes."""
    rng = np.random.default_rng(0)
    return [
        Call(rng.integers(2, 2048, prompt).tolist(), max(0, number - IN_FLIGHT + 1), output)
        for number in range(count)
    ]


@dataclass(slots=True)
class Replay:
    seconds: float
    """CPU time of this process."""
    hit: float
    """Share of the prompt tokens that was found."""


def replay(calls: Sequence[Call], prefix_cache: bool, update_every: int = 0) -> Replay:
    """Ask an engine for all of `calls`."""
    chosen = settings(prefix_cache)
    backend = CpuBackend(chosen)
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()

    def deliver(results: list[Result]) -> None:
        ends.put(sum(piece is None for _, piece in results))

    engine = Engine(backend, on_results=deliver, on_failed=lambda _: ends.put(-1))
    asked = ended = updates = 0
    with tempfile.TemporaryDirectory() as folder:
        transport = FileTransport(Path(folder))
        engine.start()
        engine.between_steps(engine.weights.init).result()
        started = time.process_time()
        while ended < len(calls):
            while asked < len(calls) and calls[asked].before <= ended:
                engine.submit(_request(asked, calls[asked]))
                asked += 1
            if update_every and ended // update_every > updates:
                updates += 1
                _update(engine, transport, backend, updates)
            more = ends.get(timeout=DEADLINE_S)
            if more < 0:
                raise RuntimeError(f"the engine failed: {engine.failure}")
            ended += more
        seconds = time.process_time() - started
        engine.stop()
    tokens = sum(len(call.ids) for call in calls)
    return Replay(seconds, engine.metrics.prefix_hits / tokens)


def _request(number: int, call: Call) -> Request:
    sampling = SamplingFields(seed=number, ignore_eos=True)
    return Request(str(number), call.ids, sampling, max_tokens=call.sampled, eos_ids=frozenset())


def _update(engine: Engine, transport: FileTransport, backend: CpuBackend, version: int) -> None:
    """The same weights again, as an update in flight with `weights.kv=keep` brings new ones."""
    staged = transport.stage(version, backend.model.module.named_parameters())
    info = msgspec.convert(staged.info, FileUpdateInfo)
    engine.pause("keep", False).result().result()
    engine.between_steps(engine.update.start).result()
    engine.weights.update(info)
    engine.between_steps(lambda: engine.update.finish(str(version))).result()
    engine.resume().result()


def compared(
    name: str, recordings: Sequence[Sequence[Call]], goal: float | None, update_every: int = 0
) -> list[Figure]:
    """Worst and every ratio over the recordings, and what was found."""
    ratios, figures = [], []
    for number, calls in enumerate(recordings):
        off, on = (replay(calls, prefix_cache, update_every) for prefix_cache in (False, True))
        ratios.append(off.seconds / on.seconds)
        figures += [
            Figure(f"{name}: ratio of recording {number}", ratios[-1], "x"),
            Figure(
                f"{name}: requests without the cache, recording {number}",
                len(calls) / off.seconds,
                "1/s/core",
            ),
            Figure(f"{name}: requests with it, recording {number}", len(calls) / on.seconds, "1/s/core"),
            Figure(f"{name}: prompt tokens found, recording {number}", 100 * on.hit, "%"),
        ]
    return [at_least(f"{name}: ratio, worst", min(ratios), "x", goal), *figures]


def requests(options: argparse.Namespace) -> int:
    """Record, ask, print, write; returns how many goals are missed."""
    with tempfile.TemporaryDirectory() as folder:
        recordings = [
            asyncio.run(record(seed, options.steps, Path(folder) / str(seed))) for seed in options.seeds
        ]
    every = options.updates
    figures = [
        *compared("recorded requests", recordings, GOAL),
        *compared(f"an update every {every}", recordings, None, every),
    ]
    shapes = {
        "requests": [len(calls) for calls in recordings],
        "prompt_tokens": [sum(len(call.ids) for call in calls) for calls in recordings],
        "sampled_tokens": [sum(call.sampled for call in calls) for calls in recordings],
    }
    given = {"seeds": options.seeds, "steps": options.steps, "updates": every}
    return report("prefix_cache", figures, given | shapes)


def decoding(rounds: int) -> int:
    """The same for requests that share nothing."""
    calls = random_calls(**DECODING)
    times = [(replay(calls, False).seconds, replay(calls, True).seconds) for _ in range(rounds)]
    off, on = map(sum, zip(*times, strict=True))
    figures = [
        at_least("decoding: ratio, all rounds", off / on, "x", DECODING_GOAL),
        *(Figure(f"decoding: ratio of round {number}", a / b, "x") for number, (a, b) in enumerate(times)),
    ]
    return report("prefix_cache_decoding", figures, DECODING | {"rounds": rounds})


def main() -> int:
    """Returns how many goals are missed."""
    options = command_line(__doc__)
    torch.set_num_threads(1)
    sys.setswitchinterval(0.0005)  # as the engine's own process
    missed = 0
    if options.only != "decoding":
        missed += requests(options)
    if options.only != "requests":
        missed += decoding(options.rounds)
    return missed


if __name__ == "__main__":
    sys.exit(main())
