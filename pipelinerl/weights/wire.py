"""What both ends of a weight transfer agree on: a file's checksum, marks beside it, the cut into packets.

The trainer's side (`send`) and what runs inside vLLM (`receive`) import it; no torch here.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path


def checksum(data: bytes | memoryview) -> str:
    """`crc32:XXXXXXXX` of `data`: finds damage at 4 GB/s, where sha256 would take half of the pause."""
    return f"crc32:{zlib.crc32(data):08x}"


def read_mark(path: Path, reader: str, rank: int) -> Path:
    """Beside a version's file: this rank of engine `reader` has read it; its text says what hindered it."""
    return path.with_name(f"{path.name}.read-{reader}-{rank}")


def write_whole(path: Path, data: bytes) -> None:
    """The file appears whole or not at all."""
    beside = path.with_name(f"{path.name}.partial")
    beside.write_bytes(data)
    os.replace(beside, path)


def packets(sizes: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Cut tensors of these sizes in bytes into packets: (first, behind the last) of each.

    A packet is closed by the tensor with which it exceeds `limit`, which still belongs to it. This is the
    rule of vLLM's receiver (`packed_nccl_broadcast_consumer`); both sides must cut alike.
    """
    first, size = 0, 0
    for index, one in enumerate(sizes):
        size += one
        if size > limit:
            yield first, index + 1
            first, size = index + 1, 0
    if first < len(sizes):
        yield first, len(sizes)
