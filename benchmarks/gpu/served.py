"""vLLM for the benchmarks: a model folder without weights, a server, and the offline engine as a yardstick.

`VLLM_PYTHON=/path/to/python` names an environment that has vLLM where this one has none.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import Qwen3Config

from benchmarks._figures import ROOT
from benchmarks._processes import Child, Server, started
from benchmarks.engine import qwen3
from pipelinerl.engines.vllm.installed import installed_version
from pipelinerl.engines.vllm.options import VllmOptions, VllmVersion, serve_argv, serve_env

TOKENIZER = ROOT / "domains/guessing/checkpoint"
PYTHON = os.environ.get("VLLM_PYTHON")
OFFLINE_S = 240.0
"""For the offline engine's start, and for each of its measurements."""
QWEN3 = {
    "tiny": (256, 4, 512, 4, 2, 64),
    "0.6B": (1024, 28, 3072, 16, 8, 128),
    "1.7B": (2048, 28, 6144, 16, 8, 128),
    "4B": (2560, 36, 9728, 32, 8, 128),
    "8B": (4096, 36, 12288, 32, 8, 128),
}
"""As `SIZES` of `benchmarks.engine`."""


def model_config(size: str) -> Qwen3Config:
    """A Qwen3 of this size in bfloat16."""
    vocabulary = 2048 if size == "tiny" else 151_936
    fields: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "dtype": "bfloat16",
        "max_position_embeddings": 40960,
    }
    rope = {"rope_theta": 1000000.0, "rope_type": "default"}
    fields["tie_word_embeddings"] = size != "8B"
    return qwen3(QWEN3[size], vocabulary, **fields, rope_parameters=rope)


def model_folder(size: str, folder: Path) -> Path:
    """A folder that vLLM starts from with `--load-format dummy`: a configuration and a small tokenizer."""
    model_config(size).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / name)
    return folder


def named_vllm(folder: Path, version: str) -> None:
    """Make a folder for PYTHONPATH name a package `vllm`: that of a CPU build has another name.

    The command that starts several HTTP processes asks for its version, and finds the CPU by the `cpu` in it.
    """
    about = folder / "vllm.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def needed_vllm() -> str:
    """The version of the vLLM that is to serve. SystemExit without one."""
    version = installed_version(PYTHON)
    if version is None:
        raise SystemExit(f"{PYTHON or 'this interpreter'} has no vLLM")
    return version


def engine_argv(
    model: Path, port: int, transport: str, kwargs: Mapping[str, Any], api_servers: int = 1
) -> list[str]:
    """The command line that the launcher would write, with dummy weights. SystemExit without a vLLM."""
    options = VllmOptions(
        model=str(model),
        served_model_name="bench",
        host="127.0.0.1",
        port=port,
        max_model_len=int(kwargs.get("max-model-len", 2048)),
        transport=transport,
        version=VllmVersion.parse(needed_vllm()),
        kwargs={"load-format": "dummy", "dtype": "bfloat16", "enable-prefix-caching": False, **kwargs},
        api_server_count=api_servers,
        python=PYTHON,
    )
    return serve_argv(options)


def vllm_server(argv: Sequence[str], gpu: str, port: int, log: Path, *switches: str) -> Server:
    """`gpu` is an id, several with commas between them, or empty for a CPU build.

    `switches`: variables of the plug-in that are set to 1.
    """
    env = {**os.environ, **serve_env([gpu] if gpu else []), **dict.fromkeys(switches, "1")}
    return Server(argv, port, log, env)


@contextmanager
def serving(argv: Sequence[str], gpu: str, port: int, log: Path) -> Iterator[tuple[str, int]]:
    """URL and process group of an engine that is ready; it and its workers are gone afterwards."""
    server = vllm_server(argv, gpu, port, log)
    with started(server):
        server.wait_ready()
        yield server.url, server.process.pid


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


class Offline(Child):
    """The offline engine in a process of its own: it starts beside the server and measures when told to."""

    def __init__(
        self, model: Path, gpu: str, kwargs: Mapping[str, Any], load: Mapping[str, Any], log: Path
    ) -> None:
        """`load`: vocab, prompt and output (tokens), and how many requests come first, to `warm` it."""
        # An empty string is a bare flag of the command line.
        flags = {key.replace("-", "_"): value == "" or value for key, value in kwargs.items()}
        flags = {"dtype": "bfloat16", **flags, "load_format": "dummy", "enable_prefix_caching": False}
        flags |= {"logprobs_mode": "processed_logprobs", "hf_overrides": {"head_dtype": "float32"}}
        argument = json.dumps({"model": str(model), "flags": flags, **load})
        command = [PYTHON or sys.executable, "-c", OFFLINE, argument]
        env = {**os.environ, **serve_env([gpu] if gpu else [])}
        with log.open("ab") as errors:
            super().__init__(f"the offline engine ({log})", command, errors, env)
        self._ready = False

    def wait_ready(self) -> None:
        """RuntimeError when it does not start; more than once does no harm."""
        if not self._ready:
            self.expect("READY", OFFLINE_S)
            self._ready = True

    def wave(self, requests: int) -> tuple[int, float]:
        """Tokens sampled for so many requests at once, and seconds; RuntimeError at the deadline."""
        self.tell(str(requests))
        ran = json.loads(self.expect("RAN ", OFFLINE_S))
        return int(ran["tokens"]), float(ran["seconds"])
