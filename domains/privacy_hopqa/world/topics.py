"""What documents are about: private attributes of a company, and subjects of public pages.

An attribute is told in sentences whose shape depends on the kind of its value (`wording.py`); its `about`
words occur in the fact, in the private question and in the public pages that the value selects from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .words import words

KINDS: Final = ("percent", "money", "count", "month", "year", "id", "product", "vendor", "place")
LINKING: Final = ("year", "product", "vendor", "place")
"""Kinds of values that other questions can be asked about."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A property of a company with one value per scope (a year, or a product, vendor or place)."""

    key: str
    kind: str
    scope: str
    """Kind of the scope value: `year`, `product`, `vendor` or `place`."""
    office: str
    about: str
    done: str = ""
    """The past participle of what was done, or the predicate of a share."""


def _rows(kind: str, table: str) -> list[Attribute]:
    rows = (line.split("|") for line in table.strip().splitlines())
    return [
        Attribute("-".join((*about.split(), kind)), kind, scope, office, about, *done)
        for scope, office, about, *done in ([cell.strip() for cell in row] for row in rows)
    ]


ATTRIBUTES: Final[tuple[Attribute, ...]] = (
    *_rows(
        "percent",
        """
        year    | quality    | stores      | passed the cold chain audit
        year    | people     | night crews | finished the ladder safety course
        year    | sales      | orders      | arrived with damaged outer boxes
        year    | it         | laptops     | missed the disk encryption check
        place   | sites      | roof panels | failed the spring leak test
        vendor  | purchasing | invoices    | needed a second price approval
        product | it         | branch managers | rejected the trial screen layout
        year    | finance    | travel claims | lacked a signed receipt
        """,
    ),
    *_rows(
        "count",
        """
        year    | sites      | broken delivery pallets | repaired
        year    | people     | forklift driver badges  | renewed
        vendor  | purchasing | insulated fish crates   | leased
        place   | sites      | rusted dock doors       | replaced
        product | it         | handheld scanner licences | cancelled
        year    | quality    | mislabelled jam jars    | recalled
        year    | sales      | unpaid loyalty vouchers | refunded
        place   | quality    | rodent bait stations    | installed
        """,
    ),
    *_rows(
        "money",
        """
        year    | finance    | forklift battery leasing
        year    | people     | seasonal staff housing
        vendor  | purchasing | shelf sensor maintenance
        place   | sites      | parking lot lighting
        year    | sales      | coupon booklet printing
        product | it         | invoice archive migration
        year    | finance    | export customs fees
        """,
    ),
    *_rows(
        "month",
        """
        year    | sites   | boiler pressure refit    | completed
        year    | quality | allergen labelling drill | repeated
        place   | sites   | sprinkler valve overhaul | started
        product | it      | barcode firmware rollout | paused
        year    | people  | shift roster reform      | approved
        """,
    ),
    *_rows(
        "year",
        """
        place   | sites      | bicycle courier bay       | opened
        vendor  | purchasing | bulk sugar agreement      | signed
        product | it         | paperless picking project | launched
        place   | people     | apprentice welding school | closed
        vendor  | finance    | credit line guarantee     | extended
        """,
    ),
    *_rows(
        "id",
        """
        year    | quality | hydraulic hose recall   | batch code
        place   | sites   | solvent cabinet permit  | permit code
        product | it      | router password reset   | ticket code
        vendor  | finance | pension fund transfer   | ledger code
        """,
    ),
    *_rows(
        "product",
        """
        year   | it         | visitor badge printer
        place  | sites      | gate access terminal
        year   | finance    | expense report app
        vendor | purchasing | pallet wrapping machine
        year   | quality    | freezer temperature logger
        """,
    ),
    *_rows(
        "vendor",
        """
        year    | purchasing | night window cleaning
        place   | sites      | snow removal service
        year    | people     | first aid training
        product | it         | remote repair support
        year    | finance    | payroll tax advice
        """,
    ),
    *_rows(
        "place",
        """
        year    | people     | annual driver meeting
        year    | sales      | autumn product tasting
        vendor  | purchasing | spare tyre handover
        product | it         | pilot robot trial
        year    | quality    | yeast hygiene workshop
        """,
    ),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a public page is asked about: its `noun` has one value of `kind` per page."""

    kind: str
    noun: str


SUBJECTS: Final[tuple[Subject, ...]] = tuple(
    Subject(kind, noun.strip())
    for kind, nouns in (
        ("product", "label gun, route planner, cooling unit, badge reader, stock counter, floor scrubber"),
        (
            "vendor",
            "insurance broker, audit firm, waste hauler, pest controller, uniform rental, fire inspector",
        ),
        ("place", "trade fair, crane school, pilot depot, appeals office, seed bank, test kitchen"),
        ("year", "noise rule, sorting duty, deposit scheme, helmet rule, scale reform"),
        ("month", "open day, tool census, hygiene week, job market"),
        ("percent", "energy rebate rate, deposit rate, idle bay rate, scrap rate"),
        ("money", "licence fee, mooring fee, training grant, yearly levy"),
        ("count", "certified inspectors, guild members, charging posts, rental vans"),
    )
    for noun in nouns.split(",")
)
"""Subjects of pages that a private value selects, and of pages that open a chain."""

COMPANION_SUBJECTS: Final[dict[str, tuple[str, ...]]] = {
    "product": ("user club", "repair hotline", "trade-in desk"),
    "vendor": ("service desk", "youth league", "complaints panel"),
    "place": ("harbour council", "bus depot", "market hall"),
    "year": ("jubilee fund", "design prize", "founders circle"),
}
"""Subjects of pages about a public product, vendor, place or year that another page named."""

COMPANION_KINDS: Final = ("product", "vendor", "place", "year", "month", "money", "count")

OFFICES: Final[dict[str, str]] = {
    "finance": "finance office",
    "it": "systems office",
    "people": "people office",
    "purchasing": "purchasing office",
    "quality": "quality office",
    "sales": "sales office",
    "sites": "sites office",
}
SECTOR_GROUPS: Final = words(
    "bakers brewers builders butchers carpenters caterers cobblers coopers couriers dentists dyers "
    "farmers ferrymen fishers florists gardeners glaziers grocers hatters herders innkeepers jewellers "
    "joiners millers miners movers opticians painters plumbers potters printers roofers saddlers tailors "
    "tanners tinsmiths vintners weavers"
)
"""Trades that a public page may be about."""
