"""The replay buffer: both backends alike; for the file several processes, sudden death, checkpoints."""

import multiprocessing
import os
import random
import re
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from domains.raro.replay import BackupWriter, ReplayBuffer, intact, recover, reservoir_place
from tests.support.raro_harness import pair
from tests.support.redis_server import redis_server


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    pytest.importorskip("redis")
    with redis_server(tmp_path_factory.mktemp("redis")) as port:
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(params=["sqlite", "redis"])
def connect(request, tmp_path):
    """Opens the buffer of a run, by default always the same."""
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    runs = f"{random.SystemRandom().getrandbits(64):x}"

    def made(capacity=5, mode="fifo", run="one"):
        if url is None:
            return ReplayBuffer(tmp_path / f"{run}.sqlite3", capacity, mode, run, random.Random(0))
        from domains.raro.replay_redis import RedisReplayBuffer

        return RedisReplayBuffer(url, f"{runs}-{run}", capacity, mode, random.Random(0))

    return made


def answers(buffer, watermark=10**9):
    return {found.policy_answer for found in buffer.sample(random.Random(0), 400, watermark)}


def counters(buffer):
    stats = buffer.stats()
    return stats.size, stats.arrivals, stats.duplicates, stats.watermark


def test_the_name_of_a_pair():
    known = pair("4*6", question_id="q1", expert_answer="3*8")
    assert known.sha == "f2355f0d542876370287f00d8596388ddb1e0928158c8c35feb29119767acbdc"
    assert pair("ü").sha != pair("\u00fc".encode("unicode_escape").decode()).sha


def test_the_oldest_pair_makes_room_and_rows_above_the_watermark_are_not_drawn(connect):
    buffer = connect()
    assert buffer.watermark() == 0 and buffer.sample(random.Random(0), 3, 100) == []
    assert [buffer.put(pair(name)) for name in "abcdefg"] == [True] * 7
    assert answers(buffer) == set("cdefg") and counters(buffer) == (5, 7, 0, 7)
    assert answers(buffer, 4) == {"c", "d"} and answers(buffer, 2) == set()
    assert buffer.put(pair("a")) and counters(connect()) == (5, 8, 0, 8)


def test_a_duplicate_is_kept_once_and_changes_only_its_counter(connect):
    buffer = connect()
    buffer.put(pair("a", model_version=1, created_at=1.0))
    assert not buffer.put(pair("a", model_version=9, created_at=9.0))
    (found,) = buffer.sample(random.Random(0), 1, 1)
    assert (found.model_version, found.created_at, found.seq) == (1, 1.0, 1)
    assert counters(buffer) == (1, 1, 1, 1) and buffer.stats().duplicate_rate == 0.5


def test_a_reservoir_keeps_its_size_and_early_pairs_as_well_as_late_ones(connect):
    buffer = connect(capacity=20, mode="reservoir")
    assert [buffer.put(pair(str(index))) for index in range(80)] == [True] * 80
    early = sum(int(answer) < 40 for answer in answers(buffer))
    assert counters(buffer)[:2] == (20, 80) and 4 <= early <= 16


def test_a_copy_brings_back_rows_numbers_and_counters_on_either_backend(connect, tmp_path):
    buffer, copy = connect(), tmp_path / "copies" / "copy.sqlite3"
    copy.parent.mkdir()
    for name in "abcdefgg":
        buffer.put(pair(name))
    buffer.backup(copy)
    assert [row.seq for row in ReplayBuffer(copy).rows()] == [3, 4, 5, 6, 7]
    other = connect(run="another")
    other.restore(copy)
    assert answers(other) == answers(buffer) and other.stats() == buffer.stats()
    assert other.put(pair("h")) and other.watermark() == 8
    copy.write_bytes(b"rubbish")
    with pytest.raises(ValueError, match="no intact replay buffer"):
        other.restore(copy)


def test_sampling_is_uniform_over_rows_with_gaps(tmp_path):
    buffer = ReplayBuffer(tmp_path / "r.sqlite3", capacity=100)
    for index in range(60):
        buffer.put(pair(str(index)))
    db = sqlite3.connect(buffer.path)
    db.execute("DELETE FROM pairs WHERE seq % 6 != 1")
    db.commit()
    db.close()
    drawn = Counter(found.seq for found in buffer.sample(random.Random(2), 8_000, 60))
    assert set(drawn) == set(range(1, 61, 6)) and all(640 < n < 960 for n in drawn.values())


def test_a_reservoir_keeps_every_arrival_with_equal_chance():
    kept: Counter[int] = Counter()
    runs, capacity, arrivals = 3_000, 50, 300
    rng = random.Random(1)
    for _ in range(runs):
        rows = list(range(capacity))
        for arrival in range(capacity, arrivals):
            if (place := reservoir_place(rng, capacity, arrival + 1)) is not None:
                rows[place] = arrival
        kept.update(rows)
    assert all(abs(kept[i] / runs - capacity / arrivals) <= 0.035 for i in range(arrivals))


def insert_many(path: str, worker: int, count: int) -> None:
    buffer = ReplayBuffer(Path(path), capacity=100_000)
    for index in range(count):
        # Every second pair is one that all workers offer.
        buffer.put(pair(f"shared {index}" if index % 2 else f"{worker} {index}"))
    buffer.close()


def test_eight_processes_insert_at_once(tmp_path):
    path = tmp_path / "r.sqlite3"
    ReplayBuffer(path, capacity=100_000)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=insert_many, args=(str(path), n, 200)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(200)
    assert [worker.exitcode for worker in workers] == [0] * 8
    stats = ReplayBuffer(path).stats()
    assert stats.size == stats.arrivals == 8 * 100 + 100 and stats.duplicates == 7 * 100 and intact(path)


def insert_and_tell(path: str, told) -> None:
    buffer = ReplayBuffer(Path(path), capacity=100_000)
    for index in range(100_000):
        buffer.put(pair(str(index)))
        told.value = index + 1


def test_a_killed_process_loses_no_committed_row(tmp_path):
    path = tmp_path / "r.sqlite3"
    context = multiprocessing.get_context("fork")
    told = context.Value("i", 0, lock=False)
    worker = context.Process(target=insert_and_tell, args=(str(path), told))
    worker.start()
    deadline = time.monotonic() + 200
    while told.value < 50 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(200)
    committed = told.value
    assert committed >= 50 and intact(path)
    assert ReplayBuffer(path).stats().size in (committed, committed + 1)


def filled(path: Path) -> ReplayBuffer:
    buffer = ReplayBuffer(path, capacity=4, run_id="run")
    for name in "abcdef":
        buffer.put(pair(name))
    buffer.put(pair("f"))
    return buffer


def test_backups_are_as_rare_as_configured(tmp_path):
    copy = tmp_path / "copy.sqlite3"
    writer = BackupWriter(filled(tmp_path / "r.sqlite3"), copy, every_s=60.0)
    writer.checkpoint(now_s=0.0)
    writer.running.result(200)
    copy.unlink()
    writer.checkpoint(now_s=59.0)
    writer.running.result(200)
    assert not copy.exists()
    writer.checkpoint(now_s=60.0)
    writer.running.result(200)
    assert intact(copy)


def test_an_intact_live_file_is_kept_and_a_damaged_one_set_aside(tmp_path):
    live, copy = tmp_path / "r.sqlite3", tmp_path / "copy.sqlite3"
    buffer = filled(live)
    buffer.backup(copy)
    buffer.put(pair("later"))
    buffer.close()
    recover(live, copy, print)
    assert "later" in answers(ReplayBuffer(live))
    for path in tmp_path.glob("r.sqlite3-*"):
        path.unlink()
    live.write_bytes(b"rubbish" * 1000)
    said = []
    recover(live, copy, said.append)
    assert answers(ReplayBuffer(live)) == set("cdef") and (tmp_path / "r.sqlite3.damaged").exists()
    assert "set aside" in said[0] and "restored" in said[-1]


def test_a_pair_of_which_a_bit_flipped_is_never_drawn(tmp_path):
    live, copy = tmp_path / "r.sqlite3", tmp_path / "copy.sqlite3"
    buffer = filled(live)
    buffer.backup(copy)
    buffer.close()
    whole, rows = copy.read_bytes(), ReplayBuffer(copy).rows()
    texts = {text.encode() for row in rows for text in (row.question, row.expert_answer, row.policy_answer)}
    drawn, places = random.Random(0), set[int]()
    for text in sorted(texts):  # a letter alone stands all over the file
        found = [match.start() for match in re.finditer(re.escape(text), whole)]
        places.update(drawn.sample(found, min(len(found), 20)))
    assert len(places) >= len(rows)
    for place in [*sorted(places), *drawn.sample(range(len(whole)), 40)]:
        for path in tmp_path.glob("r.sqlite3*"):
            path.unlink()
        damaged = bytearray(whole)
        damaged[place] ^= 1
        live.write_bytes(damaged)
        copy.write_bytes(whole)
        recover(live, copy, lambda _: None)
        buffer = ReplayBuffer(live)
        found = {(row.question, row.expert_answer, row.policy_answer) for row in buffer.rows()}
        buffer.close()
        assert found <= {(row.question, row.expert_answer, row.policy_answer) for row in rows}, place


def test_another_schema_is_refused(tmp_path):
    filled(tmp_path / "r.sqlite3").close()
    db = sqlite3.connect(tmp_path / "r.sqlite3")
    db.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    db.commit()
    db.close()
    with pytest.raises(ValueError, match="schema 99, expected 1"):
        ReplayBuffer(tmp_path / "r.sqlite3")
