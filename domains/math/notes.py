"""What the page of rollouts says of this domain: what the judge read, and what it compared it with."""

from collections.abc import Mapping, Sequence
from typing import Any

from domains.math.answers import extracted
from pipelinerl.domain import ANSWER, GOLD, Note

Record = Mapping[str, Any]
VERDICT, EXPECTED = "verdict", "expected"
"""Keys of a text's metadata."""
_READ = {"no_answer": "no boxed answer", "unparsable": "a boxed answer that cannot be read"}


def judge_notes(rollout: str, records: Sequence[Record]) -> list[Note]:
    """The answer beside the expected one, and for each text of this domain what its verdict tells."""
    judged = [(turn, record) for turn, record in enumerate(records) if VERDICT in record["metadata"]]
    notes = [_note(turn, record) for turn, record in judged]
    if not judged:
        return notes
    answer = extracted((last := judged[-1][1])["answer"])
    shown = _READ.get(answer, answer)
    return [Note(text=shown, kind=ANSWER), Note(text=last["metadata"][EXPECTED], kind=GOLD), *notes]


def _note(turn: int, record: Record) -> Note:
    answer, metadata = extracted(record["answer"]), record["metadata"]
    status = metadata[VERDICT]
    shown = _READ.get(answer, answer)
    text = f"{shown}: {status}, expected {metadata[EXPECTED]}"
    level = "good" if status == "correct" else "bad" if status == "wrong" else "warn"
    badge = "" if status in ("correct", "wrong") else status.replace("_", " ")
    spans = () if answer in _READ else ((0, len(shown)),)
    return Note(text=text, kind="judge read", turn=turn, level=level, spans=spans, badge=badge)  # type: ignore[arg-type]
