"""The public web: sibling pages that differ in a public qualifier and in the value that selects them.

Three sorts of topics. *Selected*: 8-12 pages say the same thing about different groups of firms; the
qualifier narrows them to 2-4, the value of a private fact picks one. *Companion*: pages about products,
vendors, places or years that selected pages named. *Open*: the qualifier alone picks a page. Every company
has topics of its own, so that more companies leave its pages as they are.
"""

from typing import Final

from .companies import Company, WorldFact
from .draws import Draws
from .names import draw_names
from .pages import Page, page_text
from .topics import ATTRIBUTES, COMPANION_KINDS, COMPANION_SUBJECTS, LINKING, SECTOR_GROUPS, SUBJECTS, Subject
from .values import SCOPE_YEARS, Value, draw_other, draw_value

ORDER: Final = ("selected", "selected", "companion", "selected", "open", "selected", "selected", "companion")
GROUPS: Final = ((4, 4), (4, 4, 2), (4, 4, 3), (4, 4, 4))
COMPANION_GROUPS: Final = ((2, 2), (3, 2), (3, 3))
OPEN_PAGES: Final = 4
GOLD_PER_TOPIC: Final = 4
BACKGROUND_SHARE: Final = 0.08
_SLOTS: Final = 1 << 26
_TOPIC_SLOTS: Final = 16
_COMPANY_SLOTS: Final = 4096
_BACKGROUND_SLOT: Final = 10_000 * _COMPANY_SLOTS


def _docid(seed: int, slot: int) -> str:
    """Ids in no order, one to one in the slot (an odd factor modulo a power of two)."""
    offset = Draws(seed, "web ids").below(_SLOTS)
    return str(10_000_000 + (offset + slot * 40_503_733) % _SLOTS)


class WebTopics:
    """Makes the pages of one company's topics, in a fixed order, until `budget` pages are reached."""

    def __init__(self, seed: int, company: Company, budget: int) -> None:
        self.seed, self.company, self.budget = seed, company, budget
        self.pages: list[Page] = []
        self.scopes: dict[tuple[str, str], list[str]] = {}
        for fact in company.gold_facts:
            self.scopes.setdefault((fact.side, fact.scope_kind), []).append(fact.scope)
        order = Draws(seed, "web families", company.number)
        self.families = order.shuffled(company.families)

    def make(self) -> list[Page]:
        """All pages; a topic that would pass the budget is not begun."""
        selected = 0
        for topic in range(_COMPANY_SLOTS // _TOPIC_SLOTS):
            draws = Draws(self.seed, "web topic", self.company.number, topic)
            sort = ORDER[topic % len(ORDER)]
            if sort == "selected":
                pages = self._selected(draws, selected)
                selected += 1
            else:
                pages = self._companion(draws) if sort == "companion" else self._open(draws)
            if len(self.pages) + len(pages) > self.budget:
                break
            slot = self.company.number * _COMPANY_SLOTS + topic * _TOPIC_SLOTS
            for i, page in enumerate(pages):
                page.docid = _docid(self.seed, slot + i)
            self.pages += pages
        return self.pages

    def _selected(self, draws: Draws, number: int) -> list[Page]:
        turn, index = divmod(number, len(self.families))
        family = self.families[index]
        attribute = family[0].attribute
        start = turn * GOLD_PER_TOPIC % len(family)
        facts = {fact.value.text: fact for fact in (family[start:] + family[:start])[:GOLD_PER_TOPIC]}
        kind = _answer_kind(draws, [s.kind for s in SUBJECTS if s.kind != attribute.kind])
        subject = draws.pick([s for s in SUBJECTS if s.kind == kind])
        groups = draws.pick(GROUPS)
        qualifiers = _qualifiers(draws, len(groups), period="year" not in (kind, attribute.kind))
        spread = [q for q, size in zip(qualifiers, groups) for _ in range(size)]
        taken = set(facts)
        chosen: list[WorldFact | Value] = list(facts.values())
        chosen += [draw_other(draws, attribute.kind, taken) for _ in spread[len(facts) :]]
        pages = []
        for item, qualifier in zip(draws.shuffled(chosen), spread):
            page = Page("", "selected", subject, qualifier, Value(kind, ""), attribute=attribute)
            if isinstance(item, WorldFact):
                page.fact, page.side, page.selector = item, item.side, item.value
            else:
                page.selector = item
            pages.append(page)
        self._complete(draws, pages)
        main = [page for page in pages if page.side == self.company.sides[0]]
        for page in main[:1]:
            page.wordy = True
        return draws.shuffled(pages)

    def _complete(self, draws: Draws, pages: list[Page]) -> None:
        """Draw answers and wordings."""
        answers: set[str] = set()
        for page in pages:
            page.answer = self._answer(draws, page, answers)
            page.wording = draws.below(9240)
            page.wordy = page.topic == "selected" and draws.chance(0.2)

    def _answer(self, draws: Draws, page: Page, taken: set[str]) -> Value:
        """A new answer; on a page that chains use, one that private questions refer to if possible."""
        kind = page.subject.kind
        avoid = {page.selector.text} if page.selector else set()
        avoid |= {page.fact.scope} if page.fact else set()
        wanted = [s for s in self.scopes.get((page.side, kind), ()) if s not in taken and s not in avoid]
        if wanted:
            text = draws.pick(wanted)
            taken.add(text)
            return Value(kind, text)
        return draw_other(draws, kind, taken)

    def _companion(self, draws: Draws) -> list[Page]:
        named: dict[str, dict[str, str]] = {}
        for page in self.pages:
            if page.side and page.topic == "selected" and page.answer.kind in LINKING:
                named.setdefault(page.answer.kind, {}).setdefault(page.answer.text, page.side)
        entity = draws.pick(sorted(named)) if named else "product"
        entries = draws.shuffled(list(named.get(entity, {}).items()))[:GOLD_PER_TOPIC]
        groups = draws.pick(COMPANION_GROUPS)
        entries = entries[: sum(groups)]
        taken = {text for text, _ in entries}
        entries += [(draw_other(draws, entity, taken).text, "") for _ in range(sum(groups) - len(entries))]
        kind = _answer_kind(draws, [kind for kind in COMPANION_KINDS if kind != entity])
        subject = Subject(kind, draws.pick(COMPANION_SUBJECTS[entity]))
        qualifiers = _qualifiers(draws, len(groups), period=False)
        spread = [q for q, size in zip(qualifiers, groups) for _ in range(size)]
        pages = [
            Page("", "companion", subject, qualifier, Value(kind, ""), Value(entity, text), side=side)
            for (text, side), qualifier in zip(draws.shuffled(entries), spread)
        ]
        self._complete(draws, pages)
        return draws.shuffled(pages)

    def _open(self, draws: Draws) -> list[Page]:
        subject = draws.pick([s for s in SUBJECTS if s.kind in LINKING])
        first, *rest = draw_names(draws, "region", OPEN_PAGES)
        sides = {first: self.company.sides[-1]} | dict.fromkeys(rest, self.company.sides[0])
        pages = [
            Page("", "open", subject, f"in {region}", Value(subject.kind, ""), side=side)
            for region, side in sides.items()
        ]
        self._complete(draws, pages)
        return draws.shuffled(pages)


def _answer_kind(draws: Draws, kinds: list[str]) -> str:
    """What kind of value the pages are asked about, more often one that later questions can be about."""
    linking = [kind for kind in kinds if kind in LINKING]
    return draws.pick(linking if draws.chance(0.6) else kinds)


def _qualifiers(draws: Draws, count: int, *, period: bool) -> list[str]:
    """Distinct public qualifiers of one sort: regions, trades or years."""
    sort = draws.weighted(("region", "trade", "period"), (0.6, 0.25, 0.15 if period else 0.0))
    if sort == "region":
        return [f"in {name}" for name in draw_names(draws, "region", count)]
    if sort == "trade":
        return [f"among {trade}" for trade in draws.shuffled(SECTOR_GROUPS)[:count]]
    return [f"in {year}" for year in draws.shuffled(SCOPE_YEARS)[:count]]


def _background_page(seed: int, index: int) -> Page:
    draws = Draws(seed, "background", index)
    attribute = draws.pick(ATTRIBUTES)
    subject = draws.pick([s for s in SUBJECTS if s.kind != attribute.kind])
    qualifier = f"in {draw_names(draws, 'region', 1)[0]}"
    selector, answer = draw_value(draws, attribute.kind), draw_value(draws, subject.kind)
    docid = _docid(seed, _BACKGROUND_SLOT + index)
    wording = draws.below(9240)
    return Page(docid, "selected", subject, qualifier, answer, selector, attribute, wording=wording)


def make_web(
    seed: int, companies: list[Company], web_docs: int, long_fraction: float
) -> tuple[list[Page], dict[int, list[Page]]]:
    """The web corpus in order of docid, and the pages of each company by company number."""
    budget = int(web_docs * (1 - BACKGROUND_SHARE)) // len(companies)
    by_company = {c.number: WebTopics(seed, c, budget).make() for c in companies}
    pages = [page for own in by_company.values() for page in own]
    background = [_background_page(seed, i) for i in range(web_docs - len(pages))]
    long_from = -int(web_docs * long_fraction)
    long_pages = {page.docid for page in background[long_from:]} if long_from else set()
    corpus = sorted([*pages, *background], key=lambda p: p.docid)
    for page in corpus:
        page.text = page_text(seed, page, page.docid in long_pages)
    return corpus, by_company
