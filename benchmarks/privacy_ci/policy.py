"""A softmax over query templates and selection rules per kind of decision, and the texts they write.

The policy sees only what a prompt shows. Reading and resolving are perfect and not trained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from domains.privacy_hopqa.agent.interfaces import (
    Card,
    ChooseContext,
    Completion,
    HopView,
    PlanContext,
    ReadContext,
    ResolveContext,
    StageRequest,
)
from domains.privacy_hopqa.data.answers import answers_match
from domains.privacy_hopqa.data.chains import Chain, Source
from domains.privacy_hopqa.world import keyword_query

MALFORMED = 'I would search for this: [{"type": "web_search"'
TEMPLATES = ("value", "topic_and_qualifier", "topic", "company", "wrong_source", "empty", "malformed")
RULES = ("rank", "value_in_snippet", "reverse_rank", "invalid_id")
KINDS = ("private", "public", "tempting")
PLAN_SITUATIONS = tuple(f"plan:{kind}:{when}" for kind in KINDS for when in ("first", "again"))
CHOOSE_SITUATIONS = tuple(f"choose:{kind}" for kind in KINDS)
BASE = {
    "plan": (0.30, 0.20, 0.20, 0.06, 0.16, 0.05, 0.03),
    "choose": (0.45, 0.15, 0.36, 0.04),
}
"""Probabilities of the untrained policy; chosen on validation chains so that the order can show."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One trained decision: which logits, which choice, and the exact texts."""

    situation: str
    choice: int
    logprob: float
    prompt: str
    text: str


@dataclass
class Policy:
    """Logits `[choices]` by situation."""

    logits: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def base(cls) -> Policy:
        """The untrained policy."""
        names = (*PLAN_SITUATIONS, *CHOOSE_SITUATIONS)
        return cls({name: np.log(np.array(BASE[name.split(":")[0]])) for name in names})

    @property
    def size(self) -> int:
        """Number of trainable logits."""
        return sum(len(values) for values in self.logits.values())

    def probabilities(self, situation: str) -> np.ndarray:
        """Softmax of a situation's logits, float64 `[choices]`."""
        logits = self.logits[situation]
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def sample(self, situation: str, random: np.random.Generator) -> tuple[int, float]:
        """A choice and its log-probability."""
        probabilities = self.probabilities(situation)
        choice = int(random.choice(len(probabilities), p=probabilities))
        return choice, float(np.log(probabilities[choice]))

    def step(self, decisions: Iterable[tuple[Sampled, float]], rate: float) -> None:
        """Gradient ascent on `sum weight * log p(choice)`; the gradient of a softmax is one-hot minus p."""
        gradient = {name: np.zeros_like(values) for name, values in self.logits.items()}
        for decision, weight in decisions:
            gradient[decision.situation] -= weight * self.probabilities(decision.situation)
            gradient[decision.situation][decision.choice] += weight
        for name, values in gradient.items():
            self.logits[name] = self.logits[name] + rate * values

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Probabilities by situation and choice, for people."""
        return {
            name: dict(zip(_choices(name), map(float, self.probabilities(name).round(3))))
            for name in self.logits
        }


def _choices(situation: str) -> tuple[str, ...]:
    return TEMPLATES if situation.startswith("plan") else RULES


@dataclass
class PolicyModel:
    """The policy as the model of one rollout."""

    policy: Policy
    chain: Chain
    """Known to the perfect reader only."""
    random: np.random.Generator

    async def complete(self, request: StageRequest) -> Completion:
        """Answer one call; the completions of plans and choices carry their decision."""
        match request.context:
            case PlanContext() as context:
                return self._plan(request, context)
            case ChooseContext() as context:
                return self._choose(request, context)
            case ReadContext() as context:
                return Completion(self._read(context))
            case ResolveContext() as context:
                return Completion(_resolve(context))

    def _plan(self, request: StageRequest, context: PlanContext) -> Completion:
        when = "again" if context.searches else "first"
        situation = f"plan:{kind_of(context.view)}:{when}"
        choice, logprob = self.policy.sample(situation, self.random)
        text = plan_text(TEMPLATES[choice], context)
        return _completion(Sampled(situation, choice, logprob, request.prompt.text, text))

    def _choose(self, request: StageRequest, context: ChooseContext) -> Completion:
        situation = f"choose:{kind_of(context.view)}"
        choice, logprob = self.policy.sample(situation, self.random)
        text = json.dumps({"selected_doc_ids": SELECT[RULES[choice]](context)})
        return _completion(Sampled(situation, choice, logprob, request.prompt.text, text))

    def _read(self, context: ReadContext) -> str:
        answer = self._stated(context)
        if answer is None:
            return json.dumps({"can_answer": False, "proposed_answer": "", "confidence": 0.9})
        return json.dumps({"can_answer": True, "proposed_answer": answer, "confidence": 0.9})

    def _stated(self, context: ReadContext) -> str | None:
        """The answer as the gold window writes it, if this is one and the question was filled rightly."""
        hop = self.chain.hop(context.view.hop_number)
        given = {a.hop_number: a.answer for a in context.view.answers}
        right = all(answers_match(given.get(n, ""), self.chain.hop(n).accepted) for n in hop.dependencies)
        if not right or context.window.parent_id not in hop.gold_values:
            return None
        return next((answer for answer in hop.accepted if answer in context.window.text), None)


def _completion(sampled: Sampled) -> Completion:
    tokens = len(sampled.prompt.split()), len(sampled.text.split())
    return Completion(sampled.text, *tokens, call=sampled)


def _resolve(context: ResolveContext) -> str:
    positive = [read.answer for read in context.reads if read.positive]
    if not positive:
        return json.dumps({"answered": False, "next_step": "search_more"})
    return json.dumps({"answered": True, "answer": positive[-1], "confidence": 0.9, "next_step": "done"})


def private_answers(view: HopView) -> list[str]:
    """Earlier answers that only the company knows: those to questions that name it."""
    return [answer.answer for answer in view.answers if view.company in answer.question]


def kind_of(view: HopView) -> str:
    """Where the answer should lie, and whether a private value would help to find a public page."""
    if view.company in view.question:
        return "private"
    return "tempting" if any(answer in view.question for answer in private_answers(view)) else "public"


def plan_text(template: str, context: PlanContext) -> str:
    """What the template writes."""
    view = context.view
    source: Source = "local" if kind_of(view) == "private" else "web"
    match template:
        case "malformed":
            return MALFORMED
        case "empty":
            return "[]"
        case "wrong_source":
            return _searches("web" if source == "local" else "local", keyword_query(view.question))
        case "company":
            return _searches(source, view.company)
    return _searches(source, query_text(template, view))


def query_text(template: str, view: HopView) -> str:
    """`value`: all content words; `topic_and_qualifier`: less private values; `topic`: less names too."""
    question = view.question
    if template != "value":
        for answer in private_answers(view):
            question = question.replace(answer, "")
    words = keyword_query(question.replace(view.company, "")).split()
    if template == "topic":
        words = [word for word in words if word[:1].islower()] or words[:2]
    return " ".join(words)


def _searches(source: Source, query: str) -> str:
    kind = "web_search" if source == "web" else "local_document_search"
    return json.dumps([{"type": kind, "parameters": {"query": query}}])


def _by_value(context: ChooseContext) -> list[Card]:
    """Cards that show the earlier private answers first, then by the question's words that they show."""
    values = [answer.casefold() for answer in private_answers(context.view)]
    wanted = {word.lower() for word in keyword_query(context.view.question).split()}

    def shown(card: Card) -> tuple[int, int]:
        text = f"{card.title} {card.snippet}"
        words = {word.lower() for word in keyword_query(text).split()}
        return sum(value in text.casefold() for value in values), len(wanted & words)

    return sorted(context.cards, key=shown, reverse=True)


def _ids(cards: Iterable[Card], limit: int) -> list[str]:
    return [card.doc_id for card in list(cards)[:limit]]


SELECT: Mapping[str, Callable[[ChooseContext], list[str]]] = {
    "rank": lambda context: _ids(context.cards, context.limit),
    "value_in_snippet": lambda context: _ids(_by_value(context), context.limit),
    "reverse_rank": lambda context: _ids(reversed(context.cards), context.limit),
    "invalid_id": lambda context: ["document 1"],
}
