"""What only the gold knows: whether a document is gold, whether an answer is right.

The agent's loop asks it which situation a call is in, rewards and metrics what the answers are worth. No
prompt ever sees a verdict.
"""

from domains.privacy_hopqa.data.answers import MatchMode, answers_match, stated
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.data.identity import value_aliases
from domains.privacy_hopqa.settings import PrivacyHopQASettings
from domains.short_answers import normalised, undressed


class Judge:
    """Verdicts on one chain. Build one per rollout."""

    def __init__(
        self,
        chain: Chain,
        match_mode: MatchMode = "exact_or_f1",
        f1_threshold: float = 0.75,
        short: bool = False,
    ) -> None:
        """`short`: both sides go through `domains.short_answers` first."""
        self._chain = chain
        self._mode = match_mode
        self._threshold = f1_threshold
        self._short = short
        self._gold = [value_aliases(hop.gold_values) for hop in chain.hops]

    def is_gold(self, hop_number: int, aliases: frozenset[str]) -> bool:
        """Whether a document of these aliases is the hop's gold document: their alias sets meet."""
        return not self._gold[hop_number - 1].isdisjoint(aliases)

    def correct(self, hop_number: int, answer: str | None) -> bool:
        """Whether the answer matches one of the hop's accepted answers."""
        return self._matches(answer, self._chain.hop(hop_number).accepted)

    def final_correct(self, answer: str | None) -> bool:
        """Whether the answer matches the chain's final answer."""
        return self._matches(answer, self._chain.final_answers)

    def holds_answer(self, hop_number: int, text: str) -> bool:
        """Whether the text contains an accepted answer of the hop, case and spaces ignored."""
        return stated(text, self._chain.hop(hop_number).accepted)

    def _matches(self, answer: str | None, accepted: tuple[str, ...]) -> bool:
        given = undressed(answer or "")
        if self._short:
            given, accepted = normalised(given), tuple(map(normalised, accepted))
        return answers_match(given, accepted, self._mode, self._threshold)


def judge_of(chain: Chain, settings: PrivacyHopQASettings) -> Judge:
    """The judge of a chain with the matching that the run is set to."""
    return Judge(
        chain, settings.answer_match_mode, settings.answer_match_f1_threshold, settings.short_answers
    )
