"""One normaliser for the expert's and the policy's answers, so that their form gives nothing away.

It never repairs or evaluates: what is wrong stays wrong, what cannot be read stays as it is.
"""

import re
import unicodedata
from itertools import groupby
from typing import Literal

from domains.math.answers import last_boxed, plain
from domains.raro.expressions import ExpressionError, parse, render

Task = Literal["countdown", "text", "math", "solution", "poetry"]
_SIGNS = str.maketrans("\u00d7\u00b7\u22c5\u00f7\u2212\u2013", "***/--")
"""Operators as they are typeset."""
_BLANKS_IN_LINE = re.compile(r"[^\S\n]+")
_MOST_LAYERS = 20
"""Text commands and boxes inside each other that are taken off; what is deeper inside is no answer."""


def normalize(task: Task, text: str) -> str:
    """Unicode NFC, stripped, runs of blanks collapsed.

    Solutions and poems keep their lines, Countdown is reprinted, and a result in mathematics loses what never
    changes its meaning: box, dollar signs, text commands, full stops. The time is linear in the length.
    """
    text = unicodedata.normalize("NFC", _ordered(text)).strip()
    if task in ("poetry", "solution"):
        lines = _BLANKS_IN_LINE.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")
        return "\n".join(line.strip() for line in lines).strip()
    text = " ".join(text.split())
    if task == "math":
        for _ in range(_MOST_LAYERS):
            # The ends first: `plain` takes one full stop at a time.
            inner = plain(_without_ends(last_boxed(text) or text))
            if inner == text:
                break
            text = inner
    if task != "countdown":
        return text
    text = text.translate(_SIGNS)
    try:
        return render(parse(text))
    except ExpressionError:
        return text


def _without_ends(text: str) -> str:
    """Without the dollar signs around a formula and the full stops behind it, however many there are."""
    text = text.lstrip("$ ")
    bare = text.rstrip("$. ")
    return bare + "$" if bare.endswith("\\") and text[len(bare) :].startswith("$") else bare


def _ordered(text: str) -> str:
    """The text with its accents in canonical order, for which `unicodedata` takes time in their square."""
    if text.isascii():
        return text
    runs = groupby(text, lambda one: unicodedata.combining(one) > 0)
    return "".join("".join(sorted(run, key=unicodedata.combining) if marks else run) for marks, run in runs)
