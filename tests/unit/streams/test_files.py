"""Streams on disk: order, growing files, torn tails, corrupt records, segments, several processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pipelinerl.streams as streams
from pipelinerl.observe.waits import WaitExpired, current_waits
from pipelinerl.streams import (
    CorruptRecord,
    SingleStreamSpec,
    StreamBusy,
    StreamError,
    StreamRangeSpec,
    read_stream,
    register_backend,
    set_streams_backend,
    write_to_streams,
)
from pipelinerl.streams.records import encode_record
from pipelinerl.streams.wakeup import DirectoryWatch, file_system_of

LONG_S = 60.0


@pytest.fixture(autouse=True, params=["inotify", "poll"])
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs with wake-ups and with polling."""
    set_streams_backend("files", use_inotify=request.param == "inotify")
    yield
    set_streams_backend("files")


@pytest.fixture
def spec(tmp_path: Path) -> SingleStreamSpec:
    return SingleStreamSpec(tmp_path, "actor")


def segments(spec: SingleStreamSpec) -> list[Path]:
    return sorted(p for p in spec.directory.iterdir() if p.name != "writer.lock")


def append_bytes(spec: SingleStreamSpec, data: bytes) -> None:
    with segments(spec)[-1].open("ab") as file:
        file.write(data)


def test_records_come_in_order_and_position_resumes(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec) as out:
        for i in range(10):
            out.write(i)
    with read_stream(spec) as r:
        assert r.read_available(max_records=4) == [0, 1, 2, 3]
        position = r.position
    with read_stream(spec, offset=position) as r:
        assert r.read_available() == [4, 5, 6, 7, 8, 9]
        assert r.position == 10
    with read_stream(spec, offset=10) as r:
        assert r.read_available() == []
    with pytest.raises(StreamError, match=r"record 11 of stream actor/0/0 does not exist, it holds 10"):
        read_stream(spec, offset=11)


def test_a_writer_goes_on_where_its_predecessor_stopped_or_starts_over(spec: SingleStreamSpec) -> None:
    for value in (1, 2):
        with write_to_streams(spec, mode="a") as out:
            out.write(value)
    with read_stream(spec) as r:
        assert r.read_available() == [1, 2]
        with write_to_streams(spec, mode="w") as out:
            out.write(3)
        with pytest.raises(StreamError, match="was started over while it was read"):
            r.read_available()
    with read_stream(spec) as r:
        assert r.read_available() == [3]


def test_segments_are_bounded_and_readers_follow_them(spec: SingleStreamSpec) -> None:
    set_streams_backend("files", segment_bytes=200)
    with write_to_streams(spec) as out, read_stream(spec) as r:
        for i in range(50):
            out.write({"i": i, "a": np.arange(10)})
            if i == 20:
                assert [x["i"] for x in r.read_available()] == list(range(21))
        assert [x["i"] for x in r.read_available()] == list(range(21, 50))
    assert len(segments(spec)) > 10
    for offset in (0, 1, 17, 49):
        with read_stream(spec, offset) as r:
            assert [x["i"] for x in r.read_available()] == list(range(offset, 50))


def test_an_incomplete_record_is_waited_for_while_it_grows(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec) as out:
        out.write("first")
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
    with write_to_streams(spec) as out:
        out.write("whole")
    append_bytes(spec, encode_record("torn in the middle of a sentence")[:cut])
    with read_stream(spec) as r:
        assert r.read_available() == ["whole"]
        with pytest.raises(WaitExpired, match=r"ends in an incomplete record of .* bytes after 1 complete"):
            next(r.read(deadline_s=0.05, name="the second record"))
        with write_to_streams(spec) as out:
            out.write("after the restart")
        assert r.read_available() == ["after the restart"]
        assert r.torn_records == 1
        assert r.position == 2
    assert "record 1 of stream actor/0/0 was never completed" in caplog.text
    with read_stream(spec, offset=1) as r:
        assert r.read_available() == ["after the restart"]


def test_a_stream_whose_only_record_is_torn_goes_on(spec: SingleStreamSpec) -> None:
    for _ in range(2):
        with write_to_streams(spec):
            pass
        append_bytes(spec, b"PRL")
    with write_to_streams(spec) as out:
        out.write(1)
    with read_stream(spec) as r:
        assert r.read_available() == [1]


def test_a_corrupt_record_raises_with_its_place(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec) as out:
        out.write("good")
        out.write("bad " * 20)
        out.write("behind")
    path = segments(spec)[0]
    data = bytearray(path.read_bytes())
    data[len(encode_record("good")) + 40] ^= 1
    path.write_bytes(data)
    with read_stream(spec) as r:
        with pytest.raises(CorruptRecord, match=r"record 1 of stream actor/0/0 is corrupt .*checksum"):
            r.read_available()
        assert r.position == 1


def test_records_of_an_older_format_are_refused_by_name(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec) as w:
        w.write(1)
        w.write(2)
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


def test_hostile_bytes_in_a_stream_are_refused(spec: SingleStreamSpec) -> None:
    import pickle

    with write_to_streams(spec):
        pass
    append_bytes(spec, pickle.dumps({"a": list(range(100))}))
    with read_stream(spec) as r, pytest.raises(CorruptRecord, match="no record starts here"):
        r.read_available()


def test_ten_records_of_50_mb_pass(spec: SingleStreamSpec) -> None:
    big = np.zeros(13_000_000, np.float32)
    with write_to_streams(spec) as out, read_stream(spec) as r:
        for i in range(10):
            big[-1] = i
            out.write({"big": big})
            (back,) = r.read_available()
            assert back["big"].nbytes > 50_000_000
            assert back["big"][-1] == i
            # One segment a record: drop what has been read, to be kind to the disk.
            if len(segments(spec)) > 2:
                segments(spec)[0].unlink()


def test_a_missing_record_expires_by_name_and_the_wait_is_visible(spec: SingleStreamSpec) -> None:
    seen: list[str] = []

    def look() -> None:
        while not seen:
            seen.extend(w["name"] for w in current_waits())

    thread = threading.Thread(target=look)
    thread.start()
    expected = pytest.raises(WaitExpired, match=r"waited 0.3 s for the first group.*no writer has opened it")
    with read_stream(spec) as r, expected:
        next(r.read(deadline_s=0.3, name="the first group"))
    thread.join()
    assert seen == ["the first group"]
    assert current_waits() == []


def test_a_blocked_reader_is_woken(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec) as out, read_stream(spec) as r:
        timer = threading.Timer(0.1, out.write, args=("hello",))
        timer.start()
        assert next(r.read(deadline_s=LONG_S)) == "hello"
        timer.join()


async def test_an_async_reader_is_woken_and_expires(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec) as out, read_stream(spec) as r:
        asyncio.get_running_loop().call_later(0.05, out.write, "hello")
        records = r.aread(deadline_s=LONG_S)
        assert await anext(records) == "hello"
        with pytest.raises(WaitExpired, match="for more"):
            await anext(r.aread(deadline_s=0.05, name="more"))


def test_a_partition_takes_one_writer(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec), pytest.raises(StreamBusy, match="actor/0/0 already has a writer"):
        write_to_streams(spec)
    with write_to_streams(spec) as out:
        out.write(1)


def test_a_range_is_written_in_turn_or_by_partition(tmp_path: Path) -> None:
    spec = StreamRangeSpec(tmp_path, "training_data", partition_range=(0, 3))
    with write_to_streams(spec) as out:
        for i in range(6):
            out.write(i)
        out.write("last", partition=1)
        with pytest.raises(ValueError, match="partition 3 of"):
            out.write(0, partition=3)
    found = []
    for partition in range(3):
        with read_stream(spec.single(partition)) as r:
            found.append(r.read_available())
    assert found == [[0, 3], [1, 4, "last"], [2, 5]]
    with pytest.raises(ValueError, match="is a range of partitions"):
        read_stream(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["stats", "stats_test", "preprocessor_stats"])
def test_statistics_are_json_lines(tmp_path: Path, topic: str) -> None:
    spec = SingleStreamSpec(tmp_path, topic)
    with write_to_streams(spec) as out:
        out.write({"reward": np.float32(0.5), "lags": np.arange(3)})
        out.write({"text": "a\nb"})
    (path,) = segments(spec)
    assert json.loads(path.read_text().splitlines()[0]) == {
        "reward": 0.5,
        "lags": [0, 1, 2],
    }
    with path.open("ab") as file:
        file.write(b'{"torn": 1')
    with read_stream(spec, offset=1) as r:
        assert r.read_available() == [{"text": "a\nb"}]
        with write_to_streams(spec) as out:
            out.write({"next": 1})
        assert r.read_available() == [{"next": 1}]
        with segments(spec)[-1].open("ab") as file:
            file.write(b"not json\n")
        with pytest.raises(CorruptRecord, match=r"record 3 of stream .* is corrupt"):
            r.read_available()


def test_unknown_backends_modes_and_topics_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"streams.backend=redis is not available; use one of: files"):
        set_streams_backend("redis", host="x")
    with pytest.raises(ValueError, match="stream mode 'r'"):
        write_to_streams(SingleStreamSpec(tmp_path, "actor"), mode="r")
    with pytest.raises(ValueError, match="is not a plain name"):
        SingleStreamSpec(tmp_path, "../actor")


def test_another_backend_can_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelinerl.streams import base

    monkeypatch.setattr(base, "_factories", dict(base._factories))
    register_backend("elsewhere", lambda host: streams.FilesBackend(segment_bytes=len(host)))
    set_streams_backend("elsewhere", host="there")
    with write_to_streams(SingleStreamSpec(tmp_path, "actor")) as out:
        out.write(1)


WRITER = """
import sys, time
import numpy as np
from pathlib import Path
from pipelinerl.streams import SingleStreamSpec, set_streams_backend, write_to_streams
set_streams_backend("files", segment_bytes=20_000)
with write_to_streams(SingleStreamSpec(Path(sys.argv[1]), "actor")) as out:
    for i in range(int(sys.argv[2])):
        out.write({"i": i, "a": np.full(i % 300, i)})
    if len(sys.argv) > 3:
        print("written", flush=True)
        time.sleep(600)
"""


def test_two_processes_agree_on_every_record(spec: SingleStreamSpec) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(spec.exp_path), "1000"])
    try:
        with read_stream(spec) as r:
            for expected, record in enumerate(r.read(deadline_s=LONG_S)):
                assert record["i"] == expected
                assert np.array_equal(record["a"], np.full(expected % 300, expected))
                if expected == 999:
                    break
        assert writer.wait(LONG_S) == 0
    finally:
        writer.kill()
        writer.wait()


def test_a_killed_writer_loses_nothing_it_wrote_and_frees_its_place(spec: SingleStreamSpec) -> None:
    argv = [sys.executable, "-c", WRITER, str(spec.exp_path), "100", "stay"]
    writer = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"written\n"
        os.kill(writer.pid, signal.SIGKILL)
    finally:
        writer.kill()
        writer.communicate()
    with write_to_streams(spec) as out, read_stream(spec) as r:
        out.write({"i": 100})
        assert [x["i"] for x in r.read_available()] == list(range(101))


def test_the_command_prints_any_stream_as_json(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec) as out:
        out.write([{"input_ids": np.arange(3, dtype=np.int32), "reward": 1.0}])
        out.write([])
    command = [sys.executable, "-m", "pipelinerl.streams", str(spec.exp_path)]
    done = subprocess.run([*command, "actor", "--limit", "1"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [{"input_ids": [0, 1, 2], "reward": 1.0}]
    missing = subprocess.run([*command, "acter"], capture_output=True, text=True)
    assert missing.returncode == 1
    assert missing.stderr == f"streams: there is no stream acter in {spec.exp_path}; there are actor\n"


def test_streams_do_not_import_torch() -> None:
    modules = "pipelinerl.streams, pipelinerl.state, pipelinerl.accounting, pipelinerl.observe.metrics"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_remote_file_system_is_polled(tmp_path: Path) -> None:
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\nserver:/y {tmp_path}s nfs4 rw 0 0\n"
    assert file_system_of(tmp_path / "run", mounts) == "nfs4"
    assert file_system_of(Path("/home"), mounts) == "ext4"
    watch = DirectoryWatch(tmp_path, use_inotify=False)
    assert watch.fileno() is None
