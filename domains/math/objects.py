"""Reads an answer as an object: lists, tuples, sets, intervals, unions, matrices, ratios, relations, values.

Called by `answers.py`. A text is split at the signs that bind least, down to values; `comparison.py` compares
objects, and `units.py` values. What is not read raises `Unreadable`.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from domains.math.expressions import SAME_TOKEN
from domains.math.typeset import FONT, unwrapped
from domains.math.values import Unreadable


class Node(NamedTuple):
    """An object: a sign (`,`, `and`, `set`, `()`, `[)`, `cup`, `:`, `=`, `<`, ...) with parts, or a text."""

    sign: str
    parts: tuple["Node", ...] = ()
    text: str = ""


_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits)(?![A-Za-z])\.?|(?<!\\)\$")
_SAID = re.compile(
    rf"{FONT}\s*\{{\s*,?\s*(?P<said>and|or|to)\s*\}}"
    r"|(?<=[\s)}\d])(?P<plain>and|or|to)(?=[\s(\\])"
)
_BEHIND = re.compile(rf"({FONT}\s*\{{[^{{}}]*\w),?\s+(and|or)\s*\}}(?=\s*\d)")
"""As in `3\\text{ cows and }2\\text{ hens}`, which is a list."""
_EACH = r"(?:(?:for|where|with)\b)?\s*(?:(?:any|all|some|every)\b)?"
_GAP = r"(?:\s|,|\\[,;: ]|\\q?quad\b)*"
_INSIDE = r"(?:[^(){},;]|\{[^{}]*\})*"
_ORDERED = r"(?:[<>]|\\(?:[lg]eq?(?:slant)?|neq?)(?![a-z]))"
_CONDITION = (
    (re.compile(rf"({FONT}\s*\{{[^{{}}]*\w)\s*,\s*\}}"), r"\1},"),
    (re.compile(r"\A((?:\S+ *\\in *)?\\mathbb *\{? *[RZNQC] *\}?) *- *(?=\\\{)"), r"\1\\setminus "),
    (re.compile(rf",?\s*{FONT}\s*\{{[\s,]*for(?: any| all| every)?\s*\}}\s*[a-z]\s*\Z"), ""),
    (re.compile(rf"{FONT}\s*\{{[\s,]*{_EACH}\s*integers?\s*\}}\s*([a-z])"), r", \1\\in\\mathbb{Z}"),
    (re.compile(rf"{FONT}\s*\{{\s*is an(?:y)? integer\s*\}}"), r"\\in\\mathbb{Z}"),
    (
        re.compile(rf"{FONT}\s*\{{\s*is an?\s+(?:(?:arbitrary|real|fixed)\s+)*(?:number|constant)\s*\}}"),
        r"\\in\\mathbb{R}",
    ),
    (re.compile(rf",?\s*{FONT}\s*\{{[\s,]*(?=for\b|where\b|with\b){_EACH}\s*\}}"), ", "),
    (
        re.compile(r",[\s(]*n\s*(?:\\geq?(?:slant)?(?![a-z])\s*1|>\s*0)\s*\)?\s*\Z"),
        r", n\\in\\mathbb{N}^*",
    ),
    (re.compile(rf"(?<=\S){_GAP}\(({_INSIDE}\\in(?![a-z]){_INSIDE})\)\s*\Z"), r", \1"),
    (re.compile(rf"(?<=[\d)}}\s]){_GAP}\(({_INSIDE}{_ORDERED}{_INSIDE})\)\s*\Z"), r", \1"),
)
"""A comma within words, and ways to write `, k \\in \\mathbb{Z}` and `, x > 0` behind what they say it of."""
_MEANT = {"and": r" \land ", "or": r" \lor ", "to": " : "}
_SIGN = re.compile(r"\\begin\{[a-z]*\}|\\end\{[a-z]*\}|\\\\|\\[A-Za-z]+|\\.|[<>!]=|\S")
_OPEN = frozenset(("(", "[", "{", r"\{", r"\lfloor", r"\lceil"))
_CLOSE = frozenset((")", "]", "}", r"\}", r"\rfloor", r"\rceil"))
_LISTS = {",": ",", ";": ",", "and": "and", "or": "or"}
_LISTED = r"""= < > \le \ge \ne \not \in \to \approx \propto \equiv \sim \simeq \subset \subseteq \mapsto
\notin \Rightarrow \implies \perp \parallel \cong"""
RELATIONS = {sign: sign for sign in _LISTED.split()} | {r"\not": r"\ne"}
_UNIONS = {r"\cup": "cup", r"\cap": "cap", r"\setminus": "minus"}
_RATIOS = {":": ":"}
_LEVELS: tuple[dict[str, str], ...] = (_LISTS, RELATIONS, _UNIONS, _RATIOS)
_BRACKETS = {"(": "(", "[": "[", r"\{": "set"}
_ENDS = {")": ")", "]": "]", r"\}": "set"}
_MATRIX = re.compile(r"\\begin\{([pbBv]?matrix|smallmatrix|cases)\}(.*)\\end\{\1\}", re.DOTALL)
_BRACED = r"\{(?:[^{}]|\{[^{}]*\})*\}"
_FACTOR = rf"\\[dt]?frac\s*(?:{_BRACED}\s*{_BRACED}|\d\s*\d)|\\sqrt\s*{_BRACED}|[\d./]+|[a-z]|\([^()]*\)"
_SCALED = re.compile(
    rf"(-?(?:(?:{_FACTOR})\s*)*+)(?:\\cdot|\\times)?\s*(\\begin\{{([pbB]?matrix)\}}.*\\end\{{\3\}})",
    re.DOTALL,
)
"""A number before a matrix."""
_SIGNED = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_POINT, _COMMA = re.compile(r"\d\.\d"), re.compile(r"(?<![\d,])(\d+),(?!\d{3}(?!\d))(\d+)(?![\d,])")
_NAME = re.compile(
    r"(?:\\?[A-Za-z]+(?:_(?:\w|\{[^{}]*\}))?'*|\\(?:angle|triangle|overline|vec|bar)\{?[A-Z]+\}?|\|[A-Z]+\||"
    r"\\text\s*\{[^{}]*\}(?:_\w)?|\\[dt]?frac\{d\w\}\{d\w\})(?:\^(?:-1|\{-1\}))?(?:\([^()=]*\))?|[A-Z]{1,3}"
)
BRACKETED = frozenset(("()", "[]", "(]", "[)"))
_FLIPPED = {">": "<", r"\ge": r"\le"}


_LOOKS = re.compile(r"\\(?:math(?:bb|bf|rm)|text)|[{}\s]")
_NUMBERS = re.compile(r"[ZNQRC](?:[_^](?:[+*0]|\\ast))?")
_LETTER = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
INFINITY = Node("", text=r"\infty")
REALS = Node("()", (Node("", text=r"-\infty"), INFINITY))
_SETS = {
    r"\mathbbR": REALS,
    **dict.fromkeys((r"\emptyset", r"\varnothing"), Node("set")),
}


def read(text: str, gold: str = "") -> list[Node]:
    """The objects that a text may be: more than one where a comma may separate thousands, as in `1,234`.

    Beside a `gold` answer with a point, a comma may be one of a decimal, as in `3,14`.
    """
    said = _BEHIND.sub(r"\1}\\text{ \2}", " ".join(_SIZES.sub(" ", text).split()))
    said = _SAID.sub(lambda found: _MEANT[found["said"] or found["plain"]], said)
    for written, usual in _CONDITION:
        said = written.sub(usual, said)
    joined = _GROUPED.sub(lambda digits: digits[0].replace(",", ""), said)
    ways = [joined, said]
    if "," not in gold and _POINT.search(gold):
        ways.append(_COMMA.sub(r"\1.\2", said))
    return [_node(one) for one in dict.fromkeys(ways)]


def _node(text: str) -> Node:
    text = unwrapped(text)
    for level in _LEVELS:
        parts, signs = _split(text, level)
        if level is _LISTS and signs:
            said = set(signs) - {","}
            if len(said) > 1:
                raise Unreadable("and beside or")
            return _for_all(
                Node(max(said, default=","), tuple(_node(part) for part in parts if part.strip()))
            )
        if level is _LISTS and _SIGNED.search(text) and not _is_set(text):
            upper = _SIGNED.sub(lambda sign: "+-"[sign[1] == "mp"], text)
            lower = _SIGNED.sub(lambda sign: "-+"[sign[1] == "mp"], text)
            return Node(",", (_node(upper), _node(lower)))
        if level is RELATIONS and signs:
            return _related([_node(part) for part in parts], signs)
        if signs and (level is not _RATIOS or all(part.strip() for part in parts)):
            one = len(set(signs)) == 1
            return flat(Node(signs[0] if one else " ".join(signs), tuple(map(_node, parts))))
    return _bracketed(text)


def flat(node: Node) -> Node:
    """Lists within a list, such as `1 \\pm x` in `1 \\pm x \\text{ or } 2`, are one; unions too."""
    signs = (node.sign, ",") if node.sign in ("and", "or") else (node.sign,)
    parts = [inner for part in node.parts for inner in (part.parts if part.sign in signs else (part,))]
    return node._replace(parts=tuple(parts))


def numbers_of(node: Node) -> str | None:
    """`Z` of `\\mathbb{Z}`, and one name for the positive integers; None of other sets."""
    text = "R" if node == REALS else bare(node)
    if _NUMBERS.fullmatch(text) is None:
        return None
    return "N+" if text[0] in "ZN" and text[-1] in "+*t" else text


def _is_set(text: str) -> bool:
    first = next(_signs(text), None)
    return first is not None and first[1] == r"\{" and _closing(text) == len(text)


def _for_all(node: Node) -> Node:
    """`k\\pi` for all integers k, of the list `k\\pi, k \\in \\mathbb{Z}`; other lists as they are."""
    said = [part for part in node.parts if part.sign == r"\in" and numbers_of(part.parts[1])]
    shown = tuple(part for part in node.parts if part not in said)
    named = {bare(part.parts[0]) for part in said if any(holds(one, bare(part.parts[0])) for one in shown)}
    values = all(part.sign in ("", "=", ",", *BRACKETED) for part in shown)
    solved = any(bare(part.parts[0]) in named for part in shown if part.sign == "=")
    if not named or not values or solved:
        return node
    return Node("for", (shown[0] if len(shown) == 1 else Node(node.sign, shown), *said))


def bare(node: Node) -> str:
    """A text without blanks and fonts: `Z` of `\\mathbf{Z}`; nothing of an object with parts."""
    return "" if node.sign else _LOOKS.sub("", node.text)


def _signs(text: str) -> Iterator[tuple[re.Match[str], str, int]]:
    """The signs of a text, each with its usual name and the depth of brackets behind it."""
    depth = 0
    for found in _SIGN.finditer(text):
        sign = SAME_TOKEN.get(found[0], found[0])
        depth += sign in _OPEN or sign.startswith(r"\begin{")
        depth -= sign in _CLOSE or sign.startswith(r"\end{")
        yield found, sign, depth
    if depth:
        raise Unreadable("brackets that do not match")


def _closing(text: str) -> int:
    """Where the bracket that a text starts with has closed."""
    return next((found.end() for found, _, depth in _signs(text) if depth == 0), -1)


def _split(text: str, level: dict[str, str]) -> tuple[list[str], list[str]]:
    """The parts of a text between the signs of a level that no bracket holds, and these signs."""
    parts, signs, start = [], [], 0
    for found, sign, depth in _signs(text):
        if depth == 0 and sign in level:
            parts.append(text[start : found.start()])
            signs.append(level[sign])
            start = found.end()
    return [*parts, text[start:]], signs


def _related(parts: list[Node], signs: list[str]) -> Node:
    """A chain of relations: of equations one from the first to the last, of bounds each for itself."""
    if signs[0] == r"\ne" and not parts[1].text and len(signs) > 1:  # \not=
        parts, signs = [parts[0], *parts[2:]], [r"\ne", *signs[2:]]
    if r"\approx" in signs:
        # What is rounded says less than what it was rounded from; behind a name it says all.
        place = signs.index(r"\approx")
        if place == 0 and is_name(parts[0]) and bare(parts[0]) != r"\pi":
            signs = ["=", *signs[1:]]
        else:
            parts, signs = parts[: place + 1], signs[:place]
        if not signs:
            return parts[0]
    if set(signs) == {"="}:
        return Node("=", tuple(parts))
    if signs == [r"\in"] and bare(parts[1]) == "R":
        parts = [parts[0], REALS]
    pairs = []
    for left, sign, right in zip(parts, signs, parts[1:], strict=False):
        pair = (right, left) if sign in _FLIPPED else (left, right)
        pairs.append(Node(_FLIPPED.get(sign, sign), pair))
    return pairs[0] if len(pairs) == 1 else Node("and", tuple(pairs))


def _bracketed(text: str) -> Node:
    if (found := _MATRIX.fullmatch(text)) is not None and found[1] != "vmatrix":
        rows = [row for row in _split(found[2], {r"\\": r"\\"})[0] if row.strip()]
        if found[1] == "cases":
            rows = [row.replace("&=", "=") for row in rows]
            if any(_split(row, {"&": "&"})[1] for row in rows):  # defined by pieces
                return Node("", text=text)
            return flat(Node(",", tuple(map(_node, rows))))
        cells = [[_node(cell) for cell in _split(row, {"&": "&"})[0]] for row in rows]
        return Node("matrix", tuple(Node("row", tuple(row)) for row in cells))
    if (scaled := _SCALED.fullmatch(text)) is not None and scaled[1]:
        return _times(scaled[1].replace("-", "-1", 1) if scaled[1] == "-" else scaled[1], _node(scaled[2]))
    if (known := _SETS.get(re.sub(r"[{}\s]", "", text))) is not None:
        return known
    signs = list(_signs(text))
    if not signs or signs[0][1] not in _BRACKETS or signs[-1][1] not in _ENDS or _closing(text) != len(text):
        return Node("", text=text)
    (first, opening, _), (last, closing, _) = signs[0], signs[-1]
    kind, inside = _BRACKETS[opening], text[first.end() : last.start()]
    for bar in (":", r"\vert") if kind == "set" else ():
        built, bars = _split(inside, {bar: bar})
        if len(bars) == 1:
            return Node("built", (_of_reals(_node(built[0])), _node(built[1])))
    within = _node(inside)
    if kind == "set":
        listed = within.sign in (",", "and")
        return Node("set", flat(within).parts if listed else (within,) if inside.strip() else ())
    # What is one value in brackets is this value; `(x+1)` too.
    return Node(kind + _ENDS[closing], within.parts) if within.sign == "," else within


def _times(factor: str, matrix: Node) -> Node:
    if matrix.sign not in ("matrix", "row"):
        return Node("", text=f"({factor})({matrix.text})") if not matrix.sign else matrix
    return matrix._replace(parts=tuple(_times(factor, part) for part in matrix.parts))


def _of_reals(node: Node) -> Node:
    """`x` of `x \\in \\mathbb{R}`; all else as it is."""
    among = node.parts[1] if node.sign == r"\in" else None
    return node.parts[0] if among == REALS else node


def is_name(node: Node) -> bool:
    """Whether an object is a letter or another name, or sets by name, such as `A \\cap B`."""
    if node.sign in ("cup", "cap", "minus"):
        return all(map(is_name, node.parts))
    return not node.sign and _NAME.fullmatch("".join(node.text.split())) is not None


def holds(node: Node, letter: str) -> bool:
    """Whether a letter stands anywhere in an object."""
    return letter in _LETTER.findall(node.text) or any(holds(part, letter) for part in node.parts)


def renamed(node: Node, old: str, new: str) -> Node:
    """The object with one letter in the place of another."""
    text = _LETTER.sub(lambda found: new if found[0] == old else found[0], node.text)
    return Node(node.sign, tuple(renamed(part, old, new) for part in node.parts), text)
