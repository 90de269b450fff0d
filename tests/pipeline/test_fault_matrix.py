"""Kill -9 and SIGSTOP of every process in every phase: recovery or a named end within 30 s, nothing left.

`FAULTS_REPORT=FILE` collects the outcomes; `python -m benchmarks.faults` makes the table from them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.fault_cases import CASES, Case, record, report_path, run_case

QUICK: set[str] = set()
"""Cheap cases that run with every `make test`."""


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    return [pytest.mark.timeout(240)] + ([] if case.name in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=_marks(c)) for c in CASES])
def test_a_run_recovers_or_ends_by_name_and_resumes(case: Case, tmp_path: Path) -> None:
    ended = run_case(case, tmp_path)
    if (path := report_path()) is not None:
        record(path, case, ended)


def test_the_matrix_is_large_enough() -> None:
    assert len(CASES) == len({case.name for case in CASES}) >= 40
