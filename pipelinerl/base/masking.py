"""Texts without the secret values that this process knows: logs, reasons and last words are read and shared.

Whoever reads a run's tree names the values (`config/secrets.py`). An error of a domain's code, of a client or
of a server can quote one of them. Each text for people passes `without_secrets`: in `printable`, in every log
and in the reasons of rollouts. What a domain's code itself prints does not.
"""

import re
from collections.abc import Iterable

MASK = "(masked)"
_known = set[str]()
_pattern: re.Pattern[str] | None = None


def keep_secret(values: Iterable[str]) -> None:
    """Mask these values, too, in every text from now on."""
    global _pattern
    if not (new := set(values) - _known - {""}):
        return
    _known.update(new)
    # The longest first: one value may be the beginning of another.
    _pattern = re.compile("|".join(map(re.escape, sorted(_known, key=len, reverse=True))))


def without_secrets(text: str) -> str:
    """`text` with `MASK` for each value that is to be kept secret."""
    return text if _pattern is None else _pattern.sub(MASK, text)
