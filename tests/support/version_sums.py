"""The checksum of a version's file, as its announcement has it, computed by itself."""

import struct

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest


def checksum(data: bytes, piece: int = 4 * 2**20) -> str:
    """`xxh3:XXXXXXXXXXXXXXXX` of the checksums of all pieces, each little-endian in eight bytes."""
    sums = [xxh3_64_intdigest(data[start : start + piece]) for start in range(0, len(data), piece)]
    return f"xxh3:{xxh3_64_hexdigest(struct.pack(f'<{len(sums)}Q', *sums))}"
