"""A version's safetensors file in host memory that lasts from version to version, on both ends of an update.

The sender fills the memory and writes it to the file; a reader reads the file into it, and its tensors are
views. Memory that is touched for the first time costs several times what a copy into memory that is there
costs, and page-locking it more: a fresh buffer for each version was most of the time of an update.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pipelinerl.engines.wire import read_checked

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""By their names in a header."""
# The data begins at a multiple of this, so that every tensor lies as its type asks.
ALIGNED = 64
# Bytes of the number in front of a header: its length, little-endian.
LENGTH = 8


class HostMemory:
    """Bytes of host memory, kept and given out again; one version at a time lies in it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._given = self._pinned = 0  # bytes from the start

    def reserve(self, size: int) -> torch.Tensor:
        """uint8 [size]: the memory that was given out before, with its content, or a larger one with a copy.

        Pages that nobody has written to take no memory. Raises RuntimeError where the host has none left.
        """
        if size > self._pinned:
            self._unpin()
        if size > len(self._memory):
            # Twice as large: a sender learns the size of a version with its last tensor.
            larger = torch.empty(max(size, 2 * len(self._memory)), dtype=torch.uint8)
            larger[: self._given] = self._memory[: self._given]
            self._memory = larger
        self._given = size
        return self._memory[:size]

    def pin(self, size: int) -> None:
        """Page-lock the first `size` bytes, unless they are: a GPU then copies while it computes.

        Raises RuntimeError ("out of memory") where the host does not let it.
        """
        if size <= self._pinned:
            return
        self._unpin()
        # In place, after the first version has been written to it: torch's own pinned memory is rounded up to
        # a power of two, 16 GiB for 9, and pages that are there are locked sooner.
        if error := int(torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), size, 0)):
            raise RuntimeError(f"out of memory that can be page-locked ({size} bytes, CUDA error {error})")
        self._pinned = size

    def release(self) -> None:
        """Give the memory back."""
        self._unpin()
        self._memory, self._given = torch.empty(0, dtype=torch.uint8), 0

    def _unpin(self) -> None:
        if self._pinned:
            torch.cuda.synchronize()  # copies from or to it have ended
            torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
            self._pinned = 0


def header(shapes: Mapping[str, Sequence[int]], dtype: torch.dtype) -> bytes:
    """What stands in a safetensors file before the data of these tensors, which follow without gaps."""
    (dtype_name,) = (name for name, one in DTYPES.items() if one is dtype)
    entries, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": dtype_name, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH + len(text)) % ALIGNED)
    return len(text).to_bytes(LENGTH, "little") + text


def read_tensors(path: Path, size: int, checksum: str, memory: HostMemory) -> dict[str, torch.Tensor]:
    """The tensors of the announced file as views of `memory`, until that is used again.

    Raises OSError if it cannot be read, ValueError if it is not what was announced or no safetensors file.
    """
    read_checked(path, size, checksum, lambda: memoryview(memory.reserve(size).numpy()))
    data = memory.reserve(size)
    raw = memoryview(data.numpy())
    try:
        start = LENGTH + int.from_bytes(raw[:LENGTH], "little")
        entries = json.loads(bytes(raw[LENGTH:start]))
        entries.pop("__metadata__", None)
        return {name: _view(data[start:], **entry) for name, entry in entries.items()}
    except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is not a safetensors file: {type(error).__name__}: {error}") from None


def _view(data: torch.Tensor, dtype: str, shape: list[int], data_offsets: list[int]) -> torch.Tensor:
    start, stop = data_offsets
    return data[start:stop].view(DTYPES[dtype]).view(shape)
