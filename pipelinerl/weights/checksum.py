"""The checksum that a weight file is announced with."""

import zlib


def checksum(data: bytes | memoryview) -> str:
    """`crc32:XXXXXXXX` of `data`: finds damage at 4 GB/s, where sha256 would take half of the pause."""
    return f"crc32:{zlib.crc32(data):08x}"
