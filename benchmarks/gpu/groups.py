"""Decoding of groups that share long prompts: vLLM's attention beside `vllm_config.shared_prompts`, one card.

    python -m benchmarks.gpu.groups [--size 1.7B] [--groups 32] [--attempts 8] [--prompt 8192] [--output 512]
                                    [--arms stock shared] [--profile 0] [--folder /tmp/pipelinerl-bench]
                                    [--out FILE]

Random weights of a Qwen3 architecture in vLLM's offline engine, one arm after the other. Prompts are put into
the prefix cache first, so that the measured wave is decoding. Every attempt is greedy: how many of the first
tokens of both arms agree is said beside the rates, of which ties in bfloat16 take a few. `--profile 32` runs
the engine in the arm's own process and says of 32 further steps how long the card's kernels took.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._figures import RESULTS, Figure, at_least, command_line, report
from benchmarks._processes import Child
from benchmarks.gpu.served import PYTHON, model_config, model_folder, needed_vllm
from pipelinerl.engines.vllm.options import ATTENTION, FREE_PLACE, SHARED_PROMPTS, serve_env

GOAL = 3.0
START_S, WAVE_S = 400.0, 300.0
COMPARED = 8
"""First tokens of each answer."""
ARM = """
import json, sys, time
import numpy as np
from vllm import LLM, SamplingParams
load = json.loads(sys.argv[1])
llm = LLM(model=load["model"], **load["flags"])
rng = np.random.default_rng(1)
prompts = [rng.integers(0, load["vocab"], load["prompt"]).tolist() for _ in range(load["groups"])]
asked = [{"prompt_token_ids": one} for one in prompts for _ in range(load["attempts"])]
def run(what, tokens):
    greedy = {"temperature": 0.0, "ignore_eos": True, "logprobs": 0, "detokenize": False}
    sampling = SamplingParams(max_tokens=tokens, **greedy)
    started = time.perf_counter()
    answers = llm.generate(what, sampling, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in answers], time.perf_counter() - started
run([{"prompt_token_ids": one} for one in prompts], 1)
run(asked, 8)
print("READY", flush=True)
answers, seconds = run(asked, load["output"])
tokens = sum(map(len, answers))
first = [one[: load["compared"]] for one in answers]
found = {"tokens": tokens, "seconds": seconds, "first": first}
if load["profile"]:
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        found["profiled_s"] = run(asked, load["profile"])[1]
    found["kernels_us"] = {one.key[:120]: one.self_device_time_total for one in seen.key_averages()}
print("RAN " + json.dumps(found), flush=True)
"""
ATTENTION_KERNELS = ("attn", "attention", "flash", "fmha", "merge")


def arm(name: str, options: Any, model: Path, vocabulary: int) -> dict[str, Any]:
    """Tokens, seconds and first tokens of one arm, in a process of its own."""
    shared = name == "shared"
    requests, longest = options.groups * options.attempts, options.prompt + options.output + 16
    flags = {
        "dtype": "bfloat16",
        "load_format": "dummy",
        "max_model_len": longest,
        "max_num_seqs": requests,
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": True,
        "gpu_memory_utilization": 0.9,
        **({ATTENTION.replace("-", "_"): FREE_PLACE} if shared else {}),
    }
    sizes = {key: getattr(options, key) for key in ("groups", "attempts", "prompt", "output", "profile")}
    load = {"model": str(model), "flags": flags, "vocab": vocabulary, "compared": COMPARED, **sizes}
    env = {**os.environ, **serve_env([os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]])}
    if options.profile:
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the profiler sees the kernels of its own process
    log = options.out.with_suffix(f".{name}.log")
    with log.open("ab") as errors:
        command = [PYTHON or sys.executable, "-c", ARM, json.dumps(load)]
        child = Child(f"{name} ({log})", command, errors, env | {SHARED_PROMPTS: str(int(shared))})
    try:
        child.expect("READY", START_S)
        found: dict[str, Any] = json.loads(child.expect("RAN ", WAVE_S))
    finally:
        child.close()
    print(f"{name}: {found['tokens'] / found['seconds']:,.0f} tokens/s", flush=True)
    return found


def figures(found: dict[str, dict[str, Any]], requests: int, steps: int) -> list[Figure]:
    """Rates, how many first tokens agree where both arms are there, and what took so many profiled steps."""
    rates = {name: one["tokens"] / one["seconds"] for name, one in found.items()}
    rows = [Figure(f"{name}, sampled", rate, "tok/s") for name, rate in rates.items()]
    if len(found) == 2:
        rows.append(at_least("shared / stock", rates["shared"] / rates["stock"], "x", GOAL))
        same = np.equal(found["shared"]["first"], found["stock"]["first"]).mean()
        rows.append(Figure(f"of the first {COMPARED} tokens the same", float(same), "share"))
    for name, one in found.items():
        if kernels := one.get("kernels_us"):
            attention = sum(
                us for key, us in kernels.items() if any(w in key.lower() for w in ATTENTION_KERNELS)
            )
            rows.append(Figure(f"{name}: a step", 1e3 * requests / rates[name], "ms"))
            rows.append(Figure(f"{name}: a step that is profiled", 1e3 * one["profiled_s"] / steps, "ms"))
            rows.append(Figure(f"{name}: kernels of a step", 1e-3 * sum(kernels.values()) / steps, "ms"))
            rows.append(Figure(f"{name}: of them attention", 1e-3 * attention / steps, "ms"))
    return rows


def main() -> int:
    options = command_line(__doc__, arms=("stock", "shared"))
    version = needed_vllm()
    options.out = options.out or RESULTS / "gpu_groups.json"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    config = model_config(options.size)
    model = model_folder(options.size, options.folder / options.size)
    found = {name: arm(name, options, model, config.vocab_size) for name in options.arms}
    sizes = {key: getattr(options, key) for key in ("size", "groups", "attempts", "prompt", "output")}
    card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    settings = {"card": card, "vllm": version, "torch": torch.__version__, **sizes}
    rows = figures(found, options.groups * options.attempts, options.profile)
    return min(report("gpu_groups", rows, settings, options.out), 1)


if __name__ == "__main__":
    sys.exit(main())
