"""One record: round trip of every kind of value, and refusal of everything that is not one."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from xxhash import xxh3_64_intdigest

from pipelinerl.streams import CorruptRecord, UnsupportedValue
from pipelinerl.streams.records import (
    _FIELDS,
    _HASH,
    FORMAT_VERSION,
    HEADER_SIZE,
    MAGIC,
    RecordEncoder,
    decode_record,
    encode_record,
)
from tests.unit.streams.conftest import Bomb

DTYPES = [np.dtype(code) for code in np.typecodes["AllInteger"] + "?efd"]
arrays = hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | arrays
)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


@given(trees)
def test_what_goes_in_comes_out(tree: Any) -> None:
    assert same(tree, decode_record(encode_record(tree)))


@given(trees, st.data())
def test_one_damaged_byte_is_noticed(tree: Any, data: st.DataObject) -> None:
    record = bytearray(encode_record(tree))
    place = data.draw(st.integers(0, len(record) - 1))
    record[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptRecord):
        decode_record(record)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(data)


def test_a_pickle_is_refused_unread() -> None:
    data = pickle.dumps(Bomb())
    for attempt in (data, encode_record(b"")[:HEADER_SIZE] + data, data * 10):
        with pytest.raises(CorruptRecord):
            decode_record(attempt)
    # As a value it stays what it is: bytes.
    assert decode_record(encode_record(data)) == data


def hostile(payload: bytes, skeleton: int | None = None) -> bytes:
    """A record with valid checksums around arbitrary content, as an attacker could write it."""
    skeleton = len(payload) if skeleton is None else skeleton
    fields = _FIELDS.pack(MAGIC, FORMAT_VERSION, skeleton, len(payload), xxh3_64_intdigest(payload))
    return fields + _HASH.pack(xxh3_64_intdigest(fields)) + payload


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",  # a list of four billion elements
        b"\xc7\x04\x02abcd",  # an extension that is not ours
        b"\xc7\x00\x01",  # an array without dtype
        b"\xc7\x0a\x01\x00\x01" + b"\xff" * 8,  # an array of 2**64 - 1 elements
        b"\xc7\x0a\x01\x63\x01" + b"\x01" + bytes(7),  # an unknown dtype
        b"\xc7\x12\x01\x05\x02" + (2**40).to_bytes(8, "little") * 2,  # a shape whose product overflows
        b"\xa1\xff",  # a text that is not UTF-8
        b"\x91" * 100_000,  # nested a hundred thousand deep
    ],
)
def test_hostile_content_with_valid_checksums_is_refused(payload: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(hostile(payload))


@pytest.mark.parametrize(
    "value", [object(), {1, object()}, np.array(["text"]), np.array([object()]), np.array([1j]), 2**64]
)
def test_values_that_are_not_plain_data_are_refused_by_name(value: Any) -> None:
    with pytest.raises(UnsupportedValue, match="a record cannot carry"):
        encode_record({"x": value})


def test_a_refused_value_leaves_the_encoder_usable() -> None:
    encoder = RecordEncoder()
    with pytest.raises(UnsupportedValue):
        encoder.encode([np.arange(3), object()])
    assert same([1], decode_record(b"".join(encoder.encode([1]))))


def test_views_and_foreign_byte_orders_arrive_as_plain_arrays() -> None:
    base = np.arange(20, dtype=np.int32).reshape(4, 5)
    tree = {
        "columns": base[:, ::2],
        "transposed": base.T,
        "big": base.astype(">i4"),
        "scalar": np.float32(0.5),
    }
    out = decode_record(encode_record(tree))
    assert np.array_equal(out["columns"], base[:, ::2]) and np.array_equal(out["transposed"], base.T)
    assert np.array_equal(out["big"], base) and out["big"].dtype == np.dtype("<i4")
    assert out["scalar"] == 0.5


def test_decoded_arrays_are_aligned_views_of_the_record() -> None:
    record = bytearray(encode_record({"a": np.ones(3, np.int8), "b": np.ones(5, np.float64)}))
    out = decode_record(record)
    assert all(np.shares_memory(array, np.frombuffer(record, np.uint8)) for array in out.values())
    assert all(array.flags.aligned and array.flags.writeable for array in out.values())
