"""From a clone to a finished run: `python -m benchmarks.quickstart [--keep FOLDER]`.

Clones this repository at its current commit into an empty folder, with an empty HOME, and runs what the
README says first, `make quickstart`, installation included. Prints the minutes, what the run reached, and
keeps them in benchmarks/results/quickstart.json. It needs the network (or a pip configuration of your own)
for the packages.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks._figures import ROOT, Figure, at_least, at_most, report
from pipelinerl.observe.summary import summarise

DEADLINE_S = 3600.0
MINUTES_GOAL = 10.0


def run(clone: Path, home: Path) -> tuple[float, float]:
    """Minutes of installation and of the run after it. Raises CalledProcessError with the output shown."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "LANG") or name.startswith(("PIP_", "SSL_"))
    } | {"HOME": str(home)}
    minutes = []
    for target in ("setup", "quickstart"):
        started = time.monotonic()
        subprocess.run(["make", target], cwd=clone, env=environment, check=True, timeout=DEADLINE_S)
        minutes.append((time.monotonic() - started) / 60)
    return minutes[0], minutes[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Clone, install, run, report; returns how many goals are missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quickstart", description=__doc__)
    parser.add_argument("--keep", type=Path, help="leave the clone in this new folder")
    keep = parser.parse_args(argv).keep
    folder = Path(tempfile.mkdtemp()) if keep is None else keep
    clone, home = folder / "clone", folder / "home"
    try:
        home.mkdir(parents=True)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        install, training = run(clone, home)
        summary = summarise(clone / "results" / "quickstart")
        success, leak = summary.comparisons["success"], summary.comparisons["leak"]
    finally:
        if keep is None:
            shutil.rmtree(folder)
    assert success.difference is not None
    figures = [
        at_most("clone to report", install + training, "min", MINUTES_GOAL),
        Figure("of it installation", install, "min"),
        at_least("success, difference, lower end", success.difference.low, "", 0.0),
        Figure("success before", success.before.mean, ""),
        Figure("success after", success.after.mean, ""),
        Figure("leakage before", leak.before.mean, ""),
        Figure("leakage after", leak.after.mean, ""),
        Figure("texts of several versions", 100 * summary.rates["multi_version_share_of_texts"], "%"),
        at_most("books that do not add up", float(not summary.counts.adds_up), "", 0),
    ]
    return report("quickstart", figures, {"domain": "privacy_hopqa"})


if __name__ == "__main__":
    sys.exit(main())
