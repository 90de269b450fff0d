"""Words, sentences and paragraphs of a response. Pure functions, called by the checks."""

import re

WORD = re.compile(r"\w+")
_SHOUTED = re.compile(r"\w+(?:['\u2019-]\w+)*")
_SHORT_FORM = re.compile(r"['\u2019](?:s|m|d|ll|ve|re)\Z")
_LISTED = """
mr mrs ms dr prof st jr sr vs etc e.g i.e cf approx vol fig al inc ltd co dept est
jan feb mar apr jun jul aug sep sept oct nov dec
"""
_ABBREVIATIONS = frozenset(_LISTED.split())
"""Behind which a full stop ends no sentence, whatever follows."""
_LONGEST = 20
"""Characters before a full stop that may make it part of an abbreviation or a list's number."""
_END = re.compile(r"([.!?\u2026]+)(?=[\"'\u201d\u2019)\]*_]*(?:\s|$))|[\u3002\uff01\uff1f\u0964]+")
_BLOCKS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*#>]|\d+[.)])\s)")
"""A blank line ends a sentence, and so does the beginning of a list item, a heading or a quote."""


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores: "it's" is two, as in the published counts."""
    return WORD.findall(text)


def capital_words(text: str) -> int:
    """Words without a small letter; "I" and "A" count, "3D" does, and "42" does not.

    A short form behind a word is none of it, as in "NASA's" and "I'm".
    """
    return sum(_SHORT_FORM.sub("", word).isupper() for word in _SHOUTED.findall(text))


def sentences(text: str) -> list[str]:
    """Sentences that hold a word.

    One ends at `.`, `!`, `?` or an ellipsis, however many, before a blank or the end of the text, at the end
    marks of Chinese, Japanese and Hindi, and with its paragraph or list item. The full stop of an
    abbreviation or an initial ends none, nor does one inside a number, an address or a file's name.
    """
    found = []
    for block in _BLOCKS.split(text):
        start, last = 0, len(block.rstrip())
        for end in _END.finditer(block):
            # Of the sentence only its end: one of many initials would be read from its start at each of them.
            before = block[max(start, end.start() - _LONGEST) : end.start()]
            if end[1] == "." and end.end() < last and _is_abbreviated(before):
                continue
            found.append(block[start : end.end()])
            start = end.end()
        found.append(block[start:])
    return [sentence.strip() for sentence in found if WORD.search(sentence)]


def _is_abbreviated(before: str) -> bool:
    """Whether a full stop behind this, which is not the text's last, belongs to its last word."""
    last = before.split()[-1] if before.split() else ""
    bare = last.lstrip("\"'(\u201c\u2018[").lower()
    initial = len(bare) == 1 and bare.isalpha() and last[-1:].isupper() and bare != "i"
    number = bare.isdigit() and before.strip() == last  # the "1." of a list
    return bare in _ABBREVIATIONS or initial or number


def starred_paragraphs(text: str) -> list[str] | None:
    """What stands between `***`; None where one in the middle is empty."""
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    if any(not part for part in parts[1:-1]):
        return None
    return [part for part in parts if part]


def blank_line_paragraphs(text: str) -> list[str]:
    """What stands between empty lines; empty ones are kept, so that a place stays a place."""
    return [part.strip() for part in text.split("\n\n")]
