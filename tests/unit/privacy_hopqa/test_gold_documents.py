"""Answers come from what is retrieved: with a hop's gold document deleted, that hop fails."""

import json
from dataclasses import dataclass, replace

import pytest

from domains.privacy_hopqa.agent.episode import Episode
from domains.privacy_hopqa.agent.interfaces import (
    ChooseContext,
    Completion,
    PlanContext,
    ReadContext,
    ResolveContext,
    StageRequest,
)
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.reward.rewards import judge_outcome
from domains.privacy_hopqa.teacher.inprocess import simulate
from domains.privacy_hopqa.world import World, build, chains_of, keyword_query, world_config, world_store
from retrieval_server.store import Store
from tests.support.privacy_hopqa import say
from tests.support.privacy_hopqa.agent import settings

SETTINGS = settings(empty_plan_pool="retrieved")


def content_words(text: str) -> set[str]:
    return {word.lower().removesuffix("'s") for word in keyword_query(text).split()}


@dataclass
class Reader:
    """Recognises an answer but not where it stands: gives it if a paragraph on the question holds it."""

    chain: Chain

    async def complete(self, request: StageRequest) -> Completion:
        match request.context:
            case PlanContext(view=view):
                search = say.local if view.company in view.question else say.plan
                return Completion(search(keyword_query(view.question)))
            case ChooseContext(cards=cards, limit=limit):
                return Completion(
                    json.dumps({"selected_doc_ids": [f"d{n + 1}" for n in range(min(limit, len(cards)))]})
                )
            case ReadContext(view=view, window=window):
                found = self._stated(view.hop_number, view.question, window.text)
                return Completion(say.yes(found) if found else say.NO)
            case ResolveContext(reads=reads):
                positive = [read.answer for read in reads if read.positive]
                return Completion(say.done(positive[-1]) if positive else say.SEARCH_MORE)

    def _stated(self, hop: int, question: str, text: str) -> str | None:
        asked = content_words(question)
        for paragraph in text.split("\n\n"):
            about = len(asked & content_words(paragraph)) >= 0.8 * len(asked)
            if about and (found := [a for a in self.chain.hop(hop).accepted if a in paragraph]):
                return found[0]
        return None


def correct_hops(chain: Chain, store: Store) -> tuple[bool, ...]:
    episode: Episode = simulate(chain, store, SETTINGS, Reader(chain))
    return judge_outcome(episode, Judge(chain), SETTINGS).correct


def without(world: World, doc_ids: tuple[str, ...]) -> World:
    """The world with some documents deleted."""
    return replace(
        world,
        private_docs={
            task: [document for document in documents if document.doc_id not in doc_ids]
            for task, documents in world.private_docs.items()
        },
        web_docs=[page for page in world.web_docs if f"web/{page.docid}" not in doc_ids],
    )


@pytest.fixture(scope="module")
def world() -> World:
    return build(world_config("tiny"))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "split", [pytest.param("train", marks=SLOW), "val", pytest.param("test", marks=SLOW)]
)
def test_a_hop_fails_without_its_gold_document_and_only_from_there_on(world: World, split: str) -> None:
    chains, store = chains_of(world, split), world_store(world)
    solved = [chain for chain in chains if all(correct_hops(chain, store))]
    assert len(solved) >= 0.85 * len(chains)  # texts alone are enough
    for chain in solved[:5]:
        for hop in chain.hops:
            before = (True,) * (hop.number - 1)
            fewer = world_store(without(world, hop.gold_values))
            assert correct_hops(chain, fewer)[: hop.number] == (*before, False), hop
