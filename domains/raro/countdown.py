"""Countdown: use each given integer exactly once with + - * / to make the target. Exact, without floats.

The generator asks what is solvable and how, evaluation and the verifier baseline whether an answer is right.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from domains.raro.expressions import PRECEDENCE, ExpressionError, combine, join, literals, parse, value

OPERATORS = "+-*/"


def verify(answer: str, numbers: Sequence[int], target: int) -> bool:
    """Whether the expression uses exactly the given numbers and has exactly the target as its value."""
    try:
        tree = parse(answer)
    except ExpressionError:
        return False
    return Counter(literals(tree)) == Counter(numbers) and value(tree) == target


def solutions(numbers: Sequence[int], target: int, integer_only: bool = True) -> list[str]:
    """All distinct solutions as printed expressions, operand order included, sorted.

    `integer_only`: every intermediate value is a non-negative integer.
    """
    ordered = tuple(sorted(numbers))
    return sorted(_texts(ordered, target, _ways(ordered, integer_only, target), integer_only))


def expressions(numbers: Sequence[int], integer_only: bool = True) -> dict[str, Fraction]:
    """Every printed expression that uses each number once, with its value."""
    ordered = tuple(sorted(numbers))
    ways = _ways(ordered, integer_only)
    return {text: Fraction(result) for result in ways for text in _texts(ordered, result, ways, integer_only)}


Numbers = tuple[int, ...]
"""Sorted."""
Exact = int | Fraction
Way = tuple[str, Numbers, Exact, Numbers, Exact]
"""An operator, and for each operand the numbers that it is made of and its value."""


@lru_cache(maxsize=4096)
def _ways(numbers: Numbers, integer_only: bool, target: int | None = None) -> dict[Exact, list[Way]]:
    """Value -> last operations that give it, of all values or of the target alone.

    Texts are written only of values that are asked for: of four numbers to 50 that is a few in thousands.
    """
    if len(numbers) == 1:
        return {numbers[0]: []}
    results = _whole_results if integer_only else _exact_results
    found: dict[Exact, list[Way]] = {}
    for left, right in _splits(numbers):
        for x, y in itertools.product(_ways(left, integer_only), _ways(right, integer_only)):
            for op, result in results(x, y):
                if target is None or result == target:
                    found.setdefault(result, []).append((op, left, x, right, y))
    return found


def _texts(
    numbers: Numbers, result: Exact, ways: dict[Exact, list[Way]], integer_only: bool
) -> dict[str, int]:
    """Printed expressions of one value -> precedence of their last operator; 3 for a number."""
    if len(numbers) == 1:
        return {str(numbers[0]): 3} if result == numbers[0] else {}
    made: dict[str, int] = {}
    for op, left, x, right, y in ways.get(result, []):
        firsts = _texts(left, x, _ways(left, integer_only), integer_only)
        seconds = _texts(right, y, _ways(right, integer_only), integer_only)
        for (a, p), (b, q) in itertools.product(firsts.items(), seconds.items()):
            made[join(op, a, p, b, q)] = PRECEDENCE[op]
    return made


def _whole_results(x: Exact, y: Exact) -> Iterator[tuple[str, Exact]]:
    yield "+", x + y
    if x >= y:
        yield "-", x - y
    yield "*", x * y
    if y and x % y == 0:
        yield "/", x // y


def _exact_results(x: Exact, y: Exact) -> Iterator[tuple[str, Exact]]:
    for op in OPERATORS:
        result = combine(op, Fraction(x), Fraction(y))
        if result is not None:
            yield op, result


def _splits(numbers: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Distinct ordered pairs of non-empty parts of a sorted multiset."""
    seen = set()
    for size in range(1, len(numbers)):
        for chosen in itertools.combinations(range(len(numbers)), size):
            left = tuple(numbers[i] for i in chosen)
            if left not in seen:
                seen.add(left)
                yield left, tuple(numbers[i] for i in range(len(numbers)) if i not in chosen)


Rational = tuple[np.ndarray, np.ndarray]
"""int64 numerators and denominators; a denominator of 0 marks an impossible value."""


def solvable(numbers: np.ndarray, target: np.ndarray | int, integer_only: bool = True) -> np.ndarray:
    """bool `[N]`: whether each row of int `[N, n]` reaches its target; all rows are tried at once.

    `integer_only` allows non-negative integers as intermediate values, otherwise any rational number.
    """
    columns = [
        (numbers[:, i].astype(np.int64), np.ones(len(numbers), np.int64)) for i in range(numbers.shape[1])
    ]
    targets = np.broadcast_to(np.asarray(target, np.int64), len(numbers))
    return _reaches(columns, targets, _integer_results if integer_only else _rational_results)


def _reaches(
    columns: list[Rational],
    target: np.ndarray,
    results: Callable[[Rational, Rational], Iterator[Rational]],
) -> np.ndarray:
    if len(columns) == 1:
        numerator, denominator = columns[0]
        return (denominator != 0) & (numerator == target * denominator)
    found = np.zeros(len(target), bool)
    for i, j in itertools.combinations(range(len(columns)), 2):
        rest = [column for k, column in enumerate(columns) if k not in (i, j)]
        for result in results(columns[i], columns[j]):
            found |= _reaches([*rest, result], target, results)
    return found


def _integer_results(a: Rational, b: Rational) -> Iterator[Rational]:
    (x, valid_x), (y, valid_y) = a, b
    valid = valid_x & valid_y
    large, small = np.maximum(x, y), np.minimum(x, y)
    yield x + y, valid
    yield large - small, valid
    yield x * y, valid
    quotient, rest = np.divmod(large, np.maximum(small, 1))
    yield quotient, valid & (small > 0) & (rest == 0)
    # 0/y is 0 as well, and x*y gives that already.


def _rational_results(a: Rational, b: Rational) -> Iterator[Rational]:
    (p, q), (r, s) = a, b
    yield p * s + r * q, q * s
    yield p * s - r * q, q * s
    yield r * q - p * s, q * s
    yield p * r, q * s
    # A quotient's denominator may be anything where an operand was impossible.
    possible = q * s != 0
    yield p * s, np.where(possible, q * r, 0)
    yield r * q, np.where(possible, s * p, 0)


def multisets(n_numbers: int, low: int, high: int) -> np.ndarray:
    """All sorted multisets of integers from `low` to `high`, int64 `[N, n_numbers]`."""
    rows = itertools.combinations_with_replacement(range(low, high + 1), n_numbers)
    return np.array(list(rows), np.int64)
