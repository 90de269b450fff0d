"""Streams on disk: growing files, torn tails, corrupt records, segments."""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from pipelinerl.base.waits import WaitExpired
from pipelinerl.streams import (
    EARLIEST,
    CorruptRecord,
    SingleStreamSpec,
    StreamError,
    read_stream,
    set_streams_backend,
    write_to_streams,
)
from pipelinerl.streams.records import encode_record
from pipelinerl.streams.wakeup import DirectoryWatch, file_system_of
from tests.unit.streams.conftest import content, fill


@pytest.fixture(autouse=True, params=["inotify", "poll"])
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs with wake-ups and with polling."""
    set_streams_backend("files", use_inotify=request.param == "inotify")
    yield
    set_streams_backend("files")


def segments(spec: SingleStreamSpec) -> list[Path]:
    return sorted(p for p in spec.directory.iterdir() if p.name != "writer.lock")


def append_bytes(spec: SingleStreamSpec, data: bytes) -> None:
    with segments(spec)[-1].open("ab") as file:
        file.write(data)


def test_segments_are_bounded_and_readers_follow_them(spec: SingleStreamSpec) -> None:
    set_streams_backend("files", segment_bytes=200)
    with write_to_streams(spec) as out, read_stream(spec) as r:
        for i in range(50):
            out.write({"i": i, "a": np.arange(10)})
            if i == 20:
                assert [x["i"] for x in r.read_available()] == list(range(21))
        assert [x["i"] for x in r.read_available()] == list(range(21, 50))
    assert len(segments(spec)) > 10
    with read_stream(spec) as reader:
        assert reader.unread() == 50 and len(reader.read_available(max_records=7)) == 7
        assert reader.unread() == 43
    for offset in (0, 1, 17, 49):
        assert [x["i"] for x in content(spec, offset)] == list(range(offset, 50))


def test_an_incomplete_record_is_waited_for_while_it_grows(spec: SingleStreamSpec) -> None:
    fill(spec, "first")
    record = encode_record({"second": np.arange(1000)})
    with read_stream(spec) as r:
        assert r.read_available() == ["first"]
        for cut in range(0, len(record), 997):
            append_bytes(spec, record[cut : cut + 997][:-1])
            assert r.read_available() == []
            append_bytes(spec, record[cut : cut + 997][-1:])
        (second,) = r.read_available()
        assert np.array_equal(second["second"], np.arange(1000))


@pytest.mark.parametrize("cut", [1, 4, 12, 31, 32, 33, -1])
def test_a_torn_tail_is_reported_and_never_read(
    spec: SingleStreamSpec, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    fill(spec, "whole")
    append_bytes(spec, encode_record("torn in the middle of a sentence")[:cut])
    with read_stream(spec) as r:
        assert r.read_available() == ["whole"]
        with pytest.raises(WaitExpired, match=r"ends in an incomplete record of .* bytes after 1 complete"):
            next(r.read(deadline_s=0.05, name="the second record"))
        fill(spec, "after the restart")
        assert r.read_available() == ["after the restart"]
        assert r.position == 2
    assert caplog.text.count("record 1 of stream actor/0/0 was never completed") == 1
    assert content(spec, offset=1) == ["after the restart"]


def test_what_is_written_after_a_write_that_failed_is_read(
    spec: SingleStreamSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full for a moment: half a record must not hide those behind it."""
    real = os.writev

    def half(fd: int, buffers: Sequence[memoryview]) -> int:
        monkeypatch.setattr(os, "writev", real)
        os.write(fd, bytes(buffers[0])[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with write_to_streams(spec) as out:
        out.write("first")
        monkeypatch.setattr(os, "writev", half)
        with pytest.raises(StreamError, match="cannot be written"):
            out.write("lost")
        out.write("second")
        out.write("third")
    assert content(spec) == ["first", "second", "third"]


def test_a_stream_whose_only_record_is_torn_goes_on(spec: SingleStreamSpec) -> None:
    for _ in range(2):
        fill(spec)
        append_bytes(spec, b"PRL")
    fill(spec, 1)
    assert content(spec) == [1]


def test_a_corrupt_record_raises_with_its_place(spec: SingleStreamSpec) -> None:
    fill(spec, "good", "bad " * 20, "behind")
    path = segments(spec)[0]
    data = bytearray(path.read_bytes())
    data[len(encode_record("good")) + 40] ^= 1
    path.write_bytes(data)
    with read_stream(spec) as r:
        with pytest.raises(CorruptRecord, match=r"record 1 of stream actor/0/0 is corrupt .*checksum"):
            r.read_available()
        assert r.position == 1


def test_records_of_an_older_format_are_refused_by_name(spec: SingleStreamSpec) -> None:
    fill(spec, 1, 2)
    path = segments(spec)[0]
    data = bytearray(path.read_bytes())
    data[3] = 1
    for old in (bytes(data), bytes(data[:24])):  # a header of the first format had 24 bytes
        path.write_bytes(old)
        named = "record format 1 is not known, this version reads 2; start over with force_restart=true"
        with pytest.raises(CorruptRecord, match=named) as reading, read_stream(spec) as r:
            r.next_record()
        with pytest.raises(CorruptRecord, match=named) as resuming:
            read_stream(spec, 1)
        with pytest.raises(CorruptRecord, match=named) as writing:
            write_to_streams(spec)
        assert all(str(path) in str(error.value) for error in (reading, resuming, writing))


def test_a_stream_of_upstream_is_refused_by_name(spec: SingleStreamSpec) -> None:
    spec.directory.mkdir(parents=True)
    (theirs := spec.directory / "0.jsonl").write_text("[]\n")
    with pytest.raises(StreamError, match=f"{theirs} is upstream's and not read here"):
        read_stream(spec)
    fill(spec, 0, 2)
    with read_stream(spec) as r:  # a run of this project, where the folder kept the file
        assert len(r.read_available()) == 2


def test_a_remote_file_system_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_system_of(tmp_path) and DirectoryWatch(tmp_path, use_inotify=True).fileno() is not None
    mounts = [("/", "ext4"), (str(tmp_path), "ext4"), (str(tmp_path), "nfs4"), (f"{tmp_path}s", "xfs")]
    found = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)
    assert file_system_of(tmp_path / "run") == "nfs4"
    assert file_system_of(Path("/home")) == "ext4"
    assert DirectoryWatch(tmp_path).fileno() is None


def test_segments_that_every_named_reader_has_left_are_removed(spec: SingleStreamSpec) -> None:
    set_streams_backend("files", segment_bytes=200, trim=True)
    with (
        write_to_streams(spec) as out,
        read_stream(spec, reader="quick") as quick,
        read_stream(spec, reader="slow") as slow,
    ):
        for i in range(40):
            out.write({"i": i, "a": np.arange(10)})
        assert len(quick.read_available()) == 40
        assert [r["i"] for r in slow.read_available(max_records=20)] == list(range(20))
        for i in range(40, 44):
            out.write({"i": i, "a": np.arange(10)})
        assert len(segments(spec)) >= (44 - 20) // 2, "the slow reader has not come further"
        assert [r["i"] for r in slow.read_available()] == list(range(20, 44))
        for i in range(44, 48):
            out.write({"i": i, "a": np.arange(10)})
        assert len(segments(spec)) <= 10
        assert [r["i"] for r in slow.read_available()] == list(range(44, 48))
    with pytest.raises(StreamError, match=r"record 0 of stream actor/0/0 was freed, the first one left is"):
        read_stream(spec)
    with read_stream(spec, EARLIEST) as late:
        records = late.read_available()
        assert records[-1]["i"] == 47 and late.position == 48 and 0 < len(records) < 20
