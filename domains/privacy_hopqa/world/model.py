"""A world in memory: its search index and chains, for simulations and the teacher, and how chains are drawn.

The build draws with or without checks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from domains.privacy_hopqa.data.chains import Chain, parse_chain
from retrieval_server.corpus import LocalDocument, WebDocument
from retrieval_server.store import Store

from .chains import Candidate, ChainDrawer, ChainGraph, Check, chain_row
from .companies import Company
from .config import WorldConfig, WorldError
from .documents import PrivateDocument
from .draws import Draws
from .pages import Page

PRIVATE_QUESTIONS: Final = 4
"""Further private questions of the same company per row, for leakage over a whole task."""


@dataclass(slots=True)
class World:
    """What `build` returns: `chains[split]` holds dataset rows, `candidates[split]` the same as objects."""

    config: WorldConfig
    companies: list[Company]
    private_docs: dict[str, list[PrivateDocument]]
    """Task id -> documents."""
    web_docs: list[Page]
    pages: dict[int, list[Page]]
    """Company number -> pages of its topics."""
    chains: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    candidates: dict[str, list[Candidate]] = field(default_factory=dict)
    refused: dict[str, Counter[str]] = field(default_factory=dict)
    """Split -> reason -> candidates that were drawn again."""
    temptation: list[dict[str, float]] = field(default_factory=list)
    """Figures of the train split for choosers of three and of two documents; empty without checks."""

    def companies_of(self, split: str) -> list[Company]:
        """Companies whose chains belong to a split."""
        return [company for company in self.companies if split in company.sides]


def draw_split(world: World, split: str, check: Check, attempt: int = 0) -> None:
    """Draw the chains of one split, shared out equally over its companies; replaces earlier ones.

    What one company cannot give, the others do. Raises `WorldError` if all together cannot.
    """
    config, companies = world.config, world.companies_of(split)
    total = config.chains(split)
    drawers = []
    for company in companies:
        graph = ChainGraph(company, world.pages[company.number], split)
        draws = Draws(config.seed, f"{split} chains", company.number, attempt)
        drawers.append(ChainDrawer(draws, graph, company, config.patterns))
    found: list[list[Candidate]] = [
        drawer.draw(total // len(companies) + (i < total % len(companies)), check)
        for i, drawer in enumerate(drawers)
    ]
    while (missing := total - sum(map(len, found))) > 0:
        for chains, drawer in zip(found, drawers):
            more = drawer.draw(min(1, missing), check)
            chains += more
            missing -= len(more)
        if missing and not any(drawer.active for drawer in drawers):
            raise WorldError(
                f"world: only {total - missing} of {total} {split} chains exist; ask for fewer chains, more "
                "private_docs and web_docs, or for other patterns"
            )
    world.candidates[split] = [candidate for chains in found for candidate in chains]
    world.chains[split] = [
        row for chains, drawer in zip(found, drawers) for row in _rows(chains, drawer, split)
    ]
    world.refused[split] = sum((drawer.refused for drawer in drawers), Counter())


def _rows(chains: Sequence[Candidate], drawer: ChainDrawer, split: str) -> list[dict[str, Any]]:
    facts = [fact for fact in drawer.company.gold_facts if fact.side == split]
    rows = []
    for number, candidate in enumerate(chains, 1):
        others = [fact for fact in drawer.draws.shuffled(facts) if fact not in candidate.items]
        rows.append(chain_row(candidate, split, number, others[:PRIVATE_QUESTIONS]))
    return rows


def world_store(world: World) -> Store:
    """The search index over a world in memory."""
    tasks = {
        task: [LocalDocument(task, f"{doc.folder}/{doc.name}", doc.text) for doc in docs]
        for task, docs in world.private_docs.items()
    }
    return Store(tasks, [WebDocument(page.docid, page.url, page.text) for page in world.web_docs])


def chains_of(world: World, split: str) -> list[Chain]:
    """The chains of a split, as the agent gets them."""
    about = {company.task_id: company.description for company in world.companies}
    return [
        parse_chain(row, company=row["company"], description=about[row["task_id"]], split=split)
        for row in world.chains[split]
    ]
