"""Private documents as text: a title, then paragraphs that open with the sentence that matters.

A reader gets documents in windows, so no sentence that states a fact may be cut by the smallest window.
"""

from dataclasses import dataclass, field
from typing import Final

from .companies import Company, DocumentPlan, WorldFact
from .draws import Draws
from .filler import company_sentence, office_sentence
from .topics import OFFICES

SHORT: Final = (600, 1000)
LONG: Final = (12_050, 12_900)
READ_STEP: Final = 320
READ_WINDOW: Final = 400
"""The smallest reading window: no sentence that states a fact is cut by it."""


@dataclass(slots=True)
class PrivateDocument:
    """One private document; `facts` in order of appearance."""

    doc_id: str
    """`local/<TASK>/<folder>/<name>`."""
    task_id: str
    folder: str
    name: str
    text: str
    side: str
    """Split whose chains may use it, empty for a distractor."""
    facts: list[WorldFact] = field(default_factory=list)


class _Draft:
    """Text under construction, in one of three formats."""

    def __init__(self, suffix: str, title: str, office: str) -> None:
        self.suffix, self.office = suffix, office
        head = {"md": f"# {title}", "txt": title, "csv": "row,office,note"}[suffix]
        self.parts = [head]
        self.length = len(head)

    def _prefix(self) -> str:
        return f'{len(self.parts)},{self.office},"' if self.suffix == "csv" else ""

    def start(self) -> int:
        """Where the next paragraph's first sentence will begin."""
        return self.length + (1 if self.suffix == "csv" else 2) + len(self._prefix())

    def add(self, paragraph: str) -> None:
        row = f'{self._prefix()}{paragraph}"' if self.suffix == "csv" else paragraph
        self.length += (1 if self.suffix == "csv" else 2) + len(row)
        self.parts.append(row)

    def text(self) -> str:
        return ("\n" if self.suffix == "csv" else "\n\n").join(self.parts) + "\n"


def _prose(draws: Draws, low: int, high: int) -> str:
    return " ".join(office_sentence(draws) for _ in range(draws.between(low, high)))


def _add_fact(page: _Draft, draws: Draws, fact: WorldFact) -> None:
    while page.start() % READ_STEP + len(fact.sentence) > READ_WINDOW:
        page.add(_prose(draws, 1, 2))
    page.add(f"{fact.sentence} {fact.cover()} {_prose(draws, 0, 1)}".rstrip())


def _title(plan: DocumentPlan, draws: Draws) -> str:
    return plan.profile or draws.pick(("Report on", "Notes on", "Review of")) + f" {plan.facts[0].topic}"


def _body(page: _Draft, draws: Draws, plan: DocumentPlan, company: Company) -> None:
    low, high = LONG if plan.long else SHORT
    target = draws.between(low, high)
    if plan.profile:
        while page.length < target:
            page.add(" ".join(company_sentence(draws, company.name) for _ in range(draws.between(3, 4))))
        return
    waiting = list(plan.facts)
    if waiting:
        _add_fact(page, draws, waiting.pop(0))
    while waiting or page.length < target:
        if waiting and (page.length >= target or draws.chance(0.45)):
            _add_fact(page, draws, waiting.pop(0))
        else:
            page.add(_prose(draws, 2, 3))


def make_documents(seed: int, company: Company) -> list[PrivateDocument]:
    """The company's documents; fills `doc_id` and `sentence` of every planned fact."""
    documents = []
    for index, plan in enumerate(company.plans):
        draws = Draws(seed, "document", company.number, index)
        suffix = draws.weighted(("md", "txt", "csv"), (0.6, 0.25, 0.15))
        main = plan.facts[0] if plan.facts else None
        folder = main.attribute.office if main else "general"
        title = _title(plan, draws)
        name = f"{title.lower().replace(' ', '-')}-{index + 1:03d}.{suffix}"
        doc_id = f"local/{company.task_id}/{folder}/{name}"
        for fact in plan.facts:
            fact.doc_id, fact.sentence = doc_id, fact.tell()
        page = _Draft(suffix, title, OFFICES.get(folder, "front desk"))
        _body(page, draws, plan, company)
        text = page.text()
        documents.append(PrivateDocument(doc_id, company.task_id, folder, name, text, plan.side, plan.facts))
    return documents
