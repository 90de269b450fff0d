"""How long a run took to start: until its engines were ready, and until the first step was trained.

The launcher's log has both ends of the first, its `launched_line` the beginning of the second.
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pipelinerl.base.logs import log_path

_LINE = re.compile(
    r"(?P<at>\S+ \S+) INFO \S+: (launched at (?P<launched>\d+\.\d+), .*"
    r"|(?P<engine>actor_vllm_\d+) (started \(pid .*|(?P<ready>is healthy)))$"
)


@dataclass
class Launch:
    """One start of a run."""

    at: float
    """Of the launcher's process, in seconds since 1970."""
    started: dict[str, datetime] = field(default_factory=dict)
    ready_s: dict[str, float] = field(default_factory=dict)
    """Seconds from the start of an engine's process to its first good health check; of its first start."""


def launched_line() -> str:
    """When this process began, before its imports, for the log."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return f"launched at {time.time() - age_s:.3f}, {age_s:.1f} s ago"


def launch_times(output_dir: Path) -> list[float]:
    """When each start of the run began, in seconds since 1970; none where there is no launcher's log."""
    return [launch.at for launch in _launches(output_dir)]


def start_seconds(output_dir: Path, first_step_at: float | None) -> dict[str, float]:
    """Of the launch that trained the first step, or of the last one where there is none; by name.

    `first_step_at`: when that step was done, in seconds since 1970. What the log does not have is absent.
    """
    launches = list(_launches(output_dir))
    if first_step_at is not None:
        launches = [launch for launch in launches if launch.at <= first_step_at]
    if not launches:
        return {}
    launch, found = launches[-1], dict[str, float]()
    if ready := launch.ready_s.values():
        found["engine_ready_s_max"] = max(ready)
        if len(ready) > 1:
            found["engine_ready_s_min"] = min(ready)
    if first_step_at is not None:
        found["first_step_s"] = first_step_at - launch.at
    return found


def _launches(output_dir: Path) -> Iterator[Launch]:
    launch: Launch | None = None
    try:
        log = log_path(output_dir, "launcher", "launcher_0").read_text(errors="replace")
    except OSError:  # a part of a run, or one whose logs were not kept
        return
    for line in log.splitlines():
        if not (said := _LINE.match(line)):
            continue
        if said["launched"]:
            if launch is not None:
                yield launch
            launch = Launch(float(said["launched"]))
        elif launch is not None:
            at, engine = datetime.strptime(said["at"], "%Y-%m-%d %H:%M:%S,%f"), said["engine"]
            if not said["ready"]:
                launch.started.setdefault(engine, at)
            elif engine in launch.started and engine not in launch.ready_s:
                launch.ready_s[engine] = (at - launch.started[engine]).total_seconds()
    if launch is not None:
        yield launch
