"""The table of the kill matrix from the outcomes that its tests recorded.

`FAULTS_REPORT=/tmp/faults.jsonl pytest tests/pipeline/test_fault_matrix.py`, in pieces if that is convenient,
then `python -m benchmarks.faults /tmp/faults.jsonl`. Of a case that ran twice the later outcome counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS

GOAL_S = 30.0
PATHS = re.compile(r" \(log: [^)]*\)")
"""The launcher's words without folders of the machine."""


def outcomes(report: Path) -> list[dict[str, Any]]:
    """One row per case, in the order in which they first ran."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in report.read_text().splitlines():
        row = json.loads(line)
        rows[row["role"], row["phase"], row["signal"]] = row | {"line": PATHS.sub("", row["line"])}
    return list(rows.values())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("report", type=Path, nargs="?", help="what FAULTS_REPORT named; none: show the last")
    report = parser.parse_args(argv).report
    kept = RESULTS / "faults.json"
    if report is not None:
        machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
        found = {"machine": machine, "goal_s": GOAL_S, "cases": outcomes(report)}
        kept.write_text(json.dumps(found, indent=1) + "\n")
    cases = json.loads(kept.read_text())["cases"]
    for row in cases:
        name = f"{row['role']} {row['phase']} {row['signal']}"
        print(f"{name:<28}{row['outcome']:<10}{row['seconds']:>6.1f} s  {row['line']}")
    counts = Counter(row["outcome"] for row in cases)
    longest = max((row["seconds"] for row in cases), default=0.0)
    parts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    print(f"{len(cases)} cases: {parts}; the longest took {longest:.1f} s of {GOAL_S:g} s")
    return 0 if cases and longest <= GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
