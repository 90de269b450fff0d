"""Children on another host: the supervisor, the remote host and its agent, here in one process."""

import os
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelinerl.launcher.supervision import ChildFailed, ChildSpec, HealthCheck, Supervisor, remote, run
from pipelinerl.launcher.supervision.agent import HostAgent, difference, interface_of, software
from pipelinerl.launcher.supervision.core import (
    ChildPhase,
    GiveUp,
    GoOnWithout,
    RestartChild,
    SupervisorCore,
)
from pipelinerl.launcher.supervision.remote import RemoteHost
from pipelinerl.launcher.supervision.spec import Exited
from tests.support.processes import DEADLINE_S, alive, free_port, until

SERVER = """
import http.server, sys
class Ok(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ok).serve_forever()
"""


class Wire:
    """Calls of an agent in this process, until it is cut or the agent's process dies."""

    def __init__(self, agent: HostAgent) -> None:
        self.agent = agent
        self.cut = self.dead = False
        self.lose_answers = 0

    def __call__(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        if self.dead:
            raise ConnectionError("its agent ended")
        if self.cut:
            time.sleep(min(timeout_s, 0.1))
            raise TimeoutError
        answer = getattr(self.agent, method)(*arguments)
        if method == "events" and answer and self.lose_answers:
            self.lose_answers -= 1
            raise TimeoutError
        return answer


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LOCAL_RANK", "1")  # as on a host of somebody's who starts a launcher on each
    monkeypatch.setenv("NCCL_DEBUG", "of this host")
    monkeypatch.setattr(remote, "POLL_S", 0.2)  # an agent must not give up one who waits for its answer
    made = HostAgent("127.0.0.1", os.getcwd(), {"NCCL_DEBUG": "INFO"}, abandoned_after_s=5.0)
    yield made
    made.close()


def spec(name: str, folder: Path, *argv: str, **more: Any) -> ChildSpec:
    return ChildSpec(name=name, argv=[sys.executable, "-c", *argv], log_dir=folder / name, host=1, **more)


def served(name: str, folder: Path, port: int, **more: Any) -> ChildSpec:
    health = HealthCheck(url=f"http://127.0.0.1:{port}/health")
    return spec(name, folder, SERVER, str(port), health=health, max_restarts=1, **more)


def test_a_child_is_started_healthy_restarted_and_stopped_there(agent: HostAgent, tmp_path: Path) -> None:
    lines: list[str] = []
    wire = Wire(agent)
    wire.lose_answers = 2  # what was told is told again
    engine = served("engine", tmp_path, free_port())
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    work = spec("work", tmp_path, waits, depends=("engine",))
    other = RemoteHost("host 1", wire)

    def announce(line: str) -> None:
        lines.append(line)
        if "restart 1 of 1" in line:
            go.touch()

    with Supervisor([engine, work], others={1: other}, announce=announce) as supervisor:
        supervisor.start()
        first = supervisor.pids()["engine"]
        supervisor.replace("engine", "asked for")
        supervisor.watch()
        until(lambda: not alive(first), "the first engine's end")
    assert lines.count("engine is healthy") >= 1 and "work is done" in lines
    assert any("engine: asked for; restart 1 of 1" in line for line in lines)
    assert agent._closed.is_set() and agent.start(7, engine) == 0


@pytest.mark.parametrize(
    ("in_the_way", "said"),
    [(False, "exit status 1: no memory left"), (True, "exit status 127: .*File exists")],
)
def test_an_exit_comes_with_the_last_words_and_a_failed_start_with_its_cause(
    in_the_way: bool, said: str, agent: HostAgent, tmp_path: Path
) -> None:
    if in_the_way:
        (tmp_path / "finetune").touch()  # where the folder of its logs would be
    trainer = spec("finetune", tmp_path, "import sys; sys.exit('no memory left')")
    with (
        Supervisor([trainer], others={1: RemoteHost("host 1", Wire(agent))}) as supervisor,
        pytest.raises(ChildFailed, match=f"finetune: {said}"),
    ):
        supervisor.watch()


@pytest.mark.parametrize("how", ["dead", "cut"])
def test_a_lost_host_ends_the_run_by_the_name_of_what_it_had(
    how: str, agent: HostAgent, tmp_path: Path
) -> None:
    wire = Wire(agent)
    other = RemoteHost("host 1 (b, 10.0.0.2)", wire)
    with Supervisor([served("engine", tmp_path, free_port())], others={1: other}) as supervisor:
        supervisor.start()
        pid = supervisor.pids()["engine"]
        setattr(wire, how, True)
        other._lost_after_s = 0.5  # now that it runs: on a busy machine a start is slower than that
        with pytest.raises(ChildFailed, match=r"engine: host 1 \(b, 10\.0\.0\.2\) is lost: "):
            supervisor.watch()
    agent._abandoned_after_s = 0.5
    # Nobody polls any more: the agent does not wait for somebody to come back.
    until(lambda: not alive(pid), "the end of what was left there")


@pytest.mark.parametrize("stopped_s", [0.0, 3.5])
def test_what_other_hosts_ended_while_the_launcher_was_stopped_is_told_with_that(
    stopped_s: float, agent: HostAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ABANDONED_AFTER_S", 3.0)
    monkeypatch.setattr(run, "_LONGEST_WAIT_S", 0.1)  # a loop of the supervisor takes no longer

    def stop() -> None:
        time.sleep(stopped_s)
        agent.close()  # as it does when nobody asks it any more

    trainer = spec("finetune", tmp_path, "import time; time.sleep(600)")
    with (
        Supervisor([trainer], others={1: RemoteHost("host 1", Wire(agent))}) as supervisor,
        pytest.raises(ChildFailed) as failure,
    ):
        supervisor.start()
        supervisor.watch(tick=stop)
    rule = "other hosts end what they run after 3 s without it"
    why = rf"; the launcher itself stood still for \d+ s, and {rule}" if stopped_s else ""
    told = rf"finetune: killed by SIGKILL{why} \(log: .*\)"
    assert re.fullmatch(told, str(failure.value)), failure.value


def test_a_host_is_not_lost_by_a_stop_of_the_launcher_but_by_its_own_silence(
    agent: HostAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the request of before the stop is late too, so another one is made."""
    clock = SimpleNamespace(ahead_s=0.0, asked=0)
    now = time.monotonic
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: now() + clock.ahead_s))
    wire = Wire(agent)

    def ask(method: str, *arguments: Any, timeout_s: float) -> Any:
        clock.asked += method == "events"
        if clock.asked == 3 and not clock.ahead_s:
            clock.ahead_s = 1000.0
            raise TimeoutError
        return wire(method, *arguments, timeout_s=timeout_s)

    other = RemoteHost("host 1", ask)
    until(lambda: clock.asked >= 6 or other.look() is not None, "requests after the stop")
    assert other.look() is None
    other._lost_after_s, wire.cut = 0.5, True
    until(lambda: other.look() == "host 1 is lost: no answer for 0.5 s", "the loss")
    other.close()


def test_an_engine_of_a_lost_host_is_left_out_while_another_lives(agent: HostAgent, tmp_path: Path) -> None:
    wire, lines = Wire(agent), list[str]()
    names = ("a", "b")
    specs = [served(name, tmp_path, free_port(), alike=names) for name in names]
    here = ChildSpec(**{**vars(specs[0]), "host": 0})
    other = RemoteHost("host 1", wire)
    with Supervisor([here, specs[1]], others={1: other}, announce=lines.append) as supervisor:
        supervisor.start()
        wire.dead = True
        supervisor.watch(until=lambda: "the run goes on without b, 1 of 2 still serve" in lines)
        assert supervisor.pids().keys() == {"a"}
        supervisor.replace("b", "too late")
    agent.close()


def lost(least: int, *hosts: int, **more: Any) -> list[object]:
    names = tuple(f"e{index}" for index in range(len(hosts)))
    specs = [
        ChildSpec(name=name, argv=[], log_dir=Path("/"), host=host, alike=names, least=least, **more)
        for name, host in zip(names, hosts)
    ]
    core = SupervisorCore([*specs, ChildSpec(name="actor", argv=[], log_dir=Path("/"), depends=names)])
    core.tick(0.0)
    actions: list[object] = list(core.host_lost(1, "gone"))
    if all(isinstance(action, GoOnWithout) for action in actions):
        assert core.all_ready and core.host_lost(1, "gone") == [] and core.exited("e1", 0, -9, 1.0) == []
        assert core.phase("e1") is ChildPhase.ENDED
    return actions


def test_engines_of_a_lost_host_are_left_out_only_while_enough_remain() -> None:
    assert lost(1, 0, 1) == [GoOnWithout("e1", "gone")]
    assert lost(2, 0, 1) == [GiveUp("e1", "gone, 1 of 2 left, 2 needed")]
    assert lost(1, 1, 1) == [GiveUp("e0", "gone"), GiveUp("e1", "gone")]
    assert lost(1, 0, 1, 1) == [GoOnWithout("e1", "gone"), GoOnWithout("e2", "gone")]


def test_a_spare_server_that_does_not_come_back_is_missed_only_when_it_is_the_last() -> None:
    names = ("r0", "r1")
    specs = [
        ChildSpec(name=name, argv=[], log_dir=Path("/"), alike=names, spare=True, max_restarts=1)
        for name in names
    ]
    core = SupervisorCore(specs)
    core.tick(0.0)
    assert isinstance(core.exited("r0", 0, 1, 1.0)[0], RestartChild)
    core.tick(10.0)
    assert core.exited("r0", 1, 1, 11.0) == [GoOnWithout("r0", "exit status 1, after 1 restarts")]
    assert core.exited("r1", 0, 2, 12.0) == [GiveUp("r1", "exit status 2, not started again")]


def test_an_agent_without_a_launcher_kills_its_children_and_ends(agent: HostAgent, tmp_path: Path) -> None:
    shown = "os.environ.get('LOCAL_RANK'), os.environ['NCCL_DEBUG']"
    program = f"import os, time; print({shown}, flush=True); time.sleep(600)"
    pid = agent.start(0, spec("engine", tmp_path, program))
    assert alive(pid)

    def said() -> str:
        agent.events(0.0, 0)  # somebody asks, so that it lives until it has started
        return (tmp_path / "engine/stdout.log").read_text()

    until(lambda: said() == "None INFO\n", "its environment")
    ended = threading.Event()
    agent._abandoned_after_s, agent._end = 0.5, ended.set
    assert ended.wait(DEADLINE_S) and not alive(pid)


def test_a_kill_that_overtook_its_start_is_answered(agent: HostAgent, tmp_path: Path) -> None:
    threading.Timer(0.2, agent.kill, [3]).start()
    assert agent.events(600.0, 0) == [(1, 3, Exited(-9))]  # a long poll ends with the first news
    assert agent.start(3, spec("engine", tmp_path, "print('never')")) == 0
    assert agent.events(0.0, 1) == []


def test_the_agent_says_what_is_not_there(agent: HostAgent, tmp_path: Path) -> None:
    assert agent.missing([str(tmp_path), "/no/such/thing"]) == ["/no/such/thing"]
    (tmp_path / "probe").touch()
    assert agent.shares(tmp_path / "probe", 60.0) and not agent.shares(tmp_path / "none", 0.2)
    port = free_port()
    assert agent.take_port(port) and not agent.take_port(port)
    assert interface_of("127.0.0.1") == "lo" and interface_of("203.0.113.9") is None


def test_hosts_with_other_software_are_told_apart() -> None:
    here = software()
    assert difference(here, here) is None and here["numpy"]
    assert difference(here, here | {"numpy": "1"}) == (
        f"numpy is 1 there and {here['numpy']} with the launcher; every host needs the same"
    )
    assert "vllm is 0.32.0 there and not installed with" in str(difference({}, {"vllm": "0.32.0"}))
