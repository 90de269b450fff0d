"""The checksum of a version's file, as its announcement has it, computed by itself."""

import struct
import zlib


def checksum(data: bytes, piece: int = 4 * 2**20) -> str:
    """`crc32:XXXXXXXX` of the CRCs of all pieces, each little-endian in four bytes."""
    sums = [zlib.crc32(data[start : start + piece]) for start in range(0, len(data), piece)]
    return f"crc32:{zlib.crc32(struct.pack(f'<{len(sums)}I', *sums)):08x}"
