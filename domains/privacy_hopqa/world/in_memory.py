"""A world that was never written: its search index and its chains, for simulations and the teacher."""

from __future__ import annotations

from domains.privacy_hopqa.data.chains import Chain, parse_chain
from retrieval_server.corpus import LocalDocument, WebDocument
from retrieval_server.store import Store

from .model import World


def world_store(world: World) -> Store:
    """The search index over a world in memory."""
    tasks = {
        task: [LocalDocument(task, f"{doc.folder}/{doc.name}", doc.text) for doc in docs]
        for task, docs in world.private_docs.items()
    }
    return Store(tasks, [WebDocument(page.docid, page.url, page.text) for page in world.web_docs])


def chains_of(world: World, split: str) -> list[Chain]:
    """The chains of a split, as the agent gets them."""
    companies = {company.task_id: company for company in world.companies}
    return [
        parse_chain(
            row,
            company=companies[row["task_id"]].name,
            description=companies[row["task_id"]].description,
            split=split,
        )
        for row in world.chains[split]
    ]
