"""Which Ray cluster `world.ray_address=auto` means, with processes that look like Ray's nodes."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pipelinerl.base.errors import ConfigError
from pipelinerl.launcher import ray_address as module
from pipelinerl.launcher.ray_address import ray_address

Node = Callable[[str], None]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Start a process with a raylet's name and words; clusters that others run here are left out."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    mine, started = set[str](), list[subprocess.Popen[bytes]]()
    found = module._clusters
    monkeypatch.setattr(module, "_clusters", lambda: found() & mine)

    def start(address: str) -> None:
        mine.add(address)
        wait = "import sys; print('up', flush=True); sys.stdin.read()"
        words = ["raylet", "-c", wait, f"--gcs-address={address}"]
        one = subprocess.Popen(
            words, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(one)
        assert one.stdout is not None and one.stdout.readline() == b"up\n"

    yield start
    for one in started:
        one.communicate()


def test_auto_is_the_only_cluster_of_this_host(node: Node) -> None:
    assert ray_address("auto") == "auto"
    node("192.0.2.1:6379")
    node("192.0.2.1:6379")
    assert ray_address("auto") == "192.0.2.1:6379"


def test_of_several_clusters_none_is_taken_by_itself(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node("192.0.2.1:6379")
    node("192.0.2.9:6379")
    for environment in ("", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", environment)
        with pytest.raises(ConfigError, match=r"2 Ray clusters .*192\.0\.2\.1:6379, 192\.0\.2\.9:6379"):
            ray_address("auto")
    assert ray_address("192.0.2.9:6379") == "192.0.2.9:6379"
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.9:6379")
    assert ray_address("auto") == "192.0.2.9:6379"
