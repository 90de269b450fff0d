"""Values of expressions, and whether two expressions have the same ones.

Called by `expressions.py`, `units.py` and `objects.py`. Expressions are compared at drawn points with 450
digits, so that every integer of an answer is exact. A root or a logarithm is real unless one side is complex.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from math import gcd, lcm
from operator import add, mul, sub
from typing import Any, NamedTuple

from mpmath import mp, mpc, mpf

Value = Any
"""A real or complex number of mpmath."""
Point = Mapping[str, Value]
Function = Callable[[Point], Value]
DIGITS, MOST_DIGITS = 450, 400
_LARGEST, _CLOSE, _ZERO = 400 * 2.31, mpf(10) ** -420, mpf(10) ** -435
_PARTS = 61
"""The denominator of most drawn numbers."""
_DRAWN = ((1, 60, _PARTS), (_PARTS, 400, _PARTS), (-300, -1, _PARTS)) * 2 + ((3, 40, 1),) * 2
"""Least and largest numerator of a variable, and its denominator."""
_OF_MPMATH = "sin cos tan cot sec csc sinh cosh tanh coth sech csch exp ln"
FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    **{name: getattr(mp, name) for name in _OF_MPMATH.split()},
    **{f"arc{name}": getattr(mp, f"a{name}") for name in ["sin", "cos", "tan", "cot", "sec", "csc"]},
}
"""Of one number, by their names in LaTeX."""


class Unreadable(Exception):
    """A text that is no expression of the grammar."""


class TooLarge(Exception):
    """A number of more than 400 digits, of which not each would be compared."""


class Undefined(ArithmeticError):
    """An expression without a real value at a point."""


class Expression(NamedTuple):
    """A function of its variables, and what decides how it is compared."""

    at: Function
    names: frozenset[str]
    signs: frozenset[str]
    """`decimal`, `complex`, `absolute`, `log`, `angle` and `degree`, where they occur."""


def divided(one: Value, other: Value) -> Value:
    """A quotient. Raises `Undefined` for a division by zero."""
    if abs(other) < _ZERO:
        raise Undefined("a division by zero")
    return one / other


def factorial(value: Value) -> Value:
    """Also between the integers. Raises `TooLarge`."""
    if abs(value) > 200:
        raise TooLarge("a factorial")
    return mp.factorial(value)


def power(base: Value, exponent: Value, point: Point) -> Value:
    """Real where the point is: an odd root of a negative number is negative, an even one has no value.

    Raises `Undefined` and `TooLarge`.
    """
    if abs(base) < _ZERO:
        if isinstance(exponent, mpc) or exponent < 0:
            raise Undefined("a power of zero")
        return mpf(exponent == 0)
    if abs(exponent) * abs(mp.log(abs(base))) > _LARGEST:
        raise TooLarge("a power")
    is_real = not point["complex"] and base < 0 and not mp.isint(exponent)
    if is_real and (times := _over_odd(exponent)) is not None:
        return (-1) ** times * mp.power(-base, exponent)
    return real(mp.power(base, exponent), point)


def _over_odd(number: Value) -> int | None:
    """The numerator of a fraction whose denominator is odd and has at most four digits; None otherwise.

    Nor of parts that a variable is drawn in: `(-1)^n` is meant for whole `n`, where it is `\\cos n\\pi`.
    """
    found = Fraction(int(mp.nint(mp.ldexp(number, 1500))), 2**1500).limit_denominator(9999)
    below = found.denominator
    is_one = below % 2 and below % _PARTS and abs(number * below - found.numerator) < _CLOSE
    return found.numerator if is_one else None


def logarithm(value: Value, point: Point) -> Value:
    """The natural one. Raises `Undefined` for zero and, where the point is real, for negative numbers."""
    if abs(value) < _ZERO:
        raise Undefined("the logarithm of zero")
    return real(mp.log(value), point)


def _divisor(*values: Value) -> Value:
    """The greatest common one of whole numbers.

    Between them a function that no other expression has, in any order, and twice as large for doubled values.
    """
    if all(map(mp.isint, values)):
        return mpf(gcd(*map(int, values)))
    if min(map(abs, values)) < _ZERO:
        raise Undefined("a divisor of zero")
    logs = [mp.log(abs(value)) for value in values]
    spread = mp.fsum(mp.cos(one - other) for one in logs for other in logs)
    return mp.exp(mp.fsum(logs) / len(logs)) / (1 + len(logs) ** 2 + spread)


def _multiple(*values: Value) -> Value:
    """The least common one: of two their product by the greatest common divisor."""
    if all(map(mp.isint, values)):
        return mpf(lcm(*map(int, values)))
    found = _divisor(*values)
    return abs(values[0] * values[1]) / found if len(values) == 2 else found * len(values)


OF_SEVERAL: dict[str, Callable[..., Value]] = {"gcd": _divisor, "lcm": _multiple, "max": max, "min": min}
"""Functions of several numbers, by their names in LaTeX."""


def real(value: Value, point: Point) -> Value:
    """A value, which has to be real where the point is. Raises `Undefined`."""
    if isinstance(value, mpc) and not point["complex"]:
        if abs(value.imag) > _CLOSE * max(1, abs(value)):
            raise Undefined("no real value")
        return value.real
    return value


def close(one: Value, other: Value) -> bool:
    """Whether two values are one, as far as their digits tell."""
    size = max(abs(one), abs(other))
    return bool(abs(one - other) <= _CLOSE * size or size < _ZERO)


def _points(one: Expression, other: Expression) -> Iterator[dict[str, Value]]:
    """One point without variables, else positive, negative and whole ones; the same for the same names.

    Beside absolute values also points at which any two variables differ in sign: `|a|+|b|` is `|a+b|`
    elsewhere. Without them such points would part `a\\sqrt{b}` from `\\sqrt{a^2b}`.
    """
    names, signs = sorted(one.names | other.names), one.signs | other.signs
    rng = random.Random(" ".join(names))
    flags = {"complex": "complex" in signs, "angle": "angle" in signs}
    for low, high, step in _DRAWN[: None if names else 1]:
        drawn = {name: mpf(rng.randint(low, high)) / step for name in names}
        yield {**flags, **drawn}
    for bit in range((len(names) - 1).bit_length() if names and "absolute" in signs else 0):
        mixed = {name: mpf(rng.randint(1, 400)) / _PARTS for name in names}
        yield {
            **flags,
            **{name: -mixed[name] if at >> bit & 1 else mixed[name] for at, name in enumerate(names)},
        }


def _pairs(one: Expression, other: Expression) -> Iterator[list[tuple[Value, Value]]]:
    """Both at every point where both are defined, for each meaning of a `\\log` without a base.

    Where absolute values stand on one side only, both have to be defined at the same points. Raises
    `Unreadable` if both are defined nowhere.
    """
    signs = one.signs | other.signs
    strict = "absolute" in one.signs ^ other.signs
    with mp.workdps(DIGITS):
        for base in (mp.e, mpf(10))[: 2 if "log" in signs else 1]:
            found = []
            for point in _points(one, other):
                pair = [_value(side, {**point, "log": base}) for side in (one, other)]
                if None not in pair:
                    found.append((pair[0], pair[1]))
                elif strict and pair != [None, None]:
                    found.append((mpf(0), mpf(1)))
            if not found:
                raise Unreadable("no value anywhere")
            yield found


def _value(one: Expression, point: Point) -> Value | None:
    try:
        found = one.at(point)
    except (ArithmeticError, ValueError):  # a pole
        return None
    return found if mp.isfinite(found) else None


def same_value(one: Expression, other: Expression, places: int | None = None) -> bool:
    """Whether two expressions agree wherever both have a value; with `places`, when rounded to them."""
    return any(
        all(
            close(a, b) or (places is not None and _rounded(a, places) == _rounded(b, places))
            for a, b in pairs
        )
        for pairs in _pairs(one, other)
    )


def _rounded(value: Value, places: int) -> tuple[Value, Value]:
    scale = mpf(10) ** places
    return mp.nint(mp.re(value) * scale), mp.nint(mp.im(value) * scale)


def proportional(one: Expression, other: Expression, positive: bool = False) -> bool:
    """Whether two expressions differ by a constant factor other than zero; `positive`: by a positive one."""
    for pairs in _pairs(one, other):
        if all(max(map(abs, pair)) < _ZERO for pair in pairs):
            return True
        first = next((pair for pair in pairs if min(map(abs, pair)) > _ZERO), None)
        if first is not None and all(close(a * first[1], b * first[0]) for a, b in pairs):
            ratio = first[0] / first[1]
            if not positive or (mp.im(ratio) == 0 and mp.re(ratio) > 0):
                return True
    return False


def size_of(one: Expression) -> Value | None:
    """The absolute value of a constant; None of anything else."""
    found = None if one.names else _constant(one, is_complex=True)
    return None if found is None else abs(found)


def value_of(one: Expression) -> Value | None:
    """The value of a real constant; None of anything else."""
    found = None if one.names else _constant(one, is_complex=False)
    return None if isinstance(found, mpc) else found


def _constant(one: Expression, is_complex: bool) -> Value | None:
    with mp.workdps(DIGITS):
        return _value(one, {"complex": is_complex, "angle": "angle" in one.signs, "log": mp.e})


def _of_two(join: Callable[[Value, Value], Value]) -> Callable[[Function, Function], Function]:
    return lambda one, other: lambda point: join(one(point), other(point))


sum_of, product_of, quotient_of, binomial_of = map(_of_two, (add, mul, divided, mp.binomial))
"""Functions of two functions."""


def negative_of(one: Function) -> Function:
    """`-one`."""
    return lambda point: -one(point)


def call_of(called: Callable[[Value], Value], one: Function) -> Function:
    """A function of a function's value."""
    return lambda point: called(one(point))


def constant(value: object) -> Function:
    """The same value everywhere; a number in a text gets as many digits as are computed with."""
    return lambda point: mpf(value) if isinstance(value, str) else value


def difference(one: Expression, other: Expression) -> Expression:
    """`one - other`."""
    return _joined(one, other, sub)


def quotient(one: Expression, other: Expression) -> Expression:
    """`one / other`."""
    return _joined(one, other, divided)


def _joined(one: Expression, other: Expression, join: Callable[[Value, Value], Value]) -> Expression:
    names, signs = one.names | other.names, one.signs | other.signs
    return Expression(lambda point: join(one.at(point), other.at(point)), names, signs)
