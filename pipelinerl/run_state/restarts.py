"""The launcher's line about a process that is started again, and how many of its log are about engines.

Supervision writes the line, the report counts it: one file, so that both agree on the words.
"""

import re
from pathlib import Path

from pipelinerl.base.logs import log_path

_OF_AN_ENGINE = re.compile(r" actor_vllm_\d+: .*; restart \d+ of \d+ in \S+ s$")


def restart_line(name: str, cause: str, number: int, most: int, delay_s: float) -> str:
    """For people and for the log."""
    return f"{name}: {cause}; restart {number} of {most} in {delay_s:g} s"


def engine_restarts(output_dir: Path) -> int:
    """Of all starts of the run that are in the launcher's log."""
    try:
        with log_path(output_dir, "launcher", "launcher_0").open(errors="replace") as log:
            return sum(_OF_AN_ENGINE.search(line.rstrip()) is not None for line in log)
    except OSError:  # a part of a run, or one whose logs were not kept
        return 0
