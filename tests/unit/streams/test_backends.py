"""What every backend of streams does: order, waits, one writer, backpressure, several processes."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from pipelinerl.base.waits import WaitExpired, current_waits
from pipelinerl.config.machine import StreamsConfig
from pipelinerl.streams import (
    EARLIEST,
    CorruptRecord,
    SingleStreamSpec,
    StreamBusy,
    StreamError,
    StreamRangeSpec,
    StreamWriter,
    list_streams,
    read_stream,
    remove_stream,
    set_streams_backend,
    write_to_streams,
)
from tests.support.redis_server import DEADLINE_S
from tests.unit.streams.conftest import Choose, content, fill, print_stream

pytestmark = pytest.mark.usefixtures("choose", "forked")
LONG_S = 200.0


def free_again(spec: SingleStreamSpec) -> StreamWriter:
    """A writer, once the kernel has told everybody that the last one is dead."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            return write_to_streams(spec)
        except StreamBusy:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_records_come_in_order_and_position_resumes(spec: SingleStreamSpec) -> None:
    fill(spec, *range(10))
    with read_stream(spec) as r:
        assert r.read_available(max_records=4) == [0, 1, 2, 3]
        position = r.position
    with read_stream(spec, offset=position) as r:
        assert r.read_available() == [4, 5, 6, 7, 8, 9]
        assert r.position == 10
    assert content(spec, offset=10) == []
    with pytest.raises(StreamError, match=r"record 11 of stream actor/0/0 does not exist, it holds 10"):
        read_stream(spec, offset=11)


def test_what_lies_ahead_is_counted_and_not_read(spec: SingleStreamSpec) -> None:
    with read_stream(spec) as r:
        assert r.unread() == 0
        with write_to_streams(spec) as out:
            for i in range(5):
                out.write(i)
            assert r.unread() == 5 and r.read_available(max_records=3) == [0, 1, 2]
            assert r.unread() == 2
            out.write(5)
            assert r.unread() == 3 and r.read_available() == [3, 4, 5]
        assert r.unread() == 0


def test_a_writer_goes_on_where_its_predecessor_stopped_or_starts_over(spec: SingleStreamSpec) -> None:
    fill(spec, 1)
    fill(spec, 2)
    with read_stream(spec) as r:
        assert r.read_available() == [1, 2]
        fill(spec, 3, mode="w")
        with pytest.raises(StreamError, match="was removed or started over while it was read"):
            r.read_available()
    assert content(spec) == [3]


@pytest.mark.slow
def test_ten_records_of_50_mb_pass_and_take_no_more_room_than_a_few(
    spec: SingleStreamSpec, choose: Choose
) -> None:
    choose(trim=True, max_unread=2)
    big = np.zeros(13_000_000, np.float32)
    with write_to_streams(spec) as out, read_stream(spec, reader="trainer") as r:
        for i in range(10):
            big[-1] = i
            out.write({"big": big})
            (back,) = r.read_available()
            assert back["big"].nbytes > 50_000_000 and back["big"].flags.writeable
            assert back["big"][-1] == i
    with read_stream(spec, EARLIEST) as late:
        assert len(late.read_available()) <= 3


def test_a_missing_record_expires_by_name_and_the_wait_is_visible(spec: SingleStreamSpec) -> None:
    seen: list[str] = []
    ended = threading.Event()

    def look() -> None:
        while not seen and not ended.wait(0.001):
            seen.extend(w["name"] for w in current_waits())

    thread = threading.Thread(target=look)
    thread.start()
    expected = pytest.raises(WaitExpired, match=r"waited 0\.3 s for the first group.*no writer has opened it")
    with read_stream(spec) as r, expected:
        next(r.read(deadline_s=0.3, name="the first group"))
    ended.set()
    thread.join()
    assert seen == ["the first group"]
    assert current_waits() == []


def test_a_blocked_reader_is_woken(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec) as out, read_stream(spec) as r:
        timer = threading.Timer(0.1, out.write, args=("hello",))
        timer.start()
        assert next(r.read(deadline_s=LONG_S)) == "hello"
        timer.join()


def test_a_partition_takes_one_writer(spec: SingleStreamSpec) -> None:
    with write_to_streams(spec), pytest.raises(StreamBusy, match="actor/0/0 already has a writer"):
        write_to_streams(spec)
    fill(spec, 1)


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
    fill(spec, {"reward": np.float32(0.5), "lags": np.arange(3)}, {"text": "a\nb"})
    (path,) = spec.directory.glob("*.jsonl")
    assert json.loads(path.read_text().splitlines()[0]) == {"reward": 0.5, "lags": [0, 1, 2]}
    with path.open("ab") as file:
        file.write(b'{"torn": 1')
    with read_stream(spec, offset=1) as r:
        assert r.read_available() == [{"text": "a\nb"}]
        fill(spec, {"next": 1})
        assert r.read_available() == [{"next": 1}]
        with sorted(spec.directory.glob("*.jsonl"))[-1].open("ab") as file:
            file.write(b"not json\n")
        with pytest.raises(CorruptRecord, match=r"record 3 of stream .* is corrupt"):
            r.read_available()


def test_a_script_passes_the_whole_section_of_a_run(tmp_path: Path, choose: Choose) -> None:
    chosen = {name: value for name, value in choose().items() if name != "use_inotify"}
    section = OmegaConf.create(StreamsConfig().model_dump() | chosen)  # as in conf/exp_config.yaml
    assert {"host", "save", "namespace"} <= set(section)
    set_streams_backend(**section)
    spec = SingleStreamSpec(exp_path=tmp_path, topic="actor")
    fill(spec, {"reward": 1.0})
    with read_stream(spec) as reader:
        assert next(reader.read()) == {"reward": 1.0}


def test_unknown_backends_modes_and_names_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"streams.backend=nats is not available; use one of: files, redis"):
        set_streams_backend("nats", host="x")
    with pytest.raises(ValueError, match="stream mode 'r'"):
        write_to_streams(SingleStreamSpec(tmp_path, "actor"), mode="r")
    with pytest.raises(ValueError, match=r"topic '\.\./actor' is not a plain name"):
        SingleStreamSpec(tmp_path, "../actor")
    for name in ("a/b", "~x"):
        with pytest.raises(ValueError, match=f"reader '{name}' is not a plain name"):
            read_stream(SingleStreamSpec(tmp_path, "actor"), reader=name)


WRITER = """
import json, sys, time
import numpy as np
from pathlib import Path
from pipelinerl.streams import SingleStreamSpec, set_streams_backend, write_to_streams
set_streams_backend(**json.loads(sys.argv[3]))
with write_to_streams(SingleStreamSpec(Path(sys.argv[1]), "actor")) as out:
    for i in range(int(sys.argv[2])):
        out.write({"i": i, "a": np.full(i % 300, i)})
    if len(sys.argv) > 4:
        print("written", flush=True)
        time.sleep(600)
"""


@contextmanager
def writing(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that writes; it is gone when the block ends."""
    argv = [sys.executable, "-c", WRITER, *map(str, arguments)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer:
        try:
            yield writer
        finally:
            writer.kill()


def test_two_processes_agree_on_every_record(spec: SingleStreamSpec, choose: Choose) -> None:
    settings = json.dumps(choose(segment_bytes=20_000))
    with writing(spec.exp_path, 1000, settings) as writer, read_stream(spec) as r:
        for expected, record in zip(range(1000), r.read(deadline_s=LONG_S)):
            assert record["i"] == expected
            assert np.array_equal(record["a"], np.full(expected % 300, expected))
        assert writer.wait(LONG_S) == 0


def test_a_killed_writer_loses_nothing_it_wrote_and_frees_its_place(
    spec: SingleStreamSpec, choose: Choose
) -> None:
    with writing(spec.exp_path, 100, json.dumps(choose()), "stay") as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"written\n"
    with free_again(spec) as out:
        out.write({"i": 100})
    assert [x["i"] for x in content(spec)] == list(range(101))


def test_the_command_prints_any_stream_as_json(spec: SingleStreamSpec, choose: Choose) -> None:
    settings = choose()
    settings.pop("use_inotify", None)
    if settings["backend"] == "redis":
        settings["host"] = "127.0.0.1"
    fill(spec, [{"input_ids": np.arange(3, dtype=np.int32), "reward": 1.0}], [])
    done = print_stream(spec.exp_path, settings, "actor", "--limit", "1")
    assert json.loads(done.stdout) == [{"input_ids": [0, 1, 2], "reward": 1.0}], done.stderr
    missing = print_stream(spec.exp_path, settings, "acter")
    assert missing.returncode == 1
    assert missing.stderr == f"streams: there is no stream acter in {spec.exp_path}; there are actor\n"


def test_a_writer_waits_for_the_slowest_reader_and_nothing_is_lost(
    spec: SingleStreamSpec, choose: Choose
) -> None:
    """Twice the limit is written while a reader sleeps."""
    bound = 8
    choose(max_unread=bound, trim=True, deadline_s=LONG_S)
    with (
        write_to_streams(spec) as out,
        read_stream(spec, reader="quick") as quick,
        read_stream(spec, reader="slow") as slow,
    ):
        written: list[int] = []

        def write() -> None:
            for i in range(2 * bound):
                out.write(i)
                written.append(i)

        thread = threading.Thread(target=write)
        thread.start()
        assert [next(quick.read(deadline_s=LONG_S)) for _ in range(bound)] == list(range(bound))
        assert quick.read_available() == []
        while not current_waits():
            time.sleep(0.001)
        assert [w["name"] for w in current_waits()] == [
            "the slowest reader of stream actor/0/0 to be less than 8 records behind"
        ]
        assert len(written) == bound
        assert [next(slow.read(deadline_s=LONG_S)) for _ in range(2 * bound)] == list(range(2 * bound))
        thread.join(LONG_S)
        assert [next(quick.read(deadline_s=LONG_S)) for _ in range(bound)] == list(range(bound, 2 * bound))


def test_a_reader_that_never_comes_back_is_named(spec: SingleStreamSpec, choose: Choose) -> None:
    choose(max_unread=2, deadline_s=0.05)
    read_stream(spec, reader="preprocess").close()
    expected = pytest.raises(
        WaitExpired, match=r"the slowest reader of stream actor/0/0.*preprocess has done with 0 of 2"
    )
    with expected:
        fill(spec, *range(3))
    fill(spec, *range(3), mode="w")


def test_without_named_readers_nothing_waits_and_nothing_is_freed(
    spec: SingleStreamSpec, choose: Choose
) -> None:
    choose(max_unread=2, trim=True, deadline_s=0.05, segment_bytes=10)
    with write_to_streams(spec) as out, read_stream(spec) as r:
        for i in range(100):
            out.write(i)
        assert r.read_available() == list(range(100))
    assert content(spec) == list(range(100))


def test_streams_are_listed_and_removed(tmp_path: Path) -> None:
    specs = [SingleStreamSpec(tmp_path, "discarded", 0, p) for p in (0, 1)]
    for each in [*specs, SingleStreamSpec(tmp_path, "stats")]:
        fill(each, {"a": 1})
    assert list_streams(tmp_path) == [*specs, SingleStreamSpec(tmp_path, "stats")]
    remove_stream(tmp_path, "discarded")
    assert list_streams(tmp_path) == [SingleStreamSpec(tmp_path, "stats")]
    assert content(specs[0]) == []
