"""What happened in one rollout, as typed records.

Loop, retrieval and settler write them; rewards, the privacy penalty, metrics and sampled traces read them.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from domains.privacy_hopqa.agent.errors import ErrorKind
from domains.privacy_hopqa.agent.interfaces import AnsweredHop, Document, ReadNote, SearchNote, Stage
from domains.privacy_hopqa.data.chains import Chain, Source

GOLD_NOT_YET = "gold_not_yet_retrieved"
GOLD_ALREADY = "gold_already_retrieved"
GOLD_VISIBLE = "gold_visible"
GOLD_ABSENT = "gold_absent"
ANCHOR = "anchor"

FINAL_ANSWER = "final_answer"
"""In the metadata of a rollout's last text: what the agent answered, empty for nothing."""


class Event(StrEnum):
    """What the control flow does next, and why."""

    SEARCH = "search"
    """The plan has usable actions (or the loop added one); they run."""
    STOP = "stop"
    """The plan is explicitly empty."""
    NO_ACTION = "no_action"
    """The plan is not empty, but nothing in it can be used."""
    ASK_AGAIN = "ask_again"
    """Nothing in the plan can be used and it is asked for once more."""
    TAKE_ALL = "take_all"
    """So few documents that none needs to be chosen."""
    CHOOSE = "choose"
    RESOLVE_AGAIN = "resolve_again"
    """No search and nothing unread: the earlier reads of the hop are resolved once more."""
    NOTHING_FOUND = "nothing_found"
    """Nothing to read and nothing to resolve; the iteration is spent."""
    ANSWER = "answer"
    WITHDRAW = "withdraw"
    """The resolver answered without an answer or without a positive read."""
    READ_MORE = "read_more"
    SEARCH_MORE = "search_more"
    ROUNDS_SPENT = "rounds_spent"
    """The resolver asks for more after the last round of reads."""
    STAGE_ERROR = "stage_error"
    END_COMPLETE = "end_complete"
    END_CAP = "end_cap"
    END_ERROR = "end_error"
    END_INCORRECT = "end_incorrect"
    """`stop_after_incorrect_hop`: a hop was answered wrongly."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of the control flow. `detail` holds counts and kinds, never text of prompts or documents."""

    iteration: int
    hop_number: int
    event: Event
    detail: str = ""


@dataclass(slots=True)
class PlanFacts:
    """A plan's decision. `sources` and queries are of usable actions; `gold_retrieved` by an executed one."""

    explicitly_empty: bool
    sources: tuple[Source, ...]
    web_queries: tuple[str, ...]
    rejected: dict[str, int]
    right_source: bool
    gold_retrieved: bool = False


@dataclass(slots=True)
class ChooseFacts:
    """A choice among cards."""

    gold_visible: bool
    gold_first: bool
    gold_selected: bool
    unknown_ids: int


@dataclass(slots=True)
class ReadFacts:
    """One read. `holds_answer`: the window is of the gold document and holds an accepted answer."""

    gold: bool
    holds_answer: bool
    positive: bool
    correct: bool


@dataclass(slots=True)
class ResolveFacts:
    """One resolution. `answerable`: a positive read proposed a correct answer; `error` is a recovered one."""

    answered: bool
    correct: bool
    answerable: bool
    next_step: str
    unknown_ids: int
    error: ErrorKind | None


Facts = PlanFacts | ChooseFacts | ReadFacts | ResolveFacts


@dataclass(slots=True)
class CallRecord:
    """One call. `error` is set where its answer was unusable, `facts` where it was used."""

    index: int
    stage: Stage
    hop_number: int
    iteration: int
    situation: str
    error: ErrorKind | None = None
    json_path: str = ""
    facts: Facts | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0
    call: Any = None
    prompt: str = ""
    text: str = ""


@dataclass(slots=True)
class HopState:
    """What the agent knows of one hop, and what became of it."""

    hop_number: int
    answer: str | None = None
    justification: str = ""
    searches: list[SearchNote] = field(default_factory=list)
    reads: list[ReadNote] = field(default_factory=list)
    read_ids: set[str] = field(default_factory=set)
    read_documents: dict[str, Document] = field(default_factory=dict)
    retrieved: dict[str, Document] = field(default_factory=dict)
    gold_before_cut: bool = False
    gold_after_cut: bool = False
    gold_read: bool = False

    @property
    def positive_reads(self) -> list[ReadNote]:
        """Reads that claim an answer, oldest first."""
        return [read for read in self.reads if read.positive]


@dataclass(slots=True)
class Counts:
    """Sums over a rollout, under the names of their metrics. The cut is that to `max_candidate_cards`."""

    search_errors: int = 0
    windows_before_cut: int = 0
    windows_after_cut: int = 0
    parents_before_cut: int = 0
    parents_after_cut: int = 0
    parents_read: int = 0
    windows_read: int = 0


@dataclass(slots=True)
class Episode:
    """A rollout from its first call to its end. `fatal` is the stage error that ended it."""

    chain: Chain
    hops: list[HopState]
    calls: list[CallRecord] = field(default_factory=list)
    memory: dict[str, Document] = field(default_factory=dict)
    iterations: int = 0
    fatal: ErrorKind | None = None
    searches: dict[Source, int] = field(default_factory=lambda: {"local": 0, "web": 0})
    refusals: dict[Source, list[str]] = field(default_factory=lambda: {"local": [], "web": []})
    """Why searches failed for which the service is at fault."""
    counts: Counts = field(default_factory=Counts)
    duration_s: float = 0.0
    transitions: list[Transition] = field(default_factory=list)

    def log(self, hop_number: int, event: Event, detail: str = "") -> None:
        """Note a step of the control flow in the current iteration."""
        self.transitions.append(Transition(self.iterations, hop_number, event, detail))

    def count(self, event: Event) -> int:
        """How often the event happened."""
        return sum(transition.event == event for transition in self.transitions)

    @property
    def answers(self) -> dict[int, str]:
        """Answer per answered hop number."""
        return {hop.hop_number: hop.answer for hop in self.hops if hop.answer is not None}

    @property
    def final_answer(self) -> str:
        """The last hop's answer, empty if it has none."""
        return self.hops[-1].answer or ""

    @property
    def web_queries(self) -> list[str]:
        """Web queries in the order in which the plans issued them."""
        plans = (call.facts for call in self.calls if isinstance(call.facts, PlanFacts))
        return [query for facts in plans for query in facts.web_queries]

    def answered_hops(self, below: int, shown: dict[int, str]) -> tuple[AnsweredHop, ...]:
        """Earlier hops as prompts show them, with the answers `shown`."""
        return tuple(
            AnsweredHop(
                state.hop_number,
                self.chain.hop(state.hop_number).filled(shown),
                shown[state.hop_number],
                state.justification[:420],
            )
            for state in self.hops
            if state.hop_number < below and state.hop_number in shown
        )
