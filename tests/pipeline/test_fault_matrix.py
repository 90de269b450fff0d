"""Kill -9 and SIGSTOP of every process in every phase: recovery or a named end within 30 s, nothing left.

`FAULTS_REPORT=FILE` collects the outcomes; `python -m benchmarks.faults FILE` makes the table from them.
"""

from pathlib import Path

import pytest

from tests.support.fault_cases import CASES, Case, record, report_path, run_case


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_a_run_recovers_or_ends_by_name_and_resumes(case: Case, tmp_path: Path) -> None:
    ended = run_case(case, tmp_path)
    if (path := report_path()) is not None:
        record(path, case, ended)
