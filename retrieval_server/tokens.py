"""Words of a text in any script, one by one and counted: what both back ends index and look up.

A text is folded first: compatibility forms and accents go, case is folded, apostrophes are straight. Then

    runs of letters, marks and numbers, one apostrophe inside them, of at least two characters, are words;
    scripts that write no spaces (Chinese, Japanese, Thai, ...), and Korean, whose endings cling to the words,
    give each character and each pair of neighbouring characters as a word.

For ASCII that is `[A-Za-z0-9]+(?:'[A-Za-z0-9]+)?` of at least two characters, lower-cased. `count_tokens`
gives the same multiset as `tokens`, several times faster, which is what large corpora need.
"""

import re
import string
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from operator import add

VERSION = 2  # part of an index's parameters; raise it when a text would give other tokens

_MIN_CHARS = 2
_SINGLE = [character.encode() for character in string.ascii_lowercase + string.digits]
_KEPT = string.ascii_letters + string.digits + "'"
_CUT = bytes(code if chr(code) in _KEPT or code > 127 else ord(" ") for code in range(256))
_ACCENTS = re.compile("[\u0300-\u036f]")
"""Marks of Latin, Greek and Cyrillic letters. Those of other scripts are vowels and tones, and stay."""
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc", "'"))
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1100, 0x11FF),  # Korean, single letters
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # Chinese: repetition, zero
    (0x3040, 0x31FF),  # Japanese syllables, Chinese phonetic letters
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),  # Chinese characters
    (0xA000, 0xA48F),  # Yi
    (0xAC00, 0xD7FF),  # Korean
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),  # rare Chinese characters
)
"""Pairs find words without a dictionary, as in Lucene's CJK analyser; characters find words of one."""


def _ranges(codes: Iterable[int]) -> str:
    """The inside of a character class that holds these code points, which ascend."""
    found: list[list[int]] = []
    for code in codes:
        if found and code == found[-1][1] + 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in found)


def _classes() -> tuple[str, str, str]:
    """Insides of three classes: what words are made of, the unspaced characters, and their marks."""
    unspaced = [code for first, last in _UNSPACED[:-1] for code in range(first, last + 1)]
    kinds = {code: unicodedata.category(chr(code))[0] for code in range(0x20000)}
    cut = set(unspaced)
    words = (code for code, kind in kinds.items() if kind in "LMN" and code not in cut)
    rare = f"{chr(_UNSPACED[-1][0])}-{chr(_UNSPACED[-1][1])}"
    bases = (code for code in unspaced if kinds[code] in "LN")
    marks = (code for code in unspaced if kinds[code] == "M")
    return _ranges(words), _ranges(bases) + rare, _ranges(marks)


_ASCII = re.compile("[0-9A-Za-z]+(?:'[0-9A-Za-z]+)?")
"""Words of a text of ASCII alone, in an eighth of the time that those of any text take."""


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A word or an unspaced run, and a unit of such a run; made for the first text that is not ASCII."""
    word, base, mark = _classes()
    token = f"(?P<unspaced>(?:[{base}][{mark}]*)+)|[{word}]+(?:'[{word}]+)?"
    return re.compile(token), re.compile(f"[{base}][{mark}]*")


def fold(text: str) -> str:
    """The text in the form in which words are compared."""
    if text.isascii():
        return text.lower()
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text).casefold())
    return unicodedata.normalize("NFC", plain).translate(_APOSTROPHES)


def tokens(text: str) -> list[str]:
    """Words in order of occurrence; of a run without spaces first the characters, then the pairs."""
    return _words(fold(text))


def _words(folded: str) -> list[str]:
    if folded.isascii():
        return [word for word in _ASCII.findall(folded) if len(word) >= _MIN_CHARS]
    found: list[str] = []
    token, unit = _patterns()
    for match in token.finditer(folded):
        if match["unspaced"] is not None:
            units = unit.findall(match[0])
            found += units
            found += map(add, units, units[1:])
        elif len(match[0]) >= _MIN_CHARS:
            found.append(match[0])
    return found


def is_unspaced(word: str) -> bool:
    """Whether a word is a character, or a pair of them, of a script that is cut so."""
    return not word.isascii() and _patterns()[1].match(word) is not None


def query_terms(query: str) -> list[str]:
    """Distinct words of a query, in order of first occurrence: a repeated one counts once."""
    return list(dict.fromkeys(tokens(query)))


def count_tokens(text: str) -> Counter[bytes]:
    """How often each word occurs, by its UTF-8 bytes: `Counter(tokens(text))`, in no particular order.

    The text is cut at every ASCII character that no word holds; only pieces with an apostrophe or with other
    characters need the expression. No byte of a multi-byte UTF-8 character is ASCII, so cuts agree.
    """
    cut = fold(text).encode("utf-8", "surrogatepass").translate(_CUT)
    counts = Counter(cut.split())
    if b"'" in cut or not cut.isascii():
        by_times: defaultdict[int, list[bytes]] = defaultdict(list)
        for piece in [piece for piece in counts if b"'" in piece or not piece.isascii()]:
            by_times[counts.pop(piece)].append(piece)
        for times, pieces in by_times.items():  # few numbers, so few passes
            found = Counter(_words(b" ".join(pieces).decode("utf-8", "surrogatepass")))
            counts.update({word.encode(): times * count for word, count in found.items()})
    for single in _SINGLE:
        counts.pop(single, None)
    return counts
