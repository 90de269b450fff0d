"""Which calls of a rollout become training texts, and what each is labelled with.

The evaluation of a rollout calls it; the rollout policy makes training texts of what it returns.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from domains.privacy_hopqa.agent.episode import CallRecord, ChooseFacts, PlanFacts
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.reward.privacy import PlanPrivacy
from domains.privacy_hopqa.reward.rewards import situation_label, step_reward
from domains.privacy_hopqa.settings import PrivacyHopQASettings

POLICY_ROLE = "policy"
ANCHOR_ROLE = "anchor"
MAX_METADATA_BYTES = 8192
_LATER_BYTES = 512
"""Room for what the scheduler and the situations add."""
_MAX_QUERIES = 8
_QUERY_CHARS = 400
_DECISION_STAGES = (Stage.PLAN, Stage.CHOOSE)


@dataclass(frozen=True, slots=True)
class Captured:
    """One call that becomes a training text."""

    record: CallRecord
    reward: float
    loss_weight: float
    situation: str | None
    role: str | None
    metadata: dict[str, Any]


def captured_calls(calls: Sequence[CallRecord], settings: PrivacyHopQASettings) -> list[CallRecord]:
    """Calls that count as captured: answered ones of the stages that `capture_mode` names."""
    stages = _DECISION_STAGES if settings.capture_mode == "planning_only" else tuple(Stage)
    return [record for record in calls if record.call is not None and record.stage in stages]


def outcome_texts(
    calls: Sequence[CallRecord],
    reward: float,
    settings: PrivacyHopQASettings,
    privacy: Mapping[int, PlanPrivacy],
) -> list[Captured]:
    """Every captured call with the rollout's reward."""
    return [
        Captured(r, reward, 1.0, None, None, _metadata(r, reward, privacy.get(r.index), applied=False))
        for r in captured_calls(calls, settings)
    ]


def situational_texts(
    calls: Sequence[CallRecord], settings: PrivacyHopQASettings, privacy: Mapping[int, PlanPrivacy]
) -> list[Captured]:
    """Plans and choices with the reward of their situation, less the privacy penalty.

    Reads and resolutions are dropped; with `anchor_stages` some of them stay as anchors without reward.
    """
    role = POLICY_ROLE if settings.anchor_stages else None
    texts = []
    for record in calls:
        if record.call is None or (step := step_reward(record, settings)) is None:
            continue
        result = privacy.get(record.index)
        paid = result.penalty if result else 0.0
        metadata = _metadata(record, step.value, result, applied=True)
        texts.append(
            Captured(record, step.value - paid, step.loss_weight, situation_label(record), role, metadata)
        )
    if settings.anchor_stages:
        texts += [
            Captured(r, 0.0, 1.0, situation_label(r), ANCHOR_ROLE, _metadata(r, 0.0, None, applied=False))
            for r in anchor_calls(calls, settings.anchor_max_texts)
        ]
        texts.sort(key=lambda text: text.record.index)
    return texts


def anchor_calls(calls: Sequence[CallRecord], limit: int) -> list[CallRecord]:
    """At most `limit` reads and resolutions, half of each where there are enough, spread over the rollout."""
    reads = [r for r in calls if r.stage == Stage.READ and r.call is not None]
    resolves = [r for r in calls if r.stage == Stage.RESOLVE and r.call is not None]
    n_resolves = min(len(resolves), max(limit // 2, limit - len(reads)))
    chosen = _spread(resolves, n_resolves) + _spread(reads, limit - n_resolves)
    return sorted(chosen, key=lambda record: record.index)


def _spread(records: list[CallRecord], count: int) -> list[CallRecord]:
    """`count` records at even distances; all if there are fewer."""
    if count >= len(records):
        return records
    return [records[(2 * i + 1) * len(records) // (2 * count)] for i in range(count)]


def _metadata(
    record: CallRecord, task_reward: float, privacy: PlanPrivacy | None, *, applied: bool
) -> dict[str, Any]:
    """What travels with the text, at most 8 KB of JSON: numbers, flags and the plan's own web queries."""
    metadata: dict[str, Any] = {
        "capture_index": record.index,
        "stage": str(record.stage),
        "hop": record.hop_number,
        "iteration": record.iteration,
        "decision_situation": record.situation,
        "reward_task": task_reward,
        "error": str(record.error) if record.error else None,
    }
    if privacy is not None:
        metadata |= {
            "reward_privacy": -privacy.penalty if applied else 0.0,
            "privacy_direct": privacy.p_direct,
            "privacy_context": privacy.p_context,
            "privacy_without": privacy.p_without,
        }
    match record.facts:
        case PlanFacts() as facts:
            metadata |= {
                "actions": len(facts.sources),
                "sources": list(facts.sources),
                "web_queries": [query[:_QUERY_CHARS] for query in facts.web_queries[:_MAX_QUERIES]],
                "gold_retrieved": facts.gold_retrieved,
                "right_source": facts.right_source,
            }
        case ChooseFacts() as facts:
            metadata |= {"gold_visible": facts.gold_visible, "gold_selected": facts.gold_selected}
    if len(json.dumps(metadata)) > MAX_METADATA_BYTES - _LATER_BYTES:
        metadata["web_queries_left_out"] = len(metadata.pop("web_queries"))
    return metadata
