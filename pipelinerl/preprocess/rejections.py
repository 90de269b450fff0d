"""Groups whose labels contradict each other: one is dropped and named, most of them end the run."""

from __future__ import annotations

import logging
from collections import deque

log = logging.getLogger(__name__)
WINDOW = 32
LEAST = 8


class Rejections:
    """Watches the last WINDOW groups; the share of rejected ones tells a bad sample from a bad domain."""

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=WINDOW)

    def accepted(self, groups: int) -> None:
        """Note groups that are in order."""
        self._recent.extend([False] * groups)

    def rejected(self, message: str) -> None:
        """Note one group and its first error.

        Raises ValueError with that error once LEAST or more recent groups are known and most were rejected.
        """
        self._recent.append(True)
        log.error("a group is dropped (bad_labels): %s", message)
        bad, seen = sum(self._recent), len(self._recent)
        if seen >= LEAST and 2 * bad > seen:
            raise ValueError(f"{bad} of the last {seen} groups cannot be trained on; the last one: {message}")
