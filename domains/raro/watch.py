"""Warnings when the game degenerates: unreadable verdicts, only ties, one place only, a giveaway.

Rollouts of a worker feed one `Watch`; the report shows what it wrote.
"""

import json
import logging
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from domains.raro.parser import ANSWER_1, ANSWER_2, TIE, Verdict
from pipelinerl.base.line_file import LineFile
from pipelinerl.base.logs import REMARK

log = logging.getLogger(__name__)

WINDOW = 1000
"""Critic samples, or fresh pairs, that a rate is taken over."""
MOST_PARSE_FAILURES = 0.2
MOST_TIES = 0.95
MOST_ONE_SIDED = 0.9
"""Of committed verdicts for one place, and of pairs that length alone tells apart."""


class Watch:
    """Rates over the last samples of one process; each warning comes at most once per full window."""

    def __init__(self, path: Path | None) -> None:
        """Warnings are logged, and kept as JSON lines in `path` for the report."""
        self._path = path
        self._verdicts: deque[Verdict | None] = deque(maxlen=WINDOW)
        self._lengths: deque[float] = deque(maxlen=WINDOW)
        self._quiet: dict[str, int] = {}
        self._seen = 0

    def add(self, verdicts: Sequence[Verdict | None], length_rule: float | None = None) -> list[str]:
        """Take in a critic group (None = no readable verdict) and, if fresh, its pair's length rule.

        Returns the warnings it caused.
        """
        self._verdicts.extend(verdicts)
        self._seen += len(verdicts)
        if length_rule is not None:
            self._lengths.append(length_rule)
        warnings = [self._once(kind, text) for kind, text in self._found()]
        return [warning for warning in warnings if warning]

    def _found(self) -> Iterator[tuple[str, str]]:
        """(kind, text) of what is wrong now; nothing before a window is full."""
        if len(self._verdicts) == WINDOW:
            counts = Counter(self._verdicts)
            if counts[None] > MOST_PARSE_FAILURES * WINDOW:
                yield "parse", f"{counts[None] / WINDOW:.0%} of the last {WINDOW} verdicts could not be read"
            if counts[TIE] > MOST_TIES * WINDOW:
                said = f"{counts[TIE] / WINDOW:.0%} of verdicts are ties"
                yield "tie", f"{said}: lower raro.tau_crit, staying above 0.5"
            committed = counts[ANSWER_1] + counts[ANSWER_2]
            first = counts[ANSWER_1] / max(1, committed)
            if committed >= WINDOW // 10 and not 1 - MOST_ONE_SIDED <= first <= MOST_ONE_SIDED:
                yield "position", f"{first:.0%} of committed verdicts name answer 1"
        if len(self._lengths) == WINDOW:
            share = sum(self._lengths) / WINDOW
            if not 1 - MOST_ONE_SIDED <= share <= MOST_ONE_SIDED:
                yield "form", f"the longer answer is the policy's in {share:.0%} of pairs: a giveaway"

    def _once(self, kind: str, text: str) -> str:
        if self._seen < self._quiet.get(kind, 0):
            return ""
        self._quiet[kind] = self._seen + WINDOW
        log.warning("the game degenerates: %s", text, extra=REMARK)
        if self._path is not None:
            with LineFile(self._path) as file:
                file.append(json.dumps({"time": round(time.time(), 1), "kind": kind, "text": text}).encode())
        return text
