"""The worker processes of the actor: start, messages, end."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pipelinerl.actor.messages import Channel, Died, Hello, Message, Stop
from pipelinerl.base.heartbeat import INTERVAL_S, BeatWatch, heartbeat_path
from pipelinerl.base.waits import Wait, wait_for
from pipelinerl.observe.blocked import held_now

log = logging.getLogger(__name__)

STOP_DEADLINE_S = 10.0


def worker_role(index: int) -> str:
    """Where a worker's heartbeat lies, below the folder of the run."""
    return f"actor/worker_{index}"


class WorkerDied(Exception):
    """A worker process ended or fell silent; the message says which and why."""


class WorkerPool:
    """Starts workers and passes their messages on. A worker that dies is reported once."""

    def __init__(
        self,
        output_dir: Path,
        job: int,
        count: int,
    ):
        self._argv = [sys.executable, "-m", "pipelinerl.actor.worker", str(output_dir), "--job", str(job)]
        self.count = count
        self._on_messages: Callable[[int, list[Message]], None] | None = None
        self._on_death: Callable[[WorkerDied], None] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self.channels: list[Channel] = []
        self._readers: list[asyncio.Task[None]] = []
        self._ready = [asyncio.Event() for _ in range(count)]
        self._heard: list[float] = []
        self._output_dir = output_dir
        self._beats: list[BeatWatch] = []
        self._last_words: dict[int, str] = {}
        self._stopping = False

    def attach(
        self, on_messages: Callable[[int, list[Message]], None], on_death: Callable[[WorkerDied], None]
    ) -> None:
        """From now on somebody listens; before, workers only say that they are alive."""
        self._on_messages, self._on_death = on_messages, on_death
        for index in sorted(self._last_words):
            on_death(self._death(index))

    async def start(self, deadline_s: float) -> None:
        """Until every worker is ready. Raises WaitExpired, or WorkerDied with the worker's reason."""
        for index in range(self.count):
            await self._spawn(index)
        everyone = asyncio.gather(*(event.wait() for event in self._ready))
        await wait_for(everyone, f"{self.count} rollout workers to be ready", deadline_s, normal="seconds")
        if self._last_words:
            raise self._death(min(self._last_words))

    async def _spawn(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        # Every worker tokenises on its loop; threads of the tokeniser beside it would fight for the cores.
        env = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        options = {"--worker": index, "--fd": theirs.fileno(), "--parent": os.getpid()}
        argv = [*self._argv, *(str(word) for option in options.items() for word in option)]
        # Before the start: a worker's first beat, however early, is not one of an earlier start.
        self._beats.append(BeatWatch(heartbeat_path(self._output_dir, worker_role(index)), INTERVAL_S))
        # Not on a thread: the kernel ends a child that asked for it with the thread that started it.
        self._processes.append(subprocess.Popen(argv, pass_fds=[theirs.fileno()], env=env))  # noqa: ASYNC220
        # Only the worker holds its end now: when it dies, our end is closed, and that is how we notice.
        theirs.close()
        self.channels.append(await Channel.open(ours))
        self._heard.append(time.monotonic())
        self._readers.append(asyncio.create_task(self._read(index), name=f"messages of worker {index}"))

    async def _read(self, index: int) -> None:
        try:
            await self._pass_on(index)
        except Exception as error:
            log.exception("messages of rollout worker %d cannot be handled", index)
            self._last_words.setdefault(index, f"its messages cannot be handled: {error}")
        if not self._stopping:
            self._last_words.setdefault(index, "")
            self._ready[index].set()  # `start` waits for it and then finds the last words
            if self._on_death is not None:
                self._on_death(self._death(index))

    async def _pass_on(self, index: int) -> None:
        while (messages := await self.channels[index].receive()) is not None:
            self._heard[index] = time.monotonic()
            passed_on: list[Message] = []
            for message in messages:
                if isinstance(message, Hello):
                    self._ready[index].set()
                elif isinstance(message, Died):
                    self._last_words[index] = message.reason
                else:
                    passed_on.append(message)
            if passed_on and self._on_messages is not None:
                self._on_messages(index, passed_on)

    def _death(self, index: int) -> WorkerDied:
        if reason := self._last_words.get(index):
            return WorkerDied(f"rollout worker {index}: {reason}")
        # The channel closes a moment before the kernel has the exit code.
        try:
            code = self._processes[index].wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return WorkerDied(f"rollout worker {index} closed its channel but still runs")
        return WorkerDied(f"rollout worker {index} died with exit code {code}; its log says more")

    def check_alive(self, blocked_limit_s: float, silent_limit_s: float) -> None:
        """Raises WorkerDied for a worker that was stopped or whose loop is blocked; call it every second.

        The log of a blocked worker names the rollout.
        """
        for index, watch in enumerate(self._beats):
            if (silent := watch.look()) > silent_limit_s and watch.alive:
                held = held_now(self._output_dir / worker_role(index))
                why = f": held by {held['who']} at {held['where']}" if held else ""
                raise WorkerDied(f"rollout worker {index} shows no sign of life for {silent:.0f} s{why}")
        # A heartbeat comes from a thread of its own; a pulse only from a loop that turns.
        for index, heard in enumerate(self._heard):
            if (silent := time.monotonic() - heard) > blocked_limit_s:
                raise WorkerDied(
                    f"rollout worker {index} gave no sign for {silent:.0f} s; its log names what blocks it"
                )

    async def stop(self) -> None:
        """End all workers; those that do not within the deadline are killed, by process id."""
        if self._stopping:
            return
        self._stopping = True  # from now on a closed channel is what we asked for, not a death
        for channel in self.channels:
            channel.send(Stop())
            channel.flush()  # now: the loop may not turn again before the processes are waited for
        with Wait("rollout workers to stop", STOP_DEADLINE_S) as wait:
            for index, process in enumerate(self._processes):
                try:
                    await asyncio.to_thread(process.wait, max(0.1, wait.remaining_s))
                except subprocess.TimeoutExpired:
                    log.warning(
                        "rollout worker %d did not stop within %g s and is killed", index, STOP_DEADLINE_S
                    )
                    process.kill()
                    process.wait()
        if self._readers:
            # The processes are gone: what is left to read are their last messages.
            with Wait("the last messages of rollout workers", STOP_DEADLINE_S):
                await asyncio.wait(self._readers, timeout=STOP_DEADLINE_S)
        # A reader that is still there after the deadline is stuck in handling a message.
        for reader in self._readers:
            reader.cancel()
        for channel in self.channels:
            await channel.close()
