"""What a step of vLLM's engine takes while many requests are decoded: the card's kernels, and the process.

    python -m benchmarks.gpu.decode [--size 1.7B] [--requests 512] [--prompt 518] [--output 512] [--steps 40]
                                    [--cpu] [--folder /tmp/pipelinerl-bench] [--out FILE]

Random weights of a Qwen3 architecture with the flags that a run gives its engine. Everything is in this one
process, so that nothing overlaps: a step lasts as long as the card is busy and as the process needs for the
scheduler, the outputs and the launch of kernels. In a server both go on beside each other, and the longer of
the two limits it. `busiest` are the functions that take most of the process, by a profiler that slows down
what calls much. It needs vLLM in its own interpreter; `--cpu` rehearses it with a CPU build.
"""

import cProfile
import json
import os
import pstats
import random
import statistics
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks._figures import RESULTS, Figure, command_line, report, write_json
from benchmarks.gpu.cards import SHARED_MEMORY, kv_bytes
from benchmarks.gpu.served import model_config, model_folder
from pipelinerl.engines.vllm.options import installed_version

TINY = {"size": "tiny", "requests": 8, "prompt": 32, "output": 64, "steps": 3}
KINDS = {
    "attention": ("flash", "attn", "attention"),
    "matmul": ("nvjet", "gemm", "cublas"),
    "sampling": ("sample", "softmax", "ranks", "logprob", "gumbel"),
}
"""Of kernels, by parts of their names; the first that fits."""
PREFILL_STEPS = 60
PROFILED_STEPS = 10
SHOWN = 15


def engine_of(options: Namespace) -> Any:
    """vLLM's engine, all of it in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    folder = model_folder(options.size, options.folder / options.size)
    context = options.prompt + options.output + 16
    flags: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "max_num_batched_tokens": 256}
    if not options.cpu:
        size = kv_bytes(model_config(options.size), options.requests, context)
        flags = {"dtype": "bfloat16", "kv_cache_memory_bytes": size, "max_num_batched_tokens": 8192}
        flags["gpu_memory_utilization"] = SHARED_MEMORY
    flags |= {"logprobs_mode": "processed_logprobs", "hf_overrides": {"head_dtype": "float32"}}
    flags |= {"max_model_len": context, "max_num_seqs": options.requests, "load_format": "dummy"}
    # Without overlap, which the next step's preparation would otherwise have with this one's kernels.
    return LLM(model=str(folder), async_scheduling=False, enable_prefix_caching=False, **flags).llm_engine


class Engine:
    """Steps of an engine that decodes so many requests."""

    def __init__(self, options: Namespace) -> None:
        from vllm import SamplingParams

        self._engine, self._cpu = engine_of(options), options.cpu
        vocabulary = model_config(options.size).vocab_size
        drawn = random.Random(0)
        sampling = SamplingParams(
            temperature=1.0, max_tokens=options.output, ignore_eos=True, logprobs=0, detokenize=False
        )
        for number in range(options.requests):
            ids = [drawn.randrange(vocabulary) for _ in range(options.prompt)]
            self._engine.add_request(str(number), {"prompt_token_ids": ids}, sampling)
        self._run(PREFILL_STEPS if not options.cpu else 4)

    def _run(self, steps: int) -> None:
        for _ in range(steps):
            self._engine.step()
        if not self._cpu:
            torch.cuda.synchronize()

    def milliseconds(self, steps: int) -> list[float]:
        """Of each step."""
        found = []
        for _ in range(steps):
            begun = time.perf_counter()
            self._run(1)
            found.append(1e3 * (time.perf_counter() - begun))
        return found

    def kernels(self) -> Mapping[str, float]:
        """Milliseconds of a step by kernel."""
        if self._cpu:
            return {}
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            self._run(PROFILED_STEPS)
        found: Counter[str] = Counter()
        for event in profiler.key_averages():
            found[event.key] += event.self_device_time_total / 1e3 / PROFILED_STEPS
        return dict(found.most_common())

    def functions(self) -> list[dict[str, Any]]:
        """The functions that take most of the process, with their own milliseconds of a step."""
        with cProfile.Profile() as profiler:
            self._run(PROFILED_STEPS)
        rows = pstats.Stats(profiler).stats.items()  # type: ignore[attr-defined]
        busiest = sorted(rows, key=lambda row: -row[1][2])[:SHOWN]
        return [
            {"function": f"{Path(file).name}:{name}", "calls": calls, "ms": 1e3 * own / PROFILED_STEPS}
            for (file, _, name), (_, calls, own, *_) in busiest
        ]


def by_kind(kernels: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds of each kind; `other` is what none has."""
    found = dict.fromkeys([*KINDS, "other"], 0.0)
    for name, spent in kernels.items():
        lower = name.lower()
        fits = (kind for kind, parts in KINDS.items() if any(part in lower for part in parts))
        found[next(fits, "other")] += spent
    return found


def figures_of(found: Mapping[str, Any], requests: int) -> Iterator[Figure]:
    """A step's parts; what the process needs is what no kernel explains."""
    step, kernels = statistics.median(found["steps_ms"]), sum(found["kernels_ms"].values())
    yield Figure("a step without overlap", step, "ms")
    yield Figure("kernels", kernels, "ms")
    for kind, spent in by_kind(found["kernels_ms"]).items():
        yield Figure(f"  {kind}", spent, "ms")
    yield Figure("the process", step - kernels, "ms")
    yield Figure("the process, for each token", 1e3 * (step - kernels) / requests, "us")
    if kernels:
        yield Figure("tokens, if only the card limited", 1e3 * requests / kernels, "tok/s")
    yield Figure("tokens, if only the process limited", 1e3 * requests / (step - kernels), "tok/s")


def main() -> int:
    options = command_line(__doc__)
    if options.cpu:
        vars(options).update(TINY)
    elif not torch.cuda.is_available():
        print("benchmarks.gpu.decode needs a CUDA device, or --cpu", file=sys.stderr)
        return 2
    engine = Engine(options)
    steps = engine.milliseconds(options.steps)
    found = {"steps_ms": steps, "kernels_ms": engine.kernels(), "busiest": engine.functions()}
    settings = {name: getattr(options, name) for name in ("size", "requests", "prompt", "output", "steps")}
    settings |= {"card": "none" if options.cpu else torch.cuda.get_device_name(), "torch": torch.__version__}
    settings["vllm"] = installed_version()
    out = options.out or RESULTS / "gpu_decode.json"
    report("gpu_decode", figures_of(found, options.requests), settings, out)
    write_json(out, {**json.loads(out.read_text()), "found": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
