"""What the agent loop needs from outside: a model, a searcher; and what it tells them.

The loop runs the same against the real engine, a scripted policy and an index in the same process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from domains.privacy_hopqa.data.chains import Source


class Stage(StrEnum):
    """The four kinds of calls; the values name settings."""

    PLAN = "hop_plan"
    CHOOSE = "doc_choose"
    READ = "doc_read"
    RESOLVE = "hop_resolve"


@dataclass(frozen=True, slots=True)
class Document:
    """One retrieved document, whole. `aliases`: its unambiguous names, to compare with gold values."""

    doc_id: str
    source: Source
    title: str
    locator: str
    text: str
    aliases: frozenset[str]


@dataclass(frozen=True, slots=True)
class Hit:
    """A document and its BM25 score for one query; hits come best first."""

    document: Document
    score: float


@dataclass(frozen=True, slots=True)
class Search:
    """One search request of the loop. Numbers are 1-based."""

    source: Source
    query: str
    k: int
    task_id: str
    hop_number: int
    iteration: int
    action_id: str


class Searcher(Protocol):
    """Runs one search. Raises SearchActionError (this action fails) or RolloutFailure (the rollout fails)."""

    async def search(self, search: Search) -> Sequence[Hit]: ...


@dataclass(frozen=True, slots=True)
class AnsweredHop:
    """An earlier answer as later prompts see it."""

    hop_number: int
    question: str
    answer: str
    justification: str


@dataclass(frozen=True, slots=True)
class SearchNote:
    """An earlier search of the current hop."""

    source: Source
    query: str
    n_hits: int
    failed: bool


@dataclass(frozen=True, slots=True)
class ReadNote:
    """An earlier read of the current hop. `positive`: the reader claims that the window holds the answer."""

    window_id: str
    parent_id: str
    title: str
    positive: bool
    answer: str
    justification: str
    confidence: float
    missing: str


@dataclass(frozen=True, slots=True)
class Card:
    """A candidate document as the chooser sees it."""

    doc_id: str
    source: Source
    title: str
    locator: str
    best_rank: int
    best_score: float
    matched_window_count: int
    total_window_count: int
    top_queries: tuple[str, ...]
    representative_window_id: str
    snippet: str
    in_memory: bool


@dataclass(frozen=True, slots=True)
class WindowView:
    """The one document window a read call sees. `index` is 1-based."""

    window_id: str
    parent_id: str
    source: Source
    title: str
    locator: str
    index: int
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class HopView:
    """What every stage knows: all questions, answers so far, the question at hand (references filled)."""

    hop_number: int
    n_hops: int
    iteration: int
    question: str
    questions: str
    answers: tuple[AnsweredHop, ...]
    company: str
    company_description: str


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Decision: which searches to run. `searches` and `reads` are this hop's, oldest first."""

    view: HopView
    searches: tuple[SearchNote, ...]
    reads: tuple[ReadNote, ...]
    memory: tuple[Card, ...]
    action_limit: int
    no_web: bool
    privacy_note: bool


@dataclass(frozen=True, slots=True)
class ChooseContext:
    """Decision: which candidates to read."""

    view: HopView
    cards: tuple[Card, ...]
    memory: tuple[Card, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Decision: whether the window answers the question."""

    view: HopView
    window: WindowView


@dataclass(frozen=True, slots=True)
class ResolveContext:
    """Decision: whether the reads answer the hop, and what to do if not."""

    view: HopView
    searches: tuple[SearchNote, ...]
    reads: tuple[ReadNote, ...]
    unread: tuple[Card, ...]
    limit: int
    constrained: bool


Context = PlanContext | ChooseContext | ReadContext | ResolveContext


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt (one user message) and the short names it uses: alias -> document or window id.

    `aliases` is empty where a prompt set shows the ids themselves.
    """

    text: str
    aliases: dict[str, str] = field(default_factory=dict)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as chat messages."""
        return [{"role": "user", "content": self.text}]


Prompts = Callable[[Context], Rendered]
"""A prompt set: equal contexts give equal prompts."""


@dataclass(frozen=True, slots=True)
class StageRequest:
    """One call. A policy that is not a language model may decide on `context` alone."""

    stage: Stage
    context: Context
    prompt: Rendered
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one call. `call` is whatever the model needs to make a training text of it."""

    text: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    call: Any = None


class Model(Protocol):
    """Answers one call. Raises StageError(CONTEXT_OVERFLOW) if the prompt leaves no room for an answer."""

    async def complete(self, request: StageRequest) -> Completion: ...
