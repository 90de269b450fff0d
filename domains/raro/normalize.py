"""One normaliser for the expert's and the policy's answers, so that their form gives nothing away.

It never repairs or evaluates: what is wrong stays wrong, what cannot be read stays as it is.
"""

import re
import unicodedata
from typing import Literal

from domains.math.answers import last_boxed, plain
from domains.raro.expressions import ExpressionError, parse, render

Task = Literal["countdown", "text", "math", "solution", "poetry"]
_SIGNS = str.maketrans({"×": "*", "÷": "/"})
_BLANKS_IN_LINE = re.compile(r"[^\S\n]+")


def normalize(task: Task, text: str) -> str:
    """Unicode NFC, stripped, runs of blanks collapsed.

    Solutions and poems keep their lines, Countdown is reprinted, and a result in mathematics loses what never
    changes its meaning: box, dollar signs, text commands, a full stop.
    """
    text = unicodedata.normalize("NFC", text).strip()
    if task in ("poetry", "solution"):
        lines = _BLANKS_IN_LINE.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")
        return "\n".join(line.strip() for line in lines).strip()
    text = " ".join(text.split())
    if task == "math":
        while (inner := plain(last_boxed(text) or text)) != text:
            text = inner
    if task != "countdown":
        return text
    text = text.translate(_SIGNS)
    try:
        return render(parse(text))
    except ExpressionError:
        return text
