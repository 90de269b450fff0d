"""Whether an answer is the object of the gold answer: lists, sets, intervals, relations and what they hold.

Called by `answers.py` with what `objects.py` read. Objects are compared part by part, down to values, which
`units.py` compares.
"""

import re
from itertools import pairwise

from domains.math.objects import (
    BRACKETED,
    INFINITY,
    REALS,
    RELATIONS,
    Node,
    bare,
    flat,
    holds,
    is_name,
    numbers_of,
    renamed,
)
from domains.math.texts import is_word
from domains.math.units import counted, expression, same_measured, same_numbers
from domains.math.values import Expression, Unreadable, difference, proportional, quotient, value_of

_BOUNDS = ("<", r"\le")
_PRODUCT = re.compile(r"[a-z](?:\s*[a-z])+")


def same(gold: Node, given: Node) -> bool:
    """Whether an answer is the object of the gold answer. Raises `Unreadable`."""
    if "for" in (gold.sign, given.sign):
        return _same_for_all(gold, given)
    gold, given = _pieces(gold), _pieces(given)
    if "built" in (gold.sign, given.sign) and (said := _conditions(gold, given)) is not None:
        return same(*said)
    if gold.sign == r"\in" and (interval := _interval(given, bare(gold.parts[0]))) is not None:
        return same(gold.parts[1], interval)
    gold, given = (one.parts[1] if one.sign == r"\in" else one for one in (gold, given))
    gold, given = _beside(gold, given), _beside(given, gold)
    for one, other in ((gold, given), (given, gold)):
        if _is_named_tuple(one) and other.sign in (",", "and", "()"):
            values = one.parts[1].parts
            if not any(part.sign == "=" for part in other.parts):
                return _in_order(*((values, other.parts) if one is gold else (other.parts, values)))
    gold, given = _as_list(gold), _as_list(given)
    if gold.sign == "=" and given.sign == "=":
        return _same_equation(gold, given)
    if "=" in (gold.sign, given.sign):
        if r"\equiv" in (gold.sign, given.sign):
            return False
        return _same_value_of(gold, given)
    if given.sign in BRACKETED | {"cup"} and (interval := _interval(gold)) is not None:
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
    if gold.sign in RELATIONS.values():
        return _same_bound(gold, given)
    if gold.sign in ("cup", "cap"):
        return _matched(gold.parts, given.parts)
    return _in_order(gold.parts, given.parts)


def _pieces(node: Node) -> Node:
    """The union that the real numbers without some are: of `\\mathbb{R} \\setminus \\{2\\}` two intervals."""
    if node.sign == r"\in":
        return node._replace(parts=(node.parts[0], _pieces(node.parts[1])))
    if node.sign != "minus" or node.parts[0] != REALS or len(node.parts) != 2 or node.parts[1].sign != "set":
        return node
    missing = [(value_of(_plain(one)), one) for one in node.parts[1].parts]
    known = sorted((value, one) for value, one in missing if value is not None)
    least, most = REALS.parts
    if not known or len(known) < len(missing):
        return node
    ends = [least, *(one for _, one in known), most]
    return Node("cup", tuple(Node("()", pair) for pair in pairwise(ends)))


def _same_for_all(gold: Node, given: Node) -> bool:
    """Whether two objects are one for all numbers; beside one that does not say so the condition is dropped.

    One number may have another letter there.
    """
    if gold.sign != given.sign:
        return same(*(one.parts[0] if one.sign == "for" else one for one in (gold, given)))
    (ours, *mine), (theirs, *other) = gold.parts, given.parts
    if len(mine) == len(other) == 1:
        old, new = (bare(one[0].parts[0]) for one in (other, mine))
        if old != new and holds(theirs, new):
            return False
        theirs, other = renamed(theirs, old, new), [renamed(other[0], old, new)]
    among = [sorted((bare(one.parts[0]), numbers_of(one.parts[1])) for one in said) for said in (mine, other)]
    return among[0] == among[1] and same(ours, theirs)


def _conditions(gold: Node, given: Node) -> tuple[Node, Node] | None:
    """Of `\\{x \\mid x>2\\}` what it says of x, beside an interval as one; None where nothing is known."""
    built = [one.parts if one.sign == "built" and is_name(one.parts[0]) else None for one in (gold, given)]
    said = [one if parts is None else parts[1] for one, parts in zip((gold, given), built, strict=True)]
    if (gold.sign == "built" and built[0] is None) or (given.sign == "built" and built[1] is None):
        return None
    if None in built and (built[1] is None or gold.sign not in (*BRACKETED, "cup")):
        return said[0], said[1]
    ranges = [_interval(one) if parts else one for one, parts in zip(said, built, strict=True)]
    return (ranges[0], ranges[1]) if ranges[0] is not None and ranges[1] is not None else None


def _beside(node: Node, other: Node) -> Node:
    """An object in the form that another one asks for.

    Beside a value `x \\equiv 3 \\pmod 7` is this value, beside an interval `\\mathbf{R}` is one, and beside
    several values `x=y=2` are two.
    """
    if node.sign == r"\equiv" and not other.sign and is_name(node.parts[0]):
        return node.parts[1]
    if other.sign in (*BRACKETED, "cup") and bare(node) == "R" and node.text != "R":
        return REALS
    *names, value = node.parts or (node,)
    if node.sign == "=" and other.sign in (",", "and", "()") and len(names) > 1 and all(map(is_name, names)):
        return Node(",", tuple(Node("=", (name, value)) for name in names))
    return node


def _in_order(ours: tuple[Node, ...], theirs: tuple[Node, ...]) -> bool:
    return len(ours) == len(theirs) and all(map(same, ours, theirs))


def _matched(ours: tuple[Node, ...], theirs: tuple[Node, ...]) -> bool:
    """Whether the parts are the same in some order, each as often as there.

    Things that both sides count, as in `2 hens, 3 cows`, keep their numbers.
    """
    left = [(other, _thing(other)) for other in theirs]
    both = {thing for _, thing in left if thing} & set(map(_thing, ours))
    for one in ours:
        thing = _thing(one)
        among = [
            place for place, (_, other) in enumerate(left) if other == thing or not {other, thing} & both
        ]
        found = next((place for place in among if same(one, left[place][0])), None)
        if found is None:
            return False
        del left[found]
    return not left


def _is_named_tuple(node: Node) -> bool:
    """Whether an object is one such as `(n,k)=(2,1)`, whose values stand in the order of its own names."""
    if node.sign != "=" or len(node.parts) != 2 or any(part.sign != "()" for part in node.parts):
        return False
    names, values = (part.parts for part in node.parts)
    return len(names) == len(values)


def _thing(node: Node) -> str:
    return "" if node.sign else counted(node.text)


def _as_list(node: Node) -> Node:
    """`(x,y)=(1,2)` is `x=1, y=2`; a list within a list is one list."""
    if _is_named_tuple(node):
        pairs = zip(*(part.parts for part in node.parts), strict=True)
        return Node(",", tuple(Node("=", pair) for pair in pairs))
    return flat(node) if node.sign in (",", "and", "or") else node


def _named(node: Node) -> tuple[Node, Node] | None:
    """Name and value of an equation: `x` and 5 of `x = 2 + 3 = 5` and of `5 = x`."""
    first, last = node.parts[0], node.parts[-1]
    if is_name(first):
        return first, last
    return (last, first) if is_name(last) else None


def _same_equation(gold: Node, given: Node) -> bool:
    ours, theirs = _named(gold), _named(given)
    if ours and theirs and same(ours[0], theirs[0]):
        return _is_consistent(given) and same(ours[1], theirs[1])
    if any(one and _is_solved(*one) for one in (ours, theirs)):  # and `2x = 10` has yet to be
        return False
    if any(one.sign for one in (*gold.parts, *given.parts)) or len(gold.parts + given.parts) > 4:
        return False
    one, other = (difference(*map(_plain, node.parts)) for node in (gold, given))
    return proportional(one, other)


def _is_solved(name: Node, value: Node) -> bool:
    """Whether an equation tells the value of a name, as `x = 5` does; `xy = 1` is one of two variables."""
    is_product = _PRODUCT.fullmatch(name.text.strip()) is not None and not is_word(bare(name))
    return not _names_of(value) and not is_product


def _same_value_of(gold: Node, given: Node) -> bool:
    """An equation on one side: its value, if it names one, or tells what an answer was computed from."""
    equation = gold if gold.sign == "=" else given
    named = _named(equation)
    if not _is_consistent(equation):
        return False
    if named is None and equation is gold and any(map(_names_of, gold.parts)):  # asked was `5x = 25`
        return False
    value = named[1] if named else equation.parts[-1]
    return same(value, given) if equation is gold else same(gold, value)


def _is_consistent(equation: Node) -> bool:
    """Whether the constants of a chain are one: `19 = 18` is no way to say 18; `e` and `i` may be names."""
    values = [one for one in equation.parts if not one.sign and bare(one) not in ("e", "i")]
    constants = [one for one in values if not _names_of(one)]
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
    if gold.sign in BRACKETED:
        return _in_order(gold.parts, given.parts)
    return _matched(_elements(gold), _elements(given))


def _elements(node: Node) -> tuple[Node, ...]:
    """What a list, set, tuple or union holds; any other object itself: `1:2` is no list of 1 and 2."""
    return node.parts if node.sign in (",", "and", "or", "set", "cup", *BRACKETED) else (node,)


def _values(node: Node) -> tuple[Node, ...] | None:
    """The values of several names, neighbours in the alphabet in its order; None of anything else.

    Other names are as written: who writes `n=2, k=1` was asked for `(n, k)`.
    """
    pairs = [_named(part) if part.sign == "=" else None for part in node.parts]
    names = [pair[0].text.strip() for pair in pairs if pair]
    if len(names) < 2 or len(set(names)) < len(pairs):
        return None
    if all(len(name) == 1 for name in names) and ord(max(names)) - ord(min(names)) < len(names):
        pairs.sort(key=lambda pair: pair[0].text.strip() if pair else "")
    return tuple(pair[1] for pair in pairs if pair)


def _same_set(gold: Node, given: Node) -> bool:
    """A set beside another, a list without brackets or, with one element, this element."""
    ours, theirs = (
        _distinct(one.parts) if one.sign == "set" else (one,) if one.sign in BRACKETED else _elements(one)
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
    low = [one for one in bounds if one.parts[1] == INFINITY]
    high = [one for one in bounds if one.parts[1] != INFINITY]
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
    least, most = REALS.parts
    if is_name(left):
        below = Node("(" + ")]"[weak], (least, right))
        return bare(left), (below, Node("()", (right, most))) if node.sign == r"\ne" else (below,)
    above = Node("(["[weak] + ")", (left, most))
    return (bare(right), (above,)) if node.sign != r"\ne" and is_name(right) else None


def _plain(node: Node) -> Expression:
    if node.sign:
        raise Unreadable(f"{node.sign} within an expression")
    return expression(node.text)
