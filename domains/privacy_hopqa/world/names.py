"""Invented names from syllables: companies, vendors, products, towns and regions.

Each kind has more than half a million names and its own endings, so that names cannot be learned by heart
while their kind can be told. A name that contains a well-known one is never used.
"""

from hashlib import blake2b
from math import prod
from typing import Final

from .draws import Draws
from .words import read

_PARTS: Final = read("names")
SECTORS: Final[list[str]] = _PARTS["sectors"]
_STEM: Final = [_PARTS[part] for part in ("onsets", "vowels", "codas", "middles", "links")]
STEMS: Final = prod(map(len, _STEM))


def stem(number: int) -> str:
    """The two-syllable stem with this number (0..STEMS-1), capitalised."""
    word = ""
    for choices in reversed(_STEM):
        number, choice = divmod(number, len(choices))
        word = choices[choice] + word
    return word.capitalize()


def is_famous(name: str) -> bool:
    """Whether a word of the name starts with a well-known name."""
    return any(word.startswith(known) for word in name.lower().split() for known in _PARTS["famous"])


def draw_name(draws: Draws, kind: str) -> str:
    """One word with an ending of its kind: `vendor`, `product`, `place` or `region`."""
    while True:
        name = stem(draws.below(STEMS)) + draws.pick(_PARTS["endings"][kind])
        if not is_famous(name):
            return name


def draw_names(draws: Draws, kind: str, count: int) -> list[str]:
    """Distinct names of one kind."""
    names: dict[str, None] = {}
    while len(names) < count:
        names[draw_name(draws, kind)] = None
    return list(names)


def company_name(seed: int, number: int) -> str:
    """The name of company `number` (0..9999): two words, the first one unique within a seed.

    Numbers run through all stems by a seeded affine map, which is one to one; a famous name moves on along
    the same map by a stride that no other company uses.
    """
    digest = blake2b(f"{seed}:company names".encode(), digest_size=8).digest()
    offset = int.from_bytes(digest, "big") % STEMS
    step = 100_003  # prime and no divisor of STEMS, so the map is one to one
    while is_famous(name := stem((offset + number * step) % STEMS) + "n"):
        number += 10_000
    return f"{name} {Draws(seed, 'company sector', number).pick(SECTORS)}"
