"""What the machine has, found without importing torch."""

import os
import shutil
import subprocess

NVIDIA_SMI_DEADLINE_S = 10.0


def visible_devices() -> list[str]:
    """Ids of the GPUs this process may use, as `CUDA_VISIBLE_DEVICES` would name them.

    A value given there is kept as it is; otherwise `nvidia-smi -L` is counted. Empty without a GPU.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    listed = (nvidia_smi("-L") or "").splitlines()
    present = sum(line.startswith("GPU ") for line in listed)
    if named is None:
        return [str(index) for index in range(present)]
    wanted = [part.strip() for part in named.split(",") if part.strip()]
    return [] if present == 0 or wanted[:1] == ["-1"] else wanted


def nvidia_smi(*arguments: str) -> str | None:
    """What the driver's program prints; None where there is none or where it fails."""
    if (program := shutil.which("nvidia-smi")) is None:
        return None  # without a process, which a start would make several times to hear the same
    command = [program, *arguments]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=NVIDIA_SMI_DEADLINE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout
