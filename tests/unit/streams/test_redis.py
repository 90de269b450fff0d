"""What only redis can do wrong: foreign entries, absent and unwilling servers, a second writer."""

import pickle
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import redis

from pipelinerl.streams import (
    CorruptRecord,
    SingleStreamSpec,
    StreamBusy,
    StreamError,
    list_streams,
    read_stream,
    set_streams_backend,
    write_to_streams,
)
from pipelinerl.streams.records import encode_record
from pipelinerl.streams.redis_writer import Keys
from tests.support.redis_server import redis_server
from tests.unit.streams.conftest import Bomb, fill, print_stream


@pytest.fixture
def server(redis_port: int) -> redis.Redis:
    set_streams_backend("redis", port=redis_port)
    yield redis.Redis(port=redis_port)
    set_streams_backend("files")


def keys(spec: SingleStreamSpec) -> Keys:
    return Keys(f"pipelinerl:{spec.exp_path}", spec)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"r": pickle.dumps(Bomb())}, "no record starts here"),
        ({"data": pickle.dumps(Bomb())}, "its fields are not those of a record"),
        ({"r": encode_record(1), "s": "x"}, "its fields are not those of a record"),
        ({"r": encode_record("cut")[:-1]}, "bytes instead of"),
        ({"r": b"PRL"}, "3 bytes are no record"),
        ({"r": encode_record("bad " * 9)[:-1] + b"!"}, "the checksum does not match"),
    ],
)
def test_a_foreign_record_is_refused_unread(
    server: redis.Redis, spec: SingleStreamSpec, fields: dict[str, bytes], expected: str
) -> None:
    with write_to_streams(spec) as out, read_stream(spec) as r:
        out.write("good")
        server.xadd(keys(spec).entries, fields, id="2-1")
        assert r.read_available(max_records=1) == ["good"]
        for _ in range(2):
            with pytest.raises(CorruptRecord, match=rf"record 1 of stream actor/0/0 is corrupt .*{expected}"):
                r.next_record()
        assert r.position == 1


def test_an_entry_with_an_id_of_the_servers_own_is_refused(
    server: redis.Redis, spec: SingleStreamSpec
) -> None:
    with write_to_streams(spec) as out, read_stream(spec) as r:
        out.write("good")
        server.xadd(keys(spec).entries, {"r": encode_record("bad")})
        assert r.read_available(max_records=1) == ["good"]
        with pytest.raises(
            CorruptRecord, match=r"record 1 of stream actor/0/0 is corrupt .*its id is not the next"
        ):
            r.next_record()
    with read_stream(SingleStreamSpec(spec.exp_path, "never")) as r:
        server.xadd(keys(r.spec).entries, {"r": encode_record("bad")})
        with pytest.raises(CorruptRecord, match="record 0 of stream never/0/0 is corrupt"):
            r.next_record()


def test_a_key_of_another_kind_is_named(server: redis.Redis, spec: SingleStreamSpec) -> None:
    server.set(keys(spec).entries, "x")
    with pytest.raises(StreamError, match="refuses: WRONGTYPE"):
        read_stream(spec)


def test_a_second_writer_that_slipped_in_fails_at_its_first_record(
    server: redis.Redis, spec: SingleStreamSpec
) -> None:
    with write_to_streams(spec) as out:
        out.write(1)
        server.xadd(keys(spec).entries, {"r": encode_record(2)}, id="2-1")
        with pytest.raises(StreamBusy, match="has been written by somebody else"):
            out.write(2)


def test_records_removed_under_a_reader_are_reported(server: redis.Redis, spec: SingleStreamSpec) -> None:
    with write_to_streams(spec) as out, read_stream(spec) as r:
        for i in range(3):
            out.write(i)
        server.xtrim(keys(spec).entries, minid="3-0", approximate=False)
        with pytest.raises(
            StreamError, match="record 0 of stream actor/0/0 was freed, the first one left is 2"
        ):
            r.next_record()


def test_memory_is_freed_behind_the_slowest_reader(server: redis.Redis, spec: SingleStreamSpec) -> None:
    port = server.connection_pool.connection_kwargs["port"]
    set_streams_backend("redis", port=port, trim=True)
    with (
        write_to_streams(spec) as out,
        read_stream(spec, reader="a") as a,
        read_stream(spec, reader="b") as b,
    ):
        for i in range(100):
            out.write(i)
        assert a.read_available() == list(range(100)) and b.read_available(max_records=40) == list(range(40))
        out.write(100)
        for i in range(101, 140):
            out.write(i)
        assert server.xlen(keys(spec).entries) >= 100, "b has not come further"
        assert b.read_available() == list(range(40, 140)) and a.read_available() == list(range(100, 140))
        for i in range(140, 180):
            out.write(i)
        assert server.xlen(keys(spec).entries) <= 60
        assert a.read_available() == list(range(140, 180))


@pytest.mark.parametrize("answer", ["absent", "password"])
def test_an_unwilling_server_is_one_line(tmp_path: Path, spec: SingleStreamSpec, answer: str) -> None:
    with redis_server(tmp_path, "--requirepass", "secret") as port:
        set_streams_backend("redis", port=port, password="secret")
        fill(spec, 1)
        set_streams_backend("redis", port=port, password="guess")
        if answer == "password":
            with pytest.raises(StreamError, match=f"redis at 127.0.0.1:{port} wants another password"):
                read_stream(spec)
    if answer == "absent":
        with pytest.raises(StreamError, match=f"redis at 127.0.0.1:{port} cannot be reached"):
            read_stream(spec)
    set_streams_backend("files")


def test_a_server_that_dies_under_its_readers_and_writers_is_named(tmp_path: Path) -> None:
    spec = SingleStreamSpec(tmp_path, "actor")
    with redis_server(tmp_path) as port:
        set_streams_backend("redis", port=port)
        out, r = write_to_streams(spec), read_stream(spec)
        found: list[Exception] = []

        def read() -> None:
            try:
                next(r.read(deadline_s=200))
            except StreamError as error:
                found.append(error)

        thread = threading.Thread(target=read)
        thread.start()
    thread.join(200)
    assert len(found) == 1 and f"redis at 127.0.0.1:{port} cannot be reached" in str(found[0])
    with pytest.raises(StreamError, match="cannot be reached"):
        out.write(1)
    out.close()
    set_streams_backend("files")


def test_a_reader_with_buffered_records_does_not_wait(server: redis.Redis, spec: SingleStreamSpec) -> None:
    from pipelinerl.streams import wait_any

    with write_to_streams(spec) as out, read_stream(spec) as r:
        for i in range(3):
            out.write(i)
        r.read_available(max_records=1)
        out.write(3)
        r.read_available(max_records=1)
        assert r.buffered
        wait_any([r], timeout_s=3600)
        assert r.read_available() == [2, 3]


def test_the_command_reads_what_an_ended_run_saved(tmp_path: Path) -> None:
    spec = SingleStreamSpec(tmp_path, "actor")
    data = tmp_path / "streams" / "redis"
    data.mkdir(parents=True)
    with redis_server(data) as port:
        set_streams_backend("redis", port=port)
        fill(spec, {"ids": np.arange(2)})
        assert list_streams(tmp_path) == [spec]
        redis.Redis(port=port).save()
    set_streams_backend("files")
    for theirs in (None, "of-the-later-run"):
        with redis_server(tmp_path, password=theirs) as another:  # a later run's server has taken the port
            settings = {"backend": "redis", "host": "127.0.0.1", "port": another, "password": "of-this-run"}
            done = print_stream(tmp_path, settings, "actor")
        assert done.stdout == '{"ids":[0,1]}\n', done.stderr


def test_a_server_of_ones_own_asks_for_its_password_and_tells_nobody(tmp_path: Path) -> None:
    with redis_server(tmp_path, password="word-of-the-test") as port:
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port).ping()
        assert redis.Redis(port=port, password="word-of-the-test").ping()
        commands = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    assert any(f":{port}" in command for command in commands), "every user may list these"
    assert not any("word-of-the-test" in command for command in commands)
