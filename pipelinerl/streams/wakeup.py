"""Waiting for streams: on descriptors that become readable, by a bounded adaptive poll where there is none.

A directory on a local disk tells of changes through inotify. On a remote file system the kernel here does not
see what other hosts write, so that readers look again after 1 to 50 ms.
"""

import contextlib
import logging
import os
import re
import select
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import inotify_simple
import psutil

log = logging.getLogger(__name__)

_REMOTE = re.compile("nfs|cifs|smb|fuse|ceph|lustre|gpfs|beegfs|9p|glusterfs|afs|virtiofs")
_FLAGS = inotify_simple.flags.MODIFY | inotify_simple.flags.CREATE | inotify_simple.flags.MOVED_TO
_EVENT_BYTES = 1 << 16
POLL_MIN_S = 0.001
POLL_MAX_S = 0.05
# A woken reader needs no poll; this bounds what a lost event could cost.
BACKSTOP_S = 1.0


class Source(Protocol):
    """What `wait_any` waits for. One may also say by `buffered` that something is here already."""

    def fileno(self) -> int | None:
        """A descriptor that becomes readable on a change; None where there is none."""

    def next_pause(self) -> float:
        """Seconds after which to look again; asked only where there is no descriptor."""


class Pause:
    """Seconds between two looks: they grow while nothing is found."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._seconds = POLL_MIN_S

    def next(self) -> float:
        pause = self._seconds
        self._seconds = min(self._seconds * 1.5, POLL_MAX_S)
        return pause


def readable(descriptors: Iterable[int], timeout_s: float) -> bool:
    """Block until one is readable, at most `timeout_s` seconds and never longer than BACKSTOP_S."""
    # poll and not select, which refuses descriptors above 1023.
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(min(timeout_s, BACKSTOP_S) * 1000))


def wait_any(sources: Iterable[Source], timeout_s: float, wake: int | None = None) -> None:
    """Block until one of several streams may have changed, at most `timeout_s` seconds or BACKSTOP_S.

    `wake` is a descriptor that ends the wait when it becomes readable.
    """
    descriptors = [] if wake is None else [wake]
    for source in sources:
        if getattr(source, "buffered", False):
            return
        descriptor = source.fileno()
        if descriptor is None:
            timeout_s = min(timeout_s, source.next_pause())
        else:
            descriptors.append(descriptor)
    readable(descriptors, timeout_s)


def file_system_of(path: Path) -> str:
    """The type of the file system that holds `path`; "" if unknown."""
    here = path.resolve()
    holding = [one for one in psutil.disk_partitions(all=True) if here.is_relative_to(one.mountpoint)]
    # The deepest one; of two at one place the later hides the earlier.
    holding.sort(key=lambda one: len(Path(one.mountpoint).parts))
    return holding[-1].fstype if holding else ""


class DirectoryWatch:
    """Tells of changes in one directory. Call `drain` before looking, then wait if there was nothing."""

    def __init__(self, directory: Path, use_inotify: bool | None = None) -> None:
        """`use_inotify`: None decides by the file system."""
        if use_inotify is None:
            use_inotify = not _REMOTE.match(file_system_of(directory))
        self._inotify = _open_inotify(directory) if use_inotify else None
        self.pause = Pause()

    def fileno(self) -> int | None:
        return None if self._inotify is None else self._inotify.fileno()

    def next_pause(self) -> float:
        return self.pause.next()

    def drain(self) -> None:
        """Forget the changes so far; what comes later ends a wait."""
        if self._inotify is not None:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._inotify.fileno(), _EVENT_BYTES):
                    pass

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


def _open_inotify(directory: Path) -> inotify_simple.INotify | None:
    """A watch of the directory; None, with a warning, where the kernel has none left to give."""
    try:
        watch = inotify_simple.INotify(nonblocking=True)
        watch.add_watch(str(directory), _FLAGS)
    except OSError as error:
        log.warning("inotify cannot watch %s (%s); polled every %g s", directory, error, POLL_MAX_S)
        return None
    return watch
