"""How much of the documents travels in one answer: characters of a hit, and of all hits together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

HIT_CHARS = 200_000
"""Twenty of the windows that an agent reads; a report of hundreds of pages is cut."""
ANSWER_CHARS = 1_000_000
"""Five such hits, as many as are found unless more are asked for."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most characters of each hit, and of all hits of an answer together."""

    hit_chars: int = HIT_CHARS
    answer_chars: int = ANSWER_CHARS

    def within(self, hit_chars: int, answer_chars: int) -> "Bounds":
        """What a request asks for, where it is less; 0 asks for as much as there is."""
        return Bounds(
            min(self.hit_chars, hit_chars or self.hit_chars),
            min(self.answer_chars, answer_chars or self.answer_chars),
        )

    def cut(self, hits: list[dict[str, Any]], field: str) -> list[dict[str, Any]]:
        """The hits with their text under `field` cut, and with what was there: `text_chars`, `truncated`.

        An answer that is too long as a whole loses the ends of its longest texts; shorter ones stay whole.
        """
        limit = self._limit([len(hit[field]) for hit in hits])
        return [_cut(hit, field, limit) for hit in hits]

    def _limit(self, lengths: Sequence[int]) -> int:
        """Characters of each text, at least one: the largest number with which all fit."""
        left = self.answer_chars
        for place, length in enumerate(sorted(lengths)):
            share = left // (len(lengths) - place)
            if length > share:
                return max(1, min(self.hit_chars, share))
            left -= length
        return self.hit_chars


def _cut(hit: dict[str, Any], field: str, limit: int) -> dict[str, Any]:
    text = hit[field]
    return hit | {field: text[:limit], "text_chars": len(text), "truncated": len(text) > limit}


DEFAULT = Bounds()
