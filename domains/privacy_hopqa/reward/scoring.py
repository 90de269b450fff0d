"""Scorers of query logs: the deterministic one in this process, or a service over HTTP.

The evaluation of a rollout asks one of them for every distinct log. A missing or impossible score is an error
and never a zero: a zero would reward whatever made the scorer fail.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from domains.privacy_hopqa.agent.errors import PrivacyScoreFailure
from domains.privacy_hopqa.agent.transport import JsonClient, RequestRefused
from domains.privacy_hopqa.data.chains import Chain, PrivateQuestion
from domains.privacy_hopqa.reward.privacy import Log
from domains.privacy_hopqa.scorer.protocol import MAX_EXAMPLES, VARIANT
from domains.privacy_hopqa.scorer.rules import Fact, score

Scorer = Callable[[Chain, Sequence[PrivateQuestion], Sequence[Log]], Awaitable[dict[Log, float]]]
"""Scores distinct query logs in [0, 1]. Raises PrivacyScoreFailure or TransportFailure."""


async def score_here(chain: Chain, facts: Sequence[PrivateQuestion], logs: Sequence[Log]) -> dict[Log, float]:
    """Scores by log of the deterministic scorer, in process."""
    known = [Fact(fact.question, fact.answer) for fact in facts]
    return {log: score(chain.company, log, known) for log in logs}


async def score_by_service(
    client: JsonClient, chain: Chain, facts: Sequence[PrivateQuestion], logs: Sequence[Log]
) -> dict[Log, float]:
    """Scores by log of a service that answers `POST /score`, asked for in batches that it accepts."""
    ids = {f"log{number}": log for number, log in enumerate(logs)}
    examples = [_example(name, log, chain, facts) for name, log in ids.items()]
    scores: dict[str, float] = {}
    for start in range(0, len(examples), MAX_EXAMPLES):
        part = examples[start : start + MAX_EXAMPLES]
        try:
            answer = await client.post("/score", {"examples": part})
        except RequestRefused as error:
            raise PrivacyScoreFailure(str(error)) from None
        scores |= checked_scores(answer, [example["id"] for example in part])
    return {log: scores[name] for name, log in ids.items()}


def _example(name: str, log: Log, chain: Chain, facts: Sequence[PrivateQuestion]) -> dict[str, Any]:
    """The log as the scoring service takes it."""
    return {
        "id": name,
        "company": chain.company,
        "task_id": chain.task_id,
        "chain_id": chain.chain_id,
        "variant": VARIANT,
        "web_queries": list(log),
        "private_qas": [],
        "local_hop_facts": [
            {
                "fact_id": fact.fact_id,
                "hop_number": fact.hop_number,
                "doc_id": fact.doc_id,
                "question": fact.question,
                "canonical_answer": fact.answer,
            }
            for fact in facts
        ],
    }


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
