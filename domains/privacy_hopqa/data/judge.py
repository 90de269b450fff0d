"""What only the gold knows: whether a document is gold, whether an answer is right.

The loop records these verdicts for rewards and metrics; no prompt ever sees them.
"""

from __future__ import annotations

from collections.abc import Iterable

from domains.privacy_hopqa.agent.interfaces import Document
from domains.privacy_hopqa.data.answers import MatchMode, answers_match
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.data.identity import alias_set


class Judge:
    """Verdicts on one chain. Build one per rollout; document verdicts are cached by id."""

    def __init__(
        self, chain: Chain, match_mode: MatchMode = "exact_or_f1", f1_threshold: float = 0.75
    ) -> None:
        self._chain = chain
        self._mode = match_mode
        self._threshold = f1_threshold
        self._gold = [gold_aliases(hop.gold_values) for hop in chain.hops]
        self._accepted = [[_flat(answer) for answer in hop.accepted] for hop in chain.hops]

    def is_gold(self, hop_number: int, document: Document) -> bool:
        """Whether the document is the hop's gold document: their alias sets meet."""
        return not self._gold[hop_number - 1].isdisjoint(document.aliases)

    def correct(self, hop_number: int, answer: str | None) -> bool:
        """Whether the answer matches one of the hop's accepted answers."""
        return self._matches(answer, self._chain.hop(hop_number).accepted)

    def final_correct(self, answer: str | None) -> bool:
        """Whether the answer matches the chain's final answer."""
        return self._matches(answer, self._chain.final_answers)

    def holds_answer(self, hop_number: int, text: str) -> bool:
        """Whether the text contains an accepted answer of the hop, case and spaces ignored."""
        flat = _flat(text)
        return any(answer in flat for answer in self._accepted[hop_number - 1])

    def _matches(self, answer: str | None, accepted: tuple[str, ...]) -> bool:
        return answers_match(answer or "", accepted, self._mode, self._threshold)


def gold_aliases(values: Iterable[str]) -> set[str]:
    """All aliases of the values that name a gold document."""
    return set().union(*(alias_set({"doc_id": value}) for value in values))


def _flat(text: str) -> str:
    return " ".join(text.casefold().split())
