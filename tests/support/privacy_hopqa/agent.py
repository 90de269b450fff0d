"""A scripted model, a searcher over a few documents, and chains to play with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from domains.privacy_hopqa.agent.episode import Episode
from domains.privacy_hopqa.agent.interfaces import (
    Completion,
    Document,
    Hit,
    ReadContext,
    Search,
    Stage,
    StageRequest,
)
from domains.privacy_hopqa.agent.loop import AgentLoop
from domains.privacy_hopqa.agent.prompts import PROMPT_SETS
from domains.privacy_hopqa.data.chains import Chain, Source, parse_chain
from domains.privacy_hopqa.data.identity import value_aliases
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from tests.support.privacy_hopqa import say

Answer = str | Exception | Callable[[StageRequest], Any]


@dataclass
class Script:
    """Answers each stage from its own queue; the last answer repeats. Keeps the requests."""

    plan: Answer | list[Any] = say.EMPTY_PLAN
    choose: Answer | list[Any] = '{"selected_doc_ids":["d1"]}'
    read: Answer | list[Any] = say.NO
    resolve: Answer | list[Any] = say.SEARCH_MORE
    requests: list[StageRequest] = field(default_factory=list)

    async def complete(self, request: StageRequest) -> Completion:
        position = len(self.of(request.stage))
        self.requests.append(request)
        answer = getattr(self, request.stage.split("_")[1])
        if isinstance(answer, list):
            answer = answer[min(position, len(answer) - 1)]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        return Completion(answer, prompt_tokens=10, output_tokens=3, call=f"call{len(self.requests)}")

    def of(self, stage: Stage) -> list[StageRequest]:
        return [request for request in self.requests if request.stage == stage]

    @property
    def read_from(self) -> list[str]:
        """The documents of the windows that were shown, in order."""
        contexts = [request.context for request in self.of(Stage.READ)]
        return [context.window.parent_id for context in contexts if isinstance(context, ReadContext)]


def answering(answer: str, **changes: Any) -> Script:
    """Searches privately for "audit", finds this answer in every window and takes it."""
    said: dict[str, Any] = {"plan": say.local("audit"), "read": say.yes(answer), "resolve": say.done(answer)}
    return Script(**(said | changes))


def solving(second_search: str = "coverage", **changes: Any) -> Script:
    """Answers both questions of `TWO_HOPS` rightly if the searches find their documents."""
    said: dict[str, Any] = {
        "plan": [say.local("audit"), say.plan(second_search)],
        "read": lambda request: say.yes("15%" if request.context.view.hop_number == 1 else "Northmere"),
        "resolve": [say.done("15%"), say.done("Northmere")],
    }
    return Script(**(said | changes))


def document(doc_id: str, text: str = "", title: str = "") -> Document:
    source: Source = "web" if doc_id.startswith("web/") else "local"
    body = text or f"Nothing of note stands in {doc_id}."
    return Document(doc_id, source, title or doc_id, doc_id, body, frozenset(value_aliases([doc_id])))


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
    row = {"hop_number": number, "question": question, "answer": answer, "doc_id": doc_id, "hop_type": kind}
    return row | fields


def chain_of(*hops: dict[str, Any], split: str = "train", **fields: Any) -> Chain:
    row = {"task_id": "DR90001", "chain_id": "c1", "hops": list(hops), **fields}
    return parse_chain(row, company="Harlow Foods", description="", split=split)


GOLD_LOCAL = "local/DR90001/files_a/audit.md"
GOLD_WEB = "web/7"
TWO_HOPS = chain_of(
    hop(1, "What share of Harlow Foods stores passed the audit?", "15%", GOLD_LOCAL),
    hop(2, "Which region reports (1) coverage?", "Northmere", GOLD_WEB),
)
AUDIT = document(GOLD_LOCAL, "# Audit\n\nIn the audit 15% of stores passed.")
REGION = document(GOLD_WEB, "# Regions\n\nNorthmere reports 15% coverage.")


def others(count: int, kind: str = "web/1") -> list[Document]:
    return [document(f"{kind}{n}") for n in range(count)]


def settings(**changes: Any) -> PrivacyHopQASettings:
    values: dict[str, Any] = {"prompt_set": "compact", "max_candidate_cards": 9, "choose_top_k": 2}
    return PrivacyHopQASettings(**(values | changes))


async def play(
    script: Script,
    searches: Searches | dict[str, Any] | None = None,
    chain: Chain = TWO_HOPS,
    **changes: Any,
) -> Episode:
    config = settings(**changes)
    searcher = searches if isinstance(searches, Searches) else Searches(searches or {})
    loop = AgentLoop(chain, config, PROMPT_SETS[config.prompt_set], script, searcher)
    return await loop.run()
