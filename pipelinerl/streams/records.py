"""One record as bytes: a header, a msgpack skeleton, and the arrays behind it, each on an 8-byte boundary.

    magic "PRL" | version u8 | skeleton length u32 | payload length u64 | payload hash u64 | header hash u64

All integers are little-endian; the payload is the skeleton, zero padding, and the arrays in the order in
which the skeleton names them. An array is named by a msgpack extension that holds its dtype and shape.
Arrays are neither copied into the msgpack bytes nor copied out again: encoding hands out views for
`writev`, decoding returns views of the buffer that was read. Hashes are XXH3-64, which is written and checked
for every record: ten times the speed of zlib's crc32, and damage passes with probability 2**-64. The header
has its own so that a damaged length is told apart from a record whose tail has not been written yet. No
pickle is read or written.
"""

import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from pipelinerl.streams.errors import CorruptRecord, UnsupportedValue

Buffer = bytes | bytearray | memoryview
Tree = Any  # None, bool, int, float, str, bytes, list, dict or np.ndarray, nested

MAGIC = b"PRL"
FORMAT_VERSION = 2
_FIELDS = struct.Struct("<3sBIQQ")
_FIELDS_SIZE = _FIELDS.size
_HASH = struct.Struct("<Q")
_HEADER = struct.Struct(_FIELDS.format + "Q")
HEADER_SIZE = _HEADER.size
_ARRAY = 1
_EXT = msgspec.msgpack.Ext
# Lengths of texts repeat; so many are kept in mind by encoder and decoder.
_CACHED_SHAPES = 1 << 13
_NOTHING = memoryview(b"")
# An array's extension by number of dimensions: dtype code, number of dimensions, lengths. NumPy allows 64.
_SHAPES = [struct.Struct(f"<BB{ndim}Q") for ndim in range(65)]
_ALIGN = 8
_PADDING = [bytes(n) for n in range(_ALIGN)]
_DTYPES = ["?", "b", "B", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"]
_DTYPE_OF_CODE = [np.dtype(name) for name in _DTYPES]
_CODE_OF_DTYPE = {dtype: code for code, dtype in enumerate(_DTYPE_OF_CODE)}


Header = tuple[int, int, int]
"""Payload length, skeleton length, payload hash."""


@lru_cache(maxsize=_CACHED_SHAPES)
def _name_of(dtype: np.dtype, shape: tuple[int, ...]) -> msgspec.msgpack.Ext | None:
    """What stands for an array in the skeleton; None for a dtype that records do not know."""
    code = _CODE_OF_DTYPE.get(dtype)
    return None if code is None else _EXT(_ARRAY, _SHAPES[len(shape)].pack(code, len(shape), *shape))


@lru_cache(maxsize=_CACHED_SHAPES)
def _described_by(name: bytes) -> tuple[np.dtype, tuple[int, ...], int]:
    """Dtype, shape and bytes of an array. Raises CorruptRecord for anything that `_name_of` would not say."""
    try:
        code, _, *shape = _SHAPES[name[1]].unpack(name)
        dtype = _DTYPE_OF_CODE[code]
    except (IndexError, struct.error):
        raise CorruptRecord("an array's dtype or shape is damaged") from None
    return dtype, tuple(shape), math.prod(shape) * dtype.itemsize


class RecordEncoder:
    """Turns trees into buffers. Not thread-safe: every writer has its own."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._extension)

    def _extension(self, value: object) -> object:
        if isinstance(value, np.ndarray):
            name = _name_of(value.dtype, value.shape)
            if name is None:
                value = _little_endian(value)
                name = _name_of(value.dtype, value.shape)
            self._arrays.append(value)
            return name
        if isinstance(value, np.generic):
            return value.item()
        raise UnsupportedValue(
            f"a record cannot carry {type(value).__name__}; "
            "use None, bool, int, float, str, bytes, list, dict or a numeric array"
        )

    def encode(self, tree: Tree) -> list[Buffer]:
        """The record as buffers to be written one after the other; arrays are views, not copies.

        Raises UnsupportedValue for anything that is not plain data.
        """
        self._arrays.clear()
        try:
            skeleton = self._encoder.encode(tree)
        except (OverflowError, RecursionError) as error:
            raise UnsupportedValue(f"a record cannot carry this value: {error}") from error
        payload: list[Buffer] = [skeleton]
        length = len(skeleton)
        hashed = xxh3_64(skeleton)
        for array in self._arrays:
            size = array.nbytes
            if size == 0:
                continue
            if gap := -length % _ALIGN:
                payload.append(_PADDING[gap])
                hashed.update(_PADDING[gap])
                length += gap
            part = array.data
            try:
                hashed.update(part)
            except BufferError:  # its elements do not lie one after the other
                part = np.ascontiguousarray(array).data
                hashed.update(part)
            payload.append(part)
            length += size
        self._arrays.clear()
        fields = _FIELDS.pack(MAGIC, FORMAT_VERSION, len(skeleton), length, hashed.intdigest())
        return [fields + _HASH.pack(xxh3_64_intdigest(fields)), *payload]


def _little_endian(array: np.ndarray) -> np.ndarray:
    """The array with a dtype that records know; raises UnsupportedValue where there is none."""
    if array.dtype.kind in "biuf":
        dtype = array.dtype.newbyteorder("<")
        if dtype in _CODE_OF_DTYPE:
            return array.astype(dtype)
    raise UnsupportedValue(
        f"a record cannot carry an array of dtype {array.dtype}; "
        "use bool, integers of up to 64 bits or floats of 16, 32 or 64 bits"
    )


def encode_record(tree: Tree) -> bytes:
    """A whole record in one piece; for tests and small messages."""
    return b"".join(RecordEncoder().encode(tree))


def check_start(data: Buffer) -> None:
    """Raise CorruptRecord if the first bytes of a record, however few, are those of something else."""
    if data[:3] != MAGIC[: len(data)]:
        raise CorruptRecord(f"no record starts here: expected {MAGIC!r}, found {bytes(data[:3])!r}")
    if len(data) > 3 and data[3] != FORMAT_VERSION:
        raise CorruptRecord(
            f"record format {data[3]} is not known, this version reads {FORMAT_VERSION}; "
            "start over with force_restart=true"
        )


def parse_header(data: Buffer) -> Header:
    """Read HEADER_SIZE bytes; raises CorruptRecord with the reason."""
    magic, version, skeleton, length, payload_hash, header_hash = _HEADER.unpack_from(data)
    if magic != MAGIC or version != FORMAT_VERSION:
        check_start(data)
    if header_hash != xxh3_64_intdigest(data[:_FIELDS_SIZE]):
        raise CorruptRecord("the header's checksum does not match")
    if skeleton > length:
        raise CorruptRecord(f"the skeleton ({skeleton} bytes) is longer than the record ({length} bytes)")
    return length, skeleton, payload_hash


def record_decoder(kind: Any = Any) -> Callable[[Header, memoryview], Tree]:
    """A function that checks a payload and turns it back into a tree. Not thread-safe: one for each reader.

    `kind` is what the tree must be, in msgspec's terms, such as a union of tagged structs.

    Arrays are views of the payload (writable if it is). It raises CorruptRecord if the checksum, the msgpack
    or an array does not hold up. A closure and not an object: a variable is found in half the time of an
    attribute, which is a tenth of the whole.
    """
    payload, end = _NOTHING, 0
    new_array = np.ndarray

    def next_array(code: int, name: memoryview) -> np.ndarray:
        """The array behind the skeleton that the skeleton names next."""
        nonlocal end
        if code != _ARRAY:
            raise CorruptRecord(f"extension {code} is not known")
        dtype, shape, size = _described_by(name.tobytes())
        if not size:
            return np.zeros(shape, dtype)
        start = (end + 7) & -8  # the next multiple of _ALIGN
        try:
            array: np.ndarray = new_array(shape, dtype, payload, start)
        except (TypeError, ValueError):
            raise CorruptRecord(f"an array of {shape} x {dtype} reaches past the record's end") from None
        end = start + size
        return array

    decode_skeleton = msgspec.msgpack.Decoder(kind, ext_hook=next_array).decode

    def decode(header: Header, data: memoryview) -> Tree:
        nonlocal payload, end
        length, skeleton_length, payload_hash = header
        if len(data) != length:
            raise CorruptRecord(f"{len(data)} bytes instead of {length}")
        if xxh3_64_intdigest(data) != payload_hash:
            raise CorruptRecord("the checksum does not match")
        payload, end = data, skeleton_length
        try:
            tree = decode_skeleton(data[:skeleton_length])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise CorruptRecord(f"the msgpack is damaged: {error}") from error
        if end != length:
            raise CorruptRecord(f"{length - end} bytes behind the last array")
        payload = _NOTHING
        return tree

    return decode


def split_record(data: Buffer) -> tuple[Header, memoryview]:
    """Header and payload of a record; raises CorruptRecord where there is not even a whole header."""
    if len(data) < HEADER_SIZE:
        check_start(data)
        raise CorruptRecord(f"{len(data)} bytes are no record")
    return parse_header(data), memoryview(data)[HEADER_SIZE:]


def decode_record(data: Buffer) -> Tree:
    """Decode one whole record; raises CorruptRecord also when bytes are missing."""
    return record_decoder()(*split_record(data))
