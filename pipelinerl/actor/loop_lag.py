"""How late the event loop is, and which rollout is to blame."""

import asyncio
import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from pipelinerl.observe.blocked import HELD_AFTER_S, HELD_REMEDY, held_block, where_of

log = logging.getLogger(__name__)

INTERVAL_S = 0.01
BLOCKED_AFTER_S = 1.0
WATCH_EVERY_S = 0.25


class LoopLag:
    """Samples the delay of a sleeping coroutine; a thread names the rollout that blocks for a second or more.

    A call that keeps the interpreter to itself, such as a regular expression without end, stops that thread
    too. Then the C code of `faulthandler`, which needs no interpreter, writes the stacks into a file. Create
    and `start` it on the loop's own thread.
    """

    def __init__(
        self, note: Callable[[dict[str, Any]], None] = lambda block: None, held: Path | None = None
    ) -> None:
        """`note` is told of each block as it is noticed and once more when it is over, on the thread.

        `held`: where stacks are written after HELD_AFTER_S seconds in which no thread ran; its folder exists.
        """
        self._note, self._held = note, held
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._lags_s: list[float] = []
        self._beat = time.monotonic()
        self._stopping = threading.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._sample(), name="loop lag")
        self._thread = threading.Thread(target=self._watch, name="loop watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._task.cancel()

    def take(self) -> list[float]:
        """Delays in seconds since the last call."""
        lags, self._lags_s = self._lags_s, []
        return lags

    async def _sample(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(INTERVAL_S)
            # For the watching thread, which cannot ask a loop that is blocked.
            self._beat = time.monotonic()
            self._lags_s.append(max(0.0, self._beat - before - INTERVAL_S))

    def _watch(self) -> None:
        if self._held is None:
            self._watch_loop(lambda: None)
            return
        with self._held.open("w") as file:
            self._watch_loop(lambda: self._look_for_hold(file.fileno()))
            faulthandler.cancel_dump_traceback_later()
            # Nobody shall take what is there now for a hold that goes on.
            self._end_hold(file.fileno())

    def _look_for_hold(self, fd: int) -> None:
        self._end_hold(fd)
        faulthandler.dump_traceback_later(HELD_AFTER_S, file=fd)

    def _end_hold(self, fd: int) -> None:
        # This thread runs, so what was written is over.
        if self._held is None or os.fstat(fd).st_size == 0:
            return
        stacks, written_at = self._held.read_text(errors="replace"), os.fstat(fd).st_mtime
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        if (block := held_block(stacks, written_at)) is not None:
            held_s = time.time() - block["since"]
            who, where = block["who"], block["where"]
            line = "%s held the interpreter for %.1f s at %s; %s; all stacks:\n%s"
            log.warning(line, who, held_s, where, HELD_REMEDY, stacks)
            self._note(block | {"until": time.time()})

    def _watch_loop(self, each_time: Callable[[], None]) -> None:
        reported: dict[str, Any] = {}
        each_time()
        clock = time.pthread_getcpuclockid(self._loop_thread)
        looked, used = time.monotonic(), time.clock_gettime(clock)
        # Once per block: a rollout that blocks for a minute is one line and not four a second.
        while not self._stopping.wait(WATCH_EVERY_S):
            each_time()
            now, before, used_before = time.monotonic(), looked, used
            looked, used = now, time.clock_gettime(clock)
            silent_s = now - self._beat
            blocked = silent_s > BLOCKED_AFTER_S
            if blocked and not reported and not stood_still(looked - before, used - used_before):
                reported = self._report(silent_s)
                self._note(reported)
            elif reported and blocked and not reported.get("others"):
                # Rollouts that block one after another leave the loop no moment between them.
                if (who := self._current()) != reported["who"]:
                    where = f"{reported['where']}, then by {who} and maybe others"
                    reported = reported | {"others": True, "where": where}
                    self._note(reported)
            elif reported and not blocked:
                self._note(reported | {"until": time.time()})
                reported = {}

    def _report(self, silent_s: float) -> dict[str, Any]:
        # Called on the watching thread: the loop's own thread is stuck in the code that is to be named.
        frame = sys._current_frames().get(self._loop_thread)
        who, where = self._current(), _where(frame)
        log.warning(
            "%s blocks the event loop for %.1f s at %s; await, or make the rollout a plain function",
            who,
            silent_s,
            where,
        )
        return {"who": who, "where": where, "since": time.time() - silent_s}

    def _current(self) -> str:
        task = asyncio.current_task(self._loop)
        return task.get_name() if task is not None else "no task"


def stood_still(since_s: float, used_s: float) -> bool:
    """Whether the process was kept from running since the last look, so that no rollout is to blame.

    This thread then woke late too, and the loop's own used little of the time: a suspended program, or a
    machine that is too busy. A call that keeps the interpreter wakes this thread late and uses all of it.
    """
    late_s = since_s - WATCH_EVERY_S
    return late_s > BLOCKED_AFTER_S / 2 and used_s < late_s / 2


def _where(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown place"
    entries = reversed(traceback.extract_stack(frame))
    return where_of([(entry.filename, entry.lineno, entry.name) for entry in entries])
