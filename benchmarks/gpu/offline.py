"""vLLM's offline engine, the yardstick of what a server costs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import Child
from benchmarks.gpu.served import PYTHON
from pipelinerl.inference.vllm import serve_env

DEADLINE_S = 240.0
"""For the start, and for each measurement."""
OFFLINE = """
import json, os, sys, time
import numpy as np
from vllm import LLM, SamplingParams
load = json.loads(sys.argv[1])
vocab, prompt, output = (load[name] for name in ("vocab", "prompt", "output"))
llm = LLM(model=load["model"], **load["flags"])
rng = np.random.default_rng(1)
def run(count, tokens):
    prompts = [{"prompt_token_ids": rng.integers(0, vocab, prompt).tolist()} for _ in range(count)]
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False)
    started = time.perf_counter()
    answers = llm.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - started
    return {"tokens": sum(len(one.outputs[0].token_ids) for one in answers), "seconds": seconds}
run(load["warm"], 64)
print("READY", flush=True)
for line in sys.stdin:
    print("RAN " + json.dumps(run(int(line), output)), flush=True)
"""


class Offline:
    """The offline engine in a process of its own: it starts beside the server and measures when told to."""

    def __init__(
        self, model: Path, gpu: str, kwargs: Mapping[str, Any], load: Mapping[str, Any], log: Path
    ) -> None:
        """`load`: vocab, prompt and output (tokens), and how many requests come first, to `warm` it."""
        # An empty string is a bare flag of the command line.
        flags = {key.replace("-", "_"): value == "" or value for key, value in kwargs.items()}
        flags = {"dtype": "bfloat16", **flags}
        flags |= {"load_format": "dummy", "enable_prefix_caching": False}
        flags |= {"logprobs_mode": "processed_logprobs", "hf_overrides": {"head_dtype": "float32"}}
        argument = json.dumps({"model": str(model), "flags": flags, **load})
        self._ready = False
        self._log = log.open("ab")
        self._child = Child(
            f"the offline engine ({log})",
            [PYTHON or sys.executable, "-c", OFFLINE, argument],
            stderr=self._log,
            env={**os.environ, **serve_env([gpu] if gpu else [])},
        )

    @property
    def group(self) -> int:
        """Its process group."""
        return self._child.process.pid

    def wait_ready(self) -> None:
        """RuntimeError when it does not start; more than once does no harm."""
        if not self._ready:
            self._child.expect("READY", DEADLINE_S)
            self._ready = True

    def wave(self, requests: int) -> tuple[int, float]:
        """Tokens sampled for so many requests at once, and seconds; RuntimeError at the deadline."""
        self._child.tell(str(requests))
        ran = json.loads(self._child.expect("RAN ", DEADLINE_S))
        return int(ran["tokens"]), float(ran["seconds"])

    def close(self) -> None:
        """End it and its workers; more than once does no harm."""
        if not self._log.closed:
            self._child.close()
            self._log.close()
