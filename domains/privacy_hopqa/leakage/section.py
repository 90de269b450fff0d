"""The domain's part of a run's final report: leakage of the first and the last version, by the audit log."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.leakage.log import RolloutLog, audit_files, read_audit_log
from domains.privacy_hopqa.leakage.report import TITLES, LeakageReport, evaluate
from domains.privacy_hopqa.leakage.secrets import secrets_of_run
from domains.privacy_hopqa.leakage.table import not_finished
from pipelinerl.base.errors import first_line
from pipelinerl.config import load_tree
from pipelinerl.domain import ReportSection
from pipelinerl.observe.history import read_evaluations
from pipelinerl.run_state.resume_point import Standing


def leakage_section(output_dir: Path) -> list[ReportSection]:
    """One table over the evaluation rollouts of the first and the last version; none without evaluations."""
    tree: Any = load_tree(output_dir)
    try:
        log = read_audit_log(audit_files(output_dir))
    except FileNotFoundError:  # a run without rollouts, such as a replay of recorded streams
        return []
    except ValueError as error:
        return [ReportSection(title="Leakage", text=f"not known, the audit log is damaged: {error}")]
    evaluated, unfinished = _standing(_evaluations(log.rollouts), output_dir), _evaluations(log.unfinished)
    if not evaluated:
        text = f"not known: {not_finished(unfinished)}"
        return [ReportSection(title="Leakage", text=text)] if unfinished else []
    versions = sorted({r.model_version for r in evaluated if r.model_version is not None})
    shown = list(dict.fromkeys((versions[0], versions[-1])))
    try:
        secrets = secrets_of_run(tree)
        reports = {v: evaluate([r for r in evaluated if r.model_version == v], secrets) for v in shown}
    except (KeyError, ValueError, OSError) as error:  # files may have changed since; the rest is still known
        said = error.args[0] if isinstance(error, KeyError) else first_line(error)
        return [ReportSection(title="Leakage", text=f"not known, because of the run's chain files: {said}")]
    return [table(reports, evaluated, [r for r in unfinished if r.model_version in shown])]


def _standing(rollouts: Sequence[RolloutLog], output_dir: Path) -> list[RolloutLog]:
    """Without what a resume undid, versions not evaluated whole, and earlier passes of a version."""
    versions = {evaluation.version for evaluation in read_evaluations(output_dir)}
    stands = Standing.read(output_dir)
    kept = [r for r in rollouts if stands.has(r.model_version or 0, time=r.started)]
    in_order = sorted(kept, key=lambda rollout: rollout.started)
    latest = {(r.model_version, r.split, r.task_id, r.chain_id): r for r in in_order}
    return [r for r in latest.values() if not versions or r.model_version in versions]


def _evaluations(rollouts: Sequence[RolloutLog]) -> list[RolloutLog]:
    return [r for r in rollouts if not r.training and r.model_version is not None]


def table(
    reports: dict[int, LeakageReport], rollouts: Sequence[RolloutLog], unfinished: Sequence[RolloutLog] = ()
) -> ReportSection:
    """Rates by level and version beside the controls, which must be zero; `unfinished` are only counted."""
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
    if said := not_finished(unfinished):
        text += f" {said}."
    splits = ", ".join(sorted({r.split for r in rollouts}))
    return ReportSection(title=f"Leakage on {splits}, 95 % intervals over chains", rows=rows, text=text)
