"""The kill matrix: which process dies or is stopped, when, and how the run must end.

A fault point (`pipelinerl.base.faults`) holds some process at the phase; then the victim gets its signal and
the held one is released. So every case happens at the same place each time, without sleeps.
"""

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from pipelinerl.base.faults import FAULT, FOLDER, HIT, RELEASE
from tests.pipeline.conftest import LauncherProcess

STEPS = 6
END_S = 30.0
"""From the fault to the recovery or the named end."""
GONE_S = 10.0
RUN = [
    "+domain=guessing",
    "hardware=cpu",
    "actor.rollout_policy=tests.support.umpire.umpired_rollout",
    "environment={_target_: tests.support.umpire.Umpire}",
    "dataset_loader_params={count: 6, max_guesses: 2}",
    f"finetune.max_train_steps={STEPS}",
    "finetune.save_checkpoint_steps=1",
    "max_lag=64",
    "eval_every_n_versions=0",
    "eval_at_end=false",
    "engine.start_deadline_s=120",
    "engine.stall_deadline_s=4",
    "actor.rollout_deadline_s=25",
    "actor.max_failed_fraction=1",
    "watchdog.silent_deadline_s=8",
    "watchdog.progress_deadline_s=26",
]
PROGRAMS = {
    "engine": "pipelinerl.engines.cpu",
    "actor": "pipelinerl.actor",
    "worker": "pipelinerl.actor.worker",
    "preprocess": "pipelinerl.preprocess",
    "finetune": "pipelinerl.finetune",
    "environment": "pipelinerl.launcher.environment_server",
}
ROLES = ("launcher", *PROGRAMS)
SERVERS = ("engine", "environment")
PHASES = {
    "rollout": "worker:mid_rollout:hold:20",
    "update": "finetune:mid_update:hold:3",
    "checkpoint": "finetune:mid_checkpoint:hold:2",
    "prepare": "engine:mid_prepare:hold:3",
}
BETWEEN_TWO = ("engine", "finetune")
"""Who takes part in phase `prepare`, where an engine reads new weights ahead; others are in a rollout."""
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclass(frozen=True)
class Case:
    """`role` gets `how` while the run is in `phase`."""

    role: str
    phase: str
    how: str

    @property
    def name(self) -> str:
        return f"{self.role}-{self.phase}-{self.how}"

    @property
    def overrides(self) -> list[str]:
        """A server that is stopped while it starts is found by its start deadline."""
        found_late = self.role in SERVERS and self.phase == "start" and self.how == "stop"
        return [*RUN, "engine.start_deadline_s=20"] if found_late else RUN

    @property
    def fault(self) -> str:
        return f"{self.role}:start:hold" if self.phase == "start" else PHASES[self.phase]


@dataclass(frozen=True)
class Ended:
    """How a case ended: `outcome` is `recovered` or `named`, `line` the launcher's last word."""

    outcome: str
    seconds: float
    line: str


CASES = [
    Case(role, phase, how)
    for role in ROLES
    for phase in ("start", *PHASES)
    for how in SIGNALS
    if phase != "prepare" or role in BETWEEN_TWO
]


def run_case(case: Case, folder: Path) -> Ended:
    """Play a case to its end and check everything that must hold.

    A run that failed is then resumed, and one that recovered goes on to its last step. It must have ended in
    time, which takes a machine that does nothing else.
    """
    mark = folder / "fault"
    mark.mkdir()
    launcher = LauncherProcess(folder / "run", case.overrides, {FAULT: case.fault, FOLDER: str(mark)})
    try:
        launcher.until(lambda: (mark / HIT).exists(), f"the fault point {case.fault}")
        ended = _strike(case, launcher, mark)
    finally:
        launcher.close()
        for process in launcher.children():
            process.kill()
    if ended.outcome == "named":
        _resume(folder / "run")
    return ended


def _strike(case: Case, launcher: LauncherProcess, mark: Path) -> Ended:
    family = launcher.children()
    only_loopback(family)
    victim = _victim(case.role, launcher)
    began = time.monotonic()
    victim.send_signal(SIGNALS[case.how])
    (mark / RELEASE).touch()
    if case.role == "launcher":
        ended = _launcher_gone(launcher, began) if case.how == "kill" else _goes_on(launcher, victim)
    else:
        ended = _watched(case, launcher, began)
    launcher.leaves_nothing(family, GONE_S)
    launcher.counts()
    assert ended.seconds < END_S, f"{case.name} took {ended.seconds:.1f} s: {ended.line}"
    return ended


def _victim(role: str, launcher: LauncherProcess) -> psutil.Process:
    if role == "launcher":
        return psutil.Process(launcher.pid)
    launcher.until(lambda: bool(launcher.running(PROGRAMS[role])), f"the start of {role}")
    return launcher.running(PROGRAMS[role])[0]


def _launcher_gone(launcher: LauncherProcess, began: float) -> Ended:
    """Kill -9 of the launcher: the guard ends everybody."""
    assert launcher.wait() == -signal.SIGKILL
    return Ended("named", time.monotonic() - began, "killed by SIGKILL; the guard ended the others")


def _goes_on(launcher: LauncherProcess, victim: psutil.Process) -> Ended:
    """A stopped launcher holds up nobody, and goes on where it was when it is continued."""
    time.sleep(12.0)  # longer than `watchdog.silent_deadline_s`: it must not blame the others
    before, continued = traces(launcher), time.monotonic()
    victim.resume()
    launcher.until(lambda: traces(launcher) != before, "a sign of the continued launcher")
    seconds = time.monotonic() - continued
    assert launcher.wait() == 0, launcher.err
    return Ended("recovered", seconds, "went on when it was continued")


def traces(launcher: LauncherProcess) -> tuple[int, ...]:
    """Sizes of the launcher's log and of the trainer's metrics."""
    paths = [log_of(launcher), launcher.output_dir / "finetune" / "metrics.jsonl"]
    return tuple(path.stat().st_size if path.exists() else 0 for path in paths)


def log_of(launcher: LauncherProcess) -> Path:
    return launcher.output_dir / "launcher" / "launcher_0.log"


def _watched(case: Case, launcher: LauncherProcess, began: float) -> Ended:
    """The launcher notices by itself: a server is healthy again, or the run ends by name."""
    if case.role in SERVERS and launcher.comes_true(lambda: restarted(launcher) is not None, "a restart"):
        line, seconds = restarted(launcher), time.monotonic() - began
        assert launcher.wait() == 0, launcher.err
        return Ended("recovered", seconds, str(line))
    status = launcher.wait()
    seconds = time.monotonic() - began
    if case.role in (*SERVERS, "worker") and status == 0:  # complete before it was needed again
        assert launcher.summary()["completed_steps"] == STEPS
        return Ended("recovered", seconds, _said_of(case.role, launcher))
    lines = launcher.err.splitlines()
    assert status == 1 and "Traceback" not in launcher.err, launcher.err
    assert all(" WARNING " in line for line in lines[:-1]), launcher.err
    assert case.role in lines[-1], lines[-1]
    return Ended("named", seconds, lines[-1])


def _said_of(role: str, launcher: LauncherProcess) -> str:
    """What the log says of a server that was started again, or of a worker that was given up.

    A run may be complete before anybody asks a stopped server again, and before its silence is long enough.
    """
    log, sign = log_of(launcher), "; restart "
    if role not in SERVERS:
        log, sign = launcher.output_dir / "actor" / "actor.log", "rollout worker"
    lines = [one for one in log.read_text().splitlines() if sign in one]
    if not lines and role in SERVERS:
        return "complete before it was missed"
    return lines[0].partition(": ")[2]


def only_loopback(family: list[psutil.Process]) -> None:
    """No server of the run can be reached from another machine."""
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    assert connection.laddr.ip in ("127.0.0.1", "::1"), (process.cmdline(), connection)


def restarted(launcher: LauncherProcess) -> str | None:
    """The launcher's words about a restart, once the server is healthy again."""
    path = log_of(launcher)
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines):
        if "; restart " in line:
            name = line.partition("pipelinerl.launch: ")[2].partition(":")[0]
            if any(later.endswith(f"{name} is healthy") for later in lines[number:]):
                return line.partition("pipelinerl.launch: ")[2]
    return None


def _resume(output_dir: Path) -> None:
    """The same command completes the run."""
    again = LauncherProcess(output_dir, RUN)
    with contextlib.closing(again):
        assert again.wait() == 0, again.err
    assert again.summary()["completed_steps"] == STEPS
    again.counts()


def completed_steps(output_dir: Path) -> int:
    """Steps of the newest checkpoint; 0 before the first."""
    marker = output_dir / "finetune" / "current" / "checkpoint.json"
    return int(json.loads(marker.read_text())["step"]) if marker.exists() else 0


def record(path: Path, case: Case, ended: Ended) -> None:
    """Append the outcome of a case to the report that `benchmarks.faults` reads."""
    row = {
        "role": case.role,
        "phase": case.phase,
        "signal": case.how,
        "outcome": ended.outcome,
        "seconds": round(ended.seconds, 1),
        "line": ended.line,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def report_path() -> Path | None:
    """Where to record outcomes, from the environment; None: nowhere."""
    value = os.environ.get("FAULTS_REPORT")
    return Path(value) if value else None
