"""vLLM as a server process for the benchmarks: a model folder without weights, start, wait, stop.

`VLLM_PYTHON=/path/to/python` names an environment that has vLLM where this one has none.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelinerl.base.http import CallFailed, call
from pipelinerl.inference.vllm import VllmOptions, VllmVersion, installed_version, serve_argv, serve_env

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "domains/guessing/checkpoint"
PYTHON = os.environ.get("VLLM_PYTHON")
READY_DEADLINE_S = 300.0
STOP_DEADLINE_S = 20.0
QWEN3: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512},
    "0.6B": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 3072,
    },
    "1.7B": {
        "hidden_size": 2048,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 6144,
    },
    "4B": {
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 9728,
    },
}
"""Shapes of Qwen3; 8 key heads of 128, vocabulary 151,936, tied."""


def model_config(size: str) -> dict[str, Any]:
    """`config.json` of a Qwen3 of this size."""
    shape = QWEN3[size]
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "head_dim": 64 if size == "tiny" else 128,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 40960,
        "num_key_value_heads": 2 if size == "tiny" else 8,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 2048 if size == "tiny" else 151936,
        **shape,
    }


def model_folder(size: str, folder: Path) -> Path:
    """A folder that vLLM starts from with `--load-format dummy`: a configuration and a small tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model_config(size), indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / name)
    return folder


def engine_options(
    model: Path,
    port: int,
    transport: str,
    kwargs: Mapping[str, Any],
    api_servers: int = 1,
    python: str | None = PYTHON,
) -> VllmOptions:
    """What the launcher would start, with dummy weights; SystemExit where there is no vLLM."""
    version = installed_version(python)
    if version is None:
        raise SystemExit(f"{python or 'this interpreter'} has no vLLM")
    return VllmOptions(
        model=str(model),
        served_model_name="bench",
        host="127.0.0.1",
        port=port,
        max_model_len=int(kwargs.get("max-model-len", 2048)),
        transport=transport,
        version=VllmVersion.parse(version),
        kwargs={"load-format": "dummy", "dtype": "bfloat16", "enable-prefix-caching": False, **kwargs},
        api_server_count=api_servers,
        python=python,
    )


def engine_argv(
    model: Path, port: int, transport: str, kwargs: Mapping[str, Any], api_servers: int = 1
) -> list[str]:
    """The command line that the launcher would write for it."""
    return serve_argv(engine_options(model, port, transport, kwargs, api_servers))


class Server:
    """An engine's process that has begun to start."""

    def __init__(self, argv: Sequence[str], gpu: str, port: int, log: Path) -> None:
        """`gpu` is an id, several with commas between them, or empty for a CPU build."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.url = f"http://127.0.0.1:{port}"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                argv,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **serve_env([gpu] if gpu else [])},
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        """Its process group."""
        return self.process.pid

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """SystemExit, which says why, if it ends or is not ready by the deadline."""
        end = time.monotonic() + deadline_s
        while True:
            try:
                call("GET", self.url, "/health", 2.0)
                return
            except CallFailed:
                if self.process.poll() is not None:
                    status = self.process.returncode
                    raise SystemExit(f"the engine ended with status {status}; see {self.log}") from None
                if time.monotonic() > end:
                    problem = f"the engine is not ready after {deadline_s:g} s"
                    raise SystemExit(f"{problem}; see {self.log}") from None
                time.sleep(0.5)


@contextmanager
def started(servers: Sequence[Server]) -> Iterator[Sequence[Server]]:
    """They and their workers are gone afterwards, all within the deadlines of one."""
    try:
        yield servers
    finally:
        stop(*(server.process for server in servers))


@contextmanager
def serving(argv: Sequence[str], gpu: str, port: int, log: Path) -> Iterator[tuple[str, int]]:
    """URL and process group of an engine that is ready; it and its workers are gone afterwards."""
    with started([Server(argv, gpu, port, log)]) as (server,):
        server.wait_ready()
        yield server.url, server.group


def stop(*processes: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL to the whole group of each."""
    for number, seconds in ((signal.SIGCONT, 0.0), (signal.SIGTERM, STOP_DEADLINE_S), (signal.SIGKILL, 10.0)):
        for process in processes:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                continue
        end = time.monotonic() + seconds
        for process in processes:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
