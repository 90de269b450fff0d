"""The domain's part of a run's final report: leakage of the first and the last version, by the audit log."""

from pathlib import Path
from typing import Any

from domains.privacy_hopqa.leakage.log import RolloutLog, audit_files, read_audit_log
from domains.privacy_hopqa.leakage.report import TITLES, LeakageReport, evaluate
from domains.privacy_hopqa.leakage.secrets import secrets_of_run
from pipelinerl.config import load_tree
from pipelinerl.domain import ReportSection


def leakage_section(output_dir: Path) -> list[ReportSection]:
    """One table over the evaluation rollouts of the first and the last version; none without evaluations."""
    tree: Any = load_tree(output_dir)
    try:
        log = read_audit_log(audit_files(output_dir))
    except FileNotFoundError:  # a run without rollouts, such as a replay of recorded streams
        return []
    except ValueError as error:
        return [ReportSection(title="Leakage", text=f"not known, the audit log is damaged: {error}")]
    evaluated = [r for r in log.rollouts if not r.training and r.model_version is not None]
    if not evaluated:
        return []
    secrets = secrets_of_run(tree)
    versions = sorted({r.model_version for r in evaluated if r.model_version is not None})
    shown = list(dict.fromkeys((versions[0], versions[-1])))
    reports = {v: evaluate([r for r in evaluated if r.model_version == v], secrets) for v in shown}
    return [table(reports, evaluated)]


def table(reports: dict[int, LeakageReport], rollouts: list[RolloutLog]) -> ReportSection:
    """Rates by level and version beside the controls, which must be zero."""
    sides = [f"version {version} ({report.rollouts} rollouts)" for version, report in reports.items()]
    rows: list[tuple[str, ...]] = [("level", *sides, "empty log", "company's name only")]
    last = list(reports.values())[-1]
    for level, title in TITLES.items():
        raw = [str(report.levels[level]) for report in reports.values()]
        controls = [f"{rates[level].value:.1%}" for rates in (last.empty_log, last.company_only)]
        rows.append((title, *raw, *controls))
    text = "Rule-based adversary that sees only the web queries of a rollout and the company's name."
    if not all(report.controls_are_zero for report in reports.values()):
        text += " A control leaked, so these figures are invalid."
    splits = ", ".join(sorted({r.split for r in rollouts}))
    return ReportSection(title=f"Leakage on {splits}, 95 % intervals over chains", rows=rows, text=text)
