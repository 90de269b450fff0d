"""Sentences and questions: several plain ways to say each fact, private or public.

Placeholders: {c} company, {v} value, {s}/{S} scope phrase ("in 2021", "at Keldoford"), {a} what the attribute
is about, {d} what was done, {q}/{Q} public qualifier phrase, {n} subject of a page, {w} the clause that
selects it.
"""

from __future__ import annotations

from typing import Final

FACTS: Final[dict[str, tuple[str, ...]]] = {
    "percent": (
        "{S}, {v} of {c} {a} {d}.",
        "{v} of {c} {a} {d} {s}.",
        "{c} reports that {v} of its {a} {d} {s}.",
        "{S}, {c} found that {v} of {a} {d}.",
    ),
    "count": (
        "{S}, {v} {a} were {d} by {c}.",
        "{c} {d} {v} {a} {s}.",
        "{v} {a} were {d} by {c} {s}.",
        "{S}, {c} {d} {v} {a}.",
    ),
    "money": (
        "{S}, {c} spent {v} on {a}.",
        "{c} spent {v} on {a} {s}.",
        "{v} was spent on {a} by {c} {s}.",
        "{S}, {v} was spent on {a} by {c}.",
    ),
    "month": (
        "{S}, the {a} was {d} by {c} in {v}.",
        "{S}, {c} {d} the {a} in {v}.",
        "{S}, {v} was the month when {c} {d} the {a}.",
    ),
    "year": (
        "{S}, the {a} was {d} by {c} in {v}.",
        "{c} {d} the {a} {s} in {v}.",
        "{S}, {v} was the year when {c} {d} the {a}.",
    ),
    "id": (
        "{S}, {c} logged {d} {v} for the {a}.",
        "{c} logged {d} {v} for the {a} {s}.",
        "{S}, {d} {v} was logged by {c} for the {a}.",
    ),
    "product": (
        "{S}, the {a} chosen by {c} was {v}.",
        "{S}, {c} chose {v} as the {a}.",
        "{v} was chosen by {c} as the {a} {s}.",
    ),
    "vendor": (
        "{S}, the {a} contract of {c} was won by {v}.",
        "{S}, {v} won the {a} contract of {c}.",
        "{v} won the {a} contract of {c} {s}.",
    ),
    "place": (
        "{S}, the {a} of {c} was hosted by {v}.",
        "{S}, {v} hosted the {a} of {c}.",
        "{v} hosted the {a} of {c} {s}.",
    ),
}
"""Private facts. Every sentence names the company, the attribute, the scope and the value."""

COVERS: Final = (
    "This entry covers {a} {s}.",
    "The entry on {a} {s} is final.",
    "{S}, the entry on {a} was signed off.",
    "Nothing else was noted on {a} {s}.",
)
"""Second sentences of a private paragraph: attribute and scope again, no value."""

PRIVATE_QUESTIONS: Final[dict[str, tuple[str, ...]]] = {
    "percent": ("What share of {c} {a} {d} {s}?", "What percentage of {c} {a} {d} {s}?"),
    "count": ("How many {a} were {d} by {c} {s}?", "What number of {a} were {d} by {c} {s}?"),
    "money": ("How much was spent on {a} by {c} {s}?", "How much did {c} spend on {a} {s}?"),
    "month": ("In which month was the {a} {d} by {c} {s}?", "{S}, in which month was the {a} {d} by {c}?"),
    "year": ("In which year was the {a} {d} by {c} {s}?", "{S}, in which year was the {a} {d} by {c}?"),
    "id": ("Which {d} was logged by {c} for the {a} {s}?", "{S}, which {d} was logged by {c} for the {a}?"),
    "product": ("Which product was chosen by {c} as the {a} {s}?", "{S}, which {a} was chosen by {c}?"),
    "vendor": (
        "Which vendor won the {a} contract of {c} {s}?",
        "{S}, which vendor won the {a} contract of {c}?",
    ),
    "place": ("Which town hosted the {a} of {c} {s}?", "{S}, which town hosted the {a} of {c}?"),
}

SELECTING_CLAUSES: Final[dict[str, str]] = {
    "percent": "{v} of {a} {d}",
    "count": "{v} {a} were {d}",
    "money": "{v} was spent on {a}",
    "month": "the {a} was {d} in {v}",
    "year": "the {a} was {d} in {v}",
    "id": "the {a} had {d} {v}",
    "product": "the {a} chosen was {v}",
    "vendor": "the {a} contract was won by {v}",
    "place": "the {a} was hosted by {v}",
}
"""What a page says of its group: the attribute's words, no company, a value that picks the page out."""

SCOPES: Final[dict[str, str]] = {
    "year": "in {}",
    "quarter": "in {}",
    "vendor": "with {}",
    "product": "for {}",
    "place": "at {}",
}

PAGE_OPENINGS: Final = (
    "{Q}, the {n} report says that {w}.",
    "{Q}, {w}, says the {n} report.",
    "The {n} survey {q} found that {w}.",
    "A {n} study {q} shows that {w}.",
)
OPEN_PAGE_OPENINGS: Final = (
    "{Q}, the {n} report covers all member firms.",
    "The {n} survey {q} is printed once a year.",
    "{Q}, a {n} study was made for the public.",
)
"""First sentences of pages that no value selects."""

COMPANION_OPENINGS: Final = (
    "{Q}, the {n} of {v} has a page of its own.",
    "The {n} of {v} {q} is open to the public.",
    "{Q}, people often ask about the {n} of {v}.",
)
COMPANION_YEAR_OPENINGS: Final = (
    "{Q}, the {n} of the year {v} has its own page.",
    "The {n} of the year {v} {q} is open to all.",
)

PAGE_ANSWERS: Final[dict[str, tuple[str, ...]]] = {
    "product": (
        "The {n} used there is {v}.",
        "{v} is the {n} used there.",
        "Firms there use {v} as their {n}.",
    ),
    "vendor": ("The {n} serving them is {v}.", "{v} serves them as {n}.", "Firms there rely on {v} as {n}."),
    "place": ("The {n} is located in {v}.", "{v} is home to the {n}.", "Visitors find the {n} in {v}."),
    "year": (
        "The {n} began in {v}.",
        "{v} was the first year of the {n}.",
        "It was in {v} that the {n} began.",
    ),
    "month": ("The {n} is held in {v}.", "{v} is the month of the {n}.", "Each year the {n} is held in {v}."),
    "percent": ("The {n} there is {v}.", "Firms there see a {n} of {v}.", "{v} is the {n} there."),
    "money": ("The {n} there is {v}.", "Firms there pay {v} as {n}.", "{v} is the {n} there."),
    "count": (
        "The list there names {v} {n}.",
        "There are {v} {n} on the list.",
        "{v} {n} are on the list there.",
    ),
}

PAGE_QUESTIONS: Final[dict[str, tuple[str, ...]]] = {
    "product": ("Which {n} is used {q} where {w}?", "{Q}, where {w}, which {n} is used?"),
    "vendor": ("Which {n} serves firms {q} where {w}?", "{Q}, where {w}, which {n} serves firms?"),
    "place": ("Which town has the {n} {q} where {w}?", "{Q}, where {w}, which town has the {n}?"),
    "year": ("In which year did the {n} begin {q} where {w}?", "{Q}, where {w}, which year began the {n}?"),
    "month": ("In which month is the {n} held {q} where {w}?", "{Q}, where {w}, which month has the {n}?"),
    "percent": ("What is the {n} {q} where {w}?", "{Q}, where {w}, what is the {n}?"),
    "money": ("How much is the {n} {q} where {w}?", "{Q}, where {w}, how much is the {n}?"),
    "count": ("How many {n} are listed {q} where {w}?", "{Q}, where {w}, how many {n} are listed?"),
}
OPEN_QUESTIONS: Final[dict[str, str]] = {
    kind: first.replace(" where {w}", "") for kind, (first, *_) in PAGE_QUESTIONS.items()
}
"""Questions about a page that its qualifier alone identifies."""

COMPANION_QUESTIONS: Final[dict[str, tuple[str, ...]]] = {
    "product": ("Which product is used by the {n} of {e} {q}?",),
    "vendor": ("Which vendor serves the {n} of {e} {q}?",),
    "place": ("Which town is home to the {n} of {e} {q}?",),
    "year": ("In which year did the {n} of {e} begin {q}?",),
    "month": ("In which month is the {n} of {e} held {q}?",),
    "money": ("How much does the {n} of {e} cost {q}?",),
    "count": ("How many members has the {n} of {e} {q}?",),
}
COMPANION_ANSWERS: Final[dict[str, tuple[str, ...]]] = {
    "product": ("The product used by the {n} is {v}.", "{v} is the product the {n} uses."),
    "vendor": ("The vendor serving the {n} is {v}.", "{v} is the vendor that serves the {n}."),
    "place": ("The {n} is located in the town of {v}.", "{v} is the town that is home to the {n}."),
    "year": ("The {n} began in the year {v}.", "{v} is the year the {n} began."),
    "month": ("The {n} is held in the month of {v}.", "{v} is the month when the {n} is held."),
    "money": ("The {n} costs each member {v}.", "{v} is what the {n} costs each member."),
    "count": ("The {n} has {v} members.", "{v} members belong to the {n}."),
}


def capital(text: str) -> str:
    """The text with its first letter upper case."""
    return text[:1].upper() + text[1:]
