"""A private question, and audit logs as runs write them."""

import json
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.data.chains import PrivateQuestion

COMPANY = "Harlow Foods"
QUESTION = "What percentage of Harlow Foods stores completed the cold-chain audit in 2023?"
PRIVATE = PrivateQuestion(QUESTION, "15%", ("15 percent",))


def audit_line(rollout: str, number: int, **fields: Any) -> dict[str, Any]:
    """One line of an evaluation rollout on chain c1 at version 3: a query, or an event."""
    return {
        "ts": float(number),
        "request_id": f"r{number}",
        "rollout_id": rollout,
        "split": "test",
        "task_id": "DR90001",
        "chain_id": "c1",
        "action_id": f"a{number}",
        "model_version": 3,
        "training": False,
        **fields,
    }


def ended(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines, and behind them the end of every rollout that they name."""
    last = {line["rollout_id"]: line for line in lines if "rollout_id" in line}
    asked = ("query", "request_id")
    ends = [{k: v for k, v in line.items() if k not in asked} | {"event": "end"} for line in last.values()]
    return [*lines, *ends]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_chains(path: Path, *chain_ids: str) -> Path:
    """Chains with one private hop, the question."""
    hop = {"hop_number": 1, "hop_type": "L", "question": QUESTION, "answer": "15%"}
    shared = {"task_id": "DR90001", "company": COMPANY, "hops": [hop]}
    return write_lines(path, [shared | {"chain_id": chain_id} for chain_id in chain_ids])
