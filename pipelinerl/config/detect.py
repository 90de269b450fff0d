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
    listed = (nvidia_smi("-L", search=env.get("PATH")) or "").splitlines()
    present = sum(line.startswith("GPU ") for line in listed)
    if named is None:
        return [str(index) for index in range(present)]
    wanted = [part.strip() for part in named.split(",") if part.strip()]
    return [] if present == 0 or wanted[:1] == ["-1"] else wanted


def nvidia_smi(*arguments: str, search: str | None = None) -> str | None:
    """What the driver's program prints; None where there is none, on the PATH `search`, or where it fails."""
    program = shutil.which("nvidia-smi", path=search)
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=NVIDIA_SMI_DEADLINE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout
