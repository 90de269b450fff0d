"""The head of a Ray cluster that no longer answers: named in time, and left in time."""

import threading
import time

import pytest

from pipelinerl.base.waits import WaitExpired
from pipelinerl.launcher import ray_head
from pipelinerl.launcher.ray_head import HeadWatch, ends_within
from tests.support.processes import until


def test_a_head_that_answers_is_never_missed_and_a_silent_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_head, "ASK_EVERY_S", 0.02)
    answers = threading.Event()
    answers.set()

    def ask() -> None:
        if not answers.is_set():
            raise RuntimeError("no head")

    watch = HeadWatch("the head", ask, silent_s=1.0)
    for _ in range(12):
        time.sleep(0.1)
        watch.check()
    answers.clear()

    def named() -> bool:
        try:
            watch.check()
        except WaitExpired as error:
            return "waited 1 s for an answer of the head" in str(error)
        return False

    until(named, "the end of the wait")
    answers.set()
    until(lambda: not named(), "the head's answer")
    watch.close()


def test_a_call_that_blocks_does_not_keep_the_launcher() -> None:
    stuck = threading.Event()
    assert not ends_within(0.05, lambda: bool(stuck.wait()) and None)
    stuck.set()
    assert ends_within(60.0, lambda: None)


def test_a_launcher_that_was_stopped_itself_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_head, "ASK_EVERY_S", 0.1)
    stopped = threading.Event()  # nobody answers, and nobody looks, as long as it stands still
    watch = HeadWatch("the head", stopped.wait, silent_s=1.0)
    time.sleep(1.5)
    watch.check()
    stopped.set()
    watch.close()
