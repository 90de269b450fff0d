"""What the checks pass on to each other: problems with their places, and what chains expect of documents."""

from dataclasses import dataclass
from pathlib import Path

from domains.privacy_hopqa.data.answers import contains, stated, tokenize
from domains.privacy_hopqa.data.chains import Chain, Hop
from domains.privacy_hopqa.data.identity import value_aliases


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Something wrong, in one line; `line` counts from 1."""

    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.message.split())}"


@dataclass(frozen=True, slots=True)
class GoldReference:
    """A hop that names a gold document, and the line of its chain."""

    path: Path
    line: int
    chain: Chain
    hop: Hop

    @property
    def aliases(self) -> set[str]:
        """All names under which the gold document may be known."""
        return value_aliases(self.hop.gold_values)

    @property
    def shown(self) -> str:
        """The gold values as the file gives them."""
        return " or ".join(self.hop.gold_values)

    def problem(self, message: str) -> Problem:
        """A problem of this hop."""
        return Problem(self.path, self.line, f"chain {self.chain.chain_id} hop {self.hop.number}: {message}")

    def answer_problems(self, text: str, document: str) -> list[Problem]:
        """Whether an accepted answer stands in the gold document, literally or in another notation."""
        accepted, tokens = self.hop.accepted, tokenize(text)
        if stated(text, accepted) or any(contains(tokens, tokenize(answer)) for answer in accepted):
            return []
        answers = ", ".join(map(repr, accepted))
        return [self.problem(f"unanswerable, {document} holds none of its answers {answers:.120}")]
