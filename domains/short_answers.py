"""One normaliser for short answers, such as names, numbers and dates; called by judges that compare texts.

`normalised` is an option of `raro` and `privacy_hopqa`, beside upstream's normalisers, because it changes
results.
"""

import re
import unicodedata

_GLUED = re.compile(
    r"(?<=\d)(?:(?P<raised>[\u00b2\u00b3\u00b9\u2070-\u207b]+)|(?P<part>[\u00bc-\u00be\u2150-\u215e]))"
)
"""A power or a fraction behind a digit."""
_DASHES = dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
_APOSTROPHES = dict.fromkeys("\u2018\u2019\u02bb\u02bc\u00b4\u2032`", "'")
_FOLDED = str.maketrans(_DASHES | _APOSTROPHES | {"\u2033": '"', "\u2044": "/"})
_APART = re.compile(r"\s+(?=,|'s\b)|(?<=[$\u00a3\u00a5\u20a0-\u20cf])\s+(?=\d)")
"""Blanks that tokenised texts have, as in `May 18 , 2018` and `$ 5`."""
_BRACKETS = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
_QUOTED = "\u201c\u201d\u201e\u00ab\u00bb\u2039\u203a\u300c\u300d\u300e\u300f"
_AROUND = f" \t\n\r\"'.,;:!?{_QUOTED}\u3001\u3002\u00a1\u00bf\u061f\u0964`*_"
_INITIALS = re.compile(r"(?<![\w.])(?:[^\W\d_]\.\s?)+[^\W\d_]\b\.?(?!\w)")
_ABBREVIATED = re.compile(r"(?<![\w.])(?:[^\W\d_]{1,2}\.)+(?:[^\W\d_]{2}\.|[^\W\d_]\b\.?)(?!\w)")
"""`Ph.D.` and `B.Sc.`, whose parts may have two letters."""
_STOP = re.compile(r"(?<=[^\W\d_])\.(?:(?=\s)|(?P<glued>(?=\d)))")
"""Behind an abbreviation: `Dr. No`, `John F. Kennedy`, `No.5`."""
_ARTICLE = re.compile(r"(?:the|an|a)\s+(?=\S)")
_ORDINAL = re.compile(r"(?<![\w.])(\d+)(?:st|nd|rd|th)\b")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_LISTED = re.compile(r"(?<=\d),(?=\d)")
_POINT = re.compile(r"(?<![\w.])\.(?=\d)")
"""Of a number without a zero before it, which is no full stop around an answer."""
_PERCENT = re.compile(r"(?<=\d) ?(?:%|per ?cent\b)")
_LIST_COMMA = re.compile(r"(?<!\d),(?=\s)|,(?=\s+\D)|(?:(?<=[a-z] \d)|(?<=[a-z] \d\d)),(?= \d{4}\b)")
"""One that a comma or a blank alone may replace; between numbers it stays, but for `May 5, 1999`."""
_JOINED = re.compile(r"\s*/\s*")
_AND = re.compile(r"\s*&\s*")
_WHOLE = re.compile(r"(?<![\w.])(\d+)\.0+(?![\w.])")
_MONEY = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) ?([$\u00a3\u00a5\u20a0-\u20cf])")
_PLUS = re.compile(r"\A\+(?=\d)")
_HOUR = re.compile(r"(?<=\d):00(?= ?[ap]m\b)")
_UNIT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([mglshvwj]|[a-z]{2,}[23]?|°\s*[cf])(?!\w)")
"""A number with what it counts; one letter such as that of `3d` belongs to it, unless it is a unit."""
_LETTER = re.compile(r"[^\W\d_]")
_RANGE = re.compile(r"(?<=\d)\s+-\s+(?=\d)")
_DECADE = re.compile(r"(?<=\d0)'s\b")
_FENCE = "```"
_MARKS = {_FENCE: _FENCE, "***": "***", "**": "**", "*": "*", "`": "`", "$$": "$$", "$": "$"}
_MARKS |= {"\\(": "\\)", "\\[": "\\]"}
_COMMAND = re.compile(r"\\(?:boxed|fbox|text|textbf|mathbf|mathrm)\s*\{(.+)\}", re.DOTALL)
_LAYERS = 4
"""Of `**$\\boxed{\\text{5}}$**`; no model writes more."""
_ESCAPED = re.compile(r"\\(?=[%$&#_])")


def undressed(answer: str) -> str:
    """The answer without bold, code marks, a fence, `$`, `\\boxed{}` or another command around all of it.

    A percent sign, dollar sign and so on that LaTeX escapes stands for itself.
    """
    for _ in range(_LAYERS):
        answer = answer.strip()
        if (found := _COMMAND.fullmatch(answer)) is not None:
            answer = found[1]
            continue
        for opens, closes in _MARKS.items():
            inside = answer.removeprefix(opens).removesuffix(closes)
            if len(inside) == len(answer) - len(opens) - len(closes) > 0:
                # The first line of a fence is the name of a language, or empty.
                answer = inside.partition("\n")[2] or inside if opens == _FENCE else inside
                break
        else:
            break
    return _ESCAPED.sub("", answer.strip())


def unglued(text: str) -> str:
    """`2½` as `2 ½`, and `10⁶` as `10^⁶`: NFKC would make one number of them."""
    return _GLUED.sub(lambda found: f"^{found[0]}" if found["raised"] else f" {found[0]}", text)


def normalised(answer: str) -> str:
    """The answer in the form in which two of one meaning are equal; "" only for one that shows nothing.

    Unicode NFKC, no case, one kind of dash and apostrophe, no signs without width, no marks or brackets
    around it and no article in front: `the Nile` is `nile`. Initials and abbreviations without full stops:
    `U.S.` is `us`, `St. Louis` is `st louis`. Ordinals and thousands as bare numbers: `12th` is `12`,
    `1,200` is `1200`. A zero before a point: `.5` is `0.5`. No blanks as in tokenised texts: `May 18 ,
    2018`, `$ 5`. Lists of numbers: `2,3` is `2, 3`. Fractions and powers: `2½` is `2 1/2`, `10⁶` is `10^6`.
    One blank between a number and its unit or what it counts, none before a percent sign: `5km` is `5 km`,
    `50 %` is `50%`. Ranges and decades: `1914 - 1918` is `1914-1918`, `1990's` is `1990s`. Whole numbers,
    hours and money: `5.0` and `+5` are `5`, `3:00 PM` is `3 pm`, `5 €` is `€5`. No comma before a blank but
    between numbers other than day and year, no blanks around a slash, and `&` is `and`.
    """
    shown = "".join(one for one in answer if unicodedata.category(one) != "Cf")
    text = unicodedata.normalize("NFKC", unglued(shown.translate(_FOLDED))).translate(_FOLDED)
    text = _APART.sub("", " ".join(text.casefold().replace("i\u0307", "i").split()))
    text = whole = _POINT.sub("0.", text)
    text = _AND.sub(" and ", text) if any(map(str.isalnum, text)) else text
    for stops in (_INITIALS, _ABBREVIATED):
        text = stops.sub(lambda found: "".join(filter(str.isalpha, found[0])), text)
    text = _STOP.sub(lambda found: "" if found["glued"] is None else " ", text).strip(_AROUND)
    if (inside := _BRACKETS.fullmatch(text)) is not None:
        text = inside[1].strip(_AROUND)
    text = _ARTICLE.sub("", text, count=1) if _ARTICLE.match(text) else text
    text = _ORDINAL.sub(r"\1", _LISTED.sub(", ", _THOUSANDS.sub("", text)))
    text = _RANGE.sub("-", _DECADE.sub("s", _PLUS.sub("", _WHOLE.sub(r"\1", text))))
    text = _MONEY.sub(r"\2\1", _HOUR.sub("", _JOINED.sub("/", _LIST_COMMA.sub("", text))))
    return _PERCENT.sub("%", _UNIT.sub(_with_unit, text)).strip(_AROUND) or whole


def _with_unit(found: re.Match[str]) -> str:
    """`5 km` of `5km`; a letter behind a number within a name, as in `iPhone 4S`, is no unit."""
    named = len(found[2]) == 1 and _LETTER.search(found.string, 0, found.start())
    return found[0] if named else f"{found[1]} {''.join(found[2].split())}"
