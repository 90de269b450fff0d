"""Who is alive: beats of a file, answers of a server, tokens of an engine."""

import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.base.heartbeat import BeatWatch, beat, heartbeat_path, start_heartbeat
from pipelinerl.base.waits import StallDetector
from pipelinerl.launcher.supervision import (
    ChildFailed,
    ChildSpec,
    HealthCheck,
    HeartbeatCheck,
    Supervisor,
    liveness,
)
from pipelinerl.launcher.supervision.liveness import watch_health, watch_heartbeat
from tests.support.json_server import serving_json

GONE_S = 120.0


def test_silence_grows_while_nothing_is_seen_and_ends_with_a_sign() -> None:
    silence = StallDetector("seen", now=0.0, longest_s=3.0)
    assert [silence.look("seen", now) for now in (1.0, 2.0, 3.5)] == [1.0, 2.0, 3.5]
    assert silence.look("news", 4.0) == 0.0
    assert silence.look("news", 5.0) == 1.0
    silence.restart(7.0)
    assert silence.look("news", 8.0) == 1.0


def test_a_watcher_that_slept_itself_blames_nobody_for_it() -> None:
    assert StallDetector("seen", now=0.0, longest_s=3.0).look("seen", 3600.0) == 3.0


def test_a_heartbeat_renews_its_file_until_it_is_stopped(tmp_path: Path) -> None:
    stop = start_heartbeat(tmp_path, "finetune", interval_s=0.01)
    path = heartbeat_path(tmp_path, "finetune")
    assert beat(path) > 0
    ended = threading.Event()
    check = HeartbeatCheck(path=path, start_deadline_s=GONE_S, silent_deadline_s=2.0, interval_s=0.05)
    beats = BeatWatch(path, check.interval_s)
    causes: list[str] = []
    watch = threading.Thread(
        target=lambda: (watch_heartbeat(check, beats, ended, causes.append), ended.set()), daemon=True
    )
    watch.start()
    assert not ended.wait(3.0), causes
    stop.set()
    assert ended.wait(GONE_S)
    assert len(causes) == 1 and causes[0].startswith("no sign of life for ")


def test_a_beat_of_an_earlier_start_is_no_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat"
    path.touch()
    causes: list[str] = []
    check = HeartbeatCheck(path=path, start_deadline_s=0.05, silent_deadline_s=GONE_S, interval_s=0.01)
    watch_heartbeat(check, BeatWatch(path, check.interval_s), threading.Event(), causes.append)
    assert len(causes) == 1 and causes[0].endswith("after its start")


class Engine:
    """Answers with counters that a test sets; `excused` counts the times it was given a chance."""

    def __init__(self) -> None:
        self.tokens, self.running, self.paused, self.generates = 0, 0, False, False
        self.excused = threading.Semaphore(0)

    def answer(self, path: str, _: str, body: Any) -> tuple[int, Any]:
        if path == "/metrics":
            counters = {"num_requests_running": self.running, "generation_tokens_total": self.tokens}
            return 200, "".join(f"vllm:{name} {value}\n" for name, value in counters.items())
        if path == "/inference/v1/generate":
            assert body["sampling_params"]["max_tokens"] == 1
            return (200 if self.generates else 503), ""
        if path == "/is_paused":
            self.excused.release()
        return 200, {"is_paused": self.paused}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Engine, str]]:
    monkeypatch.setattr(liveness, "_PROBE_DEADLINE_S", GONE_S)  # a slow machine is no silent engine
    engine = Engine()
    with serving_json(engine.answer) as url:
        yield engine, url


@pytest.mark.parametrize("reason", ["paused", "generates"])
def test_an_engine_without_new_tokens_is_reported_unless_it_is_paused_or_still_makes_one(
    served: tuple[Engine, str], reason: str
) -> None:
    """Of several HTTP processes the slowest may be the last to say what runs, and nothing corrects it."""
    engine, url = served
    engine.running = 3
    setattr(engine, reason, True)
    check = HealthCheck(url=f"{url}/health", engine_url=url, liveness_deadline_s=0.05, interval_s=0.01)
    causes = list[str]()
    arguments = (check, threading.Event(), lambda: None, causes.append)
    watch = threading.Thread(target=watch_health, args=arguments, daemon=True)
    watch.start()
    for _ in range(3):
        assert engine.excused.acquire(timeout=GONE_S)
    assert not causes
    setattr(engine, reason, False)
    watch.join(GONE_S)
    assert causes == ["no new token for 0.05 s with 3 requests running"]


STOPS = """
import os, signal, sys, time
from pathlib import Path
from pipelinerl.base.heartbeat import start_heartbeat
start_heartbeat(Path(sys.argv[1]), "finetune", 0.05)
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""


def test_a_stopped_role_is_killed_and_named(tmp_path: Path) -> None:
    spec = ChildSpec(
        name="finetune",
        argv=[sys.executable, "-c", textwrap.dedent(STOPS), str(tmp_path)],
        log_dir=tmp_path / "finetune",
        heartbeat=HeartbeatCheck(
            path=heartbeat_path(tmp_path, "finetune"),
            start_deadline_s=GONE_S,
            silent_deadline_s=0.5,
            interval_s=0.1,
        ),
    )
    with Supervisor([spec]) as supervisor, pytest.raises(ChildFailed) as error:
        supervisor.start()
        supervisor.watch()
    assert error.value.cause.startswith("no sign of life for ")
    assert signal.Signals.SIGKILL.name not in error.value.cause
