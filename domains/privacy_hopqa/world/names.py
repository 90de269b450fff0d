"""Invented names from syllables: companies, vendors, products, towns and regions.

Each kind has more than half a million names and its own endings, so that names cannot be learned by heart
while their kind can be told. A name that contains a well-known one is never used.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from .draws import Draws
from .words import words

ONSETS: Final = words("b br d dr f fl g gr h j k kl l m n p pr qu r s sk st t tr v vr w z")
VOWELS: Final = words("a e i o u ae oa ei")
CODAS: Final = words("l m n r sk th v x")
MIDDLES: Final = words("b d f g k l m n p r s t v z")
LINKS: Final = words("a e i o u")

ENDINGS: Final = {
    "vendor": ("tec", "corp", "works", "trade", "line"),
    "product": ("ix", "ron", "ium", "eo", "pad"),
    "place": ("ford", "stead", "haven", "minster", "port"),
    "region": ("lund", "moor", "reach", "shire", "wold"),
}
SECTORS: Final = words(
    "Bakeries Beverages Carpets Cements Chemicals Clinics Dairies Farms Ferries Fibres Foods Foundries "
    "Freight Furniture Gardens Glass Grocers Hotels Kitchens Laundries Leather Logistics Lumber Metals "
    "Mills Motors Optics Orchards Packaging Paints Papers Pharmacy Plastics Press Rail Retail Seeds "
    "Shipping Solar Steel Storage Telecom Textiles Timber Tools Toys Trucks Water"
)

FAMOUS: Final = words(
    "adidas airbus aldi alibaba amazon apple bayer boeing bosch canon carrefour chevron cisco cola "
    "danone dell denmark disney ebay england ericsson exxon finland ford france fujitsu gillette google "
    "heineken hilton hitachi holland honda huawei ibm iceland ikea intel ireland jaguar kellogg lego "
    "lenovo lidl london loreal maersk mars mazda microsoft motorola nestle netflix nike nokia novartis "
    "nvidia oracle oxford panasonic pepsi pfizer philips poland porsche portland prada puma renault "
    "roche rolex samsung sanofi sap sharp shell siemens sony spotify starbucks tesco tesla toshiba "
    "toyota twitter uber unilever vodafone volkswagen volvo walmart xerox yahoo zara"
)
"""Names that nothing invented may be, or start with (an ending such as -ford is ours and allowed)."""

STEMS: Final = len(ONSETS) * len(VOWELS) * len(CODAS) * len(MIDDLES) * len(LINKS)


def stem(number: int) -> str:
    """The two-syllable stem with this number (0..STEMS-1), capitalised."""
    number, link = divmod(number, len(LINKS))
    number, middle = divmod(number, len(MIDDLES))
    number, coda = divmod(number, len(CODAS))
    onset, vowel = divmod(number, len(VOWELS))
    word = ONSETS[onset] + VOWELS[vowel] + CODAS[coda] + MIDDLES[middle] + LINKS[link]
    return word.capitalize()


def is_famous(name: str) -> bool:
    """Whether a word of the name starts with a well-known name."""
    return any(word.startswith(known) for word in name.lower().split() for known in FAMOUS)


def draw_name(draws: Draws, kind: str) -> str:
    """One word with an ending of its kind: `vendor`, `product`, `place` or `region`."""
    while True:
        name = stem(draws.below(STEMS)) + draws.pick(ENDINGS[kind])
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
