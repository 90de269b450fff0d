"""The driver of the GPU table with steps that need no card."""

import tarfile
from argparse import Namespace
from pathlib import Path

from benchmarks.gpu.__main__ import Driver
from benchmarks.gpu.plan import Lane, Step

GOOD = Step(name="good", module="this", limit_s=60.0)
BAD = Step(name="bad", module="json.tool", arguments=("/no/such/file",), limit_s=60.0)
ENDLESS = Step(name="endless", module="http.server", arguments=("0",), limit_s=-20.0, least_s=0.0)


def driver(folder: Path, minutes: float = 10.0, **changes: object) -> Driver:
    options = {"out": folder / "out", "work": folder / "work", "minutes": minutes}
    return Driver(Namespace(**{"only": [], "tiny": False, "dry_run": False, **options, **changes}))


def test_a_failed_step_costs_no_other_and_all_logs_come_back(tmp_path: Path) -> None:
    one = driver(tmp_path)
    done = dict(one.run(((Lane((BAD, GOOD)), Lane((GOOD,), "0")), (Lane((GOOD,)),))))
    assert done["good"] == 0 and done["bad"] not in (0, None)
    one.pack()
    with tarfile.open(tmp_path / "out" / "results.tgz") as packed:
        assert {"good.log", "bad.log"} <= set(packed.getnames())


def test_what_does_not_fit_any_more_is_left_out(tmp_path: Path) -> None:
    assert driver(tmp_path, minutes=0.5).run(((Lane((GOOD,)),),)) == [("good", None)]


def test_a_step_that_does_not_end_is_ended(tmp_path: Path) -> None:
    """Its limit and what it gets beyond are over when it starts."""
    assert driver(tmp_path).run(((Lane((ENDLESS, GOOD)),),)) == [("endless", 124), ("good", 0)]


def test_single_steps_are_chosen_and_a_dry_run_starts_nothing(tmp_path: Path) -> None:
    assert driver(tmp_path, only=["good"]).run(((Lane((BAD, GOOD)),),)) == [("good", 0)]
    assert driver(tmp_path, dry_run=True).run(((Lane((GOOD,)),),)) == [("good", None)]
