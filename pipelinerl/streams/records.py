"""One record as bytes: a header, a msgpack skeleton, and the arrays behind it, each on an 8-byte boundary.

    magic "PRL" | version u8 | payload length u64 | skeleton length u32 | payload crc32 u32 | header crc32 u32

All integers are little-endian; the payload is the skeleton, zero padding, and the arrays in the order in
which the skeleton names them. An array is named by a msgpack extension that holds its dtype and shape.
Arrays are neither copied into the msgpack bytes nor copied out again: encoding hands out views for
`writev`, decoding returns views of the buffer that was read. The header has its own checksum so that a
damaged length is told apart from a record whose tail has not been written yet. No pickle is read or written.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from pipelinerl.streams.errors import CorruptRecord, UnsupportedValue

Buffer = bytes | bytearray | memoryview
Tree = Any  # None, bool, int, float, str, bytes, list, dict or np.ndarray, nested

MAGIC = b"PRL"
FORMAT_VERSION = 1
_FIELDS = struct.Struct("<3sBQII")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct(_FIELDS.format + "I")
HEADER_SIZE = _HEADER.size
_ARRAY = 1
_EXT = msgspec.msgpack.Ext
# An array's extension by number of dimensions: dtype code, number of dimensions, lengths. NumPy allows 64.
_SHAPES = [struct.Struct(f"<BB{ndim}Q") for ndim in range(65)]
_ALIGN = 8
_PADDING = [bytes(n) for n in range(_ALIGN)]
_DTYPES = ["?", "b", "B", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"]
_DTYPE_OF_CODE = [np.dtype(name) for name in _DTYPES]
_CODE_OF_DTYPE = {dtype: code for code, dtype in enumerate(_DTYPE_OF_CODE)}


class Header(NamedTuple):
    payload_length: int
    skeleton_length: int
    payload_crc: int


class RecordEncoder:
    """Turns trees into buffers. Not thread-safe: every writer has its own."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._extension)

    def _extension(self, value: object) -> object:
        if isinstance(value, np.ndarray):
            code = _CODE_OF_DTYPE.get(value.dtype)
            if code is None:
                value = _little_endian(value)
                code = _CODE_OF_DTYPE[value.dtype]
            self._arrays.append(value)
            shape = value.shape
            return _EXT(_ARRAY, _SHAPES[len(shape)].pack(code, len(shape), *shape))
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
        for array in self._arrays:
            if array.size == 0:
                continue
            if gap := -length % _ALIGN:
                payload.append(_PADDING[gap])
                length += gap
            if array.ndim == 0 or not array.flags.c_contiguous:
                array = np.ascontiguousarray(array).reshape(-1)
            payload.append(array.data.cast("B"))
            length += array.nbytes
        self._arrays.clear()
        crc = 0
        for part in payload:
            crc = crc32(part, crc)
        fields = _FIELDS.pack(MAGIC, FORMAT_VERSION, length, len(skeleton), crc)
        return [fields + _CRC.pack(crc32(fields)), *payload]


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


def parse_header(data: Buffer) -> Header:
    """Read HEADER_SIZE bytes; raises CorruptRecord with the reason."""
    magic, version, length, skeleton, payload_crc, header_crc = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptRecord(f"no record starts here: expected {MAGIC!r}, found {bytes(magic)!r}")
    if version != FORMAT_VERSION:
        raise CorruptRecord(f"record format {version} is not known, this version reads {FORMAT_VERSION}")
    if header_crc != crc32(data[: _FIELDS.size]):
        raise CorruptRecord("the header's checksum does not match")
    if skeleton > length:
        raise CorruptRecord(f"the skeleton ({skeleton} bytes) is longer than the record ({length} bytes)")
    return Header(length, skeleton, payload_crc)


class _ArrayCursor:
    """Hands out the arrays behind the skeleton in the order in which the skeleton names them."""

    def __init__(self) -> None:
        self._payload: Buffer = b""
        self._offset = 0

    def start(self, payload: Buffer, offset: int) -> None:
        self._payload, self._offset = payload, offset

    def finish(self) -> None:
        left = len(self._payload) - self._offset
        self._payload = b""
        if left:
            raise CorruptRecord(f"{left} bytes behind the last array")

    def take(self, code: int, data: memoryview) -> np.ndarray:
        if code != _ARRAY:
            raise CorruptRecord(f"extension {code} is not known")
        try:
            dtype_code, ndim, *shape = _SHAPES[data[1]].unpack(data)
            dtype = _DTYPE_OF_CODE[dtype_code]
        except (IndexError, struct.error):
            raise CorruptRecord("an array's dtype or shape is damaged") from None
        count = shape[0] if ndim == 1 else math.prod(shape)
        if count == 0:
            return np.zeros(shape, dtype)
        start = self._offset + -self._offset % _ALIGN
        end = start + count * dtype.itemsize
        if end > len(self._payload):
            raise CorruptRecord(f"an array of {count} x {dtype} reaches past the end of the record")
        self._offset = end
        array = np.frombuffer(self._payload, dtype, count, start)
        return array if ndim == 1 else array.reshape(shape)


class RecordDecoder:
    """Turns payloads back into trees. Not thread-safe: every reader has its own."""

    def __init__(self) -> None:
        self._cursor = _ArrayCursor()
        self._decoder = msgspec.msgpack.Decoder(ext_hook=self._cursor.take)

    def decode(self, header: Header, payload: Buffer) -> Tree:
        """Check and decode one payload; arrays are views of `payload` (writable if it is).

        Raises CorruptRecord if a checksum, the msgpack or an array does not hold up.
        """
        if len(payload) != header.payload_length:
            raise CorruptRecord(f"{len(payload)} bytes instead of {header.payload_length}")
        if crc32(payload) != header.payload_crc:
            raise CorruptRecord("the checksum does not match")
        self._cursor.start(payload, header.skeleton_length)
        try:
            tree = self._decoder.decode(memoryview(payload)[: header.skeleton_length])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise CorruptRecord(f"the msgpack is damaged: {error}") from error
        self._cursor.finish()
        return tree


def decode_record(data: Buffer) -> Tree:
    """Decode one whole record; raises CorruptRecord also when bytes are missing."""
    if len(data) < HEADER_SIZE:
        raise CorruptRecord(f"{len(data)} bytes are no record")
    return RecordDecoder().decode(parse_header(data), memoryview(data)[HEADER_SIZE:])
