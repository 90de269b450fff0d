"""One of two real engines does not come back: the run goes on without it, unless it never served."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipelinerl.launcher.supervision import ChildFailed, ChildSpec, Supervisor, core
from tests.support.processes import free_port
from tests.unit.launcher.supervision.test_processes import server


def pair(tmp_path: Path, **last: object) -> list[ChildSpec]:
    """Two engines that do the same work, the second one with fields of its own."""
    names = ("engine_0", "engine_1")
    specs = [
        replace(server(tmp_path, free_port()), name=name, log_dir=tmp_path / name, alike=names, spare=True)
        for name in names
    ]
    return [specs[0], replace(specs[1], **last)]  # type: ignore[arg-type]


def test_an_engine_is_given_up_with_its_status_its_log_and_how_many_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "BACKOFF_S", 0.05)
    lines: list[str] = []
    with Supervisor(pair(tmp_path, max_restarts=1), announce=lines.append) as supervisor:
        supervisor.start()
        os.kill(supervisor.pids()["engine_1"], signal.SIGKILL)
        supervisor.watch(until=lambda: lines.count("engine_1 is healthy") == 2)
        os.kill(supervisor.pids()["engine_1"], signal.SIGKILL)
        supervisor.watch(until=lambda: bool(supervisor.left_out))
        assert supervisor.left_out == {"engine_1"} and set(supervisor.pids()) == {"engine_0"}
        goes_on = "the run goes on without it, 1 of 2 still serve"
        log = tmp_path / "engine_1" / "stderr.log"
        assert lines[-1] == f"engine_1: killed by SIGKILL, after 1 restarts; {goes_on} (log: {log})"
        os.kill(supervisor.pids()["engine_0"], signal.SIGKILL)
        with pytest.raises(ChildFailed, match=r"^engine_0: killed by SIGKILL \(log: "):
            supervisor.watch()


def test_an_engine_that_cannot_start_ends_the_run_although_another_one_serves(tmp_path: Path) -> None:
    refuses = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with Supervisor(pair(tmp_path, argv=refuses)) as supervisor:
        with pytest.raises(ChildFailed) as failure:
            supervisor.start()
        assert not supervisor.left_out
    said = "engine_1: exit status 1, without having been ready once: no such model (log: "
    assert str(failure.value).startswith(said)
