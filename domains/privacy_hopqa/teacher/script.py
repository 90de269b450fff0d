"""A scripted model that knows the gold documents: it plays the agent's part and records what to imitate.

Two phases. `clean` visits the states that imperfect play leads to, but records the right answer in each.
`mixture` records what is played: plans and choices are wrong or leaky with fixed probabilities, reads and
resolutions stay right. A model that imitates the mixture acts well enough to be rewarded and badly enough to
improve, and a policy that keeps a secret is among the things it sometimes does.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from domains.privacy_hopqa.agent.interfaces import (
    Card,
    ChooseContext,
    Completion,
    PlanContext,
    ReadContext,
    ResolveContext,
    StageRequest,
)
from domains.privacy_hopqa.agent.prompts import PROMPT_SETS
from domains.privacy_hopqa.data.answers import answers_match
from domains.privacy_hopqa.data.chains import Chain, Hop
from domains.privacy_hopqa.teacher.answers import ANSWERS, CONFIDENCE, STOP
from domains.privacy_hopqa.world import keyword_query
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

Phase = Literal["clean", "mixture"]

SKELETONS = (
    '[{"type":"web_search","parameters":{"query":"',
    '[{"type":"local_document_search","parameters":{"query":"',
    '"}}]',
    "[]",
    '{"selected_doc_ids":["',
    '"]}',
    '{"can_answer":true,"proposed_answer":"',
    f'","confidence":{CONFIDENCE}}}',
    '{"can_answer":false}',
    '{"answered":true,"answer":"',
    f'","confidence":{CONFIDENCE},"next_step":"done"}}',
    '{"answered":false,"next_step":"search_more"}',
    *(f"d{n}" for n in range(1, 10)),
)
"""Pieces of the compact answers that the small model's tokenizer keeps whole."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Probabilities of the imperfect script. What is left of a sum is the right action."""

    web_leaky: float = 0.20
    """A web query that repeats the private value of an earlier answer."""
    web_weak: float = 0.30
    """A web query of two words of the question."""
    local_weak: float = 0.35
    """A private search of one or two words of the question."""
    wrong_source: float = 0.15
    """The right words sent to the wrong place."""
    first_card: float = 0.30
    """A choice of the first card whatever it says."""
    any_card: float = 0.10
    """A choice of any card."""
    any_when_absent: bool = True
    """Where the gold document is not among the cards: any of them, or else the first."""


CAREFUL = Mixture(web_leaky=0.0, web_weak=0.0, local_weak=0.0, wrong_source=0.0, first_card=0.0, any_card=0.0)
"""Right wherever it can be, and without any private value in a query."""
MIXTURES = {"compact": Mixture(), "full": Mixture(first_card=0.35, any_card=0.0, any_when_absent=False)}
"""By prompt set, such that play succeeds in half to three quarters of the chains and leaks in about a third.

No card is chosen at random in the complete prompts, where names have many tokens: who imitates that draws
each token from the names of all cards, and ends with a name that none of them has.
"""


def search_query(chain: Chain, hop: Hop, answers: dict[int, str], *, leaky: bool) -> str:
    """The question's words without the company's name.

    A web search leaves out earlier answers that were found in private documents, unless it is `leaky`.
    """
    kept = {
        number: answer if leaky or hop.source == "local" or chain.hop(number).source == "web" else ""
        for number, answer in answers.items()
    }
    text = hop.filled(kept)
    company = {word.lower() for word in chain.company.split()}
    return " ".join(w for w in keyword_query(text).split() if w.lower().removesuffix("'s") not in company)


@dataclass
class ScriptedModel:
    """Plays one rollout of `chain` in a phase, and records a demonstration for each call.

    It answers in the form of the prompt set that `prompt_set` names.
    """

    chain: Chain
    phase: Phase
    random: random.Random
    prompt_set: str
    mixture: Mixture = field(default_factory=Mixture)
    recorded: list[Demonstration] = field(default_factory=list)
    _cards: dict[int, set[str]] = field(default_factory=dict)

    async def complete(self, request: StageRequest) -> Completion:
        """Answer the call; in the clean phase the recorded answer may differ from the one that is played."""
        match request.context:
            case PlanContext() as context:
                played = self._plan(request, context)
            case ChooseContext() as context:
                played = self._choose(request, context)
            case ReadContext() as context:
                played = self._read(request, context)
            case ResolveContext() as context:
                played = self._resolve(request, context)
        return Completion(played)

    def _record(self, kind: str, request: StageRequest, completion: str, *, exact: bool = True) -> None:
        self.recorded.append(Demonstration(kind, request.prompt.text, completion, exact))

    def _plan(self, request: StageRequest, context: PlanContext) -> str:
        hop = self.chain.hop(context.view.hop_number)
        answers = {a.hop_number: a.answer for a in context.view.answers}
        gold_seen = not self._cards.get(hop.number, set()).isdisjoint(hop.gold_values)
        right = STOP if gold_seen else self._right_plan(hop, answers, context)
        played = self._imperfect_plan(hop, answers, context, right)
        if self.phase == "clean":
            self._record("plan_stop" if right == STOP else f"plan_{hop.source}", request, right)
        else:
            self._record("plan", request, played, exact=False)
        return played

    def _right_plan(self, hop: Hop, answers: dict[int, str], context: PlanContext) -> str:
        query = search_query(self.chain, hop, answers, leaky=False)
        tried = {(note.source, note.query) for note in context.searches}
        if (hop.source, query) in tried:
            query = " ".join(reversed(query.split()))
        return ANSWERS[self.prompt_set].plan(context, hop.source, query)

    def _imperfect_plan(self, hop: Hop, answers: dict[int, str], context: PlanContext, right: str) -> str:
        draw, odds = self.random.random(), self.mixture
        plan = partial(ANSWERS[self.prompt_set].plan, context)
        best = search_query(self.chain, hop, answers, leaky=False).split()
        few = " ".join(self.random.sample(best, min(len(best), self.random.randint(1, 2))))
        if draw < odds.wrong_source:
            full = search_query(self.chain, hop, answers, leaky=hop.source == "web")
            return plan("local" if hop.source == "web" else "web", full)
        draw -= odds.wrong_source
        if hop.source == "local":
            return plan("local", few) if draw < odds.local_weak else right
        if draw < odds.web_weak:
            return plan("web", few)
        if draw < odds.web_weak + odds.web_leaky:
            return plan("web", search_query(self.chain, hop, answers, leaky=True))
        return right

    def _choose(self, request: StageRequest, context: ChooseContext) -> str:
        hop = self.chain.hop(context.view.hop_number)
        ids = [card.doc_id for card in context.cards]
        self._cards.setdefault(hop.number, set()).update(ids)
        gold = next((index for index, doc in enumerate(ids) if doc in hop.gold_values), None)
        draw, odds = self.random.random(), self.mixture
        if draw < odds.first_card or (gold is None and not odds.any_when_absent):
            choice = 0
        elif draw < odds.first_card + odds.any_card or gold is None:
            choice = self.random.randrange(len(ids))
        else:
            choice = gold
        played = self._selected(context.cards, choice)
        if self.phase == "mixture":
            self._record("choose", request, played, exact=False)
        elif gold is not None:
            kind = "choose_first" if gold == 0 else "choose_other"
            self._record(kind, request, self._selected(context.cards, gold))
            others = len(context.cards) - 1
            self._record_shuffled("choose_fewer", context, gold, self.random.randint(1, min(3, others)))
            self._record_shuffled("choose_shuffled", context, gold, others)
        return played

    def _record_shuffled(self, kind: str, context: ChooseContext, gold: int, others: int) -> None:
        """The same choice among `others` wrong cards in another order.

        Few cards teach the comparison; a random place says that the rank is no argument.
        """
        wrong = [card for index, card in enumerate(context.cards) if index != gold]
        cards = [context.cards[gold], *self.random.sample(wrong, others)]
        self.random.shuffle(cards)
        prompt = PROMPT_SETS[self.prompt_set](replace(context, cards=tuple(cards)))
        answer = self._selected(cards, cards.index(context.cards[gold]))
        self.recorded.append(Demonstration(kind, prompt.text, answer))

    def _selected(self, cards: Sequence[Card], index: int) -> str:
        return ANSWERS[self.prompt_set].choice([card.doc_id for card in cards], index)

    def _read(self, request: StageRequest, context: ReadContext) -> str:
        found = self._visible_answer(self.chain.hop(context.view.hop_number), context)
        text = ANSWERS[self.prompt_set].read(context, found)
        self._record("read_no" if found is None else "read_yes", request, text)
        return text

    def _visible_answer(self, hop: Hop, context: ReadContext) -> str | None:
        """The accepted answer as the gold window writes it, if this is one and earlier answers are right."""
        if context.window.parent_id not in hop.gold_values:
            return None
        given = {a.hop_number: a.answer for a in context.view.answers}
        for number in hop.dependencies:
            if not answers_match(given.get(number, ""), self.chain.hop(number).accepted):
                return None
        return next((answer for answer in hop.accepted if answer in context.window.text), None)

    def _resolve(self, request: StageRequest, context: ResolveContext) -> str:
        positive = [read for read in context.reads if read.positive]
        text = ANSWERS[self.prompt_set].resolve(positive[-1] if positive else None)
        self._record("resolve_yes" if positive else "resolve_no", request, text)
        return text
