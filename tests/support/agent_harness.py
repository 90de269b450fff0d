"""A scripted model, a searcher over a few documents, and chains to play with."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from domains.privacy_hopqa.chains import Chain, parse_chain
from domains.privacy_hopqa.identity import alias_set
from domains.privacy_hopqa.interfaces import Completion, Document, Hit, Search, Stage, StageRequest
from domains.privacy_hopqa.loop import AgentLoop
from domains.privacy_hopqa.prompts import load_prompts
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from domains.privacy_hopqa.trace import Episode

Answer = str | Exception | Callable[[StageRequest], Any]

EMPTY_PLAN = "[]"
NO = '{"can_answer":false}'
SEARCH_MORE = '{"answered":false,"next_step":"search_more"}'


def plan(*queries: str, source: str = "web_search") -> str:
    return json.dumps([{"type": source, "parameters": {"query": query}} for query in queries])


def local(*queries: str) -> str:
    return plan(*queries, source="local_document_search")


def choose(*ids: str) -> str:
    return json.dumps({"selected_doc_ids": list(ids)})


def yes(answer: str, confidence: float = 0.9) -> str:
    return json.dumps({"can_answer": True, "proposed_answer": answer, "confidence": confidence})


def done(answer: str) -> str:
    return json.dumps({"answered": True, "answer": answer, "confidence": 0.9, "next_step": "done"})


def read_more(*ids: str) -> str:
    return json.dumps({"answered": False, "next_step": "read_more", "selected_doc_ids": list(ids)})


@dataclass
class Script:
    """Answers each stage from its own queue; the last answer repeats. Keeps the requests."""

    plan: Answer | list[Answer] = EMPTY_PLAN
    choose: Answer | list[Answer] = field(default_factory=lambda: choose("d1"))
    read: Answer | list[Answer] = NO
    resolve: Answer | list[Answer] = SEARCH_MORE
    requests: list[StageRequest] = field(default_factory=list)
    _position: dict[Stage, int] = field(default_factory=dict)

    async def complete(self, request: StageRequest) -> Completion:
        self.requests.append(request)
        name = {"hop_plan": "plan", "doc_choose": "choose", "doc_read": "read", "hop_resolve": "resolve"}
        queue = getattr(self, name[request.stage])
        if isinstance(queue, list):
            position = self._position.get(request.stage, 0)
            self._position[request.stage] = position + 1
            queue = queue[min(position, len(queue) - 1)]
        answer = queue(request) if callable(queue) else queue
        if isinstance(answer, Exception):
            raise answer
        return Completion(answer, prompt_tokens=10, output_tokens=3, call=f"call{len(self.requests)}")

    def of(self, stage: Stage) -> list[StageRequest]:
        return [request for request in self.requests if request.stage == stage]


def document(doc_id: str, text: str = "", title: str = "") -> Document:
    source: Literal["web", "local"] = "web" if doc_id.startswith("web/") else "local"
    body = text or f"Nothing of note stands in {doc_id}."
    return Document(doc_id, source, title or doc_id, doc_id, body, frozenset(alias_set({"doc_id": doc_id})))


@dataclass
class Searches:
    """Documents by query; an unknown query finds nothing, an exception is raised."""

    results: dict[str, Sequence[Document] | Exception] = field(default_factory=dict)
    requests: list[Search] = field(default_factory=list)

    async def search(self, search: Search) -> list[Hit]:
        self.requests.append(search)
        found = self.results.get(search.query, ())
        if isinstance(found, Exception):
            raise found
        return [Hit(doc, 10.0 - rank) for rank, doc in enumerate(found[: search.k])]


def hop(number: int, question: str, answer: str, doc_id: str = "", **fields: Any) -> dict[str, Any]:
    kind = "W" if doc_id.startswith("web/") else "L"
    return {
        "hop_number": number,
        "question": question,
        "answer": answer,
        "doc_id": doc_id,
        "hop_type": kind,
        **fields,
    }


def chain_of(*hops: dict[str, Any], split: str = "train", **fields: Any) -> Chain:
    row = {"task_id": "DR90001", "chain_id": "c1", "hops": list(hops), **fields}
    return parse_chain(row, company="Harlow Foods", description="", split=split)


GOLD_LOCAL = "local/DR90001/files_a/audit.md"
GOLD_WEB = "web/7"

TWO_HOPS = chain_of(
    hop(1, "What share of Harlow Foods stores passed the audit?", "15%", GOLD_LOCAL),
    hop(2, "Which region reports (1) coverage?", "Northmere", GOLD_WEB),
)


def settings(**changes: Any) -> PrivacyHopQASettings:
    values: dict[str, Any] = {"prompt_set": "compact", "max_candidate_cards": 9, "choose_top_k": 2}
    return PrivacyHopQASettings(**(values | changes))


async def play(
    script: Script,
    searches: Searches | None = None,
    chain: Chain = TWO_HOPS,
    **changes: Any,
) -> Episode:
    config = settings(**changes)
    loop = AgentLoop(chain, config, load_prompts(config.prompt_set), script, searches or Searches())
    return await loop.run()


AUDIT = document(GOLD_LOCAL, "# Audit\n\nIn the audit 15% of stores passed.")
REGION = document(GOLD_WEB, "# Regions\n\nNorthmere reports 15% coverage.")


def others(count: int, kind: str = "web/1") -> list:
    return [document(f"{kind}{n}") for n in range(count)]
