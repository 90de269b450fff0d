"""Search and whole rollouts in the same process: for simulations, tests and demonstrations."""

import asyncio
from collections.abc import Sequence
from typing import Any

from domains.privacy_hopqa.agent.episode import Episode
from domains.privacy_hopqa.agent.hits import local_document, web_document
from domains.privacy_hopqa.agent.interfaces import Document, Hit, Model, Search
from domains.privacy_hopqa.agent.loop import AgentLoop
from domains.privacy_hopqa.agent.prompts import PROMPT_SETS
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from retrieval_server.store import Store


class StoreSearcher:
    """Searches a loaded store. Documents are cached, so that repeated hits cost little."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._documents: dict[str, Document] = {}

    async def search(self, search: Search) -> Sequence[Hit]:
        """Hits, best first. Raises UnknownTask."""
        if search.source == "web":
            raw = self._store.search_web(search.query, search.k, max_chars=0)
            return [Hit(self._document(hit["docid"], hit), hit["score"]) for hit in raw]
        raw = self._store.search_local(search.task_id, search.query, search.k)
        return [Hit(self._document(hit["doc_id"], hit), hit["similarity_score"]) for hit in raw]

    def _document(self, doc_id: str, hit: dict[str, Any]) -> Document:
        found = self._documents.get(doc_id)
        if found is None:
            parse = web_document if doc_id.startswith("web/") else local_document
            found = self._documents[doc_id] = parse(hit)
        return found


def simulate(chain: Chain, store: Store, settings: PrivacyHopQASettings, model: Model) -> Episode:
    """One rollout of the agent with search in the same process."""
    loop = AgentLoop(chain, settings, PROMPT_SETS[settings.prompt_set], model, StoreSearcher(store))
    return asyncio.run(loop.run())
