"""A softmax over query templates and selection rules per kind of decision, and the texts they write.

The policy sees only what a prompt shows. Reading and resolving are perfect and not trained.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import numpy as np

from domains.privacy_hopqa.agent.interfaces import (
    Card,
    ChooseContext,
    Completion,
    HopView,
    PlanContext,
    Prompts,
    StageRequest,
)
from domains.privacy_hopqa.data.chains import Chain, Source
from domains.privacy_hopqa.teacher.script import ScriptedModel
from domains.privacy_hopqa.world import keyword_query

MALFORMED = 'I would search for this: [{"type": "web_search"'
TEMPLATES = ("value", "topic_and_qualifier", "topic", "company", "wrong_source", "empty", "malformed")
RULES = ("rank", "value_in_snippet", "reverse_rank", "invalid_id")
KINDS = ("private", "public", "tempting")
SITUATIONS = (
    *(f"plan:{kind}:{when}" for kind in KINDS for when in ("first", "again")),
    *(f"choose:{kind}" for kind in KINDS),
)
CHOICES = {"plan": TEMPLATES, "choose": RULES}
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
    def base(cls) -> "Policy":
        """The untrained policy."""
        return cls({name: np.log(np.array(BASE[name.split(":")[0]])) for name in SITUATIONS})

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
            name: dict(zip(CHOICES[name.split(":")[0]], map(float, self.probabilities(name).round(3))))
            for name in self.logits
        }


class PolicyModel:
    """The policy as the model of one rollout; a script that knows the chain reads and resolves."""

    def __init__(self, policy: Policy, chain: Chain, prompts: Prompts, random: np.random.Generator) -> None:
        self._policy, self._random = policy, random
        self._reader = ScriptedModel(chain, "clean", Random(0), prompts)

    async def complete(self, request: StageRequest) -> Completion:
        """Answer one call; the completions of plans and choices carry their decision."""
        match request.context:
            case PlanContext() as context:
                when = "again" if context.searches else "first"
                situation = f"plan:{kind_of(context.view)}:{when}"
                choice, logprob = self._policy.sample(situation, self._random)
                text = plan_text(TEMPLATES[choice], context)
            case ChooseContext() as context:
                situation = f"choose:{kind_of(context.view)}"
                choice, logprob = self._policy.sample(situation, self._random)
                text = json.dumps({"selected_doc_ids": selected(RULES[choice], context)})
            case _:
                return await self._reader.complete(request)
        sampled = Sampled(situation, choice, logprob, request.prompt.text, text)
        return Completion(text, len(sampled.prompt.split()), len(text.split()), call=sampled)


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
    query = view.company if template == "company" else query_text(template, view)
    if template == "malformed":
        return MALFORMED
    if template == "empty":
        return "[]"
    if template == "wrong_source":
        source, query = "web" if source == "local" else "local", keyword_query(view.question)
    kind = "web_search" if source == "web" else "local_document_search"
    return json.dumps([{"type": kind, "parameters": {"query": query}}])


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


def selected(rule: str, context: ChooseContext) -> list[str]:
    """Ids of the documents that a rule chooses among the cards."""
    if rule == "invalid_id":
        return ["document 1"]
    cards = list(context.cards)
    if rule == "reverse_rank":
        cards.reverse()
    if rule == "value_in_snippet":  # earlier private answers first, then the question's words
        values = [answer.casefold() for answer in private_answers(context.view)]
        wanted = {word.lower() for word in keyword_query(context.view.question).split()}

        def shown(card: Card) -> tuple[int, int]:
            text = f"{card.title} {card.snippet}"
            words = {word.lower() for word in keyword_query(text).split()}
            return sum(value in text.casefold() for value in values), len(wanted & words)

        cards.sort(key=shown, reverse=True)
    return [card.doc_id for card in cards[: context.limit]]
