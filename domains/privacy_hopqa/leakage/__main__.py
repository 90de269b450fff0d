"""Leakage of a run from its audit log alone: `python -m domains.privacy_hopqa.leakage RUN_DIR`.

The dataset files that the run's configuration names supply the questions. Writes `RUN_DIR/leakage.json`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from domains.privacy_hopqa.leakage.log import AuditLog, RolloutLog, audit_files, read_audit_log
from domains.privacy_hopqa.leakage.report import LEVELS, LeakageReport, Secrets, evaluate
from domains.privacy_hopqa.leakage.secrets import secrets_of_files, secrets_of_run
from pipelinerl.config import load_tree


def reports(log: AuditLog, secrets: dict[tuple[str, str], Secrets]) -> dict[str, LeakageReport]:
    """One report per split and, in evaluation, per weight version: before and after learning."""
    groups: dict[str, list[RolloutLog]] = {}
    for rollout in log.rollouts:
        name = f"{'training' if rollout.training else 'evaluation'} {rollout.split}".strip()
        groups.setdefault(name, []).append(rollout)
        if not rollout.training and rollout.model_version is not None:
            groups.setdefault(f"{name} v{rollout.model_version}", []).append(rollout)
    return {name: evaluate(rollouts, secrets) for name, rollouts in groups.items()}


def render(found: dict[str, LeakageReport]) -> str:
    """The table for people: raw rates with 95 % intervals beside the controls."""
    lines = [f"{'rollouts':<24}{'level':<10}{'raw':<38}{'empty log':>10}{'company only':>14}"]
    for name, report in found.items():
        for level in LEVELS:
            controls = f"{report.empty_log[level].value:>10.1%}{report.company_only[level].value:>14.1%}"
            lines.append(f"{name:<24}{level:<10}{report.levels[level]!s:<38}{controls}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="leakage", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="output directory of a run, or an audit file")
    parser.add_argument("--chains", nargs="*", help="dataset files; default: those of the run")
    parser.add_argument("--tasks", help="folder of task trees, for company names")
    parser.add_argument("--questions", choices=("chain", "task"), help="default: the run's setting")
    arguments = parser.parse_args(argv)
    try:
        log = read_audit_log(audit_files(arguments.run_dir))
        if arguments.chains:
            secrets = secrets_of_files(arguments.chains, arguments.tasks, arguments.questions or "chain")
        else:
            secrets = secrets_of_run(load_tree(arguments.run_dir), arguments.questions)
        found = reports(log, secrets)
    except (OSError, ValueError, KeyError) as error:
        print(f"leakage: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 1
    print(render(found))
    print(f"{log.requests} web requests in the log, {log.unanswered} of them without an answer")
    if arguments.run_dir.is_dir():
        path = arguments.run_dir / "leakage.json"
        content = {"web_requests": log.requests, "groups": {k: v.as_dict() for k, v in found.items()}}
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if not all(report.controls_are_zero for report in found.values()):
        print("leakage: a control leaked, so these figures are invalid", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
