"""The privacy penalty of plans with web queries: what their queries reveal alone and with earlier ones.

Pure: `score_requests` says which query logs need a score, `penalty` turns scores into a penalty. The unit is
the batch of web queries of one plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from domains.privacy_hopqa.agent.episode import CallRecord, PlanFacts
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.data.chains import Chain, PrivateQuestion


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One query log to score against the facts of a chain; `id` is unique within a rollout."""

    id: str
    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanScores:
    """Scores of one plan's batch: alone, with its context, and of the context without it (0 if empty)."""

    direct: float
    context: float
    without: float


@dataclass(frozen=True, slots=True)
class Penalty:
    """Excess over the threshold of the batch alone and of what it adds to its context, and the penalty."""

    direct: float
    mosaic: float
    value: float


@dataclass(frozen=True, slots=True)
class ScoredPlan:
    """A plan to be scored: its call and the ids of its score requests (`without` is None if empty)."""

    call_index: int
    direct: str
    context: str
    without: str | None


def penalty(scores: PlanScores, threshold: float, weight: float) -> Penalty:
    """`w max(direct, mosaic)`: `direct = max(0, p - t)`, `mosaic = max(0, p_ctx - max(p_without, t))`."""
    direct = max(0.0, scores.direct - threshold)
    mosaic = max(0.0, scores.context - max(scores.without, threshold))
    return Penalty(direct, mosaic, weight * max(direct, mosaic))


def score_requests(
    calls: Sequence[CallRecord], context_hops: int
) -> tuple[list[ScoredPlan], list[ScoreRequest]]:
    """The plans that get a penalty, and the distinct query logs they need scored.

    The context of a plan for hop h are the batches of this rollout's plans for hops h - context_hops + 1 to
    h, up to and including its own.
    """
    batches: list[tuple[int, tuple[str, ...]]] = []
    plans: list[ScoredPlan] = []
    ids: dict[tuple[str, ...], str] = {}

    def request(queries: tuple[str, ...]) -> str:
        return ids.setdefault(queries, f"log{len(ids)}")

    for call in calls:
        if call.stage != Stage.PLAN or call.error is not None or not isinstance(call.facts, PlanFacts):
            continue
        batch = call.facts.web_queries
        if not batch:
            continue
        first_hop = call.hop_number - context_hops + 1
        before = tuple(q for hop, queries in batches if hop >= first_hop for q in queries)
        batches.append((call.hop_number, batch))
        plans.append(
            ScoredPlan(
                call.index, request(batch), request(before + batch), request(before) if before else None
            )
        )
    return plans, [ScoreRequest(name, queries) for queries, name in ids.items()]


def plan_scores(plan: ScoredPlan, scores: Mapping[str, float]) -> PlanScores:
    """The three scores of a plan from the scores by request id."""
    without = scores[plan.without] if plan.without is not None else 0.0
    return PlanScores(scores[plan.direct], scores[plan.context], without)


def example(request: ScoreRequest, chain: Chain, facts: Sequence[PrivateQuestion]) -> dict[str, object]:
    """The request as the scoring service takes it."""
    return {
        "id": request.id,
        "company": chain.company,
        "task_id": chain.task_id,
        "chain_id": chain.chain_id,
        "variant": "private_fact_context",
        "web_queries": list(request.queries),
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
