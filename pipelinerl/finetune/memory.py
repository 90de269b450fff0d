"""Memory of the trainer, in bytes: `finetune.memory_debug`. The loop measures each step with it."""

from pathlib import Path

import torch

from pipelinerl.config.finetune import MemoryDebugConfig

STATUS = Path("/proc/self/status")
_HOST = {"VmRSS:": "host", "VmHWM:": "host_peak"}


def host_memory() -> dict[str, float]:
    """Resident memory of this process now and its peak; nothing where the system does not tell."""
    if not STATUS.exists():
        return {}
    rows = (line.split() for line in STATUS.read_text(encoding="utf-8").splitlines())
    return {f"memory/{_HOST[row[0]]}_bytes": float(row[1]) * 1024 for row in rows if row and row[0] in _HOST}


class MemoryDebug:
    """Figures of the steps that are reported; without `enabled` it does nothing."""

    def __init__(self, memory: MemoryDebugConfig, device: torch.device) -> None:
        self._every = memory.every_n_steps if memory.enabled else 0
        self._device = device

    def begin(self) -> None:
        """A step begins: the peak of the device is that of the step."""
        if self._every and self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def measure(self, step: int) -> dict[str, float]:
        """`memory/*` after step number `step`, empty for a step that is not reported."""
        if not self._every or step % self._every:
            return {}
        figures = host_memory()
        if self._device.type == "cuda":
            figures |= {
                "memory/device_bytes": float(torch.cuda.memory_allocated(self._device)),
                "memory/device_peak_bytes": float(torch.cuda.max_memory_allocated(self._device)),
                "memory/device_reserved_bytes": float(torch.cuda.memory_reserved(self._device)),
            }
        return figures
