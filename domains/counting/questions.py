"""What is counted: rows `{letter, word, count}`, and rows `{word, text, count}` for words of a text.

The first form is upstream's. Rows are generated here; `data.py` reads them from files as well.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

Kind = Literal["letters", "words"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Vocabulary = Literal["english", "made_up"]
VOCABULARIES: tuple[Vocabulary, ...] = get_args(Vocabulary)

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
ABSENT = 0.15
"""Share of questions about a letter or a word that may not be there at all."""
TEXT_WORDS = (4, 12)
DIFFERENT = 4
"""Different words of a text, so that some repeat."""
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "st", "br", "pl")
_REST = ("a", "e", "i", "o", "u", "an", "el", "is", "or", "un")
_SYLLABLES = (2, 5)


@cache
def english() -> tuple[str, ...]:
    """Common words, from the file beside this one."""
    return tuple((Path(__file__).parent / "words.txt").read_text(encoding="utf-8").split())


def draw_word(rng: random.Random, vocabulary: Vocabulary) -> str:
    """A word of the vocabulary; a made-up one has two to five syllables."""
    if vocabulary == "english":
        return rng.choice(english())
    count = rng.randint(*_SYLLABLES)
    return "".join(rng.choice(_ONSETS) + rng.choice(_REST) for _ in range(count))


def draw(rng: random.Random, kind: Kind, vocabulary: Vocabulary) -> dict[str, Any]:
    """One row of a kind."""
    if kind == "letters":
        word = draw_word(rng, vocabulary)
        counts = Counter(word)
        # A count first: a letter drawn from the word would mostly be one that stands in it once.
        wanted = rng.choice(sorted(set(counts.values())))
        some = [letter for letter, count in counts.items() if count == wanted]
        letter = rng.choice(ALPHABET) if rng.random() < ABSENT else rng.choice(some)
        return {"letter": letter, "word": word, "count": counts[letter]}
    few = [draw_word(rng, vocabulary) for _ in range(DIFFERENT)]
    words = [rng.choice(few) for _ in range(rng.randint(*TEXT_WORDS))]
    word = draw_word(rng, vocabulary) if rng.random() < ABSENT else rng.choice(words)
    return {"word": word, "text": " ".join(words), "count": words.count(word)}


def draws(name: str, kind: Kind, vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    """Rows without end; the same for the same arguments."""
    rng = random.Random(f"counting {name} {kind} {vocabulary}")
    while True:
        yield draw(rng, kind, vocabulary)


def question(row: Mapping[str, Any]) -> str:
    """What is asked about a row."""
    if "text" in row:
        return f"How many times does the word '{row['word']}' stand in the text '{row['text']}'?"
    return f"How many times does the letter '{row['letter']}' stand in the word '{row['word']}'?"


def checked(row: Any) -> dict[str, Any]:
    """A row of a file as it is used. Raises ValueError that says what is wrong with it."""
    if not isinstance(row, Mapping):
        raise ValueError(f"a {type(row).__name__}, expected an object")
    row = {key: value for key, value in row.items() if value is not None}  # as tables fill the other form
    keys = ("word", "text", "count") if "text" in row else ("letter", "word", "count")
    forms = "a row is {letter, word, count} or {word, text, count}"
    if "letter" in row and "text" in row:
        raise ValueError(f"has 'letter' and 'text'; {forms}")
    missing = [key for key in keys if key not in row]
    if missing:
        raise ValueError(f"no {missing[0]!r}; {forms}")
    if not all(isinstance(row[key], str) and row[key] for key in keys[:2]):
        raise ValueError(f"{keys[0]} and {keys[1]}: expected texts")
    if isinstance(row["count"], bool) or not isinstance(row["count"], int) or row["count"] < 0:
        raise ValueError(f"count {row['count']!r}: expected a number from 0")
    return {key: row[key] for key in keys}
