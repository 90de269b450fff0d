"""From a clone to a finished run: `python -m benchmarks.quickstart [--keep DIR]`.

Clones this repository at its current commit into an empty folder (a new one with `--keep`, which leaves it),
with an empty HOME, and runs what the README says first, `make quickstart`, installation included. Prints and
keeps the minutes and what the run reached. It needs the network (or a pip configuration of your own) for the
packages.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._figures import ROOT, Figure, at_least, at_most, command_line, report
from pipelinerl.observe.summary import summarise

DEADLINE_S = 3600.0
MINUTES_GOAL = 10.0
KEPT = ("PATH", "LANG")


def main() -> int:
    """Clone, install, run, report; returns how many goals are missed."""
    keep = command_line(__doc__).keep
    folder = Path(tempfile.mkdtemp()) if keep is None else keep
    clone, home = folder / "clone", folder / "home"
    env = {key: value for key, value in os.environ.items() if key in KEPT or key.startswith(("PIP_", "SSL_"))}
    minutes = []
    try:
        home.mkdir(parents=True)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        for target in ("setup", "quickstart"):
            started, command = time.monotonic(), ["make", target]
            subprocess.run(command, cwd=clone, env=env | {"HOME": str(home)}, check=True, timeout=DEADLINE_S)
            minutes.append((time.monotonic() - started) / 60)
        summary = summarise(clone / "results" / "quickstart")
    finally:
        if keep is None:
            shutil.rmtree(folder)
    success, leak = summary.comparisons["success"], summary.comparisons["leak"]
    assert success.difference is not None
    figures = [
        at_most("clone to report", sum(minutes), "min", MINUTES_GOAL),
        Figure("of it installation", minutes[0], "min"),
        at_least("success, difference, lower end", success.difference.low, "", 0.0),
        Figure("success before", success.before.mean, ""),
        Figure("success after", success.after.mean, ""),
        Figure("leakage before", leak.before.mean, ""),
        Figure("leakage after", leak.after.mean, ""),
        Figure("texts of several versions", 100 * summary.rates["multi_version_share_of_texts"], "%"),
        at_most("rollout accounting that does not add up", float(not summary.counts.adds_up), "", 0),
    ]
    return report("quickstart", figures, {"domain": "privacy_hopqa"})


if __name__ == "__main__":
    sys.exit(main())
