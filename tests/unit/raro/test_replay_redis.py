"""The buffer on redis behaves as the file does. Needs the extra `redis` and the binary `redis-server`."""

import random

import pytest
from raro_harness import pair
from redis_server import redis_server

redis = pytest.importorskip("redis")

from domains.raro.replay import ReplayBuffer  # noqa: E402
from domains.raro.replay_redis import RedisReplayBuffer  # noqa: E402


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as port:
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture
def connect(url):
    name = f"test-{random.SystemRandom().getrandbits(64):x}"

    def made(capacity=5, mode="fifo", seed=0, run=name):
        return RedisReplayBuffer(url, run, capacity, mode, random.Random(seed))

    return made


def answers(buffer, watermark=10**9):
    return {found.policy_answer for found in buffer.sample(random.Random(0), 300, watermark)}


def test_order_duplicates_watermark_and_counters(connect):
    buffer = connect()
    assert buffer.watermark() == 0 and buffer.sample(random.Random(0), 2, 9) == []
    for name in "abcdefg":
        assert buffer.put(pair(name))
    assert not buffer.put(pair("g", model_version=9))
    assert answers(buffer) == set("cdefg") and answers(buffer, 4) == {"c", "d"}
    stats = buffer.stats()
    assert (stats.size, stats.arrivals, stats.duplicates, stats.watermark) == (5, 7, 1, 7)
    assert buffer.put(pair("a")) and connect().stats().size == 5


def test_a_reservoir_keeps_its_size_and_both_early_and_late_pairs(connect):
    buffer = connect(capacity=20, mode="reservoir")
    for index in range(80):
        buffer.put(pair(str(index)))
    kept = {int(answer) for answer in answers(buffer)}
    assert buffer.stats().size == 20 and min(kept) < 40 < max(kept) and buffer.stats().arrivals == 80


def test_backup_and_restore_speak_the_files_format(connect, tmp_path):
    buffer, copy = connect(), tmp_path / "copy.sqlite3"
    for name in "abcdefg":
        buffer.put(pair(name))
    buffer.put(pair("g"))
    buffer.backup(copy)
    assert [row.seq for row in ReplayBuffer(copy).rows()] == [3, 4, 5, 6, 7]
    other = connect(run="another-run")
    other.restore(copy)
    assert answers(other) == answers(buffer) and other.stats() == buffer.stats()
    other.put(pair("h"))
    assert other.watermark() == 8
