"""Where each rollout of a run stands, in a few bytes per rollout, so that a run of weeks can be counted.

Read by `RolloutAccounting`, which enters what the roles have recorded. A rollout is named
`<series>-<number>/<index>`; those of one index in consecutive groups share a block. A name of another form
has a block of its own.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

End = TypeVar("End", bound=Hashable)

STARTED, EARLIER, UNDONE = 1, 2, 4
"""Marks: it started, it did so before the last resume, its end was rolled back once."""
_BYTES = 3
"""Per rollout: its marks, the number of the end that stays, the number of the one that can be rolled back."""
OTHER_REASONS = "other reasons"
# An end is one byte; 0 is none yet, and some are left for the ends of further reasons counted together.
# The first are for reasons as they were said, further ones for their kinds, and the rest for kinds of kinds.
_MOST_ENDS = (100, 200, 250)
_GROUPS_PER_BLOCK = 4096
_WITH_EARLIER = bytes(mark | EARLIER if mark & STARTED else mark for mark in range(256))


class RolloutTable(Generic[End]):
    """Rollouts of one kind. Of several ends of one rollout the first in `ends` counts, the most final one.

    Roles write to files of their own, which are read in any order: so what one role rolls back is kept apart
    from what the others recorded.
    """

    def __init__(
        self, ends: Sequence[End], coarser: Callable[[str], tuple[str, str]] = lambda said: (said, said)
    ) -> None:
        """`coarser` gives the kind of a reason, and the kind of that, for a run with too many of them."""
        self._coarser = coarser
        self._ranks = {end: rank for rank, end in enumerate(ends)}
        self.started = self.undone = 0
        self.twice: set[str] = set()
        """Started more than once."""
        self.unknown: set[str] = set()
        """Ended without a start so far."""
        self.replayed: set[str] = set()
        """Those that preprocess kept over the last resume."""
        self._blocks: dict[tuple[object, ...], bytearray] = {}
        # The number of an end is its place in these lists.
        self._ends: list[tuple[End, str]] = [(ends[0], "")]
        self._ended = [0]
        self._numbers: dict[tuple[End, str], int] = {}
        self._earlier_open = 0

    def start(self, names: Iterable[str]) -> None:
        for name in names:
            block, at = self._place(name)
            if block[at] & STARTED:
                self.twice.add(name)
                continue
            block[at] |= STARTED
            self.started += 1
            self._ended[self._standing(block, at)] += 1
            self.unknown.discard(name)

    def end(self, end: End, names: Iterable[str], reason: str, undoable: bool = False) -> None:
        """These ended so; `undoable`: as the role says that may roll it back."""
        number, rank = self._number(end, reason), self._ranks[end]
        for name in names:
            block, at = self._place(name)
            known = block[at + 1 + undoable]
            if not known or rank < self._rank(known):
                self._move(name, block, at, at + 1 + undoable, number)

    def undo(self, names: Iterable[str]) -> None:
        """The undoable ends of these are rolled back."""
        for name in names:
            block, at = self._place(name)
            self.undone += not block[at] & UNDONE
            block[at] |= UNDONE
            self._move(name, block, at, at + 2, 0)

    def resume(self) -> None:
        """What started so far belongs to an earlier start of the run."""
        for block in self._blocks.values():
            block[::_BYTES] = block[::_BYTES].translate(_WITH_EARLIER)
        self._earlier_open = self.unfinished

    @property
    def unfinished(self) -> int:
        """Started rollouts without an end."""
        return self._ended[0]

    @property
    def discarded(self) -> int:
        """Rollouts of earlier starts that nobody will end any more."""
        kept = 0
        for name in self.replayed:
            # One that has ended since is no longer among the open ones.
            block, at = self._place(name)
            kept += bool(block[at] & EARLIER) and not self._standing(block, at)
        return self._earlier_open - kept

    def end_of(self, name: str) -> tuple[End, str] | None:
        """How a rollout ended and why; None while it has no end."""
        block, at = self._place(name)
        number = self._standing(block, at)
        return self._ends[number] if number else None

    def by_reason(self) -> dict[tuple[End, str], int]:
        """Started rollouts by end and reason, the most final first; only those that occur."""
        found = {end: n for end, n in zip(self._ends[1:], self._ended[1:], strict=True) if n}
        return dict(sorted(found.items(), key=lambda item: (self._ranks[item[0][0]], item[0][1])))

    def _rank(self, number: int) -> int:
        return self._ranks[self._ends[number][0]]

    def _standing(self, block: bytearray, at: int) -> int:
        """Number of the end that counts; 0 for none."""
        stays, undoable = block[at + 1], block[at + 2]
        if not stays or not undoable:
            return stays or undoable
        return undoable if self._rank(undoable) <= self._rank(stays) else stays

    def _move(self, name: str, block: bytearray, at: int, slot: int, given: int) -> None:
        """One of the two ends of the rollout, at `slot`, now has the number `given`."""
        known, block[slot] = self._standing(block, at), given
        number = self._standing(block, at)
        if not block[at] & STARTED:
            # The end was read before the start, which stands in another role's file.
            (self.unknown.add if number else self.unknown.discard)(name)
            return
        self._ended[known] -= 1
        self._ended[number] += 1
        if block[at] & EARLIER:
            self._earlier_open += (not number) - (not known)

    def _number(self, end: End, reason: str) -> int:
        key = (end, reason)
        if key not in self._numbers and reason and len(self._ends) >= _MOST_ENDS[0]:
            said = zip(_MOST_ENDS[1:], self._coarser(reason), strict=True)
            keys = ((end, one) for most, one in said if (end, one) in self._numbers or len(self._ends) < most)
            key = next(keys, (end, OTHER_REASONS))
        if key not in self._numbers:
            self._numbers[key] = len(self._ends)
            self._ends.append(key)
            self._ended.append(0)
        return self._numbers[key]

    def _place(self, name: str) -> tuple[bytearray, int]:
        """The block of a rollout and where in it; different names never share a place."""
        key: tuple[object, ...] = (name,)
        at = 0
        group, _, index = name.rpartition("/")
        series, dash, digits = group.rpartition("-")
        if dash and digits.isascii() and digits.isdecimal():
            number = int(digits)
            # `1` and `000001` are different names, and a number of seven digits is the same either way.
            padded = digits == f"{number:06d}"
            if padded or digits == str(number):
                at = number % _GROUPS_PER_BLOCK * _BYTES
                key = (series, padded, index, number // _GROUPS_PER_BLOCK)
        block = self._blocks.setdefault(key, bytearray())
        if at + _BYTES > len(block):
            block.extend(bytes(at + _BYTES - len(block)))
        return block, at
