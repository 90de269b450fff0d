"""The instructions by their published names, and what a response is worth by them.

Called by the verifier, by the loader, which refuses what is not known, and by the generator.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from domains.ifeval import forms, keywords
from pipelinerl.base.errors import suggestion

Check = Callable[..., bool]

CHECKS: dict[str, Check] = {
    "keywords:existence": keywords.existence,
    "keywords:frequency": keywords.frequency,
    "keywords:forbidden_words": keywords.forbidden_words,
    "keywords:letter_frequency": keywords.letter_frequency,
    "language:response_language": keywords.response_language,
    "length_constraints:number_sentences": keywords.number_sentences,
    "length_constraints:number_paragraphs": keywords.number_paragraphs,
    "length_constraints:number_words": keywords.number_words,
    "length_constraints:nth_paragraph_first_word": keywords.nth_paragraph_first_word,
    "detectable_content:number_placeholders": forms.number_placeholders,
    "detectable_content:postscript": forms.postscript,
    "detectable_format:number_bullet_lists": forms.number_bullet_lists,
    "detectable_format:constrained_response": forms.constrained_response,
    "detectable_format:number_highlighted_sections": forms.number_highlighted_sections,
    "detectable_format:multiple_sections": forms.multiple_sections,
    "detectable_format:json_format": forms.json_format,
    "detectable_format:title": forms.title,
    "combination:two_responses": forms.two_responses,
    "combination:repeat_prompt": forms.repeat_prompt,
    "startend:end_checker": forms.end_checker,
    "startend:quotation": forms.quotation,
    "change_case:capital_word_frequency": keywords.capital_word_frequency,
    "change_case:english_capital": keywords.english_capital,
    "change_case:english_lowercase": keywords.english_lowercase,
    "punctuation:no_comma": keywords.no_comma,
}
"""All 25 of the benchmark."""

UNDECIDED: dict[str, Callable[[str], bool]] = {"language:response_language": keywords.language_is_open}
"""Where a check cannot know: no response passes that it cannot judge, and those are counted."""

Given = Mapping[str, Any]
_CAPITAL, _SMALL = "change_case:english_capital", "change_case:english_lowercase"
_ONCE = (
    "language:response_language",
    "length_constraints:number_paragraphs",
    "detectable_format:number_bullet_lists",
)
_HELD = ("end_phrase", "prompt_to_repeat", "first_word")
_BANS = ("punctuation:no_comma", "keywords:forbidden_words")
_BANS_BELOW = ("keywords:frequency", "keywords:letter_frequency")


@dataclass(frozen=True)
class Followed:
    """Which instructions of a prompt a response follows, in their order."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    """Also where some variant of the response does: without its first or last line, without asterisks."""
    undecided: int
    """Instructions that are not followed because nobody can tell, such as the language of two words."""


def arguments_of(name: str, kwargs: Given | None) -> dict[str, Any]:
    """The arguments of a check; data sets hold null for those of other instructions.

    Raises ValueError, in one line, for a name that is not known, an argument that is missing, foreign
    or empty, or one that has the wrong type.
    """
    if name not in CHECKS:
        raise ValueError(f"instruction {name!r} is not known; {suggestion(name, CHECKS)}")
    if not isinstance(kwargs, Mapping | None):
        raise ValueError(f"{name}: kwargs {str(kwargs)[:40]!r}: expected an object")
    given = {key: value for key, value in (kwargs or {}).items() if value is not None}
    wanted = inspect.signature(CHECKS[name]).parameters.keys() - {"response"}
    for key in sorted(wanted ^ given.keys()):
        raise ValueError(f"{name}: {key} is {'missing' if key in wanted else 'no argument of it'}")
    for key, value in given.items():
        if value in ("", []) or any(isinstance(one, str) and not one.strip() for one in _each(value)):
            raise ValueError(f"{name}: {key} {value!r}: is empty, so that it asks for nothing")
    arguments = {key: _whole(value) for key, value in given.items()}
    for key, value in arguments.items():
        asked = inspect.signature(CHECKS[name]).parameters[key].annotation
        kind = list if asked not in (int, str) else asked
        if type(value) is not kind or (kind is list and not all(type(one) is str for one in value)):
            expected = "a list of texts" if kind is list else "a whole number" if kind is int else "a text"
            raise ValueError(f"{name}: {key} {str(value)[:40]!r}: expected {expected}")
        if isinstance(value, int) and value < 0:
            raise ValueError(f"{name}: {key} {value}: counts begin at 0")
    try:
        CHECKS[name]("a", **arguments)
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{name}: {str(error)[:100]}") from None
    return arguments


def _each(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _whole(value: Any) -> Any:
    """Numbers of tables with missing values come as floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def contradiction(names: Sequence[str], kwargs: Sequence[Given]) -> str | None:
    """Two instructions that no response follows together, in words; only what can be told for certain."""
    pairs = list(zip(names, kwargs, strict=True))
    return _of_choices(pairs) or _of_counts([*pairs, *_implied(pairs)]) or _of_texts(pairs)


def _of_counts(pairs: Iterable[tuple[str, Given]]) -> str | None:
    bounds: dict[tuple[Any, ...], tuple[float, float]] = {}
    for name, given in pairs:
        relation = next((value for key, value in given.items() if key.endswith("relation")), None)
        number = next((value for value in given.values() if isinstance(value, int)), None)
        if relation is not None and number is not None:
            what = (name, *(str(v).lower() for k, v in sorted(given.items()) if k in ("keyword", "letter")))
            low, high = bounds.get(what, (int(name.startswith("length_constraints:")), float("inf")))
            bounds[what] = (max(low, number), high) if relation == "at least" else (low, min(high, number))
            if bounds[what][0] >= bounds[what][1]:
                return f"{name}: at least {bounds[what][0]:g} and less than {bounds[what][1]:g}"
    return None


def _implied(pairs: Iterable[tuple[str, Given]]) -> Iterator[tuple[str, Given]]:
    """Counts that follow from other instructions: a sentence has a word, a small text none in capitals."""
    for name, given in pairs:
        if name == "length_constraints:number_sentences" and given["relation"] == "at least":
            words = {"num_words": given["num_sentences"], "relation": "at least"}
            yield "length_constraints:number_words", words
        if name in (_CAPITAL, _SMALL):
            shouted = {"number": 1, "relation": "at least" if name == _CAPITAL else "less than"}
            yield "change_case:capital_word_frequency", shouted


def _of_choices(pairs: Sequence[tuple[str, Given]]) -> str | None:
    """Two values of what a response has once, or two cases."""
    for name in _ONCE:
        values = sorted({str(value) for one, given in pairs if one == name for value in given.values()})
        if len(values) > 1:
            return f"{name}: {values[0]} and {values[1]}"
    return "all capital and all lower case" if {_CAPITAL, _SMALL} <= {name for name, _ in pairs} else None


def _of_texts(pairs: Sequence[tuple[str, Given]]) -> str | None:
    """A text that every response holds by one instruction and none may hold by another."""
    held, written = [], []
    for name, given in pairs:
        held += [(name, str(text)) for text in given.get("keywords", ())]
        held += [(name, given[key]) for key in _HELD if key in given]
        if given.get("relation") == "at least" and "keyword" in given:
            held.append((name, given["keyword"]))
        if "section_spliter" in given:
            written.append((name, given["section_spliter"]))
        if name == "detectable_format:constrained_response":
            written += [(name, option) for option in forms.OPTIONS]
    for ban, given in pairs:
        # Only these say of a text alone that nothing with it follows; case counts where `written` stands.
        limits = ban in _BANS or (ban in _BANS_BELOW and "less than" in given.values())
        for name, text in held if limits else written if ban in (_CAPITAL, _SMALL) else ():
            if any(map(str.isalpha, text)) and not CHECKS[ban](text, **given):
                return f"{ban} and {text[:40]!r} of {name}"
    return None


def follows(name: str, kwargs: Given | None, response: str) -> bool:
    """Whether a response follows an instruction; an empty one follows none. ValueError as above."""
    arguments = arguments_of(name, kwargs)
    return bool(response.strip()) and CHECKS[name](response, **arguments)


def variants(response: str) -> list[str]:
    """What the loose judgement accepts instead: without first line, last line or both, and without `*`."""
    lines = response.split("\n")
    cut = [response, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(text.replace("*", "") for text in cut)]


def judge(names: Sequence[str], kwargs: Sequence[Given | None], response: str) -> Followed:
    """Every instruction, judged strictly and loosely. Raises ValueError as `arguments_of` does."""
    pairs = list(zip(names, kwargs, strict=True))
    strict = tuple(follows(name, given, response) for name, given in pairs)
    others = variants(response)[1:]
    loose = tuple(
        done or any(follows(name, given, text) for text in others)
        for done, (name, given) in zip(strict, pairs, strict=True)
    )
    unknown = (name in UNDECIDED and UNDECIDED[name](response) for name in names)
    undecided = sum(unknown) if response.strip() else 0
    return Followed(strict, loose, undecided)
