"""The table of the kill matrix from the outcomes that its tests recorded.

`FAULTS_REPORT=/tmp/faults.jsonl pytest tests/pipeline/test_fault_matrix.py`, in pieces if that is convenient,
then `python -m benchmarks.faults [FILE ...]` with that file; without one the last table is shown again. Of a
case that ran twice the later outcome counts.
"""

import json
import os
import platform
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS, command_line, write_json

GOAL_S = 30.0
PATHS = re.compile(r" \(log: [^)]*\)")
"""The launcher's words without folders of the machine."""


def outcomes(report: Path) -> list[dict[str, Any]]:
    """One row per case, in the order in which they first ran."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in report.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows[row["role"], row["phase"], row["signal"]] = row | {"line": PATHS.sub("", row["line"])}
    return list(rows.values())


def main() -> int:
    kept = RESULTS / "faults.json"
    for report in command_line(__doc__).words:
        machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
        write_json(kept, {"machine": machine, "goal_s": GOAL_S, "cases": outcomes(Path(report))})
    cases = json.loads(kept.read_text())["cases"]
    for row in cases:
        name = f"{row['role']} {row['phase']} {row['signal']}"
        print(f"{name:<28}{row['outcome']:<10}{row['seconds']:>6.1f} s  {row['line']}")
    longest = max((row["seconds"] for row in cases), default=0.0)
    counts = Counter(row["outcome"] for row in cases)
    parts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    print(f"{len(cases)} cases: {parts}; the longest took {longest:.1f} s of {GOAL_S:g} s")
    return 0 if cases and longest <= GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
