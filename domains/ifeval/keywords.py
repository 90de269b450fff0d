"""Checks of words and letters, of length, of case and of punctuation, each `(response, kwargs) -> bool`.

The names and the meaning of their arguments are those of the published IFEval data.
"""

import re
from collections.abc import Sequence

from domains.ifeval.language import LANGUAGES, language_of
from domains.ifeval.text import blank_line_paragraphs, capital_words, sentences, starred_paragraphs, words

_FIRST = r"[^\s.,?!'\"]+"
RELATIONS = ("less than", "at least")


def compare(found: int, relation: str, wanted: int) -> bool:
    """Whether a count is as asked. Raises ValueError for a relation that is neither of the two."""
    if relation not in RELATIONS:
        raise ValueError(f"relation {relation!r}: expected {' or '.join(map(repr, RELATIONS))}")
    if relation == "less than" and wanted < 1:
        raise ValueError(f"less than {wanted}: no count is; from 1 on one can be")
    return found < wanted if relation == "less than" else found >= wanted


def existence(response: str, keywords: Sequence[str]) -> bool:
    """Each keyword occurs, in any case, also within a longer word."""
    return all(keyword.lower() in response.lower() for keyword in keywords)


def frequency(response: str, keyword: str, frequency: int, relation: str) -> bool:
    """Occurrences that do not overlap, in any case, also within longer words."""
    return compare(response.lower().count(keyword.strip().lower()), relation, frequency)


def forbidden_words(response: str, forbidden_words: Sequence[str]) -> bool:
    """None of the words occurs as a word of its own, in any case."""
    return not any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", response, re.IGNORECASE) for word in forbidden_words
    )


def letter_frequency(response: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """A letter in any case, or another character. Raises ValueError for more than one."""
    if len(letter.strip()) != 1:
        raise ValueError(f"letter {letter[:20]!r}: expected one character")
    return compare(response.lower().count(letter.lower()), let_relation, let_frequency)


def response_language(response: str, language: str) -> bool:
    """Written in the language of this ISO code. Raises ValueError for one that is not known."""
    if language not in LANGUAGES:
        raise ValueError(f"language {language[:20]!r}: known are {', '.join(sorted(LANGUAGES))}")
    return language_of(response) == language


def language_is_open(response: str) -> bool:
    """Whether nothing says in which language it is written, as of many short texts."""
    return language_of(response) is None


def number_sentences(response: str, num_sentences: int, relation: str) -> bool:
    return compare(len(sentences(response)), relation, num_sentences)


def _check_paragraph(many: int, nth: int) -> None:
    if not 1 <= nth <= many:
        raise ValueError(f"paragraph {nth} of {many}: there is none")


def number_paragraphs(response: str, num_paragraphs: int) -> bool:
    """Exactly as many, separated by `***`; none in the middle is empty. ValueError for less than one."""
    _check_paragraph(num_paragraphs, 1)
    found = starred_paragraphs(response)
    return found is not None and len(found) == num_paragraphs


def number_words(response: str, num_words: int, relation: str) -> bool:
    return compare(len(words(response)), relation, num_words)


def nth_paragraph_first_word(response: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Exactly as many paragraphs between empty lines, of which the nth begins with the word.

    Raises ValueError for one that is not among them, and for a word with a blank or a mark, at which it ends.
    """
    _check_paragraph(num_paragraphs, nth_paragraph)
    if re.fullmatch(_FIRST, first_word) is None:
        raise ValueError(f"first_word {first_word[:20]!r}: expected one word without marks")
    found = blank_line_paragraphs(response)
    if len([part for part in found if part]) != num_paragraphs or not 1 <= nth_paragraph <= len(found):
        return False
    begins = re.match(rf"[\"'\u201c\u2018]*({_FIRST})", found[nth_paragraph - 1])
    return begins is not None and begins[1].lower() == first_word.lower()


def capital_word_frequency(response: str, capital_frequency: int, capital_relation: str) -> bool:
    return compare(capital_words(response), capital_relation, capital_frequency)


def english_capital(response: str) -> bool:
    """No small letter, and at least one capital; the language is not judged."""
    return response.isupper()


def english_lowercase(response: str) -> bool:
    """No capital letter, and at least one small; the language is not judged."""
    return response.islower()


def no_comma(response: str) -> bool:
    return "," not in response
