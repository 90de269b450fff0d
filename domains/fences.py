"""Fenced blocks of a completion, and which of them is its program; called by `coding` and `tir`.

Read line by line in linear time, as Markdown is: a fence may be indented or follow the mark of a list item,
and its block ends at a fence that is at least as long.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"`{3,}|~{3,}")
_ITEM = re.compile(r"\s*(?:(?:[-*+>]|\d+[.)])\s+)*")
_PYTHON = re.compile(r"\{?\.?(?:python|py)[\d.]*\b(?![-+#])", re.IGNORECASE)
_LANGUAGE = re.compile(r"[\w{}.+#-]+")
_PROMPT = ">>>"
_LONGEST = 100_000
"""Characters of a block whose syntax is looked at."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block: what is written behind its opening fence, its lines, and where the line behind it begins."""

    info: str
    text: str
    end: int

    @property
    def python(self) -> bool:
        """Whether it says that it holds Python; `pycon` and the like are none."""
        return _PYTHON.match(self.info) is not None


@dataclass(slots=True)
class _Open:
    fence: str
    info: str
    indent: int
    lines: list[str]

    def ended_by(self, line: str) -> bool:
        """Whether a line is nothing but a fence that is long enough."""
        shown = line.strip()
        return len(shown) >= len(self.fence) and set(shown) == {self.fence[0]}

    def block(self, end: int) -> Block:
        first = next((line for line in self.lines if line.strip()), "")
        width = min(self.indent, len(first) - len(first.lstrip(" \t")))
        kept = [line[min(width, len(line) - len(line.lstrip(" \t"))) :] for line in self.lines]
        return Block(self.info, "\n".join(kept).strip("\n"), end)

    def cut_short(self, end: int) -> Block | None:
        """The block up to the first line that ends with its fence, as in `f()```` before another block."""
        for at, line in enumerate(self.lines):
            if line.rstrip().endswith(self.fence):
                self.lines[at:] = [line.rstrip().removesuffix(self.fence)]
                return self.block(end)
        return None


def fenced(text: str) -> list[Block]:
    """All blocks that end, in their order; blocks without text are left out."""
    found: list[Block | None] = []
    open_: _Open | None = None
    at = 0
    for line in text.split("\n"):
        start, at = at, at + len(line) + 1
        line = line.removesuffix("\r")
        if open_ is not None and open_.ended_by(line):
            found.append(open_.block(min(at, len(text))))
            open_ = None
            continue
        opened = _opened(line)
        if open_ is None:
            open_ = opened
        elif opened is not None and opened.fence == open_.fence and _LANGUAGE.fullmatch(opened.info):
            # Another language is named before the block has ended: its end was forgotten, or ends a line.
            found.append(open_.cut_short(start))
            open_ = opened
        else:
            open_.lines.append(line)
    if open_ is not None:
        found.append(open_.cut_short(len(text)))
    return [block for block in found if block is not None and block.text.strip()]


def _opened(line: str) -> _Open | None:
    """The block that a line begins; its lines may be indented as far as a fence behind a list's mark is."""
    fence = _FENCE.search(line)
    if fence is None or "`" in (before := line[: fence.start()]) or "`" in line[fence.end() :]:
        return None
    alone = _ITEM.fullmatch(before) is not None
    if not alone and fence[0][0] == "~":
        return None
    return _Open(fence[0], line[fence.end() :].strip(), len(before) if alone else 0, [])


def program_in(blocks: Sequence[Block]) -> str:
    """The last block that says it is Python, else the last that says nothing and reads as a program.

    An interactive session counts only where there is no other; blocks of other languages never do. "" for
    none.
    """
    named = [block.text for block in blocks if block.python]
    unnamed = [block.text for block in blocks if not block.info]
    for some in (named, unnamed):
        programs = [text for text in some if _PROMPT not in text]
        if some is unnamed:
            programs = [text for text in programs if _reads_as_program(text)] or programs
        if programs:
            return programs[-1]
    return (named or unnamed or [""])[-1]


def _reads_as_program(text: str) -> bool:
    """Whether a block has a statement or a call, as output has none."""
    try:
        body = ast.parse(text[:_LONGEST]).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    bare = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.UnaryOp, ast.BinOp, ast.Dict, ast.Set)
    return any(not (isinstance(line, ast.Expr) and isinstance(line.value, bare)) for line in body)
