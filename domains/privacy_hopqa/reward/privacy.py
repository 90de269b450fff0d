"""The privacy penalty of plans with web queries: what their queries reveal alone and with earlier ones.

Pure: `plan_logs` says which query logs need a score, `penalised` turns scores into a penalty; the evaluation
of a rollout calls both around a scorer. The unit is the batch of web queries of one plan, because a plan is
one decision of the policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from domains.privacy_hopqa.agent.episode import CallRecord, PlanFacts
from domains.privacy_hopqa.agent.interfaces import Stage

Log = tuple[str, ...]
"""Web queries in the order in which they leave."""


@dataclass(frozen=True, slots=True)
class PlanLogs:
    """The logs a plan's penalty needs scored: its own batch, with its context, the context without it."""

    call_index: int
    direct: Log
    context: Log
    without: Log
    """Empty if nothing left before; an empty log scores 0 and is not sent."""


@dataclass(frozen=True, slots=True)
class PlanPrivacy:
    """The three scores of a plan in [0, 1], the two excesses over the threshold, and what it pays."""

    p_direct: float
    p_context: float
    p_without: float
    direct: float
    mosaic: float
    penalty: float


def penalised(
    p_direct: float, p_context: float, p_without: float, threshold: float, weight: float
) -> PlanPrivacy:
    """`w max(direct, mosaic)`: `direct = max(0, p - t)`, `mosaic = max(0, p_ctx - max(p_without, t))`."""
    direct = max(0.0, p_direct - threshold)
    mosaic = max(0.0, p_context - max(p_without, threshold))
    return PlanPrivacy(p_direct, p_context, p_without, direct, mosaic, weight * max(direct, mosaic))


def plan_logs(calls: Sequence[CallRecord], context_hops: int) -> list[PlanLogs]:
    """The plans that get a penalty, in order: those with usable web queries and no error.

    The context of a plan for hop h are the batches of this rollout's plans for hops h - context_hops + 1 to
    h, up to and including its own.
    """
    batches: list[tuple[int, Log]] = []
    plans: list[PlanLogs] = []
    for call in calls:
        if call.stage != Stage.PLAN or call.error is not None or not isinstance(call.facts, PlanFacts):
            continue
        batch = call.facts.web_queries
        if not batch:
            continue
        first_hop = call.hop_number - context_hops + 1
        before = tuple(q for hop, queries in batches if hop >= first_hop for q in queries)
        batches.append((call.hop_number, batch))
        plans.append(PlanLogs(call.index, batch, before + batch, before))
    return plans


def distinct_logs(plans: Sequence[PlanLogs]) -> list[Log]:
    """Every log that needs a score, once."""
    logs = (log for plan in plans for log in (plan.direct, plan.context, plan.without))
    return list(dict.fromkeys(log for log in logs if log))
