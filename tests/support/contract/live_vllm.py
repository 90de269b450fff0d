"""vLLM as a process, from an environment of its own or from this one, with the launcher's flags."""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._processes import stop
from benchmarks.gpu.served import named_vllm
from pipelinerl.base.http import CallFailed, call
from pipelinerl.engines.vllm import outputs_once, quick_slots
from pipelinerl.engines.vllm.installed import has_command, installed_version
from pipelinerl.engines.vllm.options import VllmOptions, VllmVersion, serve_argv, serve_env
from tests.support.contract.models import CONTEXT

ROOT = Path(__file__).resolve().parents[3]
READY_S = 400.0
PORTS = range(20_000, 32_000)
FLAGS: dict[str, Any] = {"dtype": "float32", "max-num-seqs": 16, "enforce-eager": ""}
FLAGS |= {"enable-prefix-caching": True, "enable-auto-tool-choice": "", "tool-call-parser": "hermes"}
ON_A_CARD: dict[str, Any] = {"gpu-memory-utilization": 0.2, "kv-cache-memory-bytes": 2**30}
# vLLM serves float32 with its Triton attention, whose products keep 10 bits of fraction (TF32) unless Triton
# is told otherwise: up to 6e-3 nats from a forward in float32.
FULL_FLOAT32 = {"TRITON_F32_DEFAULT": "ieee"}


@dataclass(frozen=True)
class Installation:
    """An interpreter with vLLM, and what its engines run on."""

    python: str
    transport: str = "file"
    gpus: tuple[str, ...] = ()
    api_servers: int = 1
    """HTTP processes of each engine."""
    once: bool = False
    """Whether it hands outputs over in a few parts and searches no slots that it has."""

    @property
    def version(self) -> str:
        found = installed_version(self.python)
        assert found is not None, f"{self.python} has no vLLM"
        return found


def plug_in(folder: Path, installation: Installation) -> Path:
    """A folder for PYTHONPATH with this package's entry points, as an installation would have them."""
    folder.mkdir()
    command = [sys.executable, "setup.py", "-q", "egg_info", "-e", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    if installation.api_servers > 1 and not installation.gpus:
        named_vllm(folder, installation.version)
    return folder


def free_port() -> int:
    """One that nobody chooses meanwhile: the engine binds it only minutes later.

    Below the range from which the kernel takes ports of outgoing connections, and at random for the sake of
    other test runs.
    """
    for port in random.sample(PORTS, 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"100 ports of {PORTS} are taken")


@contextmanager
def serving(installation: Installation, model: Path, folder: Path) -> Iterator[str]:
    """URL of an engine that has loaded `model`; it is gone afterwards."""
    folder.mkdir()
    port = free_port()
    options = VllmOptions(
        model=str(model),
        served_model_name="model",
        host="127.0.0.1",
        port=port,
        max_model_len=CONTEXT,
        transport=installation.transport,
        version=VllmVersion.parse(installation.version),
        kwargs=FLAGS | (ON_A_CARD if installation.gpus else {}),
        api_server_count=installation.api_servers,
        python=installation.python,
        # Of a CPU build, only under the name that `plug_in` gives it.
        command=installation.api_servers > 1 or has_command(installation.python),
    )
    env = {**os.environ, **serve_env(installation.gpus), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    env |= FULL_FLOAT32 if installation.gpus else {}
    env |= {outputs_once.SWITCH: "1", quick_slots.SWITCH: "1"} if installation.once else {}
    here = [str(ROOT), str(plug_in(folder / "site", installation))]
    if installation.python == sys.executable:  # vLLM may lie in a folder that only this variable names
        here += filter(None, [os.environ.get("PYTHONPATH")])
    env["PYTHONPATH"] = os.pathsep.join(here)
    log, url = folder / "log", f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        process = subprocess.Popen(
            serve_argv(options), stdout=out, stderr=out, env=env, start_new_session=True
        )
    try:
        _wait_ready(process, url, log)
        yield url
    finally:
        stop(process)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + READY_S
    while True:
        try:
            call("GET", url, "/health", 2)
            return
        except CallFailed:
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-4000:]
            time.sleep(0.5)
