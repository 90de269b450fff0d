"""Waking a reader when its directory changes: inotify on a local disk, a bounded adaptive poll elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import time
from pathlib import Path

import inotify_simple

log = logging.getLogger(__name__)

# File systems whose changes by another host the kernel here does not see.
_REMOTE = (
    "nfs",
    "cifs",
    "smb",
    "fuse",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "9p",
    "glusterfs",
    "afs",
    "virtiofs",
)
_FLAGS = inotify_simple.flags.MODIFY | inotify_simple.flags.CREATE | inotify_simple.flags.MOVED_TO
_EVENT_BYTES = 1 << 16
POLL_MIN_S = 0.001
POLL_MAX_S = 0.05
# A woken reader needs no poll; this bounds what a lost event could cost.
BACKSTOP_S = 1.0


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """The type of the file system that holds `path`, from /proc/self/mounts; "" if unknown."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text()
        except OSError:
            return ""
    resolved = str(path.resolve())
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = point == "/" or resolved == point or resolved.startswith(point + "/")
        if inside and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind


def sees_changes(path: Path) -> bool:
    """Whether inotify reports every change below `path`, also those made elsewhere."""
    return not file_system_of(path).startswith(_REMOTE)


class DirectoryWatch:
    """Waits for changes in one directory. Call `drain` before looking, then `wait` if there was nothing."""

    def __init__(self, directory: Path, use_inotify: bool | None = None) -> None:
        self._inotify: inotify_simple.INotify | None = None
        self._pause_s = POLL_MIN_S
        if use_inotify is None:
            use_inotify = sees_changes(directory)
        if use_inotify:
            self._inotify = _open_inotify(directory)

    def fileno(self) -> int | None:
        """The descriptor that becomes readable on a change; None where the directory is polled."""
        return None if self._inotify is None else self._inotify.fileno()

    def drain(self) -> None:
        """Forget the changes so far; what comes later wakes `wait`."""
        if self._inotify is not None:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._inotify.fileno(), _EVENT_BYTES):
                    pass

    def found(self) -> None:
        """The reader found something: poll quickly again."""
        self._pause_s = POLL_MIN_S

    def wait(self, timeout_s: float) -> None:
        """Block until a change, at most `timeout_s` seconds (less where the directory is polled)."""
        if self._inotify is not None:
            wait_readable(self._inotify.fileno(), timeout_s)
        else:
            time.sleep(self._next_pause(timeout_s))

    async def wait_async(self, timeout_s: float) -> None:
        """`wait` without blocking the event loop."""
        if self._inotify is None:
            await asyncio.sleep(self._next_pause(timeout_s))
        else:
            await wait_readable_async(self._inotify.fileno(), timeout_s)

    def _next_pause(self, timeout_s: float) -> float:
        pause = min(self._pause_s, timeout_s)
        self._pause_s = min(self._pause_s * 1.5, POLL_MAX_S)
        return pause

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


def wait_readable(descriptor: int, timeout_s: float) -> bool:
    """Block until a descriptor is readable, at most `timeout_s` seconds and never longer than BACKSTOP_S."""
    # poll and not select, which refuses descriptors above 1023.
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(min(timeout_s, BACKSTOP_S) * 1000))


async def wait_readable_async(descriptor: int, timeout_s: float) -> None:
    """`wait_readable` without blocking the event loop."""
    loop = asyncio.get_running_loop()
    changed: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _resolve, changed)
    try:
        await asyncio.wait({changed}, timeout=min(timeout_s, BACKSTOP_S))
    finally:
        loop.remove_reader(descriptor)
        changed.cancel()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _open_inotify(directory: Path) -> inotify_simple.INotify | None:
    try:
        watch = inotify_simple.INotify(nonblocking=True)
    except OSError as error:
        log.warning("inotify is not available (%s); %s is polled every %g s", error, directory, POLL_MAX_S)
        return None
    try:
        watch.add_watch(str(directory), _FLAGS)
    except OSError as error:
        watch.close()
        log.warning("inotify cannot watch %s (%s); it is polled every %g s", directory, error, POLL_MAX_S)
        return None
    return watch
