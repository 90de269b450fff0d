"""Real processes: nothing survives, whatever kills what."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipelinerl.base.heartbeat import heartbeat_path
from pipelinerl.base.ports import is_free
from pipelinerl.base.waits import current_waits
from pipelinerl.launcher.supervision import (
    ChildFailed,
    ChildSpec,
    HealthCheck,
    HeartbeatCheck,
    Supervisor,
    core,
    host,
)
from tests.support.processes import DEADLINE_S, alive, command_line, free_port, until

# A server with a worker that shares its group and one that asked to die with it.
SERVER = """
import http.server, os, sys, time
from pipelinerl.base.child import die_with_parent
me = os.getpid()
if os.fork() == 0:
    time.sleep(600)
if os.fork() == 0:
    die_with_parent(me)
    time.sleep(600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def server(tmp_path: Path, port: int, **kwargs: object) -> ChildSpec:
    return ChildSpec(
        name="engine",
        argv=[sys.executable, "-c", SERVER, str(port)],
        log_dir=tmp_path / "engine",
        health=HealthCheck(url=f"http://127.0.0.1:{port}/", start_deadline_s=DEADLINE_S),
        **kwargs,  # type: ignore[arg-type]
    )


def script(name: str, tmp_path: Path, code: str, **kwargs: object) -> ChildSpec:
    return ChildSpec(
        name=name, argv=[sys.executable, "-c", textwrap.dedent(code)], log_dir=tmp_path / name, **kwargs
    )  # type: ignore[arg-type]


def works_until(path: Path) -> str:
    """A program that ends once a file is there."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)"


LAUNCHER = """
import sys
from pathlib import Path
from pipelinerl.launcher.supervision import ChildSpec, HealthCheck, Supervisor
out, port, code = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
spec = ChildSpec(name="engine", argv=[sys.executable, "-c", code, port], log_dir=out / "engine",
                 health=HealthCheck(url=f"http://127.0.0.1:{port}/", start_deadline_s=200))
with Supervisor([spec], leftovers=[out / "shared"]) as supervisor:
    supervisor.start()
    print("ready", flush=True)
    supervisor.watch(tick=(out / "tick").touch, tick_s=0.05)
"""


@pytest.mark.parametrize("guard_dies_first", [False, True])
def test_kill_9_of_the_launcher_leaves_no_process_and_no_port(tmp_path: Path, guard_dies_first: bool) -> None:
    port = free_port()
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "weights-1").touch()
    later = shared / "of-a-later-run"
    later.touch()
    os.utime(later, (time.time() + 3600,) * 2)
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path), str(port), SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as launcher:
        try:
            assert launcher.stdout is not None and launcher.stdout.readline() == b"ready\n"
            family = psutil.Process(launcher.pid).children(recursive=True)
            pids = [p.pid for p in family]
            # The guard, the server, and its two workers.
            assert len(pids) == 4
            if guard_dies_first:
                guard = next(p for p in family if "guard.py" in " ".join(command_line(p)))
                os.kill(guard.pid, signal.SIGKILL)
                until(lambda: not alive(guard.pid), "the end of the guard")
                children = psutil.Process(launcher.pid).children
                until(
                    lambda: [
                        p for p in children() if p.pid not in pids and "guard.py" in " ".join(command_line(p))
                    ],
                    "a new guard",
                )
                # It is told about the groups right after its start, by the thread that ticks.
                (tmp_path / "tick").unlink()
                until((tmp_path / "tick").exists, "the next tick")
        finally:
            launcher.kill()
    until(lambda: not any(alive(pid) for pid in pids), "the end of every descendant")
    assert is_free(port)
    until(lambda: not (shared / "weights-1").exists(), "the end of what it left in shared memory")
    assert later.exists()


def test_stop_takes_the_workers_of_a_child_along(tmp_path: Path) -> None:
    port = free_port()
    with Supervisor([server(tmp_path, port)]) as supervisor:
        supervisor.start()
        pids = [p.pid for p in psutil.Process(supervisor.pids()["engine"]).children(recursive=True)]
        pids += supervisor.pids().values()
        assert len(pids) == 3
    assert not any(alive(pid) for pid in pids)
    assert is_free(port)


def test_a_killed_engine_is_restarted_and_its_workers_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "BACKOFF_S", 0.05)
    port = free_port()
    lines: list[str] = []
    spec = server(tmp_path, port, max_restarts=1)
    with Supervisor([spec], announce=lines.append) as supervisor:
        supervisor.start()
        first = supervisor.pids()["engine"]
        workers = [p.pid for p in psutil.Process(first).children(recursive=True)]
        os.kill(first, signal.SIGKILL)
        supervisor.watch(until=lambda: lines.count("engine is healthy") == 2)
        assert "engine: killed by SIGKILL; restart 1 of 1 in 0.05 s" in lines
        assert not any(alive(pid) for pid in workers)
        os.kill(supervisor.pids()["engine"], signal.SIGKILL)
        with pytest.raises(ChildFailed, match="engine: killed by SIGKILL, after 1 restarts"):
            supervisor.watch()
    assert is_free(port)


def test_a_failure_is_one_line_with_the_last_words_of_the_child(tmp_path: Path) -> None:
    spec = script("actor", tmp_path, "import sys; print('first'); sys.exit('actor: no problems found')")
    bystander = script("finetune", tmp_path, "import time; time.sleep(600)")
    with Supervisor([bystander, spec]) as supervisor:
        with pytest.raises(ChildFailed) as failure:
            supervisor.start()
            supervisor.watch()
        pid = supervisor.pids()["finetune"]
    message = str(failure.value)
    assert message.startswith("actor: exit status 1: actor: no problems found")
    assert "\n" not in message
    assert (tmp_path / "actor" / "stdout.log").read_text() == "first\n"
    assert not alive(pid)


STAGES = (("Loading", "loading weights"), ("Compiling", "compiling"))


def test_a_server_that_ends_before_it_is_ready_is_named_with_what_it_was_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "BACKOFF_S", 0.05)
    lines: list[str] = []
    health = HealthCheck(url=f"http://127.0.0.1:{free_port()}/", start_deadline_s=DEADLINE_S)
    # The second start does not come as far as the first, whose lines are in the same log.
    code = f"""
        import os, sys
        print("Loading 3 GiB")
        if not os.path.exists({str(tmp_path / "again")!r}):
            open({str(tmp_path / "again")!r}, "w").close()
            print("Compiling a graph")
        sys.exit("engine: no room")
    """
    spec = script("engine", tmp_path, code, health=health, stages=STAGES, max_restarts=1)
    with Supervisor([spec], announce=lines.append) as supervisor, pytest.raises(ChildFailed) as failure:
        supervisor.start()
    assert "engine: exit status 1, while compiling; restart 1 of 1 in 0.05 s" in lines
    assert str(failure.value).startswith(
        "engine: exit status 1, after 1 restarts, while loading weights: engine: no room"
    )


def test_a_wait_for_a_server_says_what_the_server_is_at_until_it_is_ready(tmp_path: Path) -> None:
    port, go = free_port(), tmp_path / "go"
    waits = f"import os, time\nprint('Compiling', flush=True)\n{works_until(go)}\n"
    spec = replace(
        server(tmp_path, port, stages=STAGES), argv=[sys.executable, "-c", waits + SERVER, str(port)]
    )
    seen: list[str] = []

    def look() -> None:
        seen.extend(wait["doing"]["stage"] for wait in current_waits() if "doing" in wait)
        if "compiling" in seen:
            go.touch()

    with Supervisor([spec]) as supervisor:
        supervisor.start(tick=look, tick_s=0.05)
        assert sorted(set(seen)) in (["compiling"], ["compiling", "starting"])
        assert not any("doing" in wait for wait in current_waits())
        os.kill(supervisor.pids()["engine"], signal.SIGKILL)  # ready once: it was not starting any more
        with pytest.raises(ChildFailed, match=r"engine: killed by SIGKILL; last line: Compiling"):
            supervisor.watch()


@pytest.mark.parametrize(("number", "end"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV")])
def test_what_a_killed_child_wrote_last_is_not_given_as_the_cause(
    tmp_path: Path, number: int, end: str
) -> None:
    code = f"import os, sys; print('serving', file=sys.stderr, flush=True); os.kill(os.getpid(), {number:d})"
    with Supervisor([script("engine", tmp_path, code)]) as supervisor, pytest.raises(ChildFailed) as failure:
        supervisor.start()
        supervisor.watch()
    assert str(failure.value).startswith(f"engine: killed by {end}; last line: serving (log: ")


def test_a_server_that_is_given_a_broken_line_is_started_once_and_names_it(tmp_path: Path) -> None:
    web = tmp_path / "web.jsonl"
    web.write_text("{\n")
    argv = [sys.executable, "-m", "retrieval_server", "--port", "0", "--web", str(web)]
    health = HealthCheck(url="http://127.0.0.1:1/")
    spec = ChildSpec(name="retrieval", argv=argv, log_dir=tmp_path, max_restarts=3, health=health)
    lines: list[str] = []
    with Supervisor([spec], announce=lines.append) as supervisor, pytest.raises(ChildFailed) as failure:
        supervisor.start()
    said = f"retrieval: exit status 2, not started again: retrieval_server: {web}:1: not a JSON object"
    assert str(failure.value).startswith(said)
    assert sum("started (pid" in line for line in lines) == 1


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    spec = ChildSpec(name="retrieval", argv=["no-such-program"], log_dir=tmp_path)
    with (
        Supervisor([spec]) as supervisor,
        pytest.raises(ChildFailed, match="no-such-program cannot be started"),
    ):
        supervisor.start()
        supervisor.watch()


def test_a_child_that_ignores_sigterm_is_killed_after_the_deadline(tmp_path: Path) -> None:
    code = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        time.sleep(600)
    """
    supervisor = Supervisor([script("actor", tmp_path, code)], stop_deadline_s=0.2)
    supervisor.start()
    until(lambda: "deaf" in (tmp_path / "actor" / "stdout.log").read_text(), "the child's first line")
    pid = supervisor.pids()["actor"]
    supervisor.stop()
    assert not alive(pid)


def test_the_run_is_over_when_all_final_children_are_done(tmp_path: Path) -> None:
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            (tmp_path / "go").touch()

    specs = [script("actor", tmp_path, "pass"), script("finetune", tmp_path, works_until(tmp_path / "go"))]
    with Supervisor(specs) as supervisor:
        supervisor.start()
        supervisor.watch(tick=tick, tick_s=0.05)
        assert supervisor.pids() == {}
    assert len(ticks) >= 3


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import sys; sys.exit('no room')", r"exit status 1, after 1 restarts: no room; "),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
            r"stopped \(SIGSTOP\) for \d+ s, after 1 restarts; ",
        ),
    ],
)
def test_a_run_goes_on_without_an_optional_child_and_says_so_once(
    code: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "BACKOFF_S", 0.05)
    lines: list[str] = []
    dashboard = script("wandb", tmp_path, code, max_restarts=1, optional=True)
    work = script("finetune", tmp_path, works_until(tmp_path / "go"))

    def announce(line: str) -> None:
        lines.append(line)
        if "goes on without it" in line:
            (tmp_path / "go").touch()

    with Supervisor([dashboard, work], announce=announce, stopped_deadline_s=0.3) as supervisor:
        supervisor.start()
        supervisor.watch()
    given_up = [line for line in lines if "goes on without it" in line]
    assert len(given_up) == 1 and re.match("wandb: " + cause, given_up[0])
    assert "finetune is done" in lines and "wandb is done" not in lines


def test_what_a_child_started_in_a_session_of_its_own_ends_with_it(tmp_path: Path) -> None:
    """As wandb's service does; here it was stopped, so that it cannot end by itself."""
    code = """
        import os, signal, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stray = subprocess.Popen(["sleep", "600"], start_new_session=True)
        os.kill(stray.pid, signal.SIGSTOP)
        print(stray.pid, flush=True)
        time.sleep(600)
    """
    supervisor = Supervisor(
        [script("wandb", tmp_path, code, max_restarts=1, optional=True)], stop_deadline_s=0.2
    )
    supervisor.start()
    said = tmp_path / "wandb" / "stdout.log"
    until(lambda: said.exists() and said.read_text().endswith("\n"), "the stray's pid")
    supervisor.stop()
    assert not alive(int(said.read_text()))


LEAVES_AN_ORPHAN = """
import subprocess, sys, time
orphan = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
subprocess.run([sys.executable, "-c", orphan], start_new_session=True)
time.sleep(float(sys.argv[1]))
"""
SUPERVISES = """
import os, sys, time
from pathlib import Path
from pipelinerl.launcher.supervision import ChildSpec, Supervisor, process

def killed_in_the_start(spec, *given, start=process.start_process):
    start(spec, *given)
    while not spec.stdout.read_text().endswith("\\n"):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)

if sys.argv[4] == "in the start":
    process.start_process = killed_in_the_start
argv = [sys.executable, "-c", sys.argv[2], sys.argv[3]]
with Supervisor([ChildSpec(name="actor", argv=argv, log_dir=Path(sys.argv[1]))]) as supervisor:
    supervisor.start()
    supervisor.watch(tick_s=0.05)
"""


@pytest.mark.parametrize("killed", ["no", "later", "in the start"])
def test_an_orphan_in_another_session_ends_with_the_child_that_it_comes_from(
    tmp_path: Path, killed: str
) -> None:
    """As a browser or a shell does that a rollout started and whose own parent has ended.

    The child ends, or the launcher is killed, at the earliest before it has heard the child's pid.
    """
    given = [str(tmp_path / "log"), LEAVES_AN_ORPHAN, "0" if killed == "no" else "600", killed]
    launcher = subprocess.Popen([sys.executable, "-c", SUPERVISES, *given])
    said = tmp_path / "log" / "stdout.log"
    until(lambda: said.exists() and said.read_text().endswith("\n"), "the orphan's pid")
    orphan = int(said.read_text())
    if killed == "later":
        assert os.getsid(orphan) != os.getsid(launcher.pid) and alive(orphan)
        launcher.kill()
    launcher.wait(DEADLINE_S)
    until(lambda: not alive(orphan), "the orphan's end")


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_guard_that_does_not_act_holds_up_nothing_and_leaves_nothing(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that somebody made beside weights stays, and keeps no file of weights there."""
    monkeypatch.setattr(host, "_GUARD_END_S", 0.2)
    left, shared_with = tmp_path / "shared", tmp_path / "others"
    for folder in (left, shared_with / "mine"):
        folder.mkdir(parents=True)
    for number in range(20):  # no order of a listing puts the folder behind them all
        (shared_with / f"weights-{number}").touch()
    with Supervisor([script("finetune", tmp_path, "pass")], leftovers=[left, shared_with]) as supervisor:
        supervisor.start()
        supervisor.watch()
        # Other tests of this process may have left a guard of theirs.
        guard = next(p for p in psutil.Process().children() if str(left) in command_line(p))
        guard.send_signal(signal.SIGSTOP if end == "stopped" else signal.SIGKILL)
    assert not alive(guard.pid) and not left.exists()
    assert [path.name for path in shared_with.iterdir()] == ["mine"]


STARTING = """
    import subprocess, sys, time
    worker = subprocess.Popen(["sleep", "600"])
    print(worker.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("worker", "cause"),
    [(False, r"^actor: stopped \(SIGSTOP\) for \d+ s"), (True, r"^actor: sleep is stopped")],
)
def test_a_process_that_is_stopped_while_it_starts_is_named(tmp_path: Path, worker: bool, cause: str) -> None:
    """It has no heartbeat yet, and its start deadline is an hour away."""
    health = HealthCheck(url="http://127.0.0.1:1/", start_deadline_s=3600)
    spec = script("actor", tmp_path, STARTING, health=health)
    said = tmp_path / "actor" / "stdout.log"

    def stop() -> None:
        if said.exists() and said.read_text().endswith("\n"):
            with contextlib.suppress(ProcessLookupError):  # ended between two ticks of a slow machine
                os.kill(int(said.read_text()) if worker else supervisor.pids()["actor"], signal.SIGSTOP)

    with (
        Supervisor([spec], stopped_deadline_s=0.5) as supervisor,
        pytest.raises(ChildFailed, match=cause),
    ):
        supervisor.start(tick=stop, tick_s=0.1)


WAITS = """
    import sys, urllib.request
    from pathlib import Path
    from pipelinerl.base.heartbeat import start_heartbeat
    start_heartbeat(Path(sys.argv[1]), "finetune", 0.05)
    urllib.request.urlopen("http://127.0.0.1:" + sys.argv[2], timeout=600)
"""
SILENT = """
    import os, signal, socket, sys
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    connection = listening.accept()
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_who_waits_for_a_stopped_engine_is_not_named(tmp_path: Path) -> None:
    """The trainer's wait outlasts its own silent deadline; its heartbeat goes on."""
    port = free_port()
    heartbeat = HeartbeatCheck(
        path=heartbeat_path(tmp_path, "finetune"),
        start_deadline_s=DEADLINE_S,
        silent_deadline_s=3.0,
        interval_s=0.1,
    )
    trainer = script("finetune", tmp_path, WAITS, heartbeat=heartbeat)
    trainer.argv.extend([str(tmp_path), str(port)])
    engine = script("engine", tmp_path, SILENT, max_restarts=0)
    engine.argv.append(str(port))
    with (
        Supervisor([engine, trainer], stopped_deadline_s=5.0) as supervisor,
        pytest.raises(ChildFailed, match=r"^engine: stopped \(SIGSTOP\) for \d+ s"),
    ):
        supervisor.start()
        supervisor.watch()


def test_a_child_that_is_continued_in_time_goes_on(tmp_path: Path) -> None:
    spec = script("actor", tmp_path, works_until(tmp_path / "go"))
    stops: list[float] = []

    def stop_for_a_moment() -> None:
        process = psutil.Process(supervisor.pids()["actor"])
        if not stops:
            process.suspend()
            stops.append(time.monotonic())
        elif time.monotonic() - stops[0] > 1.0:
            process.resume()
            (tmp_path / "go").touch()

    with Supervisor([spec], stopped_deadline_s=60.0) as supervisor:
        supervisor.start()
        supervisor.watch(tick=stop_for_a_moment, tick_s=0.1)


def test_children_that_end_by_themselves_while_others_are_stopped_are_in_nobodys_way(tmp_path: Path) -> None:
    """As when a batch system sends SIGTERM to every process of a run at once."""
    wait = "import time; time.sleep(600)"
    first, last = (script(name, tmp_path, wait, max_restarts=1) for name in ("server", "role"))
    last = replace(last, depends=("server",))
    supervisor = Supervisor([first, last])
    supervisor.start()
    for pid in supervisor.pids().values():
        os.kill(pid, signal.SIGTERM)
    until(lambda: not any(alive(pid) for pid in supervisor.pids().values()), "the end of both")
    supervisor.stop()
    assert supervisor.pids() == {}
