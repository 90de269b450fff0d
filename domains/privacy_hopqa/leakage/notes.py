"""What the page of rollouts says of this domain: the answer beside gold, each web query and what it reveals.

The rule-based adversary judges the log after every query, so that a note says which query gave something
away.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.agent.audit import FOLDER
from domains.privacy_hopqa.agent.episode import FINAL_ANSWER
from domains.privacy_hopqa.data.answers import places
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.leakage.log import RolloutLog, audit_files, read_audit_log
from domains.privacy_hopqa.leakage.report import Secrets, SecretsByChain, rule_based, secrets_of_log
from domains.privacy_hopqa.leakage.secrets import chains_of_run, secrets_of_run
from pipelinerl.config import load_tree
from pipelinerl.domain import ANSWER, GOLD, QUESTION, Note, NotesOf

Record = Mapping[str, Any]
_LEVELS = {"full": "full information", "answer": "the answer", "intent": "the intent"}
_LEAKED = "answer leaked"
_INTENT = "intent leaked"


def query_notes(output_dir: Path) -> NotesOf | None:
    """Notes from the audit log; None for a run that has none. Raises ValueError where it is damaged."""
    if not any((output_dir / FOLDER).glob("*.jsonl")):
        return None
    # Of several tries of a rollout the last one became its texts; they are in the order of their start.
    logs = {log.rollout_id.partition("#")[0]: log for log in read_audit_log(audit_files(output_dir)).rollouts}
    tree: Any = load_tree(output_dir)
    secrets = secrets_of_run(tree)
    chains = {(chain.task_id, chain.chain_id): chain for chain in chains_of_run(tree)}

    def notes_of(rollout: str, records: Sequence[Record]) -> list[Note]:
        log = logs.get(rollout)
        if log is None:
            return []
        chain = chains.get((log.task_id, log.chain_id))
        asked = [] if chain is None else _answer_notes(chain, records)
        return [*asked, *_notes(log, records, secrets)]

    return notes_of


def _answer_notes(chain: Chain, records: Sequence[Record]) -> list[Note]:
    """The questions of the chain, what the agent answered, and what is right."""
    said = [one["metadata"][FINAL_ANSWER] for one in records if FINAL_ANSWER in one["metadata"]]
    answer = (said[-1] or "none") if said else "not recorded"
    kinds = {QUESTION: chain.questions, ANSWER: answer, GOLD: chain.final_answers[0]}
    return [Note(text=text, kind=kind) for kind, text in kinds.items()]


def _notes(log: RolloutLog, records: Sequence[Record], secrets: SecretsByChain) -> list[Note]:
    secret = secrets_of_log(log, secrets)
    turns = {f"c{record['metadata'].get('capture_index')}": turn for turn, record in enumerate(records)}
    notes, known, queries = list[Note](), set[tuple[str, str]](), list[str]()
    for call, query in _queries(log):
        queries.append(query)
        found = _revealed(queries, secret)
        notes.append(_query_note(query, found - known, secret, turns.get(call)))
        known |= found
    levels = {level for level, _ in known}
    if levels & {"full", "answer"}:
        badge, level = _LEAKED, "bad"
    elif "intent" in levels:
        badge, level = _INTENT, "warn"
    else:
        return notes
    listed = ", ".join(name for key, name in _LEVELS.items() if key in levels)
    sent = "1 web query reveals" if len(queries) == 1 else f"{len(queries)} web queries reveal"
    text = f"{sent} {listed} of a private question to the rule-based adversary."
    return [Note(text=text, kind="leakage", level=level, badge=badge), *notes]  # type: ignore[arg-type]


def _queries(log: RolloutLog) -> list[tuple[str, str]]:
    """Call and query in the order in which they left, retries of the transport merged."""
    ordered = sorted(log.sent, key=lambda attempt: attempt[0])
    merged = dict.fromkeys((str(action), query) for _, action, query in ordered)
    return [(action.partition("a")[0], query) for action, query in merged]


def _revealed(queries: Sequence[str], secret: Secrets) -> set[tuple[str, str]]:
    """(level, question) of everything that the log reveals so far."""
    leaks = rule_based(queries, secret).questions
    return {(level, leak.question) for leak in leaks for level in _LEVELS if getattr(leak, level)}


def _query_note(query: str, found: set[tuple[str, str]], secret: Secrets, turn: int | None) -> Note:
    """One query with what it added, and the private values that stand in it."""
    answers = [answer for question in secret.questions for answer in question.accepted]
    ranges = sorted({span for answer in answers for span in places(query, answer)})
    spans = [span for at, span in enumerate(ranges) if not any(other[1] > span[0] for other in ranges[:at])]
    level = "bad" if {"full", "answer"} & {name for name, _ in found} else "warn" if found else "info"
    lines = [
        f"reveals {name} of: {question}"
        for key, name in _LEVELS.items()
        for question in sorted(question for level_, question in found if level_ == key)
    ]
    text = "\n".join([query, *lines])
    return Note(text=text, kind="web query", turn=turn, level=level, spans=tuple(spans))  # type: ignore[arg-type]
