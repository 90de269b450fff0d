"""What the page of rollouts says of this domain: whose each answer was, and what each verdict took it for."""

from collections.abc import Mapping, Sequence
from typing import Any

from domains.raro.config import KEY
from domains.raro.parser import extract_answer, parse_verdict
from domains.raro.rewards import Label
from pipelinerl.domain import Note

Record = Mapping[str, Any]
_SAID = {
    Label.EXPERT: "picked the expert's answer",
    Label.POLICY: "took the policy's answer for the expert's",
    Label.TIE: "could not tell",
}


def verdict_notes(rollout: str, records: Sequence[Record]) -> list[Note]:
    """One note for each verdict, and one for the answer that they judge."""
    own = [(turn, record) for turn, record in enumerate(records) if str(record["situation"]).startswith(KEY)]
    critic = [(turn, record) for turn, record in own if record["role"] == "critic"]
    notes = [_verdict(turn, record) for turn, record in critic]
    policy = next((turn for turn, record in own if record["role"] == "policy"), None)
    if policy is None:
        return notes
    return [_judged(policy, records[policy], [r for _, r in critic if _is_fresh(r)]), *notes]


def _is_fresh(record: Record) -> bool:
    return record["metadata"].get("source") == "fresh"


def _verdict(turn: int, record: Record) -> Note:
    """The order of the pair, where it comes from, and what the critic said."""
    metadata = record["metadata"]
    first = metadata.get("expert_position") == 1
    order = (
        "answer 1 is the expert's, 2 the policy's" if first else "answer 1 is the policy's, 2 the expert's"
    )
    pair = "fresh pair" if _is_fresh(record) else f"pair from {metadata.get('replay_age')} samples ago"
    label = metadata.get("label")
    said = _SAID[Label(label)] if label else "gave no verdict that can be read"
    verdict = parse_verdict(record["answer"]) if label else None
    level = {"expert": "good", "policy": "bad"}.get(str(label), "warn")
    text = f"{verdict or 'no verdict'}: the critic {said} ({order}; {pair})"
    return Note(text=text, kind="verdict", turn=turn, level=level)  # type: ignore[arg-type]


def _judged(turn: int, record: Record, verdicts: Sequence[Record]) -> Note:
    """What the policy's own answer got."""
    answer = extract_answer(record["answer"])
    labels = [record["metadata"].get("label") for record in verdicts]
    if answer is None or not labels:
        why = "no answer that can be read" if answer is None else "nobody judged it"
        return Note(text=why, kind="answer", turn=turn, level="warn", badge="not judged")
    counts = ", ".join(f"{n} {_SAID[label]}" for label in Label if (n := labels.count(str(label))))
    unread = labels.count(None)
    text = f"{answer}: of {len(labels)} verdicts {counts or 'none could be read'}"
    text += f", {unread} could not be read" if unread and counts else ""
    fooled = labels.count(str(Label.POLICY)) * 2 > len(labels)
    badge = "critic fooled" if fooled else ""
    spans = ((0, len(answer)),)
    return Note(
        text=text, kind="answer", turn=turn, level="good" if fooled else "info", spans=spans, badge=badge
    )
