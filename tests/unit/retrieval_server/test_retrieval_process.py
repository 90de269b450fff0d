"""`python -m retrieval_server` as processes: one or several, their counters, deaths and ends."""

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from retrieval_server.__main__ import main
from retrieval_server.arguments import parse_arguments
from retrieval_server.board import Board
from retrieval_server.index import build
from retrieval_server.serve import serve
from retrieval_server.store import Store
from retrieval_server.workers import listeners
from tests.support.processes import DEADLINE_S, alive, bound, free_port, until

pytestmark = pytest.mark.usefixtures("forked")

WEB, LOCAL = "/browsecomp/search", "/local/search"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "retrieval_server", *arguments]


class Server:
    """A server process and its children."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            bound(*command(*arguments, "--port", str(self.port))),
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self, path: str, body: dict[str, Any]) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            found: bytes = response.read()
        return found

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def health(self) -> dict[str, Any] | None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            return self.ask("/health")[1]
        return None

    def until_ok(self) -> dict[str, Any]:
        def ok() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.process.stderr.read() if self.process.stderr else ""
            health = self.health()
            return health if health and health["status"] == "ok" else None

        found: dict[str, Any] = until(ok, "the server to be ok")
        return found

    def pids(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def started(*arguments: str, **environment: str) -> Server:
        servers.append(Server(*arguments, **environment))
        return servers[-1]

    yield started
    for server in servers:
        with contextlib.suppress(psutil.Error):
            for pid in server.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        server.process.kill()
        server.process.wait()
        if server.process.stderr:
            server.process.stderr.close()


def gone(pids: list[int]) -> bool:
    return not any(map(alive, pids))


def test_serves_until_a_signal_and_frees_the_port(data: Path, start: Callable[..., Server]) -> None:
    server = start("--tasks", str(data / "tasks"), "--web", str(data / "web.jsonl"), "--fingerprint", "abc")
    health = server.until_ok()
    assert (health["fingerprint"], health["tasks"]) == ("abc", 2)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE_S) == 0
    assert server.health() is None


def test_several_processes_build_one_index_count_together_and_keep_corpora_apart(
    data: Path, start: Callable[..., Server]
) -> None:
    """Three processes: their index is built first, then 240 searches arrive side by side."""
    paths = ("--tasks", str(data / "tasks"), "--web", str(data / "web.jsonl"))
    server = start(*paths, "--backend", "bm25s", "--workers", "3")
    health = server.until_ok()
    assert (health["index"], health["web_docs"]) == ("bm25s", 3)
    assert (data / "web.jsonl.bm25s" / "manifest.json").is_file()
    assert len({worker["pid"] for worker in health["workers"]} | {server.process.pid}) == 4

    def ask(i: int) -> None:
        task, other = (("DR90001", "DR90002"), ("DR90002", "DR90001"))[i % 2]
        canaries = f"canary{task}report canary{task}log canary{other}report canaryanswer shared cold"
        status, found = server.ask(LOCAL, {"task_id": task, "query": canaries, "k": 50})
        assert status == 200
        assert f"canary{task}report" in json.dumps(found)
        assert f"canary{other}" not in json.dumps(found)
        assert "canaryanswer" not in json.dumps(found)
        status, found = server.ask(WEB, {"query": canaries, "k": 50, "max_chars": 0, "task_id": task})
        assert status == 200
        assert found["hits"]
        assert "canary" not in json.dumps(found)
        bad = ("../DR90001", "DR90001/../DR90002", "%2e%2e", "DR90009")[i % 4]
        assert server.ask(LOCAL, {"task_id": bad, "query": canaries})[0] in (400, 404)

    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        list(clients.map(ask, range(80)))
    health = server.until_ok()
    assert health["requests"][WEB] == {"received": 80, "by_status": {"200": 80}}
    local = health["requests"][LOCAL]
    assert local == {"received": 160, "by_status": {"200": 80, "400": 60, "404": 20}}
    assert sum(worker["received"] > 1 for worker in health["workers"]) >= 2


def test_servers_that_start_together_share_one_build_and_answer_alike(
    data: Path, start: Callable[..., Server]
) -> None:
    """Two with the index on disk, which one of them builds, and one in memory: the same bytes."""
    paths = ("--tasks", str(data / "tasks"), "--web", str(data / "web.jsonl"))
    mapped = ("--backend", "bm25s")
    servers = [start(*paths, *mapped), start(*paths, *mapped), start(*paths)]
    for server in servers:
        server.until_ok()
    tasks = [{"task_id": f"DR9000{number}", "k": 50} for number in (1, 2)]
    for query in ("cold chain audit", "shared", "naïve storage market", "canaryDR90001log", "nowhere"):
        assert len({server.answer(WEB, {"query": query, "k": 50}) for server in servers}) == 1
        for task in tasks:
            assert len({server.answer(LOCAL, task | {"query": query}) for server in servers}) == 1
    said = []
    for server in servers:
        server.process.terminate()
        said.append(server.process.communicate(timeout=DEADLINE_S)[1])
    assert sum("merging: 100%" in lines for lines in said) == 1


def test_a_killed_process_is_replaced_and_its_counters_stay(data: Path, start: Callable[..., Server]) -> None:
    server = start("--web", str(data / "web.jsonl"), "--workers", "2")
    server.until_ok()
    for _ in range(12):
        assert server.ask(WEB, {"query": "cold"})[0] == 200
    victim = server.until_ok()["workers"][0]["pid"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: (health := server.health()) and health["workers"][0]["pid"] != victim, "another process")
    health = server.until_ok()
    assert [worker["starts"] for worker in health["workers"]] == [2, 1]
    for _ in range(12):
        assert server.ask(WEB, {"query": "cold"})[0] == 200
    assert server.until_ok()["requests"][WEB] == {"received": 24, "by_status": {"200": 24}}
    pids = server.pids()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE_S) == 0
    until(lambda: gone(pids), "the workers to end")
    assert server.process.stderr is not None
    assert "worker 0 ended with status -9" in server.process.stderr.read()


def test_no_process_outlives_its_parent(data: Path, start: Callable[..., Server]) -> None:
    server = start("--web", str(data / "web.jsonl"), "--workers", "2")
    server.until_ok()
    pids = server.pids()
    assert len(pids) == 2
    server.process.kill()
    server.process.wait()
    until(lambda: gone(pids), "the workers to end")
    assert server.health() is None


def test_a_token_of_the_environment_is_asked_for(data: Path, start: Callable[..., Server]) -> None:
    server = start("--web", str(data / "web.jsonl"), RETRIEVAL_TOKEN="0123456789abcdef")
    assert set(server.until_ok()) == {"status", "version", "authorized"}
    assert server.ask(WEB, {"query": "cold"})[0] == 401


async def test_a_load_that_fails_as_a_signal_comes_loses_no_error(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that ends signals its other processes, whose loading may be failing at that moment."""

    def load(*_: object) -> Store:
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("no corpus")

    monkeypatch.setattr(Store, "load", load)
    loop, lost = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: lost.append(context))
    arguments = parse_arguments(["--web", str(data / "web.jsonl"), "--port", str(free_port())])
    (listener,) = listeners(arguments.host, arguments.port, 1)
    with contextlib.suppress(ValueError):  # which of the two is seen first is open
        await serve(arguments, listener, Board(1))
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(signum)
    gc.collect()  # an error that nobody has asked for is told when its task goes
    assert lost == []


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--web", "{web}", "--index", "{index}", "--workers", "2"], 2, "was built from another corpus"),
        (["--web", "{broken}"], 2, "broken.jsonl:1: not a JSON object"),
        (["--web", "{broken}", "--workers", "2"], 2, "broken.jsonl:1: not a JSON object"),
        (["--web", "{broken}", "--index", "{absent}"], 2, "broken.jsonl:1: not a JSON object"),
    ],
)
def test_what_cannot_be_served_is_one_last_line(
    arguments: list[str], status: int, message: str, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.jsonl").write_text("{\n")
    (tmp_path / "other.jsonl").write_text('{"docid": "1", "text": "x"}\n')
    build(tmp_path / "other.jsonl", tmp_path / "index")
    names = {name: str(tmp_path / name) for name in ("index", "absent")}
    names |= {"web": str(data / "web.jsonl"), "broken": str(tmp_path / "broken.jsonl")}
    given = [argument.format(**names) for argument in arguments]
    done = subprocess.run(
        command(*given, "--port", str(free_port())), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == status, done.stderr
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--host", "0.0.0.0"], 2, "--host 0.0.0.0 is reachable from other machines"),
        (["--host", "0.0.0.0", "--allow-remote"], 2, "set a token"),
        (["--index", "{absent}", "--port", "{taken}"], 1, "choose another --port"),  # it may be free soon
        (["--workers", "2", "--port", "{taken}"], 1, "choose another --port"),
        (["--port", "70000"], 2, "--port 70000 is not between 0 and 65535"),
        (["--token-file", "/nowhere"], 2, "/nowhere"),
    ],
)
def test_what_is_refused_before_serving(
    arguments: list[str],
    status: int,
    message: str,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RETRIEVAL_TOKEN", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        names = {"taken": str(taken.getsockname()[1]), "absent": str(data / "absent")}
        given = [argument.format(**names) for argument in arguments]
        try:
            found: int | str | None = main(["--web", str(data / "web.jsonl"), *given])
        except SystemExit as ended:
            found = ended.code
        assert found == status
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_sockets_of_one_port_are_not_shared_with_a_stranger() -> None:
    ours = listeners("127.0.0.1", 0, 3)
    port = ours[0].getsockname()[1]
    try:
        assert {listener.getsockname()[1] for listener in ours} == {port}
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            listeners("127.0.0.1", port, 2)
    finally:
        for listener in ours:
            listener.close()


def test_boards_add_up_and_rows_outlive_their_owner() -> None:
    board = Board(2)
    same = Board(2, board.fd)
    first, second = board.row(0), same.row(1)
    first.begin()
    first.count_received(WEB)
    first.count_answered(WEB, 200)
    second.count_received(WEB)
    second.count_answered(WEB, 429)
    second.count_received("/health")
    first.begin()
    assert board.requests() == same.requests()
    assert board.requests()[WEB] == {"received": 2, "by_status": {"200": 1, "429": 1}}
    assert [worker["received"] for worker in board.describe()] == [1, 2]
    assert first.starts == 2
