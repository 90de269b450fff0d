"""What each chain must not reveal, from the dataset files that a run used."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from domains.privacy_hopqa.chains import Chain, parse_chain, parse_task_id
from domains.privacy_hopqa.leakage.report import Secrets
from domains.privacy_hopqa.leakage.rules import PrivateQuestion


def chain_secrets(chain: Chain, questions: Literal["chain", "task"] = "chain") -> Secrets:
    """The company and the private questions of a chain, references filled with gold answers."""
    variants = {f"hop{hop.number}": hop.accepted for hop in chain.hops}
    return Secrets(
        chain.company,
        tuple(
            PrivateQuestion(private.question, private.answer, variants.get(private.fact_id, ()))
            for private in chain.private_questions(questions)
        ),
    )


def load_secrets(
    files: Iterable[Path], task_root: Path | None, questions: Literal["chain", "task"] = "chain"
) -> dict[tuple[str, str], Secrets]:
    """Secrets by `(task_id, chain_id)` of all rows. Raises `ValueError` with file and line."""
    found: dict[tuple[str, str], Secrets] = {}
    companies: dict[str, str] = {}
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                task_id = parse_task_id(row)
                if task_id not in companies:
                    companies[task_id] = _company(task_id, row, task_root)
                chain = parse_chain(row, company=companies[task_id], description="", split="")
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from error
            found[chain.task_id, chain.chain_id] = chain_secrets(chain, questions)
    return found


def _company(task_id: str, row: dict[str, Any], task_root: Path | None) -> str:
    """`company_info.name` of the task, else the row's own company."""
    source = task_root / task_id / "config" / "task.json" if task_root else None
    if source is not None and source.is_file():
        name = json.loads(source.read_text(encoding="utf-8")).get("company_info", {}).get("name")
        if name:
            return str(name)
    if row.get("company"):
        return str(row["company"])
    raise ValueError(f"task {task_id!r} has no company_info.name and the row no company")
