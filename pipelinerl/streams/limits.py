"""How far a writer may run ahead of those who read, and when records may go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipelinerl.base.waits import waiting
from pipelinerl.streams.specs import SingleStreamSpec


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Both apply to streams that somebody reads under a name; the others only grow."""

    max_unread: int | None = None
    """A writer waits while the slowest named reader is this many records behind; None: it never waits."""
    trim: bool = False
    """Free records that every named reader has done with."""
    deadline_s: float = 3600.0
    """How long a writer waits for the slowest reader before WaitExpired says which one that is."""

    def __post_init__(self) -> None:
        if self.max_unread is not None and self.max_unread < 1:
            raise ValueError(f"streams.max_unread={self.max_unread}: at least 1, or null for no bound")

    def wait_for_readers(
        self,
        spec: SingleStreamSpec,
        written: int,
        positions: Callable[[], Mapping[str, int]],
        pause: Callable[[float], None],
    ) -> int:
        """Block until record number `written` may be written; returns where the slowest reader stands.

        `positions` tells where each named reader stands, `pause(seconds)` ends early when one may have moved.
        """
        bound = self.max_unread
        standing = positions()
        if bound is None or not standing or written - min(standing.values()) < bound:
            return min(standing.values(), default=0)
        with waiting(
            f"the slowest reader of stream {spec} to be less than {bound} records behind", self.deadline_s
        ) as wait:
            while standing and written - (slowest := min(standing.values())) >= bound:
                reader = min(standing, key=standing.__getitem__)
                wait.check(f"{reader} has done with {slowest} of {written}")
                pause(wait.remaining_s)
                standing = positions()
        return min(standing.values(), default=0)
