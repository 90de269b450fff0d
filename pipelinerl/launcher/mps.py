"""CUDA's Multi-Process Service for engines that share a card: one more process of a run, gone with it.

    python -m pipelinerl.launcher.mps

Started by the launcher where `engine.per_card` is more than 1 and the program is there. Without it processes
on one card take turns. It runs as the user, needs no rights and changes no setting of a card; it serves all
cards of its host, as ids of cards would mean others within a smaller set.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from pipelinerl.config.tree import Config
from pipelinerl.engines.wire import make_private

CONTROL = "nvidia-cuda-mps-control"
NAME = "mps"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
LONGEST_FOLDER = 80
"""Characters; names of sockets in it may have 107 with the folder."""
LOOK_S, END_S = 0.5, 10.0
REFUSED = 2
"""Exit status after which another start would end in the same way."""


def wanted(cfg: Config) -> bool:
    """Whether engines of this run share cards, and the service is installed here."""
    shares = cfg.engine.per_card > 1 and any(job.gpus for job in cfg.jobs_of("actor_llm"))
    return shares and not cfg.debug.use_existing_llms and shutil.which(CONTROL) is not None


def environment(output_dir: Path) -> dict[str, str]:
    """By which processes of a run, and nobody else, find its service."""
    pipes = output_dir / NAME / "pipe"
    if len(str(pipes)) > LONGEST_FOLDER:
        name = hashlib.sha256(str(output_dir).encode()).hexdigest()[:12]
        pipes = Path(tempfile.gettempdir(), f"pipelinerl-mps-{os.getuid()}-{name}")
    return {PIPES: str(pipes), LOGS: str(output_dir / NAME)}


def serve() -> int:
    """Run the service in the foreground until SIGTERM; its environment is `environment`'s."""
    program = shutil.which(CONTROL)
    if program is None:
        print(f"no {CONTROL} on this host: engines that share a card take turns", flush=True)
        return 0
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    pipes = Path(os.environ[PIPES])
    try:
        make_private(pipes, "give a shorter output_dir")  # who owns it can serve the cards in our name
    except OSError as error:
        print(f"mps: {error}", file=sys.stderr)
        return REFUSED
    pipes.chmod(0o700)
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    control = subprocess.Popen([program, "-f"], env=env)
    while control.poll() is None:
        if asked.wait(LOOK_S):
            _quit(program, control, env)
    shutil.rmtree(pipes, ignore_errors=True)
    return control.returncode


def _quit(program: str, control: subprocess.Popen[bytes], env: Mapping[str, str]) -> None:
    """Asked to, the control daemon ends its server first, which would stay without it."""
    subprocess.run([program], input="quit\n", text=True, env=env, timeout=END_S, check=False)
    try:
        control.wait(END_S)
    except subprocess.TimeoutExpired:  # it did not listen yet
        control.kill()


if __name__ == "__main__":
    sys.exit(serve())
