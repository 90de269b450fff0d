"""What a supervisor is told about a child process: before its start, and while it runs."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelinerl.base.files import write_whole
from pipelinerl.config.secrets import Place, hidden

ABANDONED_AFTER_S = 30.0
"""Without a request of its launcher for so long, another host's agent kills every child."""


@dataclass(frozen=True, kw_only=True)
class HealthCheck:
    """A url that answers 200 when the child can work."""

    url: str
    start_deadline_s: float = 60.0
    liveness_deadline_s: float | None = None
    """Once healthy: seconds without an answer after which the child is killed (None: never)."""
    interval_s: float = 5.0
    engine_url: str | None = None
    """Base address of an inference engine; one that runs requests without a new token for
    `liveness_deadline_s`, and is not paused, is killed too."""


@dataclass(frozen=True, kw_only=True)
class HeartbeatCheck:
    """A file whose modification time a child without a server renews as long as it is alive."""

    path: Path
    start_deadline_s: float
    """From the start to the first beat."""
    silent_deadline_s: float
    """Without a beat for so long the child is killed."""
    interval_s: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """One child. Without restarts its death ends the run, and its exit with 0 means that it is done.

    One with a health check is a server, which is never done: others need it as long as they run.
    """

    name: str
    argv: list[str]
    log_dir: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the supervisor."""
    max_restarts: int = 0
    """Starts after the first; the pauses before them double. None follows an exit that is permanent, by its
    status or its words, or two starts that ended with the same words before they were ready."""
    health: HealthCheck | None = None
    heartbeat: HeartbeatCheck | None = None
    optional: bool = False
    """Nobody needs it: it is given up without ending the run, and stopped after all others."""
    depends: tuple[str, ...] = ()
    """Children that must be ready (healthy, or started if they have no check) before this one starts."""
    stages: tuple[tuple[str, str], ...] = ()
    """Parts of lines of its `stdout`, and what it is at from such a line on until it is healthy."""
    host: int = 0
    """Rank of the host that runs it; 0 is the supervisor's."""
    alike: tuple[str, ...] = ()
    """Children that do the same work, itself among them: when its host is lost, the run goes on without it
    while `least` of them are left."""
    least: int = 1
    spare: bool = False
    """Whether the run also goes on without it, while `least` are left, when its restarts are used up; not if
    it was never ready: then what it was given is wrong."""

    @property
    def can_be_done(self) -> bool:
        """Whether it ends by itself once its work is done, with status 0."""
        return self.max_restarts == 0 and self.health is None

    @property
    def stdout(self) -> Path:
        return Path(self.log_dir) / "stdout.log"

    @property
    def stderr(self) -> Path:
        return Path(self.log_dir) / "stderr.log"


@dataclass(frozen=True)
class Exited:
    """The process has ended, and nothing of its group is left."""

    code: int
    """Negative: a signal."""
    last_words: str = ""
    """The last line that it wrote to stderr, or to stdout if it wrote none there; of vLLM its error."""


@dataclass(frozen=True)
class Healthy:
    """The health check answered for the first time."""


@dataclass(frozen=True)
class Unwell:
    """`cause` is why it should be killed once it is ready, or whatever its phase; may come again."""

    cause: str
    whatever_phase: bool = False


News = Exited | Healthy | Unwell
Tell = Callable[[News], None]
"""Takes what happens to one start of a child, from any thread."""


def write_start_script(spec: ChildSpec, secrets: Mapping[Place, Any] | None = None) -> Path:
    """Write `start.sh`, which runs this child alone in the foreground; only `spec.env` goes into it.

    One that holds a value of `secrets` is its owner's alone.
    """
    where = f", on host {spec.host}" if spec.host else ""
    lines = ["#!/bin/sh", f"# Runs {spec.name} alone{where}.", "set -e"]
    lines.append(f"cd {shlex.quote(str(Path.cwd()))}")
    lines += [f"export {key}={shlex.quote(value)}" for key, value in sorted(spec.env.items())]
    lines.append(f"exec {shlex.join(spec.argv)}")
    path = Path(spec.log_dir) / "start.sh"
    known = secrets or {}
    given = [*spec.argv, *spec.env.values()]  # before they are quoted, which changes what has a quote in it
    private = any(hidden(one, known) != one or one in map(str, known.values()) for one in given)
    write_whole(path, "\n".join(lines) + "\n", mode=0o700 if private else 0o755)
    return path
