"""Chains of questions: walks over facts and pages in which each answer is needed for the next question."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from .companies import Company, WorldFact
from .draws import Draws
from .pages import Page

Item = WorldFact | Page
Check = Callable[["Candidate"], str]
"""Returns why a candidate is refused, or an empty string."""

MAX_WALKS = 400
MAX_RESTARTS = 12


class Candidate:
    """A possible chain of one company."""

    def __init__(self, company: Company, pattern: str, items: Sequence[Item]) -> None:
        self.company, self.pattern, self.items = company, pattern, tuple(items)
        # Hop i + 1 refers to hop i.
        self.questions = [item.question(f"({i})" if i else None) for i, item in enumerate(self.items)]

    @property
    def answers(self) -> list[str]:
        """Canonical answers in hop order."""
        return [answer(item).text for item in self.items]

    @property
    def key(self) -> tuple[int, ...]:
        """The hop sequence."""
        return tuple(id(item) for item in self.items)

    def filled(self, index: int) -> str:
        """The question of a hop with its reference replaced by the right answer."""
        question = self.questions[index]
        return question.replace(f"({index})", self.answers[index - 1]) if index else question


def answer(item: Item) -> Any:
    """The value that a hop asks for."""
    return item.value if isinstance(item, WorldFact) else item.answer


def gold_id(item: Item) -> str:
    """Canonical id of a hop's gold document."""
    return item.doc_id if isinstance(item, WorldFact) else f"web/{item.docid}"


class ChainGraph:
    """Which item may follow which, for one company and one split."""

    def __init__(self, company: Company, pages: Sequence[Page], split: str) -> None:
        facts = [fact for fact in company.gold_facts if fact.side == split]
        own = [page for page in pages if page.side == split]
        self.starts: dict[str, list[Item]] = {
            "L": list(facts),
            "W": [page for page in own if page.topic == "open"],
        }
        self.by_scope: dict[tuple[str, str], list[Item]] = {}
        for fact in facts:
            if self._documents(company, fact) >= 2:
                self.by_scope.setdefault((fact.scope_kind, fact.scope), []).append(fact)
        self.by_fact: dict[int, list[Item]] = {}
        self.by_entity: dict[tuple[str, str], list[Item]] = {}
        for page in own:
            if page.fact is not None:
                self.by_fact.setdefault(id(page.fact), []).append(page)
            elif page.topic == "companion" and page.selector:
                self.by_entity.setdefault((page.selector.kind, page.selector.text), []).append(page)

    @staticmethod
    def _documents(company: Company, fact: WorldFact) -> int:
        """Documents that fit the fact's question when its scope is hidden."""
        told = (f for plan in company.plans for f in plan.facts)
        return len(
            {f.doc_id for f in told if f.attribute is fact.attribute and f.scope_kind == fact.scope_kind}
        )

    def following(self, item: Item, hop_type: str) -> list[Item]:
        """Items of this type whose question needs the item's answer."""
        value = answer(item)
        if hop_type == "L":
            return self.by_scope.get((value.kind, value.text), [])
        if isinstance(item, WorldFact):
            return self.by_fact.get(id(item), [])
        return self.by_entity.get((value.kind, value.text), [])

    def walks(self, draws: Draws, pattern: str) -> Iterator[list[Item]]:
        """All walks of a pattern, each once, in random order; lazy."""
        stack: list[tuple[list[Item], list[Item]]] = [([], draws.shuffled(self.starts[pattern[0]]))]
        while stack:
            path, options = stack[-1]
            if not options:
                stack.pop()
                continue
            walk = [*path, options.pop()]
            if len(walk) == len(pattern):
                yield walk
                if draws.chance(0.7):  # leave this branch, so that walks of one start do not come in a row
                    for _, rest in stack[1:]:
                        rest.clear()
            else:
                stack.append((walk, draws.shuffled(self.following(walk[-1], pattern[len(walk)]))))


def sound(candidate: Candidate) -> str:
    """Why a candidate cannot be a chain whatever search finds, or an empty string."""
    answers = [text.lower() for text in candidate.answers]
    if len(set(answers)) < len(answers):
        return "repeated answer"
    if len({gold_id(item) for item in candidate.items}) < len(candidate.items):
        return "repeated document"
    questions = " ".join(candidate.questions).lower()
    if any(text in questions for text in answers):
        return "answer in a question"
    return ""


class ChainDrawer:
    """Draws different chains of one company and split, pattern by pattern, until none is left."""

    def __init__(
        self, draws: Draws, graph: ChainGraph, company: Company, patterns: Mapping[str, int]
    ) -> None:
        self.draws, self.graph, self.company = draws, graph, company
        self.refused: Counter[str] = Counter()
        """Why candidates were drawn again."""
        self._weights = dict(sorted(patterns.items()))
        self._walks = {pattern: graph.walks(draws, pattern) for pattern in self._weights}
        self._restarts: Counter[str] = Counter()
        self._seen: set[tuple[int, ...]] = set()

    @property
    def active(self) -> bool:
        """Whether another chain may exist."""
        return bool(self._weights)

    def draw(self, count: int, check: Check) -> list[Candidate]:
        """Up to `count` chains; fewer when no pattern has a walk left.

        A pattern without walks is given up, and its weight goes to the others.
        """
        chains: list[Candidate] = []
        while len(chains) < count and self._weights:
            pattern = self.draws.weighted(list(self._weights), list(self._weights.values()))
            found = self._next(pattern, check)
            if found is not None:
                chains.append(found)
            elif self._restarts[pattern] < MAX_RESTARTS:
                self._restarts[pattern] += 1
                self._walks[pattern] = self.graph.walks(self.draws, pattern)
            else:
                del self._weights[pattern]
        return chains

    def _next(self, pattern: str, check: Check) -> Candidate | None:
        """The next new walk that passes the checks, or None when the walks end."""
        for _, walk in zip(range(MAX_WALKS), self._walks[pattern]):
            candidate = Candidate(self.company, pattern, walk)
            if candidate.key in self._seen:
                continue
            self._seen.add(candidate.key)
            reason = sound(candidate) or check(candidate)
            if not reason:
                return candidate
            self.refused[reason] += 1
        return None


def chain_row(candidate: Candidate, split: str, number: int, others: Sequence[WorldFact]) -> dict[str, Any]:
    """The dataset row; `others` are private facts of the same company and split for task-level leakage."""
    items, company = candidate.items, candidate.company
    gold = [gold_id(item) for item in items]
    last = answer(items[-1])
    return {
        "task_id": company.task_id,
        "chain_id": f"{split}-{company.task_id}-{number:04d}",
        "company": company.name,
        "pattern": candidate.pattern,
        "numbered_questions": "\n".join(f"({i}) {q}" for i, q in enumerate(candidate.questions, 1)),
        "global_answer": last.text,
        "global_answer_variants": variants(items[-1]),
        "n_hops": len(items),
        "n_question_hops": len(items),
        "n_unique_docs": len(set(gold)),
        "n_cross_doc_transitions": sum(a != b for a, b in pairwise(gold)),
        "private_questions": [
            {"question": f.question(), "answer": f.value.text, "doc_id": f.doc_id} for f in others
        ],
        "hops": [_hop_row(candidate, index) for index in range(len(items))],
    }


def _hop_row(candidate: Candidate, index: int) -> dict[str, Any]:
    item, question = candidate.items[index], candidate.questions[index]
    return {
        "hop_number": index + 1,
        "hop_type": candidate.pattern[index],
        "question": question,
        "question_templated": question,
        "answer": answer(item).text,
        "accepted_answer_variants": variants(item),
        "doc_id": gold_id(item),
        "value_kind": answer(item).kind,
        "qualifier": "" if isinstance(item, WorldFact) else item.qualifier,
    }


def variants(item: Item) -> list[str]:
    """Accepted spellings of a hop's answer."""
    noun = item.attribute.about if isinstance(item, WorldFact) else item.subject.noun
    return answer(item).variants(noun)
