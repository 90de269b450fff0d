"""The domain's part of the final report: evaluation before and after training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from domains.privacy_hopqa.leakage.report import Rate, rate
from pipelinerl.domain import ReportSection

Row = Mapping[str, Any]
Count = Callable[[Row], tuple[int, int]]

_COUNTS: dict[str, Count] = {
    "strict success": lambda row: (int(row["success"]), 1),
    "strict success, well-formed rollouts": lambda row: (
        int(row["success"] and row["well_formed"]),
        int(row["well_formed"]),
    ),
    "reward (correct hops)": lambda row: (int(row["correct_hops"]), int(row["total_hops"])),
    "leakage (answer or full information)": lambda row: (int(row["leak"]), 1),
    "leakage, intent": lambda row: (int(row["leak_intent"]), 1),
    "well-formed rollouts": lambda row: (int(row["well_formed"]), 1),
}


def learning_section(rows: Sequence[Row]) -> list[ReportSection]:
    """One table from the evaluations of the first and the last version; none without evaluations."""
    evaluated = [row for row in rows if not row["training"]]
    versions = sorted({row["model_version"] for row in evaluated if row["model_version"] is not None})
    if not versions:
        return []
    shown = versions if len(versions) == 1 else [versions[0], versions[-1]]
    sides = [[row for row in evaluated if row["model_version"] == version] for version in shown]
    header = ("", *(f"version {version} ({len(side)} rollouts)" for version, side in zip(shown, sides)))
    table: list[tuple[str, ...]] = [header]
    table += [(name, *(_cell(side, count) for side in sides)) for name, count in _COUNTS.items()]
    splits = ", ".join(sorted({str(row["split"]) for row in evaluated}))
    return [
        ReportSection(
            title=f"Evaluation on {splits}, 95 % intervals over chains",
            rows=table,
            text="Leakage: rule-based adversary that sees only the web queries and the company's name.",
        )
    ]


def _cell(rows: Sequence[Row], count: Count) -> str:
    found: Rate = rate([count(row) for row in rows], [f"{row['task_id']}/{row['chain_id']}" for row in rows])
    return str(found)
