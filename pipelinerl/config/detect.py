"""What the machine has, found without importing torch."""

from __future__ import annotations

import os
import shutil
import subprocess

NVIDIA_SMI_DEADLINE_S = 10.0


def visible_devices(environment: dict[str, str] | None = None) -> list[str]:
    """Ids of the GPUs this process may use, as `CUDA_VISIBLE_DEVICES` would name them.

    A value given there is kept as it is; otherwise `nvidia-smi -L` is counted. Empty without a GPU.
    """
    env = dict(os.environ) if environment is None else environment
    named = env.get("CUDA_VISIBLE_DEVICES")
    present = _installed_devices(env)
    if named is None:
        return [str(index) for index in range(present)]
    wanted = [part.strip() for part in named.split(",") if part.strip()]
    return [] if present == 0 or wanted[:1] == ["-1"] else wanted


def _installed_devices(env: dict[str, str]) -> int:
    program = shutil.which("nvidia-smi", path=env.get("PATH"))
    if program is None:
        return 0
    try:
        answer = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    if answer.returncode != 0:
        return 0
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())
