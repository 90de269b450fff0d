"""Generated objects of mathematics, each written in equal forms and beside objects that differ.

What is right is known by construction: forms of one object are equal, the others are made from other numbers,
letters or brackets (exact fractions where they could coincide). The verifier is never asked.
A long run by hand: `python -m tests.unit.math.test_math_generated 20000 [SEED [KIND]]`.
"""

import cmath
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from itertools import islice, permutations
from math import comb, factorial, gcd
from operator import add, mul, sub, truediv
from typing import NamedTuple

import pytest

from domains.math.answers import verify_answer

# fmt: off


class Thing(NamedTuple):
    """An object: its equal forms, forms that only an answer has, and forms of objects that differ."""

    forms: list[str]
    others: list[str]
    answers: tuple[str, ...] | list[str] = ()


class Case(NamedTuple):
    kind: str
    gold: str
    text: str
    right: bool


Rng = random.Random
KINDS: dict[str, Callable[[Rng], Thing]] = {}


def kind(make: Callable[[Rng], Thing]) -> Callable[[Rng], Thing]:
    KINDS[make.__name__] = make
    return make


def nonzero(rng: Rng, most: int) -> int:
    return rng.choice((-1, 1)) * rng.randint(1, most)


def fraction(value: Fraction, command: str = "frac") -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return f"{'-' * (value < 0)}\\{command}{{{abs(value.numerator)}}}{{{value.denominator}}}"


def proper(rng: Rng, most: int = 12) -> Fraction:
    """A fraction that is no integer, nor plus or minus one of another's."""
    while True:
        value = Fraction(nonzero(rng, most), rng.randint(2, most))
        if value.denominator > 1:
            return value


def differing(value: Fraction, *pairs: tuple[Fraction, str]) -> list[str]:
    return [form for other, form in pairs if other != value]


def grouped(digits: str, mark: str) -> str:
    return f"{int(digits):,}".replace(",", mark)


def poly(terms: list[tuple[int, str]], mark: str = "") -> str:
    """A sum of coefficients and monomials; `mark` stands between the two."""
    text = ""
    for factor, letters in terms:
        sign = "-" if factor < 0 else "+" if text else ""
        size = str(abs(factor)) if abs(factor) != 1 or not letters else ""
        text += sign + size + (mark if size and letters else "") + letters
    return text


def shuffled(rng: Rng, values: list[str]) -> list[str]:
    return rng.sample(values, len(values))


@kind
def integer(rng: Rng) -> Thing:
    n = nonzero(rng, 10 ** rng.randint(1, 9))
    size, sign = str(abs(n)), "-" * (n < 0)
    forms = [str(n), f"{n}.0", f"\\text{{{n}}}", f"{{{n}}}", f"({n})"]
    if len(size) > 3:
        forms += [sign + grouped(size, mark) for mark in (",", "{,}", r"\,", " ")]
    if n < 0:
        forms.append(f"\u2212{size}")
    place = rng.randrange(len(size))
    digit = size[:place] + str((int(size[place]) + rng.randint(1, 9)) % 10) + size[place + 1 :]
    others = [str(-n), str(n + 1), str(n - 1), f"{n}0", sign + digit, f"|{n}|" if n < 0 else f"-|{n}|"]
    others += [f"{n}x", f"x+{size}", f"{n}!" if 2 < abs(n) < 999 else f"{n}i", f"{n}, {n}"]
    if len(size) > 1:
        others.append(sign + size[:-1])
    return Thing(forms, others, [f"x = {n}", f"{n - 7} + 7 = {n}", f"\\text{{The answer is }} {n}"])


@kind
def decimal(rng: Rng) -> Thing:
    places = rng.randint(1, 4)
    digits = str(rng.randint(1, 10 ** (places + rng.randint(0, 4)))).zfill(places + 1)
    if digits[-1] == "0":
        digits = digits[:-1] + "7"
    sign = rng.choice(("", "-"))
    value = Fraction(int(sign + digits), 10**places)
    whole, part = digits[:-places], digits[-places:]
    text = f"{sign}{whole}.{part}"
    forms = [text, text + "0", fraction(value), fraction(value, "dfrac"), f"{sign}{digits}/{10**places}"]
    forms.append(f"{sign}{digits} \\times 10^{{-{places}}}")
    forms.append(f"{sign}{digits}e-{places}")
    if int(whole) == 0:
        forms.append(f"{sign}.{part}")
    last = (int(part[-1]) + rng.randint(1, 9)) % 10
    others = [f"{'' if sign else '-'}{whole}.{part}", f"{sign}{whole}.{part[:-1]}{last}",
        text[:-1] + "0" + part[-1]]
    others += [f"{sign}{whole}{part}", f"{sign}{int(whole) + 1}.{part}"]
    return Thing(forms, others)


@kind
def fractions(rng: Rng) -> Thing:
    value, k = proper(rng, 40), rng.randint(2, 9)
    p, q, sign = abs(value.numerator), value.denominator, "-" * (value < 0)
    forms = [fraction(value, name) for name in ("frac", "dfrac", "tfrac")]
    forms += [f"{sign}{p}/{q}", f"\\frac{{{value.numerator}}}{{{q}}}", f"{sign}\\frac{{{k * p}}}{{{k * q}}}"]
    forms += [f"{sign}\\left(\\frac{{{p}}}{{{q}}}\\right)", f"{value.numerator} \\div {q}",
        f"{sign}{p} / {q}"]
    if p < 10 and q < 10:
        forms.append(f"{sign}\\frac{p}{q}")
    others = differing(
        value,
        (-value, fraction(-value)),
        (1 / value, fraction(1 / value, "dfrac")),
        (value + 1, fraction(value + 1)),
        (Fraction(value.numerator + 1, q), f"\\frac{{{value.numerator + 1}}}{{{q}}}"),
        (Fraction(value.numerator, q + 1), f"{sign}{p}/{q + 1}"),
    )
    return Thing(forms, [*others, sign + str(p), f"{sign}\\frac{{{p}}}{{{q}}}x", f"{sign}{p}:{q}^2"])


@kind
def mixed(rng: Rng) -> Thing:
    part, whole, sign = abs(proper(rng, 9)), rng.randint(1, 20), rng.choice(("", "-"))
    part -= part.numerator // part.denominator
    p, q = part.numerator, part.denominator
    over = whole * q + p
    forms = [f"{sign}{whole}\\frac{{{p}}}{{{q}}}", f"{sign}{whole} {p}/{q}",
        f"{sign}{whole}\\tfrac{{{p}}}{{{q}}}"]
    forms += [f"{sign}\\frac{{{over}}}{{{q}}}", f"{sign}{over}/{q}", f"{sign}{whole}\\ \\dfrac{p}{q}"]
    others = [f"{sign}{whole}\\cdot\\frac{{{p}}}{{{q}}}", f"{sign}{whole + 1}\\frac{{{p}}}{{{q}}}"]
    others += [f"{'' if sign else '-'}{whole}\\frac{{{p}}}{{{q}}}", f"{sign}\\frac{{{whole * p}}}{{{q}}}",
        f"{sign}{p}/{q}"]
    return Thing(forms, [*others, f"{sign}{whole}\\frac{{{p}}}{{{q + 1}}}"])


@kind
def radical(rng: Rng) -> Thing:
    a, b, c = rng.randint(2, 9), rng.choice((2, 3, 5, 6, 7, 10, 11)), nonzero(rng, 9)
    root = f"\\sqrt{{{b}}}"
    if rng.random() < 0.5:
        forms = [f"{a}{root}", f"\\sqrt{{{a * a * b}}}", f"{root}\\cdot {a}", f"{a}\\cdot{root}",
            f"{a}*sqrt({b})"]
        forms += [f"{a}\u221a{b}", f"{a}\\cdot {b}^{{1/2}}", f"\\frac{{{a * b}}}{{{root}}}",
            f"{a}\\sqrt[2]{{{b}}}"]
        forms += [f"{a}sqrt({b})", f"{a}\\,{root}", f"\\sqrt{{{a * a}}}{root}"]
        others = [f"-{a}{root}", f"{a + 1}{root}", f"{a}\\sqrt{{{b + 1}}}", root, f"{a * b}",
            f"{a}\\sqrt[3]{{{b}}}"]
        return Thing(forms, [*others, f"{a}+{root}", f"\\frac{{{a}}}{{{root}}}", f"{a}{root}i"])
    forms = [f"{c}+{a}{root}", f"{a}{root}{c:+}", f"{c} + \\sqrt{{{a * a * b}}}",
        f"{c}--{a}{root}".replace("--", "-(-") + ")"]
    forms += [f"\\frac{{{2 * c}+{2 * a}{root}}}{{2}}", f"{a}\\cdot\\sqrt {{{b}}} {c:+}"]
    others = [f"{c}-{a}{root}", f"{-c}+{a}{root}", f"{c}+{a + 1}{root}", f"{c}+{a}", f"{a}{root}",
        f"{c}\\pm {a}{root}"]
    return Thing(forms, others)


@kind
def roots(rng: Rng) -> Thing:
    a, b, n = rng.randint(2, 5), rng.choice((2, 3, 5, 7)), rng.choice((3, 4, 5))
    forms = [f"{a}\\sqrt[{n}]{{{b}}}", f"\\sqrt[{n}]{{{a**n * b}}}", f"{a}\\cdot {b}^{{\\frac{{1}}{{{n}}}}}"]
    forms += [f"{b}^{{1/{n}}}\\cdot {a}"]
    others = [f"{a}\\sqrt{{{b}}}", f"{a}\\sqrt[{n + 1}]{{{b}}}", f"\\sqrt[{n}]{{{a * b}}}",
        f"-{a}\\sqrt[{n}]{{{b}}}"]
    if n % 2:
        forms = [f"-{form}" for form in forms] + [f"\\sqrt[{n}]{{-{a**n * b}}}"]
        others = [other.replace("-", "") if other[0] == "-" else "-" + other for other in others]
    return Thing(forms, others)


@kind
def power(rng: Rng) -> Thing:
    base, e, d = rng.choice((2, 3, 5, 7, 10)), rng.randint(3, 40), rng.randint(1, 2)
    forms = [f"{base}^{{{e}}}", f"{base ** e}", f"{base}^{{{e - d}}}\\cdot {base}^{d}", f"{base}**{e}"]
    forms += [f"({base}^{d})^{{{e}/{d}}}", f"\\frac{{{base}^{{{e + d}}}}}{{{base}^{d}}}", f"{base}^{{{e}}}"]
    others = [f"{base}^{{{e + 1}}}", f"{base}^{{-{e}}}", f"{base + 1}^{{{e}}}", f"{base}", f"{base ** e + 1}"]
    return Thing(forms, [*others, f"-{base}^{{{e}}}", f"{base}\\cdot {e}", f"{base}^{{{e}}}-1",
        f"{base}_{{{e}}}"])


@kind
def percent(rng: Rng) -> Thing:
    text, other = rng.choice([(str(n), str(n + 1)) for n in (7, 12, 60, 95, 150)] + [("12.5", "12.6"),
        ("0.25", "0.24")])
    value = Fraction(text)
    forms = [f"{text}\\%", f"{text}%", f"{text} \\%", f"{text}\\text{{ percent}}", f"{text}\\text{{%}}",
        f"{text}\\,\\%"]
    others = [f"{other}\\%", f"-{text}\\%", f"1{text}\\%", other, fraction(value / 1000), f"{text}x\\%"]
    return Thing(forms, others, [text, fraction(value / 100), f"{float(value / 100):.6g}", f"{text} percent"])


@kind
def money(rng: Rng) -> Thing:
    whole, cents = rng.randint(1, 99999), rng.randint(10, 98)
    text = f"{whole}.{cents}"
    forms = [f"\\${text}", f"${text}", f"\\${whole:,}.{cents}", f"{text}\\text{{ dollars}}",
        f"{text} dollars", text]
    forms += [f"\\$ {text}", f"\\text{{\\${text}}}", f"{whole:,}.{cents}".replace(",", "{,}"), f"USD {text}",
        f"{text} USD"]
    forms += [f"\\${whole}\\frac{{{cents}}}{{100}}"]
    others = [f"\\${whole}.{cents + 1}", f"\\${whole}", f"-\\${text}", f"\\${whole + 1}.{cents}",
        f"\\${whole}{cents}", f"\\${text}0x"]
    return Thing(forms, [*others, f"\\${cents}.{whole}1"])


@kind
def scientific(rng: Rng) -> Thing:
    a, e = f"{rng.randint(1, 9)}.{rng.randint(1, 9)}", rng.choice((-12, -7, -3, 2, 5, 9, 23))
    value = Fraction(a) * Fraction(10) ** e
    plain = f"{value.numerator}" if value.denominator == 1 else f"{float(value):.{1 - e}f}"
    forms = [f"{a} \\times 10^{{{e}}}", f"{a} \\cdot 10^{{{e}}}", f"{a}e{e}", f"{a}*10^{{{e}}}", plain,
        f"{a}\u00d710^{{{e}}}"]
    forms += [f"{a.replace('.', '')} \\times 10^{{{e - 1}}}", f"{a}E{e}", f"{a}\\times10^{{{e}}}"]
    others = [f"{a} \\times 10^{{{e + 1}}}", f"{a} \\times 10^{{{-e}}}", f"-{a} \\times 10^{{{e}}}",
        f"{a}1 \\times 10^{{{e}}}", a]
    return Thing(forms, [*others, f"{a} \\times 11^{{{e}}}", f"{a} + 10^{{{e}}}"])


LETTERS = [("x", "y", "z"), ("a", "b", "c"), ("p", "q", "r"), ("m", "n", "k"), ("s", "t", "h"), ("R", "h",
    "g"), ("t", "u", "v")]


@kind
def polynomial(rng: Rng) -> Thing:
    x, y, z = rng.choice(LETTERS)
    pool = [f"{x}^2", f"{x}{y}", f"{y}^2", x, y, "", f"{x}^3", f"{x}^2{y}", z, f"{x}{y}{z}"]
    terms = [(nonzero(rng, 9), letters) for letters in rng.sample(pool, rng.randint(2, 4))]
    if not any(letters for _, letters in terms):
        terms[0] = (3, x)
    forms = [poly(rng.sample(terms, len(terms)), rng.choice(("", " ", r"\cdot ", "*"))) for _ in range(3)]
    forms += [poly(terms).replace("^2", "^{2}"), poly(terms).replace("+", " + ").replace("-", " - ")]
    factor, letters = terms[0]
    rest = poly(terms[1:])
    forms += [f"{poly([(factor, letters)])}+\\left({rest}\\right)", f"-({poly([(-f, m) for f, m in terms])})"]
    others = [poly([(-factor, letters), *terms[1:]]), poly([(factor + 10, letters), *terms[1:]]), rest]
    others.append(poly([(factor, letters + "w"), *terms[1:]]))
    used = [letter for letter in (x, y, z) if any(letter in m for _, m in terms)]
    others += [poly(terms).replace(used[0], used[0].swapcase()), poly(terms).replace(used[0], "w")]
    if "^2" in poly(terms):
        others.append(poly(terms).replace("^2", "", 1))
    if "^3" in poly(terms):
        others.append(poly(terms).replace("^3", "^4", 1))
    return Thing(forms, others)


@kind
def factored(rng: Rng) -> Thing:
    x = rng.choice("xyntk")
    a, b, c = nonzero(rng, 9), nonzero(rng, 9), rng.randint(1, 5)
    if a == b:
        b = a + 1 or 1
    lead = "" if c == 1 else str(c)
    forms = [f"{lead}({x}{a:+})({x}{b:+})", f"{lead}({x}{b:+})({x}{a:+})",
        f"{lead}({x} {a:+})\\cdot({x}{b:+})"]
    forms += [poly([(c, f"{x}^2"), (c * (a + b), x), (c * a * b, "")]) if a + b else poly([(c, f"{x}^2"),
        (c * a * b, "")])]
    forms += [f"{lead}\\left({x}{a:+}\\right)\\left({x}{b:+}\\right)",
        f"{lead}{x}({x}{a + b:+})+{c * a * b}".replace("+-", "-")]
    others = [f"{lead}({x}{a:+})({x}{-b:+})", f"{lead}({x}{a:+})", f"{c + 1}({x}{a:+})({x}{b:+})",
        f"{lead}({x}{a:+})+({x}{b:+})"]
    return Thing(forms, [*others, f"{lead}({x}{a:+})({x}{b:+})^2", f"{lead}({x}{a:+})(w{b:+})",
        f"{lead}({x}{a:+}), ({x}{b:+})"])


@kind
def rational(rng: Rng) -> Thing:
    x, y, _ = rng.choice(LETTERS)
    a, b = rng.randint(1, 9), nonzero(rng, 9)
    top, bottom = rng.choice([(f"{a}{x}{b:+}", y), (f"{x}{b:+}", f"{x}+{abs(b) + a}"), (f"{y}",
        f"{a + 1}{x}"), (f"{x}^2{b:+}", f"{y}+{a}")])
    forms = [f"\\frac{{{top}}}{{{bottom}}}", f"({top})/({bottom})", f"\\dfrac{{{top}}}{{{bottom}}}",
        f"({top})({bottom})^{{-1}}"]
    forms += [f"\\frac{{1}}{{{bottom}}}\\left({top}\\right)", f"\\frac{{3({top})}}{{3({bottom})}}",
        f"\\frac{{-({top})}}{{-({bottom})}}"]
    others = [f"\\frac{{{bottom}}}{{{top}}}", f"-\\frac{{{top}}}{{{bottom}}}",
        f"\\frac{{{top}}}{{{bottom}}}+1", f"\\frac{{{top}}}{{({bottom})^2}}"]
    return Thing(forms, [*others, top, f"\\frac{{{top}+1}}{{{bottom}}}", f"\\frac{{{top}}}{{{bottom}+w}}"])


@kind
def trigonometry(rng: Rng) -> Thing:
    x, k = rng.choice(("x", r"\theta", "t", r"\alpha")), rng.randint(2, 5)
    return rng.choice(
        [
            Thing(
                [f"\\sin {x}", f"\\sin({x})", f"\\sin{{{x}}}", f"\\sin\\left({x}\\right)",
                    f"\\cos\\left(\\frac{{\\pi}}{{2}}-{x}\\right)"],
                [f"\\cos {x}", f"-\\sin {x}", f"\\sin {k}{x}", f"\\sin^2 {x}", f"\\tan {x}", f"\\csc {x}",
                    f"\\arcsin {x}"],
            ),
            Thing(
                [f"\\sin {k}{x}", f"\\sin({k} {x})", f"\\sin\\left({k}\\cdot {x}\\right)"],
                [f"{k}\\sin {x}", f"\\cos {k}{x}", f"\\sin {k + 1}{x}", f"\\sin {x}", f"\\sin^{k} {x}",
                    f"(\\sin {k}){x}"],
            ),
            Thing(
                [f"\\sin^2 {x}", f"1-\\cos^2 {x}", f"(\\sin {x})^2", f"\\sin^{{2}}({x})",
                    f"\\frac{{1-\\cos 2{x}}}{{2}}"],
                [f"\\cos^2 {x}", f"\\sin {x}^2", f"\\sin {x}", f"1-\\sin^2 {x}", f"\\sin 2{x}",
                    f"-\\sin^2 {x}"],
            ),
            Thing(
                [f"{k}\\tan {x}+1", f"1+{k}\\tan({x})", f"1+\\frac{{{k}\\sin {x}}}{{\\cos {x}}}",
                    f"{k}\\cdot\\tan {x} + 1"],
                [f"{k}\\cot {x}+1", f"{k}\\tan {x}-1", f"\\tan {k}{x}+1", f"{k}\\tan({x}+1)",
                    f"{k + 1}\\tan {x}+1"],
            ),
            Thing(
                [r"\frac{\sqrt{3}}{2}", r"\sin 60^\circ", r"\sin\frac{\pi}{3}", r"\cos 30^{\circ}",
                    r"\cos\left(\frac{\pi}{6}\right)", r"\frac{1}{2}\sqrt3"],
                [r"\sin 30^\circ", r"\cos 60^\circ", r"\frac{\sqrt{2}}{2}", r"\frac{1}{2}",
                    r"-\frac{\sqrt{3}}{2}", r"\sin 60", r"\frac{2}{\sqrt{3}}"],
            ),
        ]
    )


@kind
def logarithm(rng: Rng) -> Thing:
    a, n, x = rng.choice((2, 3, 5, 7)), rng.randint(2, 6), rng.choice("xyt")
    return rng.choice(
        [
            Thing(
                [f"{n}\\ln {a}", f"\\ln {a**n}", f"\\ln({a}^{n})", f"{n} \\ln({a})", f"\\ln {a}\\cdot {n}",
                    f"{n}\\ln{{{a}}}"],
                [f"{n + 1}\\ln {a}", f"\\ln {a * n + 7 * a}", f"-{n}\\ln {a}", f"{n}\\ln {a + 1}", str(n),
                    f"{n}+\\ln {a}", f"{n}\\log_{{10}} {a}"],
            ),
            Thing(
                [f"\\log_{{{a}}} {x}", f"\\log_{a}({x})", f"\\frac{{\\ln {x}}}{{\\ln {a}}}",
                    f"\\log_{{{a}}}{{{x}}}"],
                [f"\\log_{{{a + 1}}} {x}", f"\\log_{{{x}}} {a}", f"\\ln {x}", f"\\log_{a} {n}{x}",
                    f"-\\log_{a} {x}", f"\\log_{a} {x}^{n}"],
            ),
            Thing(
                [f"\\log_{{{a}}} {a**n}", str(n), f"\\log_{a}({a**n})",
                    f"\\frac{{\\log {a**n}}}{{\\log {a}}}"],
                [f"\\log_{{{a}}} {a**n + 1}", str(n + 1), f"\\log_{{{a**n}}} {a}", str(-n),
                    f"\\frac{{\\log {a**n}}}{{\\log {a + 1}}}"],
            ),
            Thing(
                [f"e^{{{n}{x}}}", f"(e^{x})^{n}", f"\\exp({n}{x})", f"e^{{{n} {x}}}",
                    f"\\frac{{1}}{{e^{{-{n}{x}}}}}", f"\\mathrm{{e}}^{{{n}{x}}}"],
                [f"e^{{{n + 1}{x}}}", f"e^{{-{n}{x}}}", f"{n}e^{x}", f"e^{n}{x}", f"e^{{{n}}}", f"e^{{{n}w}}",
                    f"2^{{{n}{x}}}", f"-e^{{{n}{x}}}"],
            ),
            Thing(
                [f"{n}e^{{{a}}}-1", f"-1+{n}e^{a}", f"{n}\\cdot e^{a} - 1", f"{n}\\exp({a})-1"],
                [f"{n}e^{{-{a}}}-1", f"{n}e^{a}+1", f"{n}e-1", f"{n}e^{{{a}-1}}", f"{n + 1}e^{a}-1",
                    f"{n}\\pi^{a}-1"],
            ),
        ]
    )


@kind
def counting(rng: Rng) -> Thing:
    n, k = rng.randint(6, 12), rng.randint(2, 4)
    c = comb(n, k)
    return rng.choice(
        [
            Thing(
                [f"\\binom{{{n}}}{{{k}}}", f"{c}", f"\\dbinom{{{n}}}{{{k}}}",
                    f"\\frac{{{n}!}}{{{k}!{n - k}!}}", f"{{{n} \\choose {k}}}", f"\\binom{{{n}}}{{{n - k}}}"],
                [f"\\binom{{{n + 1}}}{{{k}}}", f"\\binom{{{n}}}{{{k}}}+1", f"{c + 1}",
                    f"\\frac{{{n}!}}{{{k}!}}", f"\\frac{{{n}}}{{{k}}}", f"-{c}"],
            ),
            Thing(
                [f"{n}!", str(factorial(n)), f"{n}\\cdot {n - 1}!", r"\cdot ".join(map(str, range(n, 0, -1))),
                    f"{factorial(n):,}", f"{n} \\times ({n - 1})!"],
                [f"{n - 1}!", str(n), f"{n}!+1", f"{n + 1}!", f"-{n}!", f"\\frac{{1}}{{{n}!}}", f"{n}!x"],
            ),
            Thing(
                ["n!", "n(n-1)!", r"n\cdot(n-1)!", r"\frac{(n+1)!}{n+1}", "1 \\cdot n!"],
                ["(n-1)!", "n", "(n+1)!", "n!+1", "m!", "2n!", "(2n)!", "N!"],
            ),
            Thing(
                [r"\binom{n}{2}", r"\frac{n(n-1)}{2}", r"\frac{n^2-n}{2}", r"\frac12 n(n-1)",
                    r"\frac{n!}{2(n-2)!}"],
                [r"\binom{n}{3}", r"\frac{n(n+1)}{2}", r"\frac{n^2}{2}", r"\binom{2}{n}", r"\binom{m}{2}",
                    r"n(n-1)"],
            ),
        ]
    )


def element(rng: Rng) -> tuple[str, str]:
    """A number or small expression, and the same in another form."""
    if rng.random() < 0.5:
        n = nonzero(rng, 20)
        return str(n), rng.choice((str(n), f"{n}.0", f"\\frac{{{2 * n}}}{{2}}"))
    if rng.random() < 0.7:
        value = proper(rng)
        return fraction(value), rng.choice((fraction(value, "dfrac"),
            f"{value.numerator}/{value.denominator}"))
    return rng.choice(((r"2\sqrt{3}", r"\sqrt{12}"), (r"\frac{\pi}{6}", r"\pi/6"), ("a+1", "1+a"), ("2k",
        r"2\cdot k")))


def elements(rng: Rng, count: int) -> tuple[list[str], list[str]]:
    found: dict[str, str] = {}
    while len(found) < count:
        one, other = element(rng)
        found[one] = other
    return list(found), list(found.values())


@kind
def tuples(rng: Rng) -> Thing:
    ours, same = elements(rng, rng.randint(2, 4))
    forms = [f"({', '.join(ours)})", f"({','.join(same)})", f"\\left({', '.join(same)}\\right)",
        "\\left( " + " ,\\, ".join(ours) + " \\right)"]
    forms += [f"\\langle {', '.join(ours)} \\rangle", f"\\bigl({', '.join(ours)}\\bigr)"]
    moved = next(list(order) for order in permutations(ours) if list(order) != ours)
    others = [f"({', '.join(moved)})", f"({', '.join(ours[:-1])}, 77)", f"({', '.join(ours)}, 5)",
        f"\\{{{', '.join(ours)}\\}}"]
    others += [f"({', '.join([*ours[:-1], '-(' + ours[-1] + ')'])})", f"({', '.join(ours[:-1])})"]
    others += [f"({', '.join(ours[:-1])}, {ours[0]})"]
    return Thing(forms, others)


@kind
def sets(rng: Rng) -> Thing:
    ours, same = elements(rng, rng.randint(2, 4))
    forms = [f"\\{{{', '.join(ours)}\\}}", f"\\{{{', '.join(shuffled(rng, same))}\\}}",
        f"\\left\\{{{','.join(shuffled(rng, ours))}\\right\\}}"]
    forms += [f"\\lbrace {', '.join(ours)} \\rbrace", f"x \\in \\{{{', '.join(ours)}\\}}",
        f"\\{{ {', '.join([*ours, ours[0]])} \\}}"]
    others = [f"\\{{{', '.join([*ours[:-1], '77'])}\\}}", f"\\{{{', '.join(ours[:-1])}\\}}",
        f"\\{{{', '.join([*ours, '55'])}\\}}"]
    others += [f"({', '.join(ours)})", f"[{', '.join(ours)}]", f"\\{{({', '.join(ours)})\\}}",
        f"\\{{{', '.join([*ours[:-1], ours[0]])}\\}}"]
    return Thing(forms, others, [", ".join(shuffled(rng, ours))])


@kind
def lists(rng: Rng) -> Thing:
    ours, same = elements(rng, rng.randint(2, 4))
    forms = [", ".join(ours), ",".join(shuffled(rng, same)),
        f"{', '.join(ours[:-1])} \\text{{ and }} {ours[-1]}", r",\ ".join(ours)]
    forms += [", ".join(f"x={one}" for one in ours), f"{', '.join(ours[:-1])} and {ours[-1]}",
        r" \text{ or } ".join(f"x={one}" for one in ours)]
    others = [", ".join([*ours, ours[0]]), ", ".join([*ours[:-1], "77"]), ", ".join(ours[:-1]), ours[0],
        ", ".join([*ours, "55"])]
    return Thing(forms, [*others, ", ".join([*ours[:-1], f"-({ours[-1]})"]), ", ".join([*ours[:-1],
        ours[0]])])


@kind
def plus_minus(rng: Rng) -> Thing:
    a, b = rng.randint(1, 9), rng.choice((2, 3, 5, 7))
    forms = [f"{a}\\pm\\sqrt{{{b}}}", f"{a}+\\sqrt{b}, {a}-\\sqrt{b}",
        f"\\{{{a}-\\sqrt{{{b}}}, {a}+\\sqrt{{{b}}}\\}}", f"x = {a} \\pm \\sqrt{{{b}}}"]
    forms += [f"x={a}+\\sqrt{b} \\text{{ or }} x={a}-\\sqrt{b}", f"\\frac{{{2 * a}\\pm 2\\sqrt{{{b}}}}}{{2}}"]
    return Thing(forms, [f"{a}+\\sqrt{b}", f"-{a}\\pm\\sqrt{b}", f"{a}\\pm\\sqrt{{{b + 1}}}",
        f"\\pm\\sqrt{b}", f"\\pm({a}+\\sqrt{b})"])


@kind
def interval(rng: Rng) -> Thing:
    low = rng.randint(-20, 15)
    high, left, right = low + rng.randint(1, 20), rng.choice("[("), rng.choice("])")
    a, b = (r"-\infty", str(high)) if rng.random() < 0.2 else (str(low),
        r"\infty") if rng.random() < 0.25 else (str(low), str(high))
    left, right = ("(" if "infty" in a else left), (")" if "infty" in b else right)
    inside = f"{left}{a}, {b}{right}"
    forms = [inside, f"\\left{left}{a},{b}\\right{right}", f"x \\in {inside}", f"{left}{a},\\ {b}{right}",
        inside.replace(r"\infty", "\u221e")]
    flipped = {"(": "[", "[": "(", ")": "]", "]": ")"}
    others = [f"{left}{a}, {high + 7}{right}", f"\\{{{a}, {b}\\}}",
        f"{left}{a}, {b}{right} \\cup (90, 91)" if "inf" in a else f"(-99, -98) \\cup {left}{a}, {b}{right}"]
    if "infty" not in a:
        others += [f"{flipped[left]}{a}, {b}{right}", f"{left}{low - 1}, {b}{right}"]
    if "infty" not in b:
        others += [f"{left}{a}, {b}{flipped[right]}"]
    return Thing(forms, others)


@kind
def union(rng: Rng) -> Thing:
    a, b, c, d = sorted(rng.sample(range(-20, 20), 4))
    l1, r1, l2, r2 = (rng.choice(pair) for pair in ("[(", "])", "[(", "])"))
    one, two = f"{l1}{a}, {b}{r1}", f"{l2}{c}, {d}{r2}"
    if rng.random() < 0.4:
        one, two = f"(-\\infty, {b}{r1}", f"{l2}{c}, \\infty)"
    forms = [f"{one} \\cup {two}", f"{two} \\cup {one}", f"{one}\\cup{two}", f"x \\in {one} \\cup {two}",
        f"\\left{one[:-1]}\\right{r1} \u222a {two}"]
    flip = {"(": "[", "[": "("}[l2]
    return Thing(forms, [f"{one} \\cap {two}", one, two, f"{one} \\cup {flip}{two[1:]}", f"{one} \\cap {two}",
        f"{one} \\cup {l2}{c + 1}{two[two.index(','):]}"])


@kind
def inequality(rng: Rng) -> Thing:
    x, a = rng.choice("xtny"), rng.randint(-9, 9)
    b = a + rng.randint(2, 9)
    less, more = rng.choice((("<", ">"), (r"\le", r"\ge"), (r"\leq", r"\geq"), (r"\leqslant", r"\geqslant")))
    if rng.random() < 0.5:
        other = r"\le" if less == "<" else "<"
        forms = [f"{x} {more} {a}", f"{a} {less} {x}", f"{x}{more} {a}", f"{x} {more} {2 * a}/2"]
        if less != "<":
            forms += [f"{x} >= {a}", f"{x} \u2265 {a}"]
        return Thing(forms, [f"{x} {less} {a}", f"{x} {other} {a}", f"{a} {other} {x}", f"{x} {more} {a + 1}",
            f"{x} = {a}", f"w {more} {a}", str(a), f"{x} \\ne {a}"])
    forms = [f"{a} {less} {x} {less} {b}", f"{b} {more} {x} {more} {a}",
        f"{x} {more} {a} \\text{{ and }} {x} {less} {b}", f"{a}{less} {x}{less} {b}"]
    weak = r"\le" if less == "<" else "<"
    others = [f"{a} {less} {x} {less} {b + 1}", f"{a} {weak} {x} {less} {b}", f"{a} {less} {x}",
        f"{x} {less} {a} \\text{{ or }} {x} {more} {b}", f"{b} {less} {x} {less} {a}"]
    left, right = ("(", ")") if less == "<" else ("[", "]")
    return Thing(forms, [*others, f"{a} {less} w {less} {b}"], [f"{left}{a}, {b}{right}"])


@kind
def matrix(rng: Rng) -> Thing:
    rows, columns = rng.choice(((2, 2), (2, 3), (3, 1), (2, 1), (3, 3)))
    numbers = rng.sample(range(-30, 30), rows * columns)
    cells = [[str(n) for n in numbers[r * columns : (r + 1) * columns]] for r in range(rows)]

    def typeset(cells: list[list[str]], name: str = "pmatrix", gap: str = " & ", line: str = r" \\ ") -> str:
        return f"\\begin{{{name}}}{line.join(gap.join(row) for row in cells)}\\end{{{name}}}"

    forms = [typeset(cells), typeset(cells, "bmatrix"), typeset(cells, gap="&", line=r"\\"),
        typeset(cells) .replace(r"\end", r"\\ \end")]
    forms.append(typeset([[f"{n}.0" if "-" in n else f"\\frac{{{n}}}{{1}}" for n in row] for row in cells]))
    changed = [row[:] for row in cells]
    changed[-1][-1] = str(numbers[-1] + 61)
    others = [typeset(changed), typeset(cells[::-1]), typeset([list(column) for column in zip(*cells,
        strict=True)]), typeset(cells[:-1])]
    return Thing(forms, [*others, typeset([[f"-{n}".replace("--", "") for n in row] for row in cells])])


@kind
def equation(rng: Rng) -> Thing:
    m, b, k = rng.randint(2, 9), nonzero(rng, 9), rng.randint(2, 4)
    if rng.random() < 0.5:
        value = proper(rng) if rng.random() < 0.5 else Fraction(nonzero(rng, 99))
        x, text = rng.choice(("x", "y", "n", "a_1", r"\theta")), fraction(value)
        others = [f"{x}={fraction(-value)}", f"{x}={fraction(value + 1)}", f"w={text}",
            f"{fraction(value + 1)}={text}", f"{x}={text}, {x}=0", f"{x}={text}+{x}", f"{x}>{text}"]
        return Thing([f"{x}={text}", f"{x} = {fraction(value, 'dfrac')}", f"{text} = {x}", f"{x}={value}"],
            others, [text])
    forms = [f"y={m}x{b:+}", f"y = {b} + {m}x", f"{m}x{b:+}=y", f"y-{m}x={b}", f"{m}x-y{b:+}=0",
        f"{k}y={k * m}x{k * b:+}", f"y={m}\\cdot x{b:+}"]
    others = [f"y={m}x{-b:+}", f"y=-{m}x{b:+}", f"y={m + 1}x{b:+}", f"x={m}y{b:+}", f"y={m}x",
        f"y={m}x^2{b:+}", f"z={m}x{b:+}", f"y>{m}x{b:+}"]
    return Thing(forms, others)


@kind
def function(rng: Rng) -> Thing:
    m, b, name = rng.randint(2, 9), nonzero(rng, 9), rng.choice(("y", "f(x)", "g(x)", "h(x)", "P(x)",
        "f^{-1}(x)"))
    forms = [f"{name}={m}x{b:+}", f"{name} = {b} + {m}x", f"{name}={m}\\left(x+\\frac{{{b}}}{{{m}}}\\right)",
        f"{m}x{b:+}"]
    return Thing(forms, [f"{name}={m}x{-b:+}", f"{name}={m + 1}x{b:+}", f"{name}={m}t{b:+}", f"{m}x",
        f"{name}={m}x{b:+}+x^2"])


@kind
def system(rng: Rng) -> Thing:
    a, b = rng.sample(range(-20, 20), 2)
    forms = [f"x={a}, y={b}", f"y={b}, x={a}", f"x = {a} \\text{{ and }} y = {b}", f"(x,y)=({a},{b})",
        f"x={a},\\ y={b}", f"x={a}; y={b}"]
    return Thing(forms, [f"x={b}, y={a}", f"x={a}, y={b + 1}", f"x={a}", f"x={a}, z={b}", f"({b}, {a})",
        f"x={a}, y={-b or 7}"], [f"({a}, {b})"])


@kind
def ratio(rng: Rng) -> Thing:
    a, b = rng.choice([(a, b) for a in range(1, 10) for b in range(10, 31) if gcd(a, b) == 1])
    if rng.random() < 0.5:
        forms = [f"{a}:{b}", f"{a} : {b}", f"{a}\\colon {b}", f"{a}{{:}}{b}", f"{a} \\colon {b}",
            f"{a}\\text{{ to }}{b}", f"\\frac{{{a}}}{{{b}}}"]
        return Thing(forms[:-1], [f"{b}:{a}", f"{a}:{b + 1}", f"{a}:{b}:1", str(a), f"-{a}:{b}"], [forms[-1],
            f"{3 * a}:{3 * b}"])
    c = rng.randint(31, 60)
    others = [f"{b}:{a}:{c}", f"{a}:{c}:{b}", f"{a}:{b}", f"{a}:{b}:{c + 1}", f"{c}:{b}:{a}"]
    return Thing([f"{a}:{b}:{c}", f"{a} : {b} : {c}", f"{a}\\colon{b}\\colon{c}", f"{2 * a}:{2 * b}:{2 * c}"],
        others)


@kind
def complex_number(rng: Rng) -> Thing:
    a, b = nonzero(rng, 9), nonzero(rng, 9)
    if abs(a) == abs(b):
        b += 10
    forms = [f"{a}{b:+}i", f"{b}i{a:+}", f"{a} {'+' if b > 0 else '-'} {abs(b)} i", f"{a}{b:+}\\mathrm{{i}}",
        f"({a}{b:+}i)", f"\\frac{{{2 * a}{2 * b:+}i}}{{2}}", f"{a}{b:+}\\cdot i"]
    forms += [f"i({b}{-a:+}i)"]
    if rng.random() < 0.25:
        k = rng.choice((1, 2, 5))
        forms = [f"e^{{{k}i\\pi/3}}" if k > 1 else r"e^{i\pi/3}", {1: r"\frac{1}{2}+\frac{\sqrt{3}}{2}i",
            2: r"-\frac12+\frac{\sqrt3}{2}i", 5: r"\frac{1}{2}-\frac{\sqrt{3}}{2}i"}[k],
                f"\\cos\\frac{{{k}\\pi}}{{3}}+i\\sin\\frac{{{k}\\pi}}{{3}}",
                f"e^{{\\frac{{{k}\\pi i}}{{3}}}}"]
        return Thing(forms, [f"e^{{-{k}i\\pi/3}}", f"e^{{{k}i\\pi/4}}", f"-e^{{{k}i\\pi/3}}",
            f"e^{{{k}\\pi/3}}", r"\frac12", f"i e^{{{k}i\\pi/3}}"])
    return Thing(forms, [f"{a}{-b:+}i", f"{-a}{b:+}i", f"{b}{a:+}i", f"{a}{b:+}", f"{a}", f"{b}i",
        f"{a}{b:+}j", f"{a}{b + 1:+}i", f"({a}, {b})"])


@kind
def angle(rng: Rng) -> Thing:
    n = rng.randint(1, 359)
    forms = [f"{n}^\\circ", f"{n}^{{\\circ}}", f"{n}\u00b0", f"{n}\\text{{ degrees}}", f"{n} degrees",
        f"{n}\\degree", f"{n} ^\\circ", f"\\ang{{{n}}}", str(n)]
    others = [f"{n + 1}^\\circ", f"-{n}^\\circ", f"{n}0^\\circ", f"{n}x^\\circ" if n % 2 else f"{n}^2",
        f"{n}\\pi", f"\\sin {n}^\\circ"]
    return Thing(forms, others, [f"\\angle ABC = {n}^\\circ"])


@kind
def radian(rng: Rng) -> Thing:
    p, q = rng.choice(((1, 3), (2, 3), (3, 4), (5, 6), (7, 6), (3, 2)))
    top = "\\pi" if p == 1 else f"{p}\\pi"
    forms = [f"\\frac{{{top}}}{{{q}}}", f"\\frac{{{p}}}{{{q}}}\\pi", f"{top}/{q}",
        f"\\pi\\cdot\\frac{{{p}}}{{{q}}}", f"\\frac{{{top}}}{{{q}}}\\text{{ radians}}", f"{p}\u03c0/{q}"]
    return Thing(forms, [f"\\frac{{{p}}}{{{q}}}", f"-\\frac{{{top}}}{{{q}}}",
        f"\\frac{{{q}\\pi}}{{{p}}}" if p != q else "9", f"\\frac{{{p + q}\\pi}}{{{q}}}",
        f"\\frac{{{top}}}{{{q}}}i", f"\\frac{{{p}\\pi^2}}{{{q}}}"])


UNITS = [
    # One unit in several forms, forms with another factor, other units.
    (["km", r"\text{km}", r"\text{ km}", r"\mathrm{km}", r"\ \text{kilometers}", " kilometers"], (1000, "m"),
        ["kg", "s", r"\text{km}^2", "h"]),
    (["cm", r"\text{ cm}", r"\mathrm{\ cm}", r"\,\text{cm}"], (10, "mm"), [r"\text{cm}^2", r"\text{cm}^3",
        "kg", "min"]),
    (["cm^2", r"\text{cm}^2", r"\text{ cm}^{2}", r"\mathrm{cm}^2", r"\text{ square centimeters}",
        r"\text{ cm²}"], (100, r"\text{mm}^2"), [r"\text{cm}^3", "cm", r"\text{kg}"]),
    ([r"\text{km/h}", r"\text{ km/h}", r"\frac{\text{km}}{\text{h}}", "km/h", r"\text{ km}/\text{h}",
        r"\text{ kilometers per hour}", r"\text{km}\cdot\text{h}^{-1}"], (1000, r"\text{m/h}"), [r"\text{km}",
        r"\text{h/km}", r"\text{kg/h}"]),
    ([r"\text{m/s}^2", r"\frac{\text{m}}{\text{s}^2}", "m/s^2", r"\text{ m/s}^{2}", r"\,\mathrm{m/s^2}",
        r"\text{ m}\cdot\text{s}^{-2}", r"\text{ meters per second squared}"], (100, r"\text{cm/s}^2"),
        [r"\text{m/s}", r"\text{m}", r"\text{s}^2/\text{m}", r"\text{kg/s}^2"]),
    (["hours", r"\text{ hours}", r"\text{ h}", r"\text{ hrs}", r"\ \text{hours}"], (60, r"\text{ minutes}"),
        [r"\text{ km}", r"\text{ km/h}", r"\text{ kg}"]),
    (["kg", r"\text{ kg}", r"\,\mathrm{kg}", r"\text{ kilograms}"], (1000, r"\text{ g}"), [r"\text{ km}",
        r"\text{ L}", r"\text{ kg/m}"]),
    ([r"\text{ feet}", r"\text{ ft}", " feet", "ft"], (12, r"\text{ inches}"), [r"\text{ ft}^2",
        r"\text{ lb}", r"\text{ hours}"]),
]  # fmt: skip


@kind
def unit(rng: Rng) -> Thing:
    n, (names, (factor, smaller), others) = rng.randint(2, 99), rng.choice(UNITS)
    forms = [str(n) + ("" if name[0] in "\\ " else " ") + name for name in names]
    if names[0] == "km":
        forms += [f"\\SI{{{n}}}{{km}}", f"\\qty{{{n}}}{{\\km}}", f"\\SI{{{n}}}{{\\kilo\\metre}}"]
    if "km/h" in names:
        forms += [f"\\SI{{{n}}}{{\\km\\per\\hour}}", f"\\qty{{{n}}}{{km/h}}"]
    wrong = [forms[rng.randrange(len(names))].replace(str(n), str(n + 1), 1), "-" + forms[1]]
    wrong += [f"{n} {other}" for other in others]
    wrong += [f"{n * factor} {names[1]}", f"{n + 1} {smaller}", f"{n}x {names[1]}"]
    return Thing(forms, wrong, [str(n), f"{n * factor} {smaller}"])


@kind
def counted(rng: Rng) -> Thing:
    n, word = rng.randint(2, 999), rng.choice(("apples", "eggs", "students", "ways", "cookies", "marbles",
        "pages"))
    forms = [str(n), f"{n}\\text{{ {word}}}", f"{n} {word}", f"\\text{{{n} {word}}}", f"{n}~\\text{{{word}}}"]
    return Thing(forms, [f"{n + 1}\\text{{ {word}}}", f"{n}0 {word}", f"-{n}", f"\\text{{{n + 2} {word}}}",
        f"{n} + x"])


@kind
def magnitude(rng: Rng) -> Thing:
    n, (word, size) = rng.choice(("3", "70", "2.5", "12")), rng.choice((("million", 10**6), ("thousand",
        10**3), ("billion", 10**9)))
    value = int(Fraction(n) * size)
    forms = [f"{n} {word}", f"{n}\\text{{ {word}}}", str(value), f"{value:,}", f"{n}~\\text{{{word}}}"]
    if word == "thousand":
        forms += [f"{n}k", f"{n}K", f"{n}\\text{{k}}"]
    return Thing(forms, [f"{value}0", str(value + 1), n, f"1{n} {word}", f"-{n} {word}"])


@kind
def choice(rng: Rng) -> Thing:
    a, b, c = sorted(rng.sample("ABCDE", 3))
    if rng.random() < 0.5:
        forms = [a, f"({a})", f"\\text{{{a}}}", f"\\textbf{{({a})}}", f"\\mathrm{{{a}}}", f"\\text{{({a})}}",
            f"\\mathbf{{{a}}}"]
        others = [b, f"({b})", f"\\text{{{c}}}", f"{a}, {b}", f"{a}{b}", f"\\textbf{{({b})}} {a}", f"{a}^2",
            f"{a}'"]
        return Thing(forms, others, [f"\\text{{Option }} {a}", f"{a}.", f"({a}) 17"])
    forms = [f"{a}, {c}", f"{a}{c}", f"{c}, {a}", f"\\text{{{a} and {c}}}", f"({a}), ({c})",
        f"{a} \\text{{ and }} {c}", f"\\text{{{a}, {c}}}", f"{a},{c}"]
    return Thing(forms, [a, c, f"{a}, {b}", f"{a}{b}{c}", f"{b}{c}", f"{a}, {b}, {c}", f"({b})"])


@kind
def word(rng: Rng) -> Thing:
    one, two = rng.sample(("yes", "no", "true", "false", "Monday", "Tuesday", "Alice", "parabola", "ellipse",
        "even", "odd", "red"), 2)
    forms = [one, f"\\text{{{one}}}", one.capitalize(), f"\\text{{ {one.upper()} }}", f"\\mathrm{{{one}}}",
        f"\\textbf{{{one}}}", f"``{one}''"]
    return Thing(forms, [two, f"\\text{{{two}}}", f"\\text{{not {one}}}", one[::-1] + "x",
        f"\\text{{{one} and {two}}}", "7"])


@kind
def base(rng: Rng) -> Thing:
    b = rng.randint(3, 9)
    digits = "1" + "".join(str(rng.randrange(b)) for _ in range(rng.randint(2, 4)))
    forms = [f"{digits}_{b}", f"{digits}_{{{b}}}", f"({digits})_{b}", f"{digits}\\text{{ base }}{b}",
        f"{digits}_{{\\text{{{b}}}}}"]
    return Thing(forms, [f"{digits}_{b + 1}", f"{digits}0_{b}", f"{int(digits) + 1}_{{{b}}}",
        f"-{digits}_{b}"], [digits])


@kind
def clock(rng: Rng) -> Thing:
    h, m = rng.randint(1, 12), rng.choice((5, 8, 15, 30, 45, 50))
    forms = [f"{h}:{m:02d}\\text{{ p.m.}}", f"{h}:{m:02d} PM", f"{h}:{m:02d}\\text{{ pm}}",
        f"{h}:{m:02d}\\,\\text{{PM}}"]
    return Thing(forms, [f"{h}:{m:02d}\\text{{ a.m.}}", f"{h}:{m + 1:02d}\\text{{ p.m.}}",
        f"{h % 12 + 1}:{m:02d} PM", f"\\frac{{{h}}}{{{m}}}"], [f"{h}:{m:02d}"])


@kind
def named(rng: Rng) -> Thing:
    return rng.choice(
        [
            Thing(["x_1+x_2", "x_{1}+x_{2}", "x_2 + x_1", "x\u2081+x\u2082"], ["x_1+x_3", "x+x_2", "x_1-x_2",
                "x_1x_2", "X_1+X_2", "2x"]),
            Thing(["y''+2y'", "2y'+y''", r"y^{\prime\prime}+2y^{\prime}", r"y''+2\cdot y'"], ["y'+2y''",
                "y''+2y", "y'+2y'", "y''-2y'", "3y"]),
            Thing([r"\alpha+\beta", r"\beta + \alpha", "\u03b1+\u03b2"], [r"\alpha-\beta", r"\alpha",
                r"\alpha+\gamma", r"\alpha\beta", "a+b", r"\alpha+2\beta"]),
            Thing([r"\overline{AB}", r"\overline {AB}"], [r"\overline{AC}", r"\vec{AB}", r"2\overline{AB}"]),
            Thing([r"\vec{a}+\vec{b}", r"\vec b+\vec a", r"\overrightarrow{a}+\overrightarrow{b}"],
                [r"\vec{a}-\vec{b}", r"\vec{a}", r"\vec{a}+\vec{c}", r"\vec{a}\cdot\vec{b}"]),
            Thing([r"|x-1|", r"\left|x-1\right|", r"\lvert x-1\rvert", "|1-x|"], ["x-1", "1-x", "|x+1|",
                "|x|-1", "-|x-1|", "|y-1|"]),
            Thing([r"|a|+|b|", r"\left|b\right|+\left|a\right|"], ["|a+b|", "|a|-|b|", "a+b", "|a|+b"]),
            Thing([r"\lfloor x \rfloor", r"\left\lfloor x\right\rfloor"], [r"\lceil x\rceil", "x",
                r"\lfloor y \rfloor", r"\lfloor x\rfloor+1"]),
            Thing([r"\bar{z}+1", r"1+\bar z", r"\overline{z}+1"], ["z+1", r"\bar{z}", r"\bar{w}+1",
                r"\bar{z}-1"]),
            Thing([r"\infty", "\u221e", r"+\infty"], [r"-\infty", "0", r"\emptyset", "8"]),
            Thing([r"\mathbb{R}", r"\mathbb R", r"\text{all real numbers}", "\u211d"], [r"\mathbb{Q}",
                r"\emptyset", "R", r"\mathbb{Z}"]),
            Thing(["f(x)=x^2+1", "f(x)=1+x^2", "f(x) = x^{2}+1"], ["f(x)=x^2-1", "f(x)=x+1", "f'(x)=x^2+1",
                "g(x)=x^2+1", "f(x)=2x"], ["x^2+1"]),
            Thing([r"\frac{dy}{dx}=2x", r"\dfrac{dy}{dx} = 2x", r"\frac{dy}{dx}=x+x"], [r"\frac{dx}{dy}=2x",
                r"\frac{dy}{dx}=3x", r"\frac{dy}{dx}=2y"], ["2x"]),
        ]
    )


def apart(*groups: str) -> Callable[[Rng], Thing]:
    """Objects that all differ, a group each with its forms between ` ;; `."""

    def make(rng: Rng) -> Thing:
        things = [group.split(" ;; ") for group in groups]
        ours = things.pop(rng.randrange(len(things)))
        return Thing(ours, [form for thing in things for form in thing])

    return make


KINDS["sums"] = apart(
    r"\int_0^1 x\,dx ;; \int_{0}^{1} x dx",
    r"\int_0^2 x\,dx",
    r"\int_0^1 x^2\,dx",
    r"\sum_{k=1}^{n} k ;; \sum_{k=1}^n k",
    r"\sum_{k=1}^{n} k^2",
    r"\sum_{k=0}^{n+1} k",
    r"\lim_{x\to 0} f(x)",
    r"\lim_{x\to 1} f(x)",
)
KINDS["built"] = apart(
    r"\{x \mid x > 0\} ;; \{x : x > 0\} ;; \{ x \mid x>0 \}",
    r"\{x \mid x \ge 0\}",
    r"\{x \mid x < 0\}",
    r"\{x \mid x > 1\}",
    r"\mathbb{R} \setminus \{0\} ;; \mathbb{R}\setminus\{0\}",
    r"\mathbb{R} \setminus \{1\}",
    r"\mathbb{R} \setminus \{0, 1\} ;; \mathbb{R} \setminus \{1, 0\}",
    r"\mathbb{Z} \setminus \{0\}",
)
KINDS["congruence"] = apart(
    r"x \equiv 3 \pmod{7} ;; x \equiv 3 \pmod 7 ;; x\equiv 3 \ (\text{mod } 7) ;; x \equiv 3 \mod 7",
    r"x \equiv 3 \pmod{5}",
    r"x \equiv 4 \pmod{7}",
    r"x \equiv -3 \pmod{7}",
    r"x \equiv 7 \pmod{3}",
    r"y \equiv 3 \pmod{7}",
    r"x = 3",
    r"x \equiv 3",
)
KINDS["for integers"] = apart(
    r"\frac{\pi}{4}+k\pi, k\in\mathbb{Z} ;; \frac{\pi}{4}+n\pi\ (n \in \mathbf{Z})"
    r" ;; k\pi+\frac{\pi}{4} \text{ where } k \text{ is an integer} ;; k\pi + \pi/4 \text{ for } k\in Z",
    r"\frac{\pi}{4}+2k\pi, k\in\mathbb{Z} ;; 2n\pi+\frac{\pi}{4}, n\in\mathbb{Z}",
    r"\frac{\pi}{3}+k\pi, k\in\mathbb{Z}",
    r"\frac{\pi}{4}+k\pi, k\in\mathbb{N}",
    r"(k\pi, k\pi+\frac{\pi}{2}), k\in\mathbb{Z} ;; (n\pi, n\pi+\frac{\pi}{2})(n\in\mathbf{Z})",
    r"[k\pi, k\pi+\frac{\pi}{2}], k\in\mathbb{Z}",
    r"\frac{\pi}{4}",
)
KINDS["built sets"] = apart(
    r"\{x \mid x>2\} ;; \{x : x > 2\} ;; \{x\in\mathbb{R} \mid x>2\} ;; \{y \mid y>2\}",
    r"\{x \mid x<2\} ;; \{x | 2 > x\}",
    r"\{x \mid x\ge2\}",
    r"\{x \mid x \ne 2\}",
    r"\{x\in\mathbb{Z} \mid x>2\}",
    r"\{x \mid 1<x\le2\} ;; \{x : 2\geq x>1\}",
    r"\{x \mid x<1 \text{ or } x>2\}",
    r"\{1,2\}",
    r"\{2\}",
)
KINDS["systems"] = apart(
    r"\begin{cases} x=1 \\ y=2 \end{cases} ;; \begin{cases} y=2 \\[2pt] x=1 \end{cases} ;; x=1, y=2"
    r" ;; \left\{\begin{array}{l} x=1, \\ y=2. \end{array}\right.",
    r"\begin{cases} x=2 \\ y=1 \end{cases}",
    r"\begin{cases} x=1 \\ y=3 \end{cases}",
    r"\begin{cases} x=1 \\ z=2 \end{cases}",
)
KINDS["dotted"] = apart(
    r"2, 4, 6, \ldots ;; 2, 4, 6, \dots ;; 2,4,6,...",
    r"2, 4, 8, \ldots",
    r"2, 4, 6",
    r"1, 4, 6, \ldots",
    r"2+4+6+\cdots",
    r"2+4+8+\cdots",
)
KINDS["geometry"] = apart(
    r"\triangle ABC ;; \triangle {ABC}",
    r"\triangle ABD",
    r"\angle ABC ;; \angle CBA",
    r"\angle BAC",
    r"AB = CD ;; CD = AB",
    r"AB = CE",
    r"AB \parallel CD",
    r"AB \perp CD",
    r"AB \perp CE",
    r"\triangle ABC \cong \triangle DEF",
    r"\triangle ABC \cong \triangle DFG",
)
KINDS["probability"] = apart("P(A|B) ;; P(A \\mid B)", "P(B|A)", "P(A)", "P(A \\cap B)", "P(A \\cup B)",
    "P(A|C)")
KINDS["quantities"] = apart(
    r"2\sqrt{3}\text{ cm} ;; 2\sqrt{3}~\mathrm{cm} ;; \sqrt{12}\text{ cm} ;; 20\sqrt{3}\text{ mm}",
    r"2\sqrt{3}\text{ cm}^2",
    r"3\sqrt{2}\text{ cm}",
    r"2\sqrt{3}\text{ m}",
    r"36\pi\text{ cm}^2 ;; 36\pi \text{ cm}^{2} ;; 36 \pi\ \text{square centimeters} ;; 36\pi~\mathrm{cm}^2",
    r"36\pi\text{ cm}^3",
    r"36\text{ cm}^2",
    r"\frac{3}{4}\text{ mile} ;; \frac34 \text{ miles} ;; 0.75\text{ miles} ;; 3960\text{ feet}",
    r"\frac{4}{3}\text{ mile}",
    r"\frac{3}{4}\text{ hour} ;; 45\text{ minutes} ;; 45 min",
    r"4\text{ hours and }30\text{ minutes} ;; 4 hours and 30 minutes ;; 4 hours 30 minutes"
    r" ;; 4.5\text{ hours} ;; 4 hours, and 30 minutes",
)
KINDS["solved"] = apart("x=5 ;; x = 5 ;; 5 = x ;; x = 2 + 3", "5x=25", "2x-11=0", "x=6", "y=5", "x^2=25")
KINDS["functions"] = apart(
    r"\sqrt{x+1} ;; (x+1)^{1/2} ;; (x+1)^{0.5} ;; \sqrt{1+x} ;; (1+x)^{\frac12}",
    r"\sqrt{x}+1",
    r"\sqrt{x-1}",
    r"\sqrt[3]{x+1} ;; (x+1)^{1/3}",
    r"\frac{1}{x+1} ;; (x+1)^{-1} ;; 1/(x+1) ;; \frac{x}{x^2+x}",
    r"\frac{1}{x}+1 ;; 1+x^{-1} ;; \frac{x+1}{x}",
    r"-\frac{1}{x+1}",
    r"\frac{1}{(x+1)^2}",
    r"\ln(x+1) ;; \ln(1+x) ;; \ln{(x+1)}",
    r"\ln x + 1 ;; 1+\ln x ;; \ln(ex)",
    r"\ln|x+1|",
    r"x\ln x ;; \ln(x)x ;; x \cdot \ln x",
    r"\ln^2 x ;; (\ln x)^2",
    r"2\ln x",
    r"\sin x\cos x ;; \cos x \sin x ;; \frac{1}{2}\sin 2x ;; \frac{\sin 2x}{2}",
    r"\sin(x\cos x)",
    r"\sin^{-1} x ;; \arcsin x ;; \arcsin(x)",
    r"\frac{1}{\sin x} ;; \csc x ;; (\sin x)^{-1}",
    r"e^{x+1} ;; e \cdot e^x ;; \exp(x+1)",
    r"e^x+1",
    r"xe^x ;; x e^{x} ;; e^x x",
    r"|x| ;; \sqrt{x^2} ;; \left|x\right|",
    r"x",
    r"x^{n+1} ;; x^n x ;; x \cdot x^{n}",
    r"x^n+1",
    r"2^{-x} ;; \frac{1}{2^x} ;; \left(\frac{1}{2}\right)^x ;; (1/2)^x",
    r"\frac{x^2-1}{x-1} ;; x+1",
)
KINDS["regions"] = apart(
    r"x < 1 \text{ or } x > 2 ;; x>2 \text{ or } x<1 ;; x < 1, x > 2 ;; x<1\ \text{or}\ x>2 ;; 2<x \lor 1>x",
    r"x \le 1 \text{ or } x > 2",
    r"x < 2 \text{ or } x > 1",
    r"x < 1",
    r"1 < x < 2 ;; 2 > x > 1 ;; x > 1 \text{ and } x < 2",
    r"x \ne 1 ;; x \neq 1 ;; 1 \ne x",
    r"x \ne 2",
    r"x = 1",
    r"x + y \le 3 ;; 3 \ge x+y ;; x + y - 3 \leq 0 ;; 2x+2y \le 6 ;; y \le 3 - x",
    r"x + y < 3",
    r"x + y \ge 3",
)
KINDS["curves"] = apart(
    r"x^2+y^2=25 ;; y^2+x^2=25 ;; x^2 + y^2 - 25 = 0 ;; 2x^2+2y^2=50 ;; \frac{x^2}{25}+\frac{y^2}{25}=1",
    r"x^2+y^2=5",
    r"x^2-y^2=25",
    r"x^2+y=25",
    r"(x-1)^2+y^2=25 ;; y^2+(x-1)^2=5^2 ;; x^2-2x+y^2=24",
    r"(x+1)^2+y^2=25",
    r"y = x^2 - 2x + 1 ;; y=(x-1)^2 ;; y = 1 - 2x + x^2 ;; (x-1)^2 = y",
    r"y = (x+1)^2",
    r"y^2 = x^2-2x+1",
    r"2x + 3y = 6 ;; 3y+2x=6 ;; 4x+6y=12 ;; 2x+3y-6=0 ;; \frac{x}{3}+\frac{y}{2}=1 ;; y=-\frac{2}{3}x+2",
    r"2x + 3y = 7",
    r"3x + 2y = 6",
)


Tree = tuple[object, ...]
SUM, PRODUCT, POWER, ATOM = range(4)
"""How tightly a rendered tree binds."""


def tree(rng: Rng, depth: int) -> Tree:
    """A random expression of x and y: numbers, sums, products, quotients, powers and functions."""
    if depth == 0 or rng.random() < 0.15:
        return ("leaf", rng.choice(("x", "y", "x", "y", "2", "3", "5", "7")))
    sign = rng.choice(("+", "-", "*", "*", "/", "^", "sqrt", "sin", "ln"))
    if sign in ("sqrt", "sin", "ln"):
        return (sign, tree(rng, depth - 1))
    if sign == "^":
        return (sign, tree(rng, depth - 1), ("leaf", rng.choice(("2", "3", "-1"))))
    return (sign, tree(rng, depth - 1), tree(rng, depth - 1))


def value(node: Tree, x: float, y: float) -> complex:
    sign, *parts = node
    if sign == "leaf":
        return complex({"x": x, "y": y}.get(str(parts[0])) or float(str(parts[0])))
    one, *more = (value(part, x, y) for part in parts)  # type: ignore[arg-type]
    if sign in ("sqrt", "sin", "ln"):
        return {"sqrt": cmath.sqrt, "sin": cmath.sin, "ln": cmath.log}[str(sign)](one)
    joins: dict[object, Callable[[complex, complex], complex]] = {
        "+": add, "-": sub, "*": mul, "/": truediv, "^": pow}
    return joins[sign](one, more[0])


def shown(rng: Rng, node: Tree) -> tuple[str, int]:
    """A tree as text in some form, and how tightly it binds."""
    sign, *parts = node
    if sign == "leaf":
        return str(parts[0]), ATOM
    found = [shown(rng, part) for part in parts]  # type: ignore[arg-type]
    if sign in ("+", "*") and rng.random() < 0.5:
        found.reverse()
    held = [held_at(rng, *one) for one in found]
    texts = [text for text, _ in found]
    if sign in ("sqrt", "sin", "ln"):
        if sign == "sqrt":
            return f"\\sqrt{{{texts[0]}}}", ATOM
        return "\\" + str(sign) + rng.choice(("({})", "\\left({}\\right)")).format(texts[0]), PRODUCT
    if sign == "^":
        return f"{held[0](ATOM)}^{{{texts[1]}}}", POWER
    if sign == "/" and rng.random() < 0.7:
        return f"\\{rng.choice(('frac', 'dfrac'))}{{{texts[0]}}}{{{texts[1]}}}", PRODUCT
    if sign == "/":
        return f"{held[0](ATOM)}/{held[1](ATOM)}", PRODUCT
    if sign == "*":
        left, right = held[0](PRODUCT), held[1](POWER)
        close = right[0].isdigit() or "\\frac" in right or left[-1].isalpha() or "\\" in left or "/" in left
        return left + (rng.choice((r" \cdot ", "*")) if close else rng.choice((r"\cdot ", " ",
            ""))) + right, PRODUCT
    right = held[1](PRODUCT) if not texts[1].startswith("-") else f"({texts[1]})"
    return texts[0] + rng.choice((f" {sign} ", str(sign))) + right, SUM


def held_at(rng: Rng, text: str, binds: int) -> Callable[[int], str]:
    """The text, in brackets where it has to bind more tightly than it does."""
    return lambda least: text if binds >= least else rng.choice(("({})", "\\left({}\\right)")).format(text)


def changed(rng: Rng, node: Tree) -> Tree:
    """The tree with one sign, number or letter changed."""
    sign, *parts = node
    if sign == "leaf":
        return ("leaf", rng.choice([leaf for leaf in ("x", "y", "2", "3", "5", "-1") if leaf != parts[0]]))
    if rng.random() < 0.4:
        if sign in ("sqrt", "sin", "ln"):
            return parts[0]  # type: ignore[return-value]
        return (rng.choice([one for one in "+-*/" if one != sign]), *parts)
    place = rng.randrange(len(parts))
    parts[place] = changed(rng, parts[place])  # type: ignore[arg-type]
    return (sign, *parts)


@kind
def trees(rng: Rng) -> Thing:
    points = ((1.37, 2.91), (0.83, 0.47), (5.3, 1.9), (2.1, 7.7))

    def at(node: Tree) -> list[complex] | None:
        try:
            found = [value(node, x, y) for x, y in points]
        except (ZeroDivisionError, OverflowError, ValueError):
            return None
        real = all(abs(one.imag) < 1e-9 and 1e-3 < abs(one) < 1e6 for one in found)
        return found if real else None

    while True:
        ours = tree(rng, rng.randint(2, 4))
        if (values := at(ours)) is None or all(abs(one - values[0]) < 1e-6 for one in values):
            continue
        others = []
        for _ in range(30):
            other = changed(rng, ours)
            theirs = at(other)
            if theirs and all(abs(a - b) > 1e-3 * abs(a) for a, b in zip(values, theirs, strict=True)):
                others.append(shown(rng, other)[0])
        if others:
            return Thing([shown(rng, ours)[0] for _ in range(6)], others)


@kind
def nested(rng: Rng) -> Thing:
    one, two = (make(rng) for make in rng.sample([fractions, decimal, radical, roots, polynomial, rational,
        trees], 2))
    whole = [thing.forms for thing in (one, two)]
    wrong = [[form for form in thing.others if not re.search(r"[,:]|pm", form)] for thing in (one, two)]
    shape = rng.choice(("({}, {})", "[{}, {})", "\\{{{}, {}\\}}", "x={}, y={}",
        "\\begin{{pmatrix}} {} \\\\ {} \\end{{pmatrix}}",
        "({}, {}, 0)", "\\omega < {} \\text{{ or }} \\omega > {}", "{} : {}", "\\{{({}, 1), (2, {})\\}}",
        "(-\\infty, {}) \\cup [{}, \\infty)"))
    forms = [shape.format(*map(rng.choice, whole)) for _ in range(5)]
    others = [shape.format(rng.choice(wrong[0]), rng.choice(whole[1])) for _ in range(3)]
    others += [shape.format(rng.choice(whole[0]), rng.choice(wrong[1])) for _ in range(3)]
    if not shape.startswith("\\{{{}"):
        others.append(shape.format(rng.choice(whole[1]), rng.choice(whole[0])))
    return Thing(forms, others)


BOXES = ["So it is $\\boxed{%s}$.", "\\boxed{%s}", "\\[\\boxed{%s}\\]",
    "<think>\\boxed{7}?</think>\nThus $$\\boxed{%s}$$", "\\fbox{%s}", "Answer: \\boxed { %s }, as asked."]
AROUND = ["%s"] * 6 + [" %s ", "%s.", "$%s$", "%s\\,", "\\displaystyle %s", "{%s}", "\\ %s"]


def cases(seed: int, only: str = "") -> Iterator[Case]:
    """Endless cases in turn over the kinds."""
    rng = random.Random(seed)
    while True:
        for name, make in KINDS.items():
            thing = make(rng)
            gold = rng.choice(thing.forms)
            right = rng.random() < 0.5
            answer = rng.choice([*thing.forms, *thing.answers] if right else thing.others)
            around = rng.choice(AROUND)
            if (around == "$%s$" and "$" in answer) or (around == "%s." and answer.endswith(".")):
                around = "%s"
            if only in ("", name):
                yield Case(name, gold, rng.choice(BOXES) % (around % answer), right)


@cache
def drawn() -> list[Case]:
    """Sixteen cases of every kind."""
    return list(islice(cases(seed=35), 16 * len(KINDS)))


@pytest.mark.parametrize("name", KINDS)
def test_equal_forms_are_right_and_other_objects_are_not(name: str) -> None:
    for case in (one for one in drawn() if one.kind == name):
        status = verify_answer(case.text, case.gold)
        assert (status == "correct") is case.right, (case, status)


def main(count: int, seed: int = 0, only: str = "") -> None:
    judged, failures, began = Counter[str](), dict[tuple[str, str], list[str]](), time.process_time()
    for case, _ in zip(cases(seed, only), range(count)):
        judged[case.kind] += 1
        start = time.process_time()
        try:
            status = verify_answer(case.text, case.gold)
        except Exception as error:  # what a judge must never do
            status = f"raises {error!r}"  # type: ignore[assignment]
        if time.process_time() - start > 3:
            failures.setdefault((case.kind, "slow"), []).append(f"{case.gold}  |  {case.text}")
        if (status == "correct") is not case.right or status not in ("correct", "wrong", "unparsable"):
            fault = {"correct": "accepts", "wrong": "rejects", "unparsable": "rejects"}.get(status, "raises")
            failures.setdefault((case.kind, fault), []).append(f"{case.gold}  |  {case.text}  ({status})")
    for (name, fault), found in sorted(failures.items()):
        print(f"{name} {fault}: {len(found)} of {judged[name]}")
        print(*(f"    {one}" for one in list(dict.fromkeys(found))[:6]), sep="\n")
    totals = Counter[str]()
    for (_, fault), found in failures.items():
        totals[fault] += len(found)
    print(dict(totals), "of", judged.total(), "in", round(time.process_time() - began), "CPU seconds")


if __name__ == "__main__":
    main(int(sys.argv[1]), int((*sys.argv, "0")[2]), (*sys.argv, "", "")[3])
