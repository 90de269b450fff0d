"""Reads an answer as an object: lists, tuples, sets, intervals, unions, matrices, ratios, relations, values.

Called by `answers.py`. A text is split at the signs that bind least, down to values, which `units.py`
compares; objects are compared part by part. What is not read raises `Unreadable`.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from domains.math.expressions import SAME_TOKEN
from domains.math.typeset import FONT, unwrapped
from domains.math.units import expression, same_measured, same_numbers
from domains.math.values import Expression, Unreadable, difference, proportional, quotient


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
_EACH = r"(?:(?:for|where|with)\b)?\s*(?:(?:any|all|some|every)\b)?"
_GAP = r"(?:\s|,|\\[,;: ]|\\q?quad\b)*"
_INSIDE = r"(?:[^(){},;]|\{[^{}]*\})*"
_ORDERED = r"(?:[<>]|\\(?:[lg]eq?(?:slant)?|neq?)(?![a-z]))"
_CONDITION = (
    (re.compile(rf"({FONT}\s*\{{[^{{}}]*\w)\s*,\s*\}}"), r"\1},"),
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
_RELATIONS = {sign: sign for sign in _LISTED.split()} | {r"\not": r"\ne"}
_UNIONS = {r"\cup": "cup", r"\cap": "cap"}
_RATIOS = {":": ":"}
_LEVELS: tuple[dict[str, str], ...] = (_LISTS, _RELATIONS, _UNIONS, _RATIOS)
_BRACKETS = {"(": "(", "[": "[", r"\{": "set"}
_ENDS = {")": ")", "]": "]", r"\}": "set"}
_MATRIX = re.compile(r"\\begin\{([pbBv]?matrix|smallmatrix|cases)\}(.*)\\end\{\1\}", re.DOTALL)
_SIGNED = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_POINT, _COMMA = re.compile(r"\d\.\d"), re.compile(r"(?<![\d,])(\d+),(?!\d{3}(?!\d))(\d+)(?![\d,])")
_NAME = re.compile(
    r"(?:\\?[A-Za-z]+(?:_(?:\w|\{[^{}]*\}))?'*|\\(?:angle|triangle|overline|vec|bar)\{?[A-Z]+\}?|\|[A-Z]+\||"
    r"\\text\s*\{[^{}]*\}(?:_\w)?|\\[dt]?frac\{d\w\}\{d\w\})(?:\^(?:-1|\{-1\}))?(?:\([^()=]*\))?|[A-Z]{1,3}"
)
_BRACKETED = frozenset(("()", "[]", "(]", "[)"))
_FLIPPED = {">": "<", r"\ge": r"\le"}
_BOUNDS = ("<", r"\le")


_LOOKS = re.compile(r"\\(?:math(?:bb|bf|rm)|text)|[{}\s]")
_NUMBERS = re.compile(r"[ZNQRC](?:[_^](?:[+*0]|\\ast))?")
_LETTER = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_INFINITY = Node("", text=r"\infty")
_REALS = Node("()", (Node("", text=r"-\infty"), _INFINITY))
_SETS = {
    r"\mathbbR": _REALS,
    **dict.fromkeys((r"\emptyset", r"\varnothing"), Node("set")),
}


def read(text: str, gold: str = "") -> list[Node]:
    """The objects that a text may be: more than one where a comma may separate thousands, as in `1,234`.

    Beside a `gold` answer with a point, a comma may be one of a decimal, as in `3,14`.
    """
    said = " ".join(_SIZES.sub(" ", text).split())
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
        if level is _RELATIONS and signs:
            return _related([_node(part) for part in parts], signs)
        if signs and (level is not _RATIOS or all(part.strip() for part in parts)):
            one = len(set(signs)) == 1
            return _flat(Node(signs[0] if one else " ".join(signs), tuple(map(_node, parts))))
    return _bracketed(text)


def _flat(node: Node) -> Node:
    """Lists within a list, such as `1 \\pm x` in `1 \\pm x \\text{ or } 2`, are one; unions too."""
    signs = (node.sign, ",") if node.sign in ("and", "or") else (node.sign,)
    parts = [inner for part in node.parts for inner in (part.parts if part.sign in signs else (part,))]
    return node._replace(parts=tuple(parts))


def _numbers(node: Node) -> str | None:
    """`Z` of `\\mathbb{Z}`, and one name for the positive integers; None of other sets."""
    text = "R" if node == _REALS else _bare(node)
    if _NUMBERS.fullmatch(text) is None:
        return None
    return "N+" if text[0] in "ZN" and text[-1] in "+*t" else text


def _is_set(text: str) -> bool:
    first = next(_signs(text), None)
    return first is not None and first[1] == r"\{" and _closing(text) == len(text)


def _for_all(node: Node) -> Node:
    """`k\\pi` for all integers k, of the list `k\\pi, k \\in \\mathbb{Z}`; other lists as they are."""
    said = [part for part in node.parts if part.sign == r"\in" and _numbers(part.parts[1])]
    shown = tuple(part for part in node.parts if part not in said)
    named = {_bare(part.parts[0]) for part in said if any(_holds(one, _bare(part.parts[0])) for one in shown)}
    values = all(part.sign in ("", "=", ",", *_BRACKETED) for part in shown)
    solved = any(_bare(part.parts[0]) in named for part in shown if part.sign == "=")
    if not named or not values or solved:
        return node
    return Node("for", (shown[0] if len(shown) == 1 else Node(node.sign, shown), *said))


def _bare(node: Node) -> str:
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
        if place == 0 and _is_name(parts[0]):
            signs = ["=", *signs[1:]]
        else:
            parts, signs = parts[: place + 1], signs[:place]
        if not signs:
            return parts[0]
    if set(signs) == {"="}:
        return Node("=", tuple(parts))
    if signs == [r"\in"] and _bare(parts[1]) == "R":
        parts = [parts[0], _REALS]
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
            return _flat(Node(",", tuple(map(_node, rows))))
        cells = [[_node(cell) for cell in _split(row, {"&": "&"})[0]] for row in rows]
        return Node("matrix", tuple(Node("row", tuple(row)) for row in cells))
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
        return Node("set", _flat(within).parts if listed else (within,) if inside.strip() else ())
    # What is one value in brackets is this value; `(x+1)` too.
    return Node(kind + _ENDS[closing], within.parts) if within.sign == "," else within


def _of_reals(node: Node) -> Node:
    """`x` of `x \\in \\mathbb{R}`; all else as it is."""
    among = node.parts[1] if node.sign == r"\in" else None
    return node.parts[0] if among == _REALS else node


def same(gold: Node, given: Node) -> bool:
    """Whether an answer is the object of the gold answer. Raises `Unreadable`."""
    if "for" in (gold.sign, given.sign):
        return _same_for_all(gold, given)
    if "built" in (gold.sign, given.sign) and (said := _conditions(gold, given)) is not None:
        return same(*said)
    if gold.sign == r"\in" and (interval := _interval(given, _bare(gold.parts[0]))) is not None:
        return same(gold.parts[1], interval)
    gold, given = (one.parts[1] if one.sign == r"\in" else one for one in (gold, given))
    gold, given = _beside(gold, given), _beside(given, gold)
    gold, given = _as_list(gold), _as_list(given)
    if gold.sign == "=" and given.sign == "=":
        return _same_equation(gold, given)
    if "=" in (gold.sign, given.sign):
        if r"\equiv" in (gold.sign, given.sign):
            return False
        return _same_value_of(gold, given)
    if given.sign in _BRACKETED | {"cup"} and (interval := _interval(gold)) is not None:
        return same(interval, given)
    listed = (",", "and", "or")
    if gold.sign in listed or given.sign in listed:
        return _same_list(gold, given)
    if "set" in (gold.sign, given.sign):
        return _same_set(gold, given)
    if gold.sign != given.sign:
        pair = sorted((gold, given), key=lambda node: node.sign)
        if pair[0].sign == "" and pair[1].sign == ":" and len(pair[1].parts) == 2:
            return _same_ratio(
                *(one.parts if one.sign else (one, Node("", text="1")) for one in (gold, given))
            )
        ordered = all(one.sign in ("()", "[]") for one in (gold, given)) and len(gold.parts) > 2
        return ordered and _in_order(gold.parts, given.parts)
    if gold.sign == "":
        return same_measured(gold.text, given.text)
    if gold.sign == ":":
        return _same_ratio(gold.parts, given.parts)
    if gold.sign in _RELATIONS.values():
        return _same_bound(gold, given)
    if gold.sign in ("cup", "cap"):
        return _matched(gold.parts, given.parts)
    return _in_order(gold.parts, given.parts)


def _same_for_all(gold: Node, given: Node) -> bool:
    """Whether two objects are one for all numbers; beside one that does not say so the condition is dropped.

    One number may have another letter there.
    """
    if gold.sign != given.sign:
        return same(*(one.parts[0] if one.sign == "for" else one for one in (gold, given)))
    (ours, *mine), (theirs, *other) = gold.parts, given.parts
    if len(mine) == len(other) == 1:
        old, new = (_bare(one[0].parts[0]) for one in (other, mine))
        if old != new and _holds(theirs, new):
            return False
        theirs, other = _renamed(theirs, old, new), [_renamed(other[0], old, new)]
    among = [sorted((_bare(one.parts[0]), _numbers(one.parts[1])) for one in said) for said in (mine, other)]
    return among[0] == among[1] and same(ours, theirs)


def _holds(node: Node, letter: str) -> bool:
    """Whether a letter stands anywhere in an object."""
    return letter in _LETTER.findall(node.text) or any(_holds(part, letter) for part in node.parts)


def _renamed(node: Node, old: str, new: str) -> Node:
    text = _LETTER.sub(lambda found: new if found[0] == old else found[0], node.text)
    return Node(node.sign, tuple(_renamed(part, old, new) for part in node.parts), text)


def _conditions(gold: Node, given: Node) -> tuple[Node, Node] | None:
    """Of `\\{x \\mid x>2\\}` what it says of x, beside an interval as one; None where nothing is known."""
    built = [one.parts if one.sign == "built" and _is_name(one.parts[0]) else None for one in (gold, given)]
    said = [one if parts is None else parts[1] for one, parts in zip((gold, given), built, strict=True)]
    if (gold.sign == "built" and built[0] is None) or (given.sign == "built" and built[1] is None):
        return None
    if None in built and (built[1] is None or gold.sign not in (*_BRACKETED, "cup")):
        return said[0], said[1]
    ranges = [_interval(one) if parts else one for one, parts in zip(said, built, strict=True)]
    return (ranges[0], ranges[1]) if ranges[0] is not None and ranges[1] is not None else None


def _beside(node: Node, other: Node) -> Node:
    """An object in the form that another one asks for.

    Beside a value `x \\equiv 3 \\pmod 7` is this value, beside an interval `\\mathbf{R}` is one, and beside
    several values `x=y=2` are two.
    """
    if node.sign == r"\equiv" and not other.sign and _is_name(node.parts[0]):
        return node.parts[1]
    if other.sign in (*_BRACKETED, "cup") and _bare(node) == "R" and node.text != "R":
        return _REALS
    *names, value = node.parts or (node,)
    if node.sign == "=" and other.sign in (",", "and", "()") and len(names) > 1 and all(map(_is_name, names)):
        return Node(",", tuple(Node("=", (name, value)) for name in names))
    return node


def _in_order(ours: tuple[Node, ...], theirs: tuple[Node, ...]) -> bool:
    return len(ours) == len(theirs) and all(map(same, ours, theirs))


def _matched(ours: tuple[Node, ...], theirs: tuple[Node, ...]) -> bool:
    """Whether the parts are the same in some order, each as often as there."""
    left = list(theirs)
    for one in ours:
        found = next((place for place, other in enumerate(left) if same(one, other)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _as_list(node: Node) -> Node:
    """`(x,y)=(1,2)` is `x=1, y=2`; a list within a list is one list."""
    if node.sign == "=" and len(node.parts) == 2 and all(part.sign == "()" for part in node.parts):
        names, values = (part.parts for part in node.parts)
        if len(names) == len(values):
            return Node(",", tuple(Node("=", pair) for pair in zip(names, values, strict=True)))
    return _flat(node) if node.sign in (",", "and", "or") else node


def _is_name(node: Node) -> bool:
    if node.sign in ("cup", "cap"):  # `A \\cap B` of sets
        return all(map(_is_name, node.parts))
    return not node.sign and _NAME.fullmatch("".join(node.text.split())) is not None


def _named(node: Node) -> tuple[Node, Node] | None:
    """Name and value of an equation: `x` and 5 of `x = 2 + 3 = 5` and of `5 = x`."""
    first, last = node.parts[0], node.parts[-1]
    if _is_name(first):
        return first, last
    return (last, first) if _is_name(last) else None


def _same_equation(gold: Node, given: Node) -> bool:
    ours, theirs = _named(gold), _named(given)
    if ours and theirs and same(ours[0], theirs[0]):
        return _is_consistent(given) and same(ours[1], theirs[1])
    if any(one and not _names_of(one[1]) for one in (ours, theirs)):  # `2x = 10` has yet to be solved
        return False
    if any(one.sign for one in (*gold.parts, *given.parts)) or len(gold.parts + given.parts) > 4:
        return False
    one, other = (difference(*map(_plain, node.parts)) for node in (gold, given))
    return proportional(one, other)


def _same_value_of(gold: Node, given: Node) -> bool:
    """An equation on one side: its value, if it names one, or tells what an answer was computed from."""
    equation = gold if gold.sign == "=" else given
    named = _named(equation)
    if not _is_consistent(equation) or (named is None and equation is gold):
        return False
    value = named[1] if named else equation.parts[-1]
    return same(value, given) if equation is gold else same(gold, value)


def _is_consistent(equation: Node) -> bool:
    """Whether the constants of a chain are one: `19 = 18` is no way to say 18."""
    constants = [one for one in equation.parts if not one.sign and not _names_of(one)]
    return all(same(one, constants[-1]) for one in constants[:-1])


def _names_of(node: Node) -> frozenset[str] | None:
    try:
        return _plain(node).names
    except Unreadable:
        return frozenset((node.text,))


def _same_list(gold: Node, given: Node) -> bool:
    """Lists, with values in the order of their names where one side has them."""
    if {"(]", "[)"} & {gold.sign, given.sign}:
        return False
    for one, other in ((gold, given), (given, gold)):
        if (
            "or" not in (one.sign, other.sign)
            and (values := _values(one)) is not None
            and len(values) == len(_elements(other))
            and _values(other) is None
        ):
            if other.sign == "set":
                return False
            return _in_order(*((values, other.parts) if one is gold else (other.parts, values)))
    if "set" in (gold.sign, given.sign):
        return _same_set(gold, given)
    bounds = any(part.sign in _BOUNDS for part in (*gold.parts, *given.parts))
    if bounds and {gold.sign, given.sign} == {"and", "or"}:
        return False
    if gold.sign in _BRACKETED:
        return _in_order(gold.parts, given.parts)
    return _matched(_elements(gold), _elements(given))


def _elements(node: Node) -> tuple[Node, ...]:
    """What a list, set, tuple or union holds; any other object itself: `1:2` is no list of 1 and 2."""
    return node.parts if node.sign in (",", "and", "or", "set", "cup", *_BRACKETED) else (node,)


def _values(node: Node) -> tuple[Node, ...] | None:
    """The values of several names, single letters in the order of the alphabet; None of anything else."""
    pairs = [_named(part) if part.sign == "=" else None for part in node.parts]
    names = [pair[0].text.strip() for pair in pairs if pair]
    if len(names) < 2 or len(set(names)) < len(pairs):
        return None
    if all(len(name) == 1 for name in names):
        pairs.sort(key=lambda pair: pair[0].text.strip() if pair else "")
    return tuple(pair[1] for pair in pairs if pair)


def _same_set(gold: Node, given: Node) -> bool:
    """A set beside another, a list without brackets or, with one element, this element."""
    ours, theirs = (
        _distinct(one.parts) if one.sign == "set" else (one,) if one.sign in _BRACKETED else _elements(one)
        for one in (gold, given)
    )
    return _matched(ours, theirs)


def _distinct(parts: tuple[Node, ...]) -> tuple[Node, ...]:
    found: list[Node] = []
    for part in parts:
        if not any(same(one, part) for one in found):
            found.append(part)
    return tuple(found)


def _same_ratio(ours: tuple[Node, ...], theirs: tuple[Node, ...]) -> bool:
    if len(ours) != len(theirs):
        return False
    one, other = (tuple(map(_plain, parts)) for parts in (ours, theirs))
    pairs = zip(one, other, strict=True)
    return all(same_numbers(quotient(a, one[-1]), quotient(b, other[-1])) for a, b in pairs)


def _same_bound(gold: Node, given: Node) -> bool:
    if gold.sign in (*_BOUNDS, r"\ne", r"\equiv") and all(one.text for one in (*gold.parts, *given.parts)):
        one, other = (difference(*map(_plain, node.parts)) for node in (gold, given))
        return proportional(one, other, positive=gold.sign in _BOUNDS)
    return _in_order(gold.parts, given.parts)


def _interval(node: Node, name: str | None = None) -> Node | None:
    """The interval or union that bounds of one variable are, of this `name` if it is given."""
    found = _ranges(node)
    if found is None or name not in (None, found[0]):
        return None
    return found[1][0] if len(found[1]) == 1 else Node("cup", found[1])


def _ranges(node: Node) -> tuple[str, tuple[Node, ...]] | None:
    """The variable that a condition bounds, and the intervals that it may be in; None of what is not read."""
    if node.sign not in ("and", "or"):
        return _bound(node)
    found = [_ranges(part) for part in node.parts]
    known = [one for one in found if one is not None]
    if len(known) < len(found) or len({name for name, _ in known}) > 1:
        return None
    name = known[0][0]
    if node.sign == "or":
        return name, tuple(interval for _, intervals in known for interval in intervals)
    bounds = [intervals[0] for _, intervals in known if len(intervals) == 1]
    holes = [intervals[0].parts[1] for part, (_, intervals) in zip(node.parts, known) if part.sign == r"\ne"]
    low = [one for one in bounds if one.parts[1] == _INFINITY]
    high = [one for one in bounds if one.parts[1] != _INFINITY]
    if len(bounds) + len(holes) < len(known) or not bounds or max(map(len, (low, high, holes))) > 1:
        return None
    signs = (low or high)[0].sign[0] + (high or low)[0].sign[1]
    least, most = (low or high)[0].parts[0], (high or low)[0].parts[1]
    if not holes:
        return name, (Node(signs, (least, most)),)
    return name, (Node(signs[0] + ")", (least, holes[0])), Node("(" + signs[1], (holes[0], most)))


def _bound(node: Node) -> tuple[str, tuple[Node, ...]] | None:
    """The variable that one relation bounds, and its half-lines: two of `x \\ne 1`."""
    if node.sign not in (*_BOUNDS, r"\ne"):
        return None
    (left, right), weak = node.parts, node.sign == r"\le"
    least, most = _REALS.parts
    if _is_name(left):
        below = Node("(" + ")]"[weak], (least, right))
        return _bare(left), (below, Node("()", (right, most))) if node.sign == r"\ne" else (below,)
    above = Node("(["[weak] + ")", (left, most))
    return (_bare(right), (above,)) if node.sign != r"\ne" and _is_name(right) else None


def _plain(node: Node) -> Expression:
    if node.sign:
        raise Unreadable(f"{node.sign} within an expression")
    return expression(node.text)
