"""Scorers of query logs: the deterministic one in this process, or a service over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from domains.privacy_hopqa.agent.errors import PrivacyScoreFailure
from domains.privacy_hopqa.agent.transport import JsonClient, RequestRefused
from domains.privacy_hopqa.data.chains import Chain, PrivateQuestion
from domains.privacy_hopqa.reward.privacy import ScoreRequest, example
from domains.privacy_hopqa.scorer.protocol import MAX_EXAMPLES
from domains.privacy_hopqa.scorer.rules import Fact, score


class Scorer(Protocol):
    """Scores query logs in [0, 1] by request id. Raises PrivacyScoreFailure or TransportFailure."""

    async def score(
        self, chain: Chain, facts: Sequence[PrivateQuestion], requests: Sequence[ScoreRequest]
    ) -> dict[str, float]: ...


class EmbeddedScorer:
    """The deterministic scorer, in process."""

    async def score(
        self, chain: Chain, facts: Sequence[PrivateQuestion], requests: Sequence[ScoreRequest]
    ) -> dict[str, float]:
        """Scores by request id."""
        known = [Fact(fact.question, fact.answer) for fact in facts]
        return {request.id: score(chain.company, request.queries, known) for request in requests}


class ServiceScorer:
    """A scoring service that answers `POST /score`."""

    def __init__(self, client: JsonClient) -> None:
        self._client = client

    async def score(
        self, chain: Chain, facts: Sequence[PrivateQuestion], requests: Sequence[ScoreRequest]
    ) -> dict[str, float]:
        """Scores by request id, in batches the service accepts."""
        scores: dict[str, float] = {}
        for start in range(0, len(requests), MAX_EXAMPLES):
            part = requests[start : start + MAX_EXAMPLES]
            body = {"examples": [example(request, chain, facts) for request in part]}
            try:
                answer = await self._client.post("/score", body)
            except RequestRefused as error:
                raise PrivacyScoreFailure(str(error)) from None
            scores |= checked_scores(answer, [request.id for request in part])
        return scores


def checked_scores(answer: Any, ids: Sequence[str]) -> dict[str, float]:
    """The scores if there is exactly one finite score in [0, 1] per id; PrivacyScoreFailure otherwise."""
    rows = answer.get("scores") if isinstance(answer, Mapping) else None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise PrivacyScoreFailure("the scorer's answer has no list of scores")
    if len(rows) != len(ids):
        raise PrivacyScoreFailure(f"the scorer returned {len(rows)} scores for {len(ids)} examples")
    scores = {row["id"]: row.get("prob_yes") for row in rows if isinstance(row.get("id"), str)}
    for name in ids:
        value = scores.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PrivacyScoreFailure(f"the scorer returned no score for example {name!r}")
        if not 0.0 <= value <= 1.0:  # also false for NaN
            raise PrivacyScoreFailure(f"the score {value!r:.40} of example {name!r} is not in [0, 1]")
    return {name: float(scores[name]) for name in ids}
