"""vLLM's offline engine, the yardstick of what a server costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.served import PYTHON
from pipelinerl.inference.vllm import serve_env

DEADLINE_S = 240.0
"""For the start, and for each measurement."""
OFFLINE = """
import json, os, sys, time
import numpy as np
from vllm import LLM, SamplingParams
load = json.loads(sys.argv[1])
counts, vocab, prompt, output = (load[name] for name in ("counts", "vocab", "prompt", "output"))
llm = LLM(model=load["model"], **load["flags"])
rng = np.random.default_rng(1)
def run(count, tokens):
    prompts = [{"prompt_token_ids": rng.integers(0, vocab, prompt).tolist()} for _ in range(count)]
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False)
    started = time.perf_counter()
    answers = llm.generate(prompts, sampling, use_tqdm=False)
    return sum(len(one.outputs[0].token_ids) for one in answers) / (time.perf_counter() - started)
run(min(counts), 64)
print("READY", flush=True)
sys.stdin.readline()
print("RATES " + json.dumps({count: run(count, output) for count in counts}), flush=True)
"""


class Offline:
    """The offline engine in a process of its own: it starts beside the server and measures when told to."""

    def __init__(
        self, model: Path, gpu: str, kwargs: Mapping[str, Any], load: Mapping[str, Any], log: Path
    ) -> None:
        """`load`: counts (requests of each measurement), vocab, prompt and output (tokens)."""
        # An empty string is a bare flag of the command line.
        flags = {key.replace("-", "_"): value == "" or value for key, value in kwargs.items()}
        flags = {"dtype": "bfloat16", **flags}
        flags |= {"load_format": "dummy", "enable_prefix_caching": False}
        flags |= {"logprobs_mode": "processed_logprobs", "hf_overrides": {"head_dtype": "float32"}}
        argument = json.dumps({"model": str(model), "flags": flags, **load})
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [PYTHON or sys.executable, "-c", OFFLINE, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **serve_env([gpu] if gpu else [])},
            start_new_session=True,
        )

    def measure(self) -> dict[int, float]:
        assert self._process.stdin is not None
        self._expect("READY")
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        rates = json.loads(self._expect("RATES "))
        return {int(count): float(rate) for count, rate in rates.items()}

    def _expect(self, mark: str) -> str:
        """What follows `mark`; RuntimeError when the process ends, or says nothing until a deadline."""
        assert self._process.stdout is not None
        deadline = threading.Timer(DEADLINE_S, self._process.kill)  # a pipe that ends is read to its end
        deadline.start()
        try:
            for line in self._process.stdout:
                if line.startswith(mark):
                    return line[len(mark) :]
        finally:
            deadline.cancel()
        said = f"did not say {mark.strip()} before its end, or within {DEADLINE_S:g} s"
        raise RuntimeError(f"the offline engine {said}; see {self._log.name}")

    def close(self) -> None:
        """End it and its workers; more than once does no harm."""
        if self._log.closed:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
        except ProcessLookupError:
            return
        finally:
            self._log.close()
