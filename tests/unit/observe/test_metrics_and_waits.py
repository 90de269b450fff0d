"""Metrics, wandb offline, waits, status files and logs."""

import asyncio
import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from pipelinerl.base.logs import REMARK, REMARKS, setup_logging
from pipelinerl.base.waits import Wait, WaitExpired, current_waits, wait_for
from pipelinerl.observe.blocked import BlockWatch, write_block
from pipelinerl.observe.metrics import MetricsWriter, histogram
from pipelinerl.observe.remarks import RemarkWatch
from pipelinerl.observe.status import StatusFile


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_are_lines_of_numbers(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, "actor") as writer:
        writer.log({"actor/reward_mean": np.float64(0.5), "n": np.int64(3), "ok": np.bool_(True)}, step=8)
        writer.log({"lag": histogram([1, 2, 2], [0, 1, 2, 3])})
    first, second = lines(tmp_path / "actor" / "metrics.jsonl")
    assert first.pop("time") and first == {"step": 8, "actor/reward_mean": 0.5, "n": 3, "ok": True}
    assert second["lag"] == {"edges": [0, 1, 2, 3], "counts": [0, 1, 2]}


@pytest.mark.parametrize("value", ["a private sentence", ["text"], None, {"text": "x"}])
def test_text_never_gets_into_metrics(tmp_path: Path, value: object) -> None:
    with MetricsWriter(tmp_path, "actor") as writer, pytest.raises(TypeError, match="metric secret is a"):
        writer.log({"secret": value})
    assert (tmp_path / "actor" / "metrics.jsonl").read_text() == ""


def test_a_wait_knows_its_name_and_deadline() -> None:
    now = 100.0
    with Wait("the engine", 5.0, clock=lambda: now) as wait:
        assert current_waits() == [{"name": "the engine", "waited_s": 0.0, "deadline_s": 5.0}]
        now = 104.0
        wait.check()
        assert wait.remaining_s == 1.0
        now = 105.0
        with pytest.raises(WaitExpired, match="waited 5 s for the engine: it is loading"):
            wait.check("it is loading")
    assert current_waits() == []
    longer = Wait("the trainer", 5.0).start()
    assert [one["name"] for one in current_waits()] == ["the trainer"]
    longer.end()
    assert current_waits() == []


def test_the_detail_of_a_wait_is_asked_for_once_and_only_when_it_is_said() -> None:
    now, looks = 0.0, []
    with Wait("the engine", 5.0, clock=lambda: now) as wait:
        wait.check(lambda: looks.append(now) or "it is loading")
        now = 5.0
        with pytest.raises(WaitExpired, match="waited 5 s for the engine: it is loading"):
            wait.check(lambda: looks.append(now) or "it is loading")
    assert looks == [5.0]


async def test_awaiting_has_a_name_and_cancels_what_takes_too_long() -> None:
    async def value() -> int:
        return 7

    assert await wait_for(value(), "a value", 5.0) == 7
    forever = asyncio.get_running_loop().create_future()
    with pytest.raises(WaitExpired, match="for nothing"):
        await wait_for(forever, "nothing", 0.01)
    assert forever.cancelled()


def test_the_status_file_shows_fields_and_the_current_wait(tmp_path: Path) -> None:
    with StatusFile(tmp_path, "actor", interval_s=60) as status:
        status.set(version=16, texts=3)
        with Wait("an engine with room", 30):
            status.write()
            shown = json.loads(status.path.read_text())
        assert shown["version"] == 16 and shown["pid"] == os.getpid()
        assert [w["name"] for w in shown["waits"]] == ["an engine with room"]
        status.set(texts=None)
    shown = json.loads(status.path.read_text())
    assert shown["waits"] == [] and "texts" not in shown


@pytest.fixture
def own_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test does to the root logger ends with it."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)


def test_each_process_logs_into_its_own_file(tmp_path: Path, own_handlers: None) -> None:
    setup_logging(tmp_path, "actor")
    logging.getLogger("a").info("from the parent")
    path = setup_logging(tmp_path, "actor", "worker_1")
    logging.getLogger("a").info("from the worker")
    assert path == tmp_path / "actor" / "worker_1.log"
    assert "from the worker" in path.read_text() and "parent" not in path.read_text()
    assert "from the parent" in (tmp_path / "actor" / "actor.log").read_text()


async def test_a_cancelled_wait_ends_what_it_awaits() -> None:
    inner = asyncio.ensure_future(asyncio.Event().wait())
    outer = asyncio.ensure_future(wait_for(inner, "something that never comes", 60))
    await asyncio.sleep(0)
    outer.cancel()
    await asyncio.gather(outer, return_exceptions=True)
    assert outer.cancelled() and inner.cancelled() and current_waits() == []


def test_a_blocked_worker_is_said_as_it_is_noticed_and_once_a_minute(tmp_path: Path) -> None:
    watch = BlockWatch(tmp_path, now=1000.0)
    block = {"who": "rollout 0-000007/2", "where": "mine.py:9 play", "since": 990.0}
    write_block(tmp_path, "actor/worker_3", block)
    assert list(watch.lines(1005.0)) == [], "it is of an earlier start"
    write_block(tmp_path, "actor/worker_3", block | {"since": 1010.0})
    remedy = "by rollout 0-000007/2 at mine.py:9 play; await, or make the rollout a plain function"
    assert list(watch.lines(1012.0)) == [f"rollout worker 3 is blocked for 2 s {remedy}"]
    assert list(watch.lines(1071.0)) == []
    assert list(watch.lines(1072.0)) == [f"rollout worker 3 is blocked for 62 s {remedy}"]
    write_block(tmp_path, "actor/worker_3", block | {"since": 1010.0, "until": 1080.0})
    assert list(watch.lines(1200.0)) == [], "that block was said, and it is over"
    write_block(tmp_path, "actor/worker_3", block | {"since": 1201.0, "until": 1203.5})
    assert list(watch.lines(1204.0)) == [f"rollout worker 3 was blocked for 2 s {remedy}"]
    (tmp_path / "actor/worker_3/blocked.json").write_text("[1]")
    assert list(watch.lines(1300.0)) == []


STACKS = """Timeout (0:00:12)!
Thread 0x0003 (most recent call first):
  File "/lib/threading.py", line 629 in wait
  File "/x/mine.py", line 3 in play
  File "/p/actor/runner.py", line 7 in rollout 0-000007/0

Thread 0x0002 (most recent call first):
  File "/p/base/heartbeat.py", line 40 in _beat

Thread 0x0001 (most recent call first):
  File "/lib/re/__init__.py", line 166 in match
  File "/x/mine.py", line 9 in play
  File "/p/actor/runner.py", line 7 in rollout 0-000007/2
"""


def test_a_held_worker_is_said_while_its_stacks_are_there(tmp_path: Path) -> None:
    watch = BlockWatch(tmp_path, now=1000.0)
    stacks = tmp_path / "actor/worker_3/held.txt"
    stacks.parent.mkdir(parents=True)
    stacks.write_text("")
    os.utime(stacks, (1012.0, 1012.0))
    assert list(watch.lines(1013.0)) == [], "nothing is held"
    stacks.write_text(STACKS)
    os.utime(stacks, (1012.0, 1012.0))
    (line,) = watch.lines(1013.0)
    assert line.startswith(
        "rollout worker 3 is blocked for 13 s by rollout 0-000007/2 at /lib/re/__init__.py:166 match "
        "< /x/mine.py:9 play < /p/actor/runner.py:7 rollout 0-000007/2; no thread of it runs; "
    ), "twelve seconds had passed as they were written"
    assert line.endswith(f"all stacks are in {stacks}")
    assert list(watch.lines(1072.0)) == [] and len(list(watch.lines(1073.0))) == 1
    os.utime(stacks, (900.0, 900.0))
    assert list(watch.lines(1200.0)) == [], "it is of an earlier start"


def test_remarks_of_roles_are_said_once_in_a_start_whoever_makes_them(tmp_path: Path) -> None:
    setup_logging(tmp_path, "finetune", "rank_0")
    logging.getLogger("a").warning("of an earlier start", extra=REMARK)
    watch = RemarkWatch(tmp_path)
    assert list(watch.lines()) == []
    logging.getLogger("a").warning("%s=0.1 of the model set to 0", "resid_pdrop", extra=REMARK)
    logging.getLogger("a").warning("for the log only")
    setup_logging(tmp_path, "preprocess")  # which loads the same model
    logging.getLogger("a").warning("resid_pdrop=0.1 of the model set to 0", extra=REMARK)
    logging.getLogger("a").warning("its own", extra=REMARK)
    assert list(watch.lines()) == [
        "finetune: resid_pdrop=0.1 of the model set to 0",
        "preprocess: its own",
    ]
    logging.getLogger("a").warning("its own", extra=REMARK)
    assert list(watch.lines()) == []
    with (tmp_path / "preprocess" / REMARKS).open("a") as file:
        file.write('{"no": "remark"}\n"behind damage"\n')
    assert list(watch.lines()) == ["preprocess: behind damage"]
