"""Instructions made for a prompt, and texts that follow them: how prompts are generated without any data.

Of each instruction: how its arguments are drawn, how it is said, and an edit after which a text follows it. A
set of instructions is taken for a prompt only if the text with all its edits passes every check, so that no
prompt asks for what cannot be.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from domains.ifeval.forms import OPTIONS, TWO
from domains.ifeval.instructions import CHECKS, judge

Kwargs = dict[str, Any]
_LISTED = """
rivers trains gardens cats bridges mountains clocks bees markets apples doors roads songs letters kites lamps
stones birds ships shoes
"""
TOPICS = tuple(_LISTED.split())
TASKS = ("Write about {}.", "Say something about {}.", "Describe {}.", "What is good about {}?")
WORDS = ("warm", "quiet", "old", "bright", "small", "useful", "green", "strong")
_SENTENCES = (
    "{} can be seen in many places.",
    "Many people like {}.",
    "There is a lot to say about {}.",
    "{} can be old or new.",
    "Some say that {}, like much else, take time.",
    "In the end {} are worth a look.",
)
LANGUAGES = {
    "de": "Das ist ein Text und er ist nicht lang.",
    "es": "Este es un texto que no es muy largo, pero es claro.",
    "fr": "Il est dans la maison et elle est avec nous.",
    "it": "Questo è un testo che non è molto lungo.",
    "ru": "Это текст, и он не очень длинный, но всё же хороший.",
    "fi": "Tämä on lyhyt teksti, mutta se on hyvä.",
}
"""A text in each language that a prompt may ask for."""
_LANGUAGE_NAMES = {
    "de": "German",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "ru": "Russian",
    "fi": "Finnish",
}


@dataclass(frozen=True)
class Writing:
    """One instruction as the generator sees it."""

    draw: Callable[[random.Random], Kwargs]
    said: Callable[[Kwargs], str]
    """The sentence of the prompt."""
    edit: Callable[[str, Kwargs], str]
    """A text as one that follows."""


def body(rng: random.Random, topic: str) -> str:
    """One to three sentences about a topic."""
    chosen = rng.sample(_SENTENCES, rng.randint(1, 3))
    return " ".join(sentence.format(topic)[:1].upper() + sentence.format(topic)[1:] for sentence in chosen)


def _none(rng: random.Random) -> Kwargs:
    return {}


def _how_many(kwargs: Kwargs, key: str, relation: str = "relation") -> str:
    return f"{'at least' if kwargs[relation] == 'at least' else 'less than'} {kwargs[key]}"


def _enough(
    unit: str, count: str, relation: str, few: str, between: str = " "
) -> Callable[[str, Kwargs], str]:
    """An edit that adds `unit` where at least some are asked for, and writes `few` where less are."""

    def edit(text: str, kwargs: Kwargs) -> str:
        if kwargs[relation] == "less than":
            return few
        return between.join([text, *[unit.format(**kwargs)] * kwargs[count]])

    return edit


def _lines(text: str, line: str, count: int) -> str:
    return "\n".join([text, *[line] * count])


def _drawn(**choices: Sequence[Any]) -> Callable[[random.Random], Kwargs]:
    return lambda rng: {key: rng.choice(values) for key, values in choices.items()}


BOTH = ("less than", "at least")
_FEW, _SOME = (1, 2, 3), (2, 3, 4)

WRITINGS: dict[str, Writing] = {
    "length_constraints:number_words": Writing(
        _drawn(num_words=(5, 8, 12, 20, 30), relation=BOTH),
        lambda k: f"Use {_how_many(k, 'num_words')} words.",
        _enough("and so on", "num_words", "relation", "Yes."),
    ),
    "length_constraints:number_sentences": Writing(
        _drawn(num_sentences=(2, 3, 4, 5), relation=BOTH),
        lambda k: f"Write {_how_many(k, 'num_sentences')} sentences.",
        _enough("It is so.", "num_sentences", "relation", "It is so."),
    ),
    "length_constraints:number_paragraphs": Writing(
        _drawn(num_paragraphs=_SOME),
        lambda k: f"Write {k['num_paragraphs']} paragraphs with *** between them.",
        lambda text, k: "\n***\n".join([text] * k["num_paragraphs"]),
    ),
    "length_constraints:nth_paragraph_first_word": Writing(
        lambda rng: {
            "num_paragraphs": (count := rng.choice(_SOME)),
            "nth_paragraph": rng.randint(1, count),
            "first_word": rng.choice(WORDS),
        },
        lambda k: (
            f"Write {k['num_paragraphs']} paragraphs with an empty line between them; paragraph "
            f"{k['nth_paragraph']} begins with the word {k['first_word']}."
        ),
        lambda text, k: "\n\n".join(
            f"{k['first_word'].capitalize()}, yes. {text}" if place == k["nth_paragraph"] else text
            for place in range(1, k["num_paragraphs"] + 1)
        ),
    ),
    "language:response_language": Writing(
        _drawn(language=tuple(LANGUAGES)),
        lambda k: f"Answer in {_LANGUAGE_NAMES[k['language']]} and in no other language.",
        lambda text, k: LANGUAGES[k["language"]],
    ),
    "keywords:existence": Writing(
        lambda rng: {"keywords": rng.sample(WORDS, 2)},
        lambda k: f"Use the words {' and '.join(k['keywords'])}.",
        lambda text, k: f"{text} It is {' and '.join(k['keywords'])}.",
    ),
    "keywords:frequency": Writing(
        _drawn(keyword=WORDS, frequency=_SOME, relation=BOTH),
        lambda k: f"Use the word {k['keyword']} {_how_many(k, 'frequency')} times.",
        _enough("It is {keyword}.", "frequency", "relation", "It is so."),
    ),
    "keywords:forbidden_words": Writing(
        lambda rng: {"forbidden_words": rng.sample(("many", "can", "people", "end", "some"), 2)},
        lambda k: f"Do not use the words {' and '.join(k['forbidden_words'])}.",
        lambda text, k: "This is worth a look.",
    ),
    "keywords:letter_frequency": Writing(
        _drawn(letter=("q", "z", "x", "j"), let_frequency=_SOME, let_relation=("at least",)),
        lambda k: f"Use the letter {k['letter']} at least {k['let_frequency']} times.",
        lambda text, k: f"{text} {k['letter'] * k['let_frequency']}!",
    ),
    "detectable_content:number_placeholders": Writing(
        _drawn(num_placeholders=_FEW),
        lambda k: f"Leave at least {k['num_placeholders']} places open in square brackets, such as [name].",
        lambda text, k: f"{text} {' '.join(['[name]'] * k['num_placeholders'])}",
    ),
    "detectable_format:number_bullet_lists": Writing(
        _drawn(num_bullets=_SOME),
        lambda k: f"Write exactly {k['num_bullets']} bullet points, each on a line that begins with *.",
        lambda text, k: _lines(text, "* It is so.", k["num_bullets"]),
    ),
    "detectable_format:number_highlighted_sections": Writing(
        _drawn(num_highlights=_FEW),
        lambda k: f"Highlight at least {k['num_highlights']} parts as *part*.",
        lambda text, k: f"{text} {' '.join(['*so*'] * k['num_highlights'])}",
    ),
    "detectable_format:multiple_sections": Writing(
        _drawn(section_spliter=("Section", "PART"), num_sections=(2, 3)),
        lambda k: f"Write {k['num_sections']} sections, each below a line such as {k['section_spliter']} 1.",
        lambda text, k: "\n".join(
            f"{k['section_spliter']} {place}\n{text}" for place in range(1, k["num_sections"] + 1)
        ),
    ),
    "detectable_format:title": Writing(
        _none,
        lambda k: "Begin with a title in double angular brackets, such as <<title>>.",
        lambda text, k: f"<<title>>\n{text}",
    ),
    "detectable_content:postscript": Writing(
        _drawn(postscript_marker=("P.S.", "P.P.S")),
        lambda k: f"Add a postscript at the end that begins with {k['postscript_marker']}",
        lambda text, k: f"{text}\n{k['postscript_marker']} It is so.",
    ),
    "detectable_format:constrained_response": Writing(
        _none,
        lambda k: f"Answer with one of these: {' / '.join(OPTIONS)}",
        lambda text, k: OPTIONS[0],
    ),
    "change_case:capital_word_frequency": Writing(
        _drawn(capital_frequency=_SOME, capital_relation=BOTH),
        lambda k: f"Write {_how_many(k, 'capital_frequency', 'capital_relation')} words in capital letters.",
        _enough("VERY", "capital_frequency", "capital_relation", "It is so."),
    ),
    "change_case:english_capital": Writing(
        _none, lambda k: "Use capital letters only.", lambda text, k: text.upper()
    ),
    "change_case:english_lowercase": Writing(
        _none, lambda k: "Use small letters only.", lambda text, k: text.lower()
    ),
    "punctuation:no_comma": Writing(_none, lambda k: "Use no commas.", lambda text, k: text.replace(",", "")),
    "combination:two_responses": Writing(
        _none,
        lambda k: f"Give two different answers with {TWO} between them.",
        lambda text, k: f"{text}\n{TWO}\n{text} It is so.",
    ),
    "startend:end_checker": Writing(
        _drawn(end_phrase=("That is all.", "Any questions?", "So it is.")),
        lambda k: f"End with this very phrase: {k['end_phrase']}",
        lambda text, k: f"{text} {k['end_phrase']}",
    ),
    "startend:quotation": Writing(
        _none, lambda k: "Put the whole answer between double quotation marks.", lambda text, k: f'"{text}"'
    ),
    "detectable_format:json_format": Writing(
        _none,
        lambda k: "The whole answer is JSON.",
        lambda text, k: json.dumps({"text": text}, ensure_ascii=False),
    ),
}
"""In the order of their edits: what an answer says comes before the form that it has."""


@dataclass(frozen=True)
class Prompt:
    """A generated prompt, its instructions, and a response that follows them all."""

    prompt: str
    names: tuple[str, ...]
    kwargs: tuple[Kwargs, ...]
    plain: str
    """The response before any edit."""
    response: str


def response_of(plain: str, names: Sequence[str], kwargs: Sequence[Kwargs]) -> str:
    """A plain text with the edits of these instructions, in the order in which edits are made."""
    given = dict(zip(names, kwargs, strict=True))
    for name, writing in WRITINGS.items():
        if name in given:
            plain = writing.edit(plain, given[name])
    return plain


def write(rng: random.Random, allowed: Sequence[str], most: int) -> Prompt:
    """A prompt with one to `most` of the allowed instructions, all of which can be followed together."""
    while True:
        topic, count = rng.choice(TOPICS), rng.randint(1, min(most, len(allowed)))
        names = rng.sample(list(allowed), count)
        kwargs = [WRITINGS[name].draw(rng) for name in names]
        plain = body(rng, topic)
        response = response_of(plain, names, kwargs)
        if all(judge(names, kwargs, response).strict):
            said = [WRITINGS[name].said(given) for name, given in zip(names, kwargs, strict=True)]
            task = " ".join([rng.choice(TASKS).format(topic), *said])
            return Prompt(task, tuple(names), tuple(kwargs), plain, response)


assert WRITINGS.keys() == CHECKS.keys() - {"combination:repeat_prompt"}, "its argument is the prompt itself"
