"""What a company knows: its name, the facts that questions ask for, and the facts that only distract.

Facts come in families: one attribute under several scopes, in different documents, so that a question whose
scope is hidden always fits more than one document. Scopes and linking values (years, products, vendors,
places) are drawn from a few anchors of the company, so that the answer of one fact is the scope of another.
"""

from dataclasses import dataclass, field
from math import ceil
from typing import Final

from .draws import Draws
from .names import company_name, draw_names
from .topics import ATTRIBUTES, LINKING, WORDING, Attribute
from .values import SCOPE_YEARS, YEARS, Value, draw_value
from .words import capital

GOLD_SHARE: Final = 0.45
VAL_SHARE: Final = 0.25
FAMILY_SIZE: Final = 4
PROFILES: Final = ("House notice", "Visitor notice", "Neighbour letter", "Welcome letter", "Open day notice")
"""Titles of documents per company that repeat its name, so that the name alone finds nothing else."""
TEST_NUMBERS: Final = 5000
"""Company numbers from here on belong to the test split."""


@dataclass(slots=True, eq=False)
class WorldFact:
    """`(company, attribute, scope) -> value`, stated by one sentence of one private document."""

    company: str
    attribute: Attribute
    scope: str
    scope_kind: str
    """`year`, `quarter`, `product`, `vendor` or `place`."""
    value: Value
    side: str
    """`train`, `val` or `test`: the split whose chains may ask for it; empty for a distractor."""
    wording: int
    doc_id: str = ""
    sentence: str = ""

    def _fill(self, template: str, scope: str) -> str:
        phrase = WORDING["scopes"][self.scope_kind].format(scope)
        return template.format(
            c=self.company,
            a=self.attribute.about,
            d=self.attribute.done,
            v=self.value.text,
            s=phrase,
            S=capital(phrase),
        )

    def tell(self) -> str:
        """The sentence of the document."""
        templates = WORDING["facts"][self.attribute.kind]
        return self._fill(templates[self.wording % len(templates)], self.scope)

    @property
    def topic(self) -> str:
        """What a document about the fact is called; unique within a company."""
        return f"{self.attribute.about} {WORDING['scopes'][self.scope_kind].format(self.scope)}"

    def cover(self) -> str:
        """A second sentence that says what the first one was about."""
        templates = WORDING["covers"]
        return self._fill(templates[self.wording // 3 % len(templates)], self.scope)

    def question(self, reference: str | None = None) -> str:
        """The question whose answer is the value; `reference` such as "(1)" replaces the scope."""
        templates = WORDING["private_questions"][self.attribute.kind]
        return self._fill(templates[self.wording // 7 % len(templates)], reference or self.scope)

    @property
    def key(self) -> tuple[str, str]:
        """Unique within a company."""
        return self.attribute.key, self.scope


@dataclass(slots=True)
class DocumentPlan:
    """The facts of one private document, the main one first; a profile has a title instead."""

    side: str
    facts: list[WorldFact]
    profile: str = ""
    long: bool = False


@dataclass(slots=True)
class Company:
    """A company of one side of the world (train and val, or test)."""

    number: int
    name: str
    task_id: str
    description: str
    sides: tuple[str, ...]
    families: list[list[WorldFact]] = field(default_factory=list)
    plans: list[DocumentPlan] = field(default_factory=list)

    @property
    def gold_facts(self) -> list[WorldFact]:
        """Facts that chains may ask for."""
        return [fact for family in self.families for fact in family]


class _Drawing:
    """Draws one company's facts; keeps which keys and values are taken."""

    def __init__(self, seed: int, company: Company, docs: int) -> None:
        self.draws = Draws(seed, "company", company.number)
        self.company = company
        self.docs = docs
        self.gold_docs = int(docs * GOLD_SHARE)
        self.family_count = min(len(ATTRIBUTES), ceil(2 * self.gold_docs / FAMILY_SIZE))
        self.family_size = ceil(2 * self.gold_docs / self.family_count)
        anchors = min(self.family_size, len(SCOPE_YEARS))
        self.anchors = {"year": [str(year) for year in self.draws.shuffled(SCOPE_YEARS)]}
        for kind in ("vendor", "product", "place"):
            self.anchors[kind] = draw_names(self.draws, kind, anchors + max(6, docs // 8))
        self.core = {kind: names[:anchors] for kind, names in self.anchors.items()}
        self.values: dict[str, set[str]] = {a.key: set() for a in ATTRIBUTES}
        self.free: dict[str, list[tuple[str, str]]] = {}

    def families(self) -> list[Attribute]:
        """Attributes of the gold families: by turns linking, plain by year, plain by another scope."""
        classes: list[list[Attribute]] = [[], [], []]
        for attribute in self.draws.shuffled(ATTRIBUTES):
            plain = 1 if attribute.scope == "year" else 2
            classes[0 if attribute.kind in LINKING else plain].append(attribute)
        order = [a for rank in range(len(ATTRIBUTES)) for c in classes for a in c[rank : rank + 1]]
        return order[: self.family_count]

    def value(self, attribute: Attribute, gold: bool, scope: str) -> Value:
        """A value that no other fact of the attribute has, as long as one is left."""
        taken, kind = self.values[attribute.key], attribute.kind
        for _ in range(40):
            if kind in LINKING and (gold or kind != "year"):
                text = self.draws.pick(self.core[kind] if gold else self.anchors[kind])
            elif kind == "year":
                text = str(self.draws.pick(YEARS))
            else:
                text = draw_value(self.draws, kind).text
            if text not in taken and text != scope:
                break
        taken.add(text)
        return Value(kind, text)

    def fact(self, attribute: Attribute, scope: str, scope_kind: str, side: str) -> WorldFact:
        """A new fact."""
        value = self.value(attribute, bool(side), scope)
        return WorldFact(self.company.name, attribute, scope, scope_kind, value, side, self.draws.below(840))

    def gold_plans(self) -> list[DocumentPlan]:
        """Documents whose facts are asked for; facts of one family lie in different documents."""
        plans = [DocumentPlan(side, []) for side in self._sides()]
        position = 0
        for attribute in self.families():
            family: list[WorldFact] = []
            scopes = self.draws.shuffled(self.core[attribute.scope])
            for scope in scopes[: self.family_size]:
                if position == 2 * self.gold_docs:
                    break
                plan = plans[position % self.gold_docs]
                family.append(self.fact(attribute, scope, attribute.scope, plan.side))
                plan.facts.append(family[-1])
                position += 1
            if family:
                self.company.families.append(family)
        return plans

    def _sides(self) -> list[str]:
        if "val" not in self.company.sides:
            return [self.company.sides[0]] * self.gold_docs
        val = max(3, round(self.gold_docs * VAL_SHARE))
        return self.draws.shuffled(["val"] * val + ["train"] * (self.gold_docs - val))

    def _free_keys(self) -> None:
        used = {fact.key for fact in self.company.gold_facts}
        for attribute in ATTRIBUTES:
            keys = [(scope, attribute.scope) for scope in self.anchors[attribute.scope]]
            if attribute.scope == "year" and attribute.kind != "month":
                later = [(f"Q{q} {year}", "quarter") for year in self.anchors["year"] for q in (1, 2, 3, 4)]
                keys = self.draws.shuffled(keys) + self.draws.shuffled(later)
            else:
                keys = self.draws.shuffled(keys)
            self.free[attribute.key] = [key for key in reversed(keys) if (attribute.key, key[0]) not in used]

    def distractor_plans(self, count: int) -> list[DocumentPlan]:
        """Documents nobody asks for: other scopes of the gold families, and other attributes."""
        self._free_keys()
        near = self.draws.shuffled([family[0].attribute for family in self.company.families])
        plans = []
        for i in range(count):
            facts: list[WorldFact] = []
            for rank in range(self.draws.between(1, 3)):
                attribute = near[i % len(near)] if rank == 0 else self.draws.pick(ATTRIBUTES)
                while not self.free[attribute.key]:
                    attribute = self.draws.pick(ATTRIBUTES)
                if all(f.attribute is not attribute for f in facts):
                    facts.append(self.fact(attribute, *self.free[attribute.key].pop(), ""))
            plans.append(DocumentPlan("", facts))
        return plans


def make_company(seed: int, number: int, sides: tuple[str, ...], docs: int, long_fraction: float) -> Company:
    """Company `number` with its document plans in file order; depends on nothing but the arguments."""
    name = company_name(seed, number)
    description = f"{name} is a mid-sized firm with several sites and its own delivery crews."
    company = Company(number, name, f"DR9{number:04d}", description, sides)
    drawing = _Drawing(seed, company, docs)
    gold = drawing.gold_plans()
    profiles = [DocumentPlan("", [], title) for title in PROFILES]
    distractors = drawing.distractor_plans(docs - len(gold) - len(profiles))
    long = ceil(docs * long_fraction - 1e-9)
    for plan in [*gold[:1], *distractors][:long]:
        plan.long = True
    company.plans = drawing.draws.shuffled([*gold, *profiles, *distractors])
    return company
