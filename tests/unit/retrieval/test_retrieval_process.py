"""`python -m retrieval_server` as a process: it serves, stops on a signal, refuses broken data."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "retrieval_server", *arguments]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _health(port: int) -> dict | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return json.load(response)
    except (urllib.error.URLError, ConnectionError):
        return None


def test_serves_until_a_signal_and_frees_the_port(data: Path) -> None:
    port = _free_port()
    paths = ("--tasks", str(data / "tasks"), "--web", str(data / "web.jsonl"))
    process = subprocess.Popen(_command(*paths, "--port", str(port), "--fingerprint", "abc"))
    try:
        deadline = time.monotonic() + 60
        while (health := _health(port)) is None or health["status"] != "ok":
            assert process.poll() is None
            assert time.monotonic() < deadline, "the server did not become healthy"
            time.sleep(0.05)
        assert (health["fingerprint"], health["tasks"]) == ("abc", 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert _health(port) is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to serve"),
        (["--web", "/nowhere/web.jsonl"], "--web /nowhere/web.jsonl is not a file"),
    ],
)
def test_missing_data_is_one_line(arguments: list[str], message: str) -> None:
    done = subprocess.run(_command(*arguments), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_a_broken_corpus_ends_the_process_with_one_line(tmp_path: Path) -> None:
    web = tmp_path / "web.jsonl"
    web.write_text("{\n", encoding="utf-8")
    done = subprocess.run(
        _command("--web", str(web), "--port", str(_free_port())), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"retrieval_server: {web}:1: not a JSON object")
