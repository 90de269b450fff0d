"""The instructions by their published names, and what a response is worth by them.

Called by the verifier, by the loader, which refuses what is not known, and by the generator.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
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
    given = {key: value for key, value in (kwargs or {}).items() if value is not None}
    wanted = inspect.signature(CHECKS[name]).parameters.keys() - {"response"}
    for key in sorted(wanted ^ given.keys()):
        raise ValueError(f"{name}: {key} is {'missing' if key in wanted else 'no argument of it'}")
    for key, value in given.items():
        if value in ("", []) or any(isinstance(one, str) and not one.strip() for one in _each(value)):
            raise ValueError(f"{name}: {key} {value!r}: is empty, so that it asks for nothing")
    arguments = {key: _whole(value) for key, value in given.items()}
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
    bounds: dict[tuple[Any, ...], tuple[float, float]] = {}
    kept, banned = set[str](), set[str]()
    for name, given in zip(names, kwargs, strict=True):
        kept.update(str(one).lower() for one in given.get("keywords") or ())
        banned.update(str(one).lower() for one in given.get("forbidden_words") or ())
        relation = next((value for key, value in given.items() if key.endswith("relation")), None)
        number = next((value for value in given.values() if isinstance(value, int)), None)
        if relation is not None and number is not None:
            what = (name, *(str(v).lower() for k, v in sorted(given.items()) if k in ("keyword", "letter")))
            low, high = bounds.get(what, (0, float("inf")))
            bounds[what] = (max(low, number), high) if relation == "at least" else (low, min(high, number))
            if bounds[what][0] >= bounds[what][1]:
                return f"{name}: at least {bounds[what][0]:g} and less than {bounds[what][1]:g}"
    if both := sorted(kept & banned):
        return f"{both[0]!r} is a keyword and forbidden"
    if {"change_case:english_capital", "change_case:english_lowercase"} <= set(names):
        return "all capital and all lower case"
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
