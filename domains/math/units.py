"""A value and its unit: `60\\%`, `\\$5`, `12\\text{ km/h}`, `30^\\circ`, `12 eggs`; whether two are one.

Called by `objects.py` for what is no list, bracket or relation. Units count only if both sides have one.
"""

import re
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from math import floor, log10
from typing import NamedTuple

from mpmath import mpf

from domains.math.expressions import read_expression, tokens
from domains.math.texts import is_word
from domains.math.typeset import FONT, SPACE
from domains.math.values import Expression, Unreadable, same_value, size_of

PLACES = 6
"""Decimal places in which numbers with a point are compared, more for a gold answer below a thousandth."""


class Unit(NamedTuple):
    """A factor and the powers of base units: `km/h` is 5/18 of `m s^-1`."""

    scale: Fraction
    powers: frozenset[tuple[str, int]]


class Measured(NamedTuple):
    """A value without percent sign and unit; the unit is None where there is none, or an unknown one."""

    value: str
    percent: bool
    unit: Unit | None


_PREFIXES = dict(zip("kMGTcdm\u00b5unp", (3, 6, 9, 12, -2, -1, -3, -6, -6, -9, -12), strict=True))
_LONG = {"kilo": 3, "mega": 6, "giga": 9, "centi": -2, "deci": -1, "milli": -3, "micro": -6, "nano": -9}
_SYMBOLS = "m g s L l W J N Pa V A eV Hz F C K T H B mol cal ohm"
_SHORT = frozenset(_SYMBOLS.split())
_TABLE = """
m meter meters metre metres = 1 m | g gram grams = 1/1000 kg | s sec secs second seconds = 1 s
L l liter liters litre litres = 1/1000 m3 | W watt watts = 1 kg m2 s-3 | J joule joules = 1 kg m2 s-2
N newton newtons = 1 kg m s-2 | Pa pascal pascals = 1 kg m-1 s-2 | V volt volts = 1 V
A amp amps ampere amperes = 1 A | eV = 1 eV | Hz hertz = 1 s-1 | F farad farads fahrenheit = 1 F
C coulomb coulombs celsius = 1 C | K kelvin = 1 K | T tesla = 1 T | H henry = 1 H
B byte bytes = 1 B | mol mole moles = 1 mol | cal calorie calories = 1 cal | ohm ohms = 1 ohm
min mins minute minutes = 60 s | h hr hrs hour hours = 3600 s | day days = 86400 s | week weeks = 604800 s
month months = 1 month | year years yr yrs = 12 month | decade decades = 120 month
lb lbs pound pounds = 1 lb | oz ounce ounces = 1/16 lb | ton tons = 1 ton | tonne tonnes = 1000 kg
in inch inches = 1/12 ft | ft foot feet = 1 ft | yd yard yards = 3 ft | mi mile miles = 5280 ft
mph = 22/15 ft s-1 | kph kmh = 5/18 m s-1 | kWh = 3600000 kg m2 s-2 | acre acres = 43560 ft2
hectare hectares ha = 10000 m2 | cent cents ¢ \\cent \\cents = 1/100 $ | dollar dollars USD = 1 $
euro euros EUR = 1 euro | GBP = 1 GBP | yen JPY = 1 yen | rupee rupees INR = 1 rupee
deg degree degrees = 1 deg | rad radian radians = 1 rad | dozen = 12 one
м метр метра метров 米 = 1 m | км 千米 公里 = 1000 m | см 厘米 = 1/100 m | мм 毫米 = 1/1000 m
г 克 = 1/1000 kg | кг 千克 公斤 = 1 kg | 秒 = 1 s | мин 分钟 = 60 s | час часа часов 小时 = 3600 s
gallon gallons gal = 1 gal | quart quarts = 1/4 gal | pint pints = 1/8 gal | cup cups = 1/16 gal
"""
_POWERS = re.compile(r"([^\d-]+)(-?\d+)?")


def _powers(factors: list[str]) -> Counter[str]:
    found = filter(None, map(_POWERS.fullmatch, factors))
    return Counter({one[1]: int(one[2] or 1) for one in found})


def _table() -> dict[str, tuple[Fraction, Counter[str]]]:
    table = {}
    for line in re.split(r"[|\n]", _TABLE.strip()):
        names, _, meant = line.partition("=")
        scale, *factors = meant.split()
        for name in names.split():
            table[name] = Fraction(scale), _powers(factors)
    return table


_NAMES = _table()
_FONT = re.compile(rf"{FONT}\s*\{{([^{{}}]*)\}}|\{{\\rm\s+([^{{}}]*)\}}")
_EXPONENT = re.compile(r"\s*\^\s*\{\s*(-?\d)\s*\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_BLANK = re.compile(rf"{SPACE}|\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|[*$\s\u00b7()]")
_WORD = re.compile(r"(\D+?)\.?\^?(-?[1-9])?\.?")
_ALONE = "\u0400-\u052f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af"
"""Cyrillic, Japanese, Chinese and Korean: no letter of theirs is a variable."""
_ACCENTED = "\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f"
_LETTER_ALONE = re.compile(f"[{_ALONE}]")
_ONE = (
    rf"(?:{FONT}\s*\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|\{{\\rm\s[^{{}}]*\}}"
    rf"|\\Omega|\\mu|\\cents?|[A-Za-z\u00b5\u00a2{_ACCENTED}{_ALONE}]++\.?+)"
)
_RAISED = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|\d)|\d(?![\d.]))?"
_GAP = rf"(?:{SPACE}|\s)*+"
_ANY = rf"(?:{_ONE}{_RAISED}|\\[dt]?frac\s*\{{\s*{_ONE}{_RAISED}\s*\}}\s*\{{\s*{_ONE}{_RAISED}\s*\}})"
_TAIL = re.compile(
    rf"(?P<value>.*?(?:[\d}})!.|]|[A-Za-z](?={_GAP}\\(?:text|mathrm)\s*\{{)))"
    rf"(?P<gap>{_GAP})(?P<unit>(?!e[-\d]|[A-Za-z]{_GAP}\\(?:text|math)){_ANY}(?:{_GAP}(?:(?:/|\\cdot(?![a-z])){_GAP})?{_ANY})*+)",
    re.DOTALL,
)
_MONEY = re.compile(
    r"\A(?P<sign>-?)(?:\\?\$|(?:\\text\s*\{\s*)?(?:USD\b|(?P<rupees>Rs\b\.?))(?:\s*\})?"
    r"|(?P<other>[\u20ac\u00a3\u00a5\u20b9]|\\(?:pounds|euro)\b))"
    rf"{_GAP}(?P<value>-?\.?\d.*)\Z"
    r"|\A(?P<before>.*\d)\s*(?:\\?\$|(?P<behind>[\u20ac\u00a3\u00a5\u20b9]))\Z",
    re.DOTALL,
)
_CURRENCIES = {
    "\u20ac": "euro",
    r"\euro": "euro",
    "\u00a5": "yen",
    "\u20b9": "rupee",
    "\u00a3": "GBP",
    r"\pounds": "GBP",
}
_POUND = frozenset([("GBP", 1)])
_DEGREES = re.compile(
    rf"(?P<value>.*[\dA-Za-z}})]){_GAP}(?:\^\s*(?:\{{\s*\\circ\s*\}}|\\circ)|\\degree\b){_GAP}"
    r"(?:\\(?:text|mathrm)\s*\{\s*)?(?P<scale>[CFK]?)\s*\}?",
    re.DOTALL,
)
_ANGULAR = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_PERCENT = re.compile(
    rf"{_GAP}(?:\\?%|[Pp]er ?cent\b|\\text\s*\{{\s*(?:\\?%|[Pp]er ?cent)\s*\}})"
    rf"(?P<of>{_GAP}\\text\s*\{{[^{{}}]*\}}|\s+[a-z][a-z ]*)?\Z"
)
_MODULO = re.compile(r"\s*\\[pb]?mod(?![a-z]).*\Z", re.DOTALL)
_MANY = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "k": 10**3, "K": 10**3, "million": 10**6}
_MANY |= {"M": 10**6, "billion": 10**9, "trillion": 10**12}
_PART = re.compile(rf"(\d+(?:\.\d+)?){_GAP}({_ONE}),?{_GAP}")
_NUMBER_OF = re.compile(
    rf"(?P<number>-?[\d,]*\.?\d+)(?P<apart>{_GAP}(?:\\(?:text|mathrm)\s*\{{\s*)?)(?P<many>{'|'.join(_MANY)})(?![A-Za-z])(?P<more>.*)",
    re.DOTALL,
)
_LISTED = """
or if when than unless except otherwise least most plus minus half halves third thirds fourth fourths fifth
fifths sixths eighths tenth tenths hundredth hundredths thousandth thousandths
"""
_OTHERWISE = frozenset((*_LISTED.split(), r"\lor"))
"""Words that no unit has: the number before them is not the whole answer."""
_OTHERWISE_ABROAD = re.compile(
    r"(?<!\w)(?:mil(?:l|h|j)?i?[o\u00f3\u00f5\u00e3]\w*|mil(?:li|i|j)ard\w*|mil(?:le|a)?|tausend\w*|duizend|tusen"
    r"|тыс\w*|млн|млрд|миллион\w*|миллиард\w*|сот\w*|hundert\w*|cien(?:tos?)?|cento|centaines?|halb\w*|h[aä]lft\w*"
    r"|medi[oa]s?|demie?s?|mezz[oa]|mei[oa]s?|половин\w*|пол|oder|ou|или|mehr|weniger|m[aá]s|menos|moins|pi[uù]|meno"
    r"|более|менее|больше|меньше)(?!\w)"
    r"|\A[十百万萬亿億兆余餘多几십백천만억조]|\A千(?![米克瓦卡])|半|以[上下]|分之|或|이상|이하|또는"
)
"""The same in the languages that policies write most: `42 Millionen`, `42 y medio`, `42万人`, `42人以上`."""
_POWER = re.compile(r"\^\s*\{?\s*-?\d")
_SMALL = ("per", "of", "sq", "cubic", "square", "an", "a", "old", "left", "ago", "away", "squared", "cubed")


def unit_of(text: str) -> Unit | None:
    """The unit that a text is, in any form; None where a word of it is unknown."""
    plain = _EXPONENT.sub(r"^\1", text).replace(r"\Omega", "ohm").replace(r"\mu", "\u00b5")
    plain = _FONT.sub(lambda found: f" {(found[1] or found[2]).strip()}", plain)
    plain = _BLANK.sub(" ", re.sub(r"\bper\b", "/", _FRACTION.sub(r"\1/\2", plain)))
    plain = re.sub(r"degrees? +(?=[CFKcfk])", "", plain)
    plain = re.sub(r"(\u00b5) +(?=[A-Za-z])|([kM]) +(?=ohm|[A-Z]\b)", r"\1\2", plain)
    scale, powers = Fraction(1), Counter[str]()
    for place, side in enumerate(plain.split("/")):
        for name, power in _factors(side.split()):
            if (found := _named(name)) is None:
                return None
            power *= -1 if place else 1
            scale *= found[0] ** power
            for base, count in found[1].items():
                powers[base] += count * power
    return Unit(scale, frozenset((base, count) for base, count in powers.items() if count))


def _factors(words: list[str]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    ahead = 1
    for one in words:
        said = one.rstrip(".").lower()
        if said in ("square", "sq", "cubic"):
            ahead = 3 if said == "cubic" else 2
        elif said in ("squared", "cubed") and found:
            found[-1] = found[-1][0], 3 if said == "cubed" else 2
        else:
            shape = _WORD.fullmatch(one)
            found.append((shape[1], int(shape[2] or ahead)) if shape else (one, ahead))
            ahead = 1
    return found


def _named(name: str) -> tuple[Fraction, Counter[str]] | None:
    if (found := _NAMES.get(name)) is not None or (
        found := _NAMES.get(name.lower()) if len(name) > 2 else None
    ):
        return found
    for prefixes, units in ((_PREFIXES, _SHORT), (_LONG, _NAMES)):
        for prefix, power in prefixes.items():
            rest = name.removeprefix(prefix)
            if rest != name and rest in units:
                scale, powers = _NAMES[rest]
                return scale * Fraction(10) ** power, powers
    return None


def measured(text: str, gold: str | None = None, money: bool = False) -> Measured:
    """A value with its percent sign and unit: of the gold answer, or of an answer beside a `gold` one.

    A single letter close behind a number, as in `4s`, is a unit only beside a gold answer without letters.
    `5K` and `5M` are thousands and millions; apart from the number, as in `300\\text{ K}`, only of `money`.
    """
    if (found := _PERCENT.search(text)) is not None and found.start():
        return Measured(text[: found.start()], True, None)
    if (found := _MONEY.fullmatch(text)) is not None:
        value = found["before"] or found["sign"] + found["value"]
        sign = "\u20b9" if found["rupees"] else str(found["other"] or found["behind"] or "$")
        inner = measured(value, money=True)
        powers = frozenset([(_CURRENCIES.get(sign, sign), 1)])
        return Measured(inner.value, False, Unit(Fraction(1), powers))
    if (found := _DEGREES.fullmatch(text)) is not None and _ANGULAR.search(text) is None:
        return Measured(found["value"], False, Unit(Fraction(1), frozenset([(found["scale"] or "deg", 1)])))
    if (summed := _summed(text)) is not None:
        return summed
    found = _NUMBER_OF.fullmatch(text)
    if found is not None and (
        len(found["many"]) > 1
        or (found["more"] in ("", "}") and (money or found["many"] == "k" or not found["apart"]))
    ):
        value = f"{Decimal(found['number'].replace(',', '')) * _MANY[found['many']]:f}"
        more = found["more"].strip().rstrip("}").strip()
        return measured(f"{value} {more}", gold) if more else Measured(value, False, None)
    found = _TAIL.fullmatch(text)
    if found is None:
        return Measured(text, False, None)
    said = found["unit"]
    unit, marked = unit_of(said), said.startswith(("\\", "{"))
    bare = gold is not None and not re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", gold))
    if unit is not None:
        alone = re.fullmatch(r"[A-Za-z](?:\^.*)?", said)
        taken = marked or not alone or bare or (bool(found["gap"]) and gold is None)
    else:
        names = _FONT.sub(r" \1\2 ", said).split()
        taken = (
            any(len(name) > 1 or _LETTER_ALONE.match(name) for name in names)
            and (marked or _counted(names, bare or bool(found["gap"])))
            and not _changes_number(said, names)
        )
    return Measured(found["value"], False, unit) if taken else Measured(text, False, None)


def counted(text: str) -> str:
    """What a number counts, where it is no known unit: `chicken` of `23\\text{ chickens}`, else nothing."""
    found = measured(text)
    if found.unit is not None or found.percent or not text.startswith(found.value):
        return ""
    return " ".join(word.removesuffix("s") for word in _plain_words(text[len(found.value) :]).split())


def _summed(text: str) -> Measured | None:
    """`3 hours 20 minutes` as 200 minutes; None of what is no sum of quantities of one kind."""
    parts = list(_PART.finditer(text))
    if len(parts) < 2 or "".join(part[0] for part in parts) != text:
        return None
    units = [unit_of(part[2]) for part in parts]
    known = [unit for unit in units if unit is not None]
    if len(known) < len(units) or len({unit.powers for unit in known}) > 1:
        return None
    total = (
        sum(Fraction(part[1]) * unit.scale for part, unit in zip(parts, known, strict=True)) / known[-1].scale
    )
    return Measured(f"{total.numerator}/{total.denominator}", False, known[-1])


def _counted(names: list[str], beside_number: bool) -> bool:
    """Whether small words behind a number say what it counts: `dollars per hour`, not `abc`."""
    if all(map(_LETTER_ALONE.match, names)):
        return True
    if beside_number and len(names) == 1:
        # Each variable of a product is written once, in the order of the alphabet.
        return len(names[0]) > 2 and names[0].isalpha() and [*names[0]] != sorted(set(names[0]))
    return all(is_word(name) or name in _SMALL for name in names)


def _changes_number(said: str, names: list[str]) -> bool:
    """Whether words behind a number say that it is not all: `and a half`, `or more`, `apples and 3 pears`."""
    numbered = re.search(r"\d", _POWER.sub("", said)) is not None
    abroad = _OTHERWISE_ABROAD.search(" ".join(names).casefold()) is not None
    return numbered or abroad or not _OTHERWISE.isdisjoint(map(str.lower, names))


def expression(text: str) -> Expression:
    """The expression that a text is. Raises `Unreadable`."""
    return read_expression(tokens(text))


def same_measured(gold: str, given: str) -> bool:
    """Whether two values are one, as they stand, or without their percent signs and units."""
    if tokens(gold) == tokens(given):
        return True
    changes = [_plain_words(found["of"]) for text in (gold, given) if (found := _PERCENT.search(text))]
    if len(set(filter(None, changes))) > 1:  # `increase` and `decrease`
        return False
    if _MODULO.search(gold) is None:
        given = _MODULO.sub("", given)
    ours = measured(gold)
    theirs = measured(given, ours.value)
    units = [one.unit for one in (ours, theirs) if one.unit is not None]
    if len(units) == 2 and _may_be_money(*units):
        units = []
    bare = ours.value == gold and theirs.value == given
    if len(units) < 2 and not bare and _same_as_written(gold, given):
        return True
    if len(units) == 2 and units[0].powers != units[1].powers:
        return False
    factor = units[0].scale / units[1].scale if len(units) == 2 else Fraction(1)
    if _same_scaled(ours, theirs, factor):
        return True
    if len(units) == 1 and tuple(units[0].powers) == (("deg", 1),) and r"\pi" in gold + given:
        return _same_angle(ours, theirs)
    if ours.percent == theirs.percent:
        return False
    return _same_scaled(ours, theirs, Fraction(1, 100) if ours.percent else Fraction(100))


def _may_be_money(one: Unit, other: Unit) -> bool:
    """Whether `5 pounds`, which are read as a weight, stand beside `£5`."""
    return any(a.powers == _POUND and "lb" in dict(b.powers) for a, b in ((one, other), (other, one)))


def _plain_words(text: str | None) -> str:
    return " ".join(_FONT.sub(r" \1 ", text or "").lower().split())


def _same_angle(ours: Measured, theirs: Measured) -> bool:
    """Degrees on one side, `60^\\circ`, and a part of pi on the other."""
    one, other = (
        f"({side.value})" + (r"\cdot\pi/180" if side.unit is not None else "") for side in (ours, theirs)
    )
    return same_numbers(expression(one), expression(other))


def _same_as_written(gold: str, given: str) -> bool:
    try:
        return same_numbers(expression(gold), expression(given))
    except Unreadable:
        return False


def _same_scaled(ours: Measured, theirs: Measured, factor: Fraction) -> bool:
    one, other = expression(ours.value), expression(theirs.value)
    if factor != 1:
        at = one.at
        one = one._replace(at=lambda point: at(point) * factor.numerator / factor.denominator)
    return same_numbers(one, other)


def same_numbers(gold: Expression, given: Expression) -> bool:
    """Whether two expressions have one value; constants are rounded where one of them has a point."""
    places = None
    if "decimal" in gold.signs | given.signs and not gold.names | given.names:
        size = size_of(gold)
        more = 2 - PLACES - floor(log10(size)) if size is not None and mpf(10) ** -300 < size < 1 else 0
        places = PLACES + max(0, more)
    return same_value(gold, given, places)
