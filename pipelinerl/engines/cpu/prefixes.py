"""The index of the prefix cache: which beginnings of sequences have their keys in the pool. No torch here.

Used by the scheduler. The cache's tensors have a pool of rows behind the slots, cut into blocks of `BLOCK`
tokens. A sequence's complete blocks are saved there once they are computed; one that begins likewise loads
them into its own slot and computes the rest. All are of the weights in use: a switch of weights clears them.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

# Small, because the incomplete last block of a prompt is computed again: half of it on average, and the
# prompts of an agent on a CPU have about a hundred tokens.
BLOCK = 8


@dataclass(slots=True)
class Copies:
    """Blocks that are copied in one go, by their first rows: no target is a source or comes twice."""

    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 [rows] each: which are copied, and over which."""
        offsets = np.arange(BLOCK)
        sources, targets = (np.array(one)[:, None] + offsets for one in (self.sources, self.targets))
        return sources.ravel(), targets.ravel()


class _Block(NamedTuple):
    number: int
    row: int
    """The first of its rows."""


# What a block continues (another block's number; for the first the salt) and the bytes of its tokens. Numbers
# are never given twice: what stood behind an evicted block is not found behind the next one in its place.
_Key = tuple[int | str | None, bytes]


class PrefixIndex:
    """The blocks of the pool by what they hold; the least recently used go first."""

    def __init__(self, first_row: int, rows: int) -> None:
        """The pool is `rows` rows of the cache's tensors, at least one block, from `first_row` on."""
        self._rows = range(first_row, first_row + rows // BLOCK * BLOCK, BLOCK)
        self._blocks: OrderedDict[_Key, _Block] = OrderedDict()
        # Rows by target, since a block may be evicted and given anew before it was copied.
        self._saves: dict[int, int] = {}
        self._numbers = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything, also what was still to be copied."""
        self._blocks.clear()
        self._saves.clear()
        self._free = list(reversed(self._rows))

    def find(self, tokens: np.ndarray, salt: str | None) -> list[int]:
        """First rows of the blocks that `tokens` (int64) begin with, in order."""
        return [block.row for block in self._walk(tokens, salt)]

    def save(self, tokens: np.ndarray, salt: str | None, row: int) -> None:
        """Take in the complete blocks of `tokens` (int64), whose keys lie in the rows from `row` on."""
        found = self._walk(tokens, salt)
        parent = found[-1].number if found else salt
        starts = range(len(found) * BLOCK, len(tokens) // BLOCK * BLOCK, BLOCK)
        for start in starts:
            self._numbers += 1
            block = _Block(self._numbers, self._free.pop() if self._free else self._evict())
            self._blocks[parent, tokens[start : start + BLOCK].tobytes()] = block
            self._saves[block.row] = row + start
            parent = block.number
        if starts:
            self._walk(tokens, salt)

    def take_saves(self) -> Copies:
        """What must be copied into the pool before anything is loaded and before a slot is written again."""
        copies = Copies(list(self._saves.values()), list(self._saves))
        self._saves.clear()
        return copies

    def _walk(self, tokens: np.ndarray, salt: str | None) -> list[_Block]:
        """The blocks that `tokens` begin with, which are used herewith."""
        parent: int | str | None = salt
        keys, found = [], []
        for start in range(0, len(tokens) // BLOCK * BLOCK, BLOCK):
            key = (parent, tokens[start : start + BLOCK].tobytes())
            block = self._blocks.get(key)
            if block is None:
                break
            keys.append(key)
            found.append(block)
            parent = block.number
        # The last one first: without those before it a block is never found, so they have to outlive it.
        for key in reversed(keys):
            self._blocks.move_to_end(key)
        return found

    def _evict(self) -> int:
        return self._blocks.popitem(last=False)[1].row
