"""Tokens of a text, one by one and counted: runs of ASCII letters and digits, lower-cased.

    [A-Za-z0-9]+(?:'[A-Za-z0-9]+)?        of at least two characters

`count_tokens` gives the same multiset as `tokens`, several times faster, which is what large corpora need.
"""

import re
import string
from collections import Counter

VERSION = 1  # part of an index's parameters; raise it when a text would give other tokens

_TOKEN = re.compile(r"[A-Za-z0-9]+(?:'[A-Za-z0-9]+)?")
_TOKEN_BYTES = re.compile(_TOKEN.pattern.encode())
_MIN_CHARS = 2
_SINGLE = [character.encode() for character in string.ascii_lowercase + string.digits]
_KEPT = string.ascii_letters + string.digits + "'"
_LOWERED = bytes(ord(chr(code).lower()) if chr(code) in _KEPT else ord(" ") for code in range(256))


def tokens(text: str) -> list[str]:
    """Lower-cased tokens of at least two characters, in order of occurrence."""
    return [token.lower() for token in _TOKEN.findall(text) if len(token) >= _MIN_CHARS]


def query_terms(query: str) -> list[str]:
    """Distinct tokens of a query, in order of first occurrence: a repeated term counts once."""
    return list(dict.fromkeys(tokens(query)))


def count_tokens(text: str) -> Counter[bytes]:
    """How often each token occurs, by its ASCII bytes: `Counter(tokens(text))`, in no particular order.

    The text is cut at everything but letters, digits and apostrophes; only pieces with an apostrophe need
    the expression. No byte of a multi-byte UTF-8 character is a letter or digit, so cuts agree.
    """
    cut = text.encode("utf-8", "surrogatepass").translate(_LOWERED)
    words = cut.split()
    counts = Counter(words)
    if b"'" in cut:
        for word in {word for word in words if b"'" in word}:
            times = counts.pop(word)
            for token in _TOKEN_BYTES.findall(word):
                counts[token] += times
    for single in _SINGLE:
        counts.pop(single, None)
    return counts
