"""An answer as LaTeX writes it: signs of Unicode, ways to write a number, and what shows nothing.

Called by `answers.py` for both sides, before texts or objects are compared. Meaning never changes here.
"""

import re
import unicodedata
from functools import partial

_GREEK = "αβγδεθλμπρστφψωΔΣΩ"
_LISTED = "alpha beta gamma delta epsilon theta lambda mu pi rho sigma tau phi psi omega Delta Sigma Omega"
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212\ufe63", "-"),
        "\u00d7": r"\times ",
        "\u00f7": r"\div ",
        "\u00b7": r"\cdot ",
        "\u22c5": r"\cdot ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u2260": r"\ne ",
        "\u2248": r"\approx ",
        "\u00b1": r"\pm ",
        "\u221e": r"\infty ",
        "\u222a": r"\cup ",
        "\u2229": r"\cap ",
        "\u2208": r"\in ",
        "\u2205": r"\emptyset ",
        "\u00b0": r"^\circ ",
        **{letter: rf"\{name} " for letter, name in zip(_GREEK, _LISTED.split(), strict=True)},
        "\u211d": r"\mathbb{R}",
        "\u2044": "/",
        "\u2215": "/",
    }
)
_RAISED = {unicodedata.normalize("NFKC", sign): sign for sign in "⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ"}
_LOWERED = {unicodedata.normalize("NFKC", sign): sign for sign in "₀₁₂₃₄₅₆₇₈₉₋"}
_SCRIPTS = tuple(
    (re.compile(f"[{''.join(signs.values())}]+"), mark) for signs, mark in ((_RAISED, "^"), (_LOWERED, "_"))
)
_ROOT = re.compile(r"\u221a\s*(\d+(?:\.\d+)?|[A-Za-z]|\([^()]*\))")
_MARKDOWN = re.compile(r"(\*\*|__|`)(.*)\1", re.DOTALL)
_LEFT_OUT = re.compile(r"(?:\\[ ,;:!]|\\+$|\\q?quad\b|~|(?<!\.)\.$|[\s,;:])+$")
_BEFORE = re.compile(r"\A(?:\\[ ,;:!]|\\q?quad(?![A-Za-z])|\\(?:display|text)style(?![A-Za-z])|~|\s)+")
_MONEY = re.compile(r"\$\s*\d")
_MOST_LAYERS = 6
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_QUANTITY = re.compile(r"\\(?:SI|qty)\s*(?:\[[^][]*\])?\{([^{}]*)\}\s*\{([^{}]*)\}")
_SIUNITX = (
    (re.compile(r"\\per(?![a-z])"), "/"),
    (re.compile(r"\\squared(?![a-z])"), "^2"),
    (re.compile(r"\\cubed(?![a-z])"), "^3"),
    (re.compile(r"\\(?:degree)?[cC]elsius"), " C"),
    (re.compile(r"\\percent"), "%"),
    (re.compile(r"\\(kilo|mega|giga|centi|deci|milli|micro|nano)(?![a-z])"), r" \1"),
    (re.compile(r"\\([a-zA-Z]+)|(?<=[a-z])\.(?=[a-z])"), r"\1 "),
    (re.compile(r"(kilo|mega|giga|centi|deci|milli|micro|nano) (?=[a-z])|\s+(?=\^)"), r"\1"),
)
FONT = r"\\(?:text|mathrm|mathbf|mathit|operatorname)"
"""Commands that change how letters look, as an alternative of a pattern; `typeset` writes no others."""
_WRITTEN = (
    (
        re.compile(r"\\(?:text(?:rm|sf|tt|sc|bf|it|normal)|mbox|emph|mathsf|mathtt)(?=\s*\{)"),
        r"\\text",
    ),
    (re.compile(r"\(?\\(?:text|mathrm)\s*\{\s*mod\s*\}\s*(\w+)\s*\)?"), r"\\pmod{\1}"),
    (re.compile(r"\(\s*(?:\\[pb]?mod(?![a-z])|mod)\s*([^()]+?)\s*\)"), r"\\pmod{\1}"),
    (re.compile(r"(\\\\)\s*\[\s*-?[\d.]+\s*(?:[cme]m|pt|ex|in)\s*\]"), r"\1"),
    (
        re.compile(
            r"(?:\\left\s*)?\\\{\s*\\begin\{(array|aligned)\}(?:\s*\{[lcr|]*\})?(.*?)\\end\{\1\}\s*\\right(?![a-z])\s*\.?",
            re.DOTALL,
        ),
        r"\\begin{cases}\2\\end{cases}",
    ),
    (
        re.compile(
            r"(?:\\left\s*)?[(\[]\s*\\begin\{array\}\s*\{[lcr|]*\}(.*?)\\end\{array\}\s*(?:\\right\s*)?[)\]]",
            re.DOTALL,
        ),
        r"\\begin{pmatrix}\1\\end{pmatrix}",
    ),
    (re.compile(r"\\num\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\ang\s*\{([^{}]*)\}"), r"\1^\\circ "),
    (re.compile(r"\A(?:``?|''?|\"+)((?:(?!'').)+?)(?:''?|\"+)\Z", re.DOTALL), r"\1"),
    (re.compile(r"(?<=\d)\{,\}(?=\d+(?!\d))(?!\d{3}(?!\d))"), "."),
    (re.compile(r"\\([ij])math(?![A-Za-z])"), r"\1"),
    (
        re.compile(
            r"\\(?:mathbf|hat|vec|boldsymbol|bm)\s*(?:\{\s*([ijk])\s*\}|(?<=[a-z]) ([ijk])(?![A-Za-z]))"
        ),
        r"\1\2",
    ),
    (
        re.compile(
            r"\\(?:text)?color\s*(?:\[[^][{}]*\])?\s*\{[^{}]*\}(?:\{([^{}]*(?:\{[^{}]*\})?[^{}]*)\})?"
            r"|\\[hv]space\*?\s*\{[^{}]*\}"
        ),
        r"\1",
    ),
    (re.compile(r"\\(?:tiny|small|large|Large|LARGE|huge|Huge)(?![A-Za-z])"), ""),
    (re.compile(r"\\var(?=(?:epsilon|theta|phi|rho|sigma|kappa|pi)(?![A-Za-z]))"), r"\\"),
    (
        re.compile(
            r"^(?:(?:\\(?:approx|simeq|cong|equiv|therefore|implies|Rightarrow|to)(?![A-Za-z])|=)\s*)+"
        ),
        "",
    ),
    (re.compile(r"\^\s*\{\s*\\prime\s*\\prime\s*\}"), "''"),
    (re.compile(r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![A-Za-z]))"), "'"),
    (re.compile(r"(?<=\d)\{:\}(?=\d)"), ":"),
    (re.compile(r"\\(?:underline|uline|bf|bm|boldsymbol|pmb|ensuremath)(?![A-Za-z])"), ""),
    (re.compile(r"(?<=[\d}])(?:\\[ ,;:!]|~|\s)*\{?\\?%\}?$"), r"\\%"),
    (re.compile(r"^(\d[\d,]*)\s*(?:\^\s*(?:\{\s*)?)?(?:\\text\{\s*)?(?:st|nd|rd|th)(?:\s*\}){0,2}$"), r"\1"),
    (re.compile(r"(?<=\d)\^\s*\{\s*\\text\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}"), ""),
    (re.compile(r"((?:[a-z][a-z] |\\text\s*\{\s*)\d[\d,]*)(?:st|nd|rd|th)(?![A-Za-z])"), r"\1"),
)
_TIMED = r"\d\s*(?:\\text\{\s*)?(?:day|hour|minute|second|f[eo][eo]t|inch|pound|ounce|dollar|cent)(?:e?s)?\b"
_NUMBERS = (
    (re.compile(r"(?<![\w.\\])(\d+\.?\d*)[eE]([-+]?\d{1,4})(?![\w.])"), r"\1 \\cdot 10^{\2}"),
    (re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)"), r" \\cdot "),
    (
        re.compile(rf"({_TIMED}\s*\}}?)\s*,?\s*(\\text\{{\s*)?and\b(?=\s*\}}?\s*[\d.]*{_TIMED})"),
        r"\1 \2",
    ),
    (re.compile(r"(?<![\d./^])(\d+)\s+(\d{1,9})\s*/\s*(\d{1,9})(?![\d./])"), r"\1\\frac{\2}{\3}"),
)
SPACE = r"\\[,;: ]|~"
"""A blank of LaTeX, as an alternative of a pattern."""
_GAP = re.compile(
    rf"(?:\\!)?(?:,|\{{,\}})(?:\s*\\!)+\s*|,(?:{SPACE}|\s)+(?=000(?!\d))"
    rf"|{SPACE}|\{{,\}}|[\u00a0\u2009\u202f ]"
)
"""Between digits in threes, as in `12,\\!000` of MATH; a comma before a blank only where 000 follows."""
_GROUPS = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:(?:{_GAP.pattern})\d{{3}})+(?!\d)")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d{,20})\\(?:overline|bar|dot)\s*\{?\s*(\d{1,20})\s*\}?")


def typeset(answer: str) -> str:
    """The answer with commands of LaTeX for signs of Unicode, and numbers in one way.

    Full-width and other digits are those of ASCII, `x²` is `x^{2}`, `½` is `\\frac{1}{2}`, `√2` is
    `\\sqrt{2}`. `1 000` and `1\\,000` are 1000, `1e3` and `1 x 10^3` are powers of ten, `2 1/2` a mixed
    number, `12th` is 12 and `0.\\overline{3}` a third. Signs without width, commands for colour, weight and
    size, marks of Markdown around the answer and a comma, full stop or blank behind it are left out.
    """
    text = "".join(map(_sign, answer)).strip()
    for signs, mark in _SCRIPTS:
        text = signs.sub(partial(_script, mark), text)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1].strip('()')}}}", text).translate(_SIGNS)
    if (marked := _MARKDOWN.fullmatch(text)) is not None:
        text = marked[2].strip()
    text = unwrapped(_QUANTITY.sub(lambda found: rf"{found[1]}\ \text{{{_siunitx(found[2])}}}", text))
    if _MONEY.match(text) and text.count("$") == 1:
        text = "\\" + text
    for written, usual in _WRITTEN:
        text = written.sub(usual, text)
    text = _GROUPS.sub(lambda groups: _GAP.sub("", groups[0]), text)
    for written, usual in _NUMBERS:
        text = written.sub(usual, text)
    return _REPEATING.sub(_repeated, text)


def unwrapped(text: str) -> str:
    """A text without blanks, dollar signs, commands of style and braces around it."""
    for _ in range(_MOST_LAYERS):
        bare = _LEFT_OUT.sub("", _BEFORE.sub("", text))
        if bare.startswith("{") and closing_brace(bare) == len(bare) - 1:
            bare = bare[1:-1]
        if bare.startswith("$") and bare.endswith("$") and bare.count("$") == 2 + 2 * bare.startswith("$$"):
            bare = bare.strip("$")
        if bare == text:
            break
        text = bare
    return text


def closing_brace(text: str) -> int:
    """Where the brace closes with which a text begins, -1 where it does not; `\\{` is a sign of its own."""
    depth = 0
    for found in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    return -1


def _siunitx(unit: str) -> str:
    """A unit of siunitx in words: `km /hour` of `\\km\\per\\hour`."""
    for sign, said in _SIUNITX:
        unit = sign.sub(said, unit)
    return unit.strip()


def _script(mark: str, run: re.Match[str]) -> str:
    usual = unicodedata.normalize("NFKC", run[0]).translate(_SIGNS)
    return f"{mark}{{{usual}}}"


def _sign(character: str) -> str:
    """One character: nothing for one that shows nothing, and compatible forms by their usual ones."""
    if character.isascii():
        return character if character.isprintable() or character.isspace() else ""
    if unicodedata.category(character) in ("Cc", "Cf"):
        return ""
    if (digit := unicodedata.decimal(character, None)) is not None:
        return str(digit)
    form = unicodedata.decomposition(character).split()
    if form[:1] == ["<fraction>"]:
        over, under = unicodedata.normalize("NFKC", character).split("\u2044")
        return rf"\frac{{{over}}}{{{under}}}" if under else character
    return unicodedata.normalize("NFKC", character) if form[:1] in (["<wide>"], ["<narrow>"]) else character


def _repeated(found: re.Match[str]) -> str:
    before, period = found[1] + found[2], found[3]
    over = int(before + period) - int(before or "0")
    return rf"\frac{{{over}}}{{{10 ** len(found[2]) * (10 ** len(period) - 1)}}}"
