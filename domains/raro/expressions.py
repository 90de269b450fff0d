"""Arithmetic expressions over integers: a grammar of its own, exact values, one way to print.

The verifier, the normaliser and the demonstrations read answers by it.

    expression = term (("+" | "-") term)*        term = factor (("*" | "/") factor)*
    factor     = integer | "(" expression ")"

Nothing here is ever handed to Python's interpreter, and no value is a float.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_LENGTH = 200
"""Characters of an expression that is still read."""
_TOKEN = re.compile(r"\s*(?:(\d+)|([-+*/()]))", re.ASCII)
PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


class ExpressionError(ValueError):
    """The text is no expression of the grammar."""


@dataclass(frozen=True, slots=True)
class Number:
    """An integer literal."""

    value: int


@dataclass(frozen=True, slots=True)
class Operation:
    """`left op right` with op one of + - * /."""

    op: str
    left: "Number | Operation"
    right: "Number | Operation"


Expression = Number | Operation


def parse(text: str) -> Expression:
    """The tree of an expression. Raises ExpressionError for any other text or more than MAX_LENGTH chars."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"{len(text)} characters; at most {MAX_LENGTH} are read")
    tokens = _tokens(text)
    tree, at = _chain(tokens, 0)
    if at != len(tokens):
        raise ExpressionError(f"{tokens[at]!r} is not expected after {''.join(tokens[:at])!r}")
    return tree


def _tokens(text: str) -> list[str]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"{text[at:].strip()[:1]!r} is no part of an expression")
        tokens.append(match[1] or match[2])
        at = match.end()
    return tokens


def _chain(tokens: list[str], at: int, precedence: int = 1) -> tuple[Expression, int]:
    """Operands joined from the left by operators of one precedence: a sum of products of factors."""
    if precedence > max(PRECEDENCE.values()):
        return _factor(tokens, at)
    tree, at = _chain(tokens, at, precedence + 1)
    while at < len(tokens) and PRECEDENCE.get(tokens[at]) == precedence:
        right, after = _chain(tokens, at + 1, precedence + 1)
        tree, at = Operation(tokens[at], tree, right), after
    return tree, at


def _factor(tokens: list[str], at: int) -> tuple[Expression, int]:
    if at == len(tokens):
        raise ExpressionError("the expression ends where a number is expected")
    token = tokens[at]
    if token.isdigit():
        return Number(int(token)), at + 1
    if token != "(":
        raise ExpressionError(f"{token!r} stands where a number is expected")
    tree, at = _chain(tokens, at + 1)
    if at == len(tokens) or tokens[at] != ")":
        raise ExpressionError("a parenthesis is not closed")
    return tree, at + 1


def literals(tree: Expression) -> list[int]:
    """The integers of an expression from left to right."""
    if isinstance(tree, Number):
        return [tree.value]
    return literals(tree.left) + literals(tree.right)


def value(tree: Expression) -> Fraction | None:
    """The exact value; None when something is divided by zero."""
    if isinstance(tree, Number):
        return Fraction(tree.value)
    left, right = value(tree.left), value(tree.right)
    if left is None or right is None:
        return None
    return combine(tree.op, left, right)


def combine(op: str, left: Fraction, right: Fraction) -> Fraction | None:
    """`left op right`, exact; None for a division by zero."""
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    if op == "*":
        return left * right
    return left / right if right else None


def render(tree: Expression) -> str:
    """Minimal parentheses and no spaces: those that the value does not need are left out."""
    if isinstance(tree, Number):
        return str(tree.value)
    return join(tree.op, render(tree.left), _loosest(tree.left), render(tree.right), _loosest(tree.right))


def _loosest(tree: Expression) -> int:
    """Precedence of the operator that is applied last; 3 for a number."""
    return 3 if isinstance(tree, Number) else PRECEDENCE[tree.op]


def join(op: str, left: str, left_precedence: int, right: str, right_precedence: int) -> str:
    """Text of `left op right` from printed operands and the precedence of their last operators."""
    own = PRECEDENCE[op]
    if left_precedence < own:
        left = f"({left})"
    # a+(b-c) is a+b-c and a*(b/c) is a*b/c; behind - and / the parentheses decide.
    if right_precedence < own or (right_precedence == own and op in "-/"):
        right = f"({right})"
    return f"{left}{op}{right}"
