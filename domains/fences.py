"""Fenced blocks of a completion, and which of them is its program; called by `coding` and `tir`.

Read line by line in linear time, as Markdown is: a fence may be indented or follow the mark of a list item or
a quote, and its block ends at a fence that is at least as long and indented by at most three columns more, so
that one in a docstring ends nothing. Every line end of Unicode is one beside a fence. Within a block those
that Python does not know, such as U+2028, are text that a string may hold, unless the opening line ends so.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_FENCE = re.compile(r"`{3,}|~{3,}")
_ITEM = re.compile(r"\s*(?:(?:[-*+>]|\d+[.)])\s+)*")
_QUOTED = re.compile(r"\A\s*(?:> ?)+")
_NAME = r"(?:i?python|py|pypy)(?:-?\d[\d.]*)?"
_PYTHON = re.compile(rf"\{{?\.?{_NAME}\b(?![-+#])|[\w./-]+\.py\b", re.IGNORECASE)
_LANGUAGE = re.compile(r"[\w{}.+#-]+")
_SESSION = re.compile(r"(?:[ \t]*(?:#.*)?\n)*+[ \t]*>>>")
"""How an interactive session begins; a prompt in a docstring makes none."""
_NAMED = re.compile(rf"\s*{_NAME}[ \t]*\n(?=\s*\S)", re.IGNORECASE)
"""A language on the line below the fence."""
_SAMPLE = re.compile(r"(?:(?:[ \t]*[A-Z][A-Za-z ]*:)?[^A-Za-z\n]*\n)+")
"""Lines without letters, each with a label at most, such as `Input: 1 2`."""
_LINE_END = re.compile(r"\r\n|[\n\r\v\f\x85\u2028\u2029]")
_PYTHONS = ("\n", "\r\n", "\r")
"""The ends of lines that Python knows."""
_LONGEST = 100_000
"""Characters of a block whose syntax is looked at."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block: what is written behind its opening fence, its lines, and where the text behind it begins."""

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
    quoted: bool
    lines: list[str]
    ends: str = "\n"
    """What ends the line of its fence, and so further lines."""
    starts: list[int] = field(default_factory=list)
    """Where each of the lines begins in the text."""

    def add(self, line: str, before: str, start: int) -> None:
        """A line of the block, or what goes on behind a character `before` that ends none in it."""
        if not self.lines or before in (*_PYTHONS, self.ends):
            self.lines.append(line)
            self.starts.append(start)
        else:
            self.lines[-1] += before + line

    def ended_by(self, line: str) -> bool:
        """Whether a line is nothing but a fence that is long enough, and no deeper in the text."""
        shown = line.strip()
        return len(shown) >= len(self.fence) and set(shown) == {self.fence[0]} and self.holds(line)

    def holds(self, line: str) -> bool:
        """Whether a line is indented no deeper than a fence of the same depth may be."""
        return _columns(line) <= self.indent + 3

    def names(self, other: "_Open", line: str) -> bool:
        """Whether a fence in this block begins another one: it says a language, at the same depth."""
        return _LANGUAGE.fullmatch(other.info) is not None and self.holds(line)

    def block(self, end: int) -> Block:
        first = next((line for line in self.lines if line.strip()), "")
        width = min(self.indent, len(first) - len(first.lstrip(" \t")))
        kept = [line[min(width, len(line) - len(line.lstrip(" \t"))) :] for line in self.lines]
        text = "\n".join(kept).strip("\n")
        if not self.info and (named := _NAMED.match(text)) is not None:
            return Block(named[0].strip(), text[named.end() :].strip("\n"), end)
        return Block(self.info, text, end)

    def program(self, end: int) -> Block | None:
        """The block so far, if Python reads it as a program."""
        return block if _likeness((block := self.block(end)).text) else None

    def cut_short(self) -> Block | None:
        """The block up to the first line that ends with its fence, as in `f()````, or begins with it."""
        for at, line in enumerate(self.lines):
            if (shown := line.rstrip()).endswith(self.fence) or shown.lstrip().startswith(self.fence):
                kept = shown.partition(self.fence)[0]
                self.lines[at:] = [kept]
                return self.block(self.starts[at] + len(kept) + len(self.fence))
        return None


def fenced(text: str) -> list[Block]:
    """All blocks that end, in their order; blocks without text are left out."""
    found: list[Block | None] = []
    open_: _Open | None = None
    at, ended = 0, "\n"
    for line, ends in _lines(text):
        start, at = at, at + len(line) + len(ends)
        before, ended = ended, ends
        if open_ is not None and open_.quoted:
            whole, line = line, _QUOTED.sub("", line, count=1)
            start += len(whole) - len(line)
        if open_ is not None and open_.ended_by(line):
            found.append(open_.block(at))
            open_ = None
            continue
        opened = _opened(line, ends)
        if open_ is None:
            open_ = opened
        elif opened is not None and opened.fence == open_.fence and open_.names(opened, line):
            # Another language is named before the block has ended: its end was forgotten, or ends a line.
            # "``` So it is done." is such an end too: what stands before it is a program.
            found.append(open_.cut_short() or open_.program(start))
            open_ = opened
        else:
            open_.add(line, before, start)
    if open_ is not None:
        found.append(open_.cut_short())
    return [block for block in found if block is not None and block.text.strip()]


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Each line and what ends it, "" for the last."""
    at = 0
    for end in _LINE_END.finditer(text):
        yield text[at : end.start()], end[0]
        at = end.end()
    yield text[at:], ""


def _opened(line: str, ends: str) -> _Open | None:
    """The block that a line begins; its lines may be indented as far as a fence behind a list's mark is."""
    fence = _FENCE.search(line)
    if fence is None or (before := line[: fence.start()]).count("`") % 2 or "`" in line[fence.end() :]:
        return None
    alone = _ITEM.fullmatch(before) is not None
    if not alone and fence[0][0] == "~":
        return None
    width = len(before.expandtabs(4)) if alone else 0
    return _Open(fence[0], line[fence.end() :].strip(), width, alone and ">" in before, [], ends)


def _columns(line: str) -> int:
    """How far a line is indented; a tab reaches to the next fourth column."""
    return len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(4))


def program_in(blocks: Sequence[Block], names: Iterable[str] = ()) -> str:
    """The last block that says it is Python, of those that say nothing the last that is most a program.

    Blocks that only declare come after the others, and then those that hold nothing but values and remarks,
    as output does.

    Where some define one of `names`, which tests will call, only these count: a block behind the program may
    show how it is used, or how it is declared. An interactive session counts only where there is no other;
    blocks of other languages never do. "" for none.
    """
    named = [block.text for block in blocks if block.python]
    unnamed = [block.text for block in blocks if not block.info]
    wanted = "|".join(map(re.escape, names))
    if wanted:
        begins = re.compile(
            rf"^[ \t]*(?:(?:async\s+)?def|class)\s+(?:{wanted})\b|^(?:{wanted})\s*[:=]", re.MULTILINE
        )
        for some in (named, unnamed):
            if defining := [text for text in some if not _SESSION.match(text) and begins.search(text)]:
                return next((text for text in reversed(defining) if not _is_stub(text)), defining[-1])
    if programs := [text for text in named if not _SESSION.match(text)]:
        # Output and remarks that are called Python are no program; a program that Python cannot read is one.
        return min(reversed(programs), key=lambda text: (_shows(text), _is_stub(text)))
    if programs := [text for text in unnamed if not _SESSION.match(text)]:
        return max(reversed(programs), key=lambda text: (not _is_stub(text), _likeness(text)))
    return (named or unnamed or [""])[-1]


def _shows(text: str) -> bool:
    """Whether a block holds nothing but values and remarks, as output does."""
    lines = _does(text)
    return not lines if lines is not None else _SAMPLE.fullmatch(f"{text}\n") is not None


def _is_stub(text: str) -> bool:
    """Whether a block only declares functions, with `...`, `pass`, a docstring or nothing for a body."""
    for whole in (text, f"{text}\n    pass"):
        try:
            return all(map(_is_empty, ast.parse(whole[:_LONGEST]).body))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return False


def _is_empty(line: ast.stmt) -> bool:
    if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return all(map(_is_empty, line.body))
    shown = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
    return shown or isinstance(line, ast.Import | ast.ImportFrom | ast.Pass)


def _does(text: str) -> list[ast.stmt] | None:
    """The statements of a block that are no bare or labelled values; None for what is no Python."""
    try:
        body = ast.parse(text[:_LONGEST]).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    bare = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.UnaryOp, ast.BinOp, ast.Dict, ast.Set)
    labelled = (line for line in body if isinstance(line, ast.AnnAssign) and line.value is None)
    shown = {
        *labelled,
        *(line for line in body if isinstance(line, ast.Expr) and isinstance(line.value, bare)),
    }
    return [line for line in body if line not in shown]


def _likeness(text: str) -> int:
    """2 for a block that defines, imports, branches or prints, 1 for other statements and calls, else 0."""
    shown = _does(text) or []
    simple = (ast.Assign, ast.AnnAssign)
    return max(
        (2 if not isinstance(line, simple) and not _is_value(line) else 1 for line in shown), default=0
    )


def _is_value(line: ast.stmt) -> bool:
    """Whether a statement is only a value such as `Point(1, 2)`, as output shows it; `print(x)` is none."""
    if not isinstance(line, ast.Expr):
        return False
    call = line.value
    return not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print")
