"""Where each rollout of a run stands, in a few bytes per rollout, so that a run of weeks can be counted.

A rollout is named `<series>-<number>/<index>`. Those of one index in consecutive groups share a block: per
rollout a byte of marks, and a byte that points into the table of ends met so far. A name of another form has
a block of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

STARTED, EARLIER, UNDONE = 1, 2, 4
"""Marks: it started, it did so before the last resume, its end was void once."""
OTHER_REASONS = "other reasons"
_MOST_FATES = 250
"""Ends with their reasons that are told apart; the reasons of further ones are counted together."""
_GROUPS_PER_BLOCK = 4096
_WITH_EARLIER = bytes(mark | EARLIER if mark & STARTED else mark for mark in range(256))


class _Block:
    """Marks and fates of rollouts, as long as the last of them needs."""

    __slots__ = ("fates", "marks")

    def __init__(self) -> None:
        self.marks, self.fates = bytearray(), bytearray()

    def reach(self, cell: int) -> None:
        missing = cell + 1 - len(self.marks)
        if missing > 0:
            self.marks.extend(bytes(missing))
            self.fates.extend(bytes(missing))


class Fates:
    """Rollouts of one kind. An end is a rank and a reason; of several ends the lowest rank counts."""

    def __init__(self) -> None:
        self.started = self.undone = 0
        self.twice: set[str] = set()
        """Started more than once."""
        self.unknown: set[str] = set()
        """Ended without a start so far."""
        self.replayed: set[str] = set()
        self._blocks: dict[tuple[object, ...], _Block] = {}
        self._table: list[tuple[int, str]] = [(-1, "")]  # no end yet
        self._numbers: dict[tuple[int, str], int] = {}
        self._ended = [0]
        """Started rollouts by their place in the table."""
        self._earlier_open = 0

    def start(self, names: Iterable[str]) -> None:
        for name in names:
            block, cell = self._place(name)
            if block.marks[cell] & STARTED:
                self.twice.add(name)
                continue
            block.marks[cell] |= STARTED
            self.started += 1
            self._ended[block.fates[cell]] += 1
            self.unknown.discard(name)

    def end(self, rank: int, names: Iterable[str], reason: str) -> None:
        fate = self._number(rank, reason)
        for name in names:
            block, cell = self._place(name)
            known = block.fates[cell]
            if not known or rank < self._table[known][0]:
                self._move(name, block, cell, fate)

    def undo(self, names: Iterable[str]) -> None:
        """The ends of these are void."""
        for name in names:
            block, cell = self._place(name)
            self.undone += not block.marks[cell] & UNDONE
            block.marks[cell] |= UNDONE
            self._move(name, block, cell, 0)

    def resume(self) -> None:
        """What started so far belongs to an earlier start of the run."""
        for block in self._blocks.values():
            block.marks = block.marks.translate(_WITH_EARLIER)
        self._earlier_open = self._ended[0]

    @property
    def unfinished(self) -> int:
        """Started rollouts without an end."""
        return self._ended[0]

    @property
    def discarded(self) -> int:
        """Rollouts of earlier starts that nobody will end any more."""
        kept = 0
        for name in self.replayed:
            block, cell = self._place(name)
            kept += bool(block.marks[cell] & EARLIER) and not block.fates[cell]
        return self._earlier_open - kept

    def by_reason(self) -> dict[tuple[int, str], int]:
        """Started rollouts by rank and reason, sorted by both; only those that occur."""
        found = {fate: n for fate, n in zip(self._table[1:], self._ended[1:], strict=True) if n}
        return dict(sorted(found.items()))

    def _move(self, name: str, block: _Block, cell: int, fate: int) -> None:
        known, marks = block.fates[cell], block.marks[cell]
        block.fates[cell] = fate
        if not marks & STARTED:
            (self.unknown.add if fate else self.unknown.discard)(name)
            return
        self._ended[known] -= 1
        self._ended[fate] += 1
        if marks & EARLIER:
            self._earlier_open += (not fate) - (not known)

    def _number(self, rank: int, reason: str) -> int:
        fate = (rank, reason)
        if fate not in self._numbers and reason and len(self._table) >= _MOST_FATES:
            fate = (rank, OTHER_REASONS)
        if fate not in self._numbers:
            self._numbers[fate] = len(self._table)
            self._table.append(fate)
            self._ended.append(0)
        return self._numbers[fate]

    def _place(self, name: str) -> tuple[_Block, int]:
        """The block and the cell of a rollout; different names never share one."""
        key: tuple[object, ...] = (name,)
        cell = 0
        group, _, index = name.rpartition("/")
        series, dash, digits = group.rpartition("-")
        if dash and digits.isascii() and digits.isdecimal():
            number = int(digits)
            padded = digits == f"{number:06d}"
            if padded or digits == str(number):
                cell = number % _GROUPS_PER_BLOCK
                key = (series, padded, index, number // _GROUPS_PER_BLOCK)
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _Block()
        block.reach(cell)
        return block, cell
