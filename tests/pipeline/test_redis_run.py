"""A whole run whose records travel over a redis server that the launcher starts and stops."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipelinerl.config import load
from tests.pipeline.conftest import ROOT, Start

pytestmark = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed (Debian package redis-server)"
)


def listening(processes: list[psutil.Process]) -> set[tuple[str, int]]:
    """Addresses at which the redis server among these processes can be reached."""
    servers = [process for process in processes if "redis-server" in process.name()]
    assert len(servers) == 1, servers
    return {
        (c.laddr.ip, c.laddr.port)
        for c in servers[0].net_connections(kind="inet")
        if c.status == psutil.CONN_LISTEN
    }


def printed(output_dir: Path, topic: str) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-m", "pipelinerl.streams", str(output_dir), topic],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_run_over_redis_completes_resumes_and_leaves_no_server(
    launch: Start,
) -> None:
    first = launch("streams=redis", "finetune.max_train_steps=2", "observe.rollout_page=true")
    run = first.output_dir
    first.until(lambda: (run / "finetune" / "metrics.jsonl").is_file(), "the first step")
    port = load(run).streams.port
    assert listening(first.children()) == {("127.0.0.1", port)}
    assert first.wait() == 0, first.err
    assert not first.children()
    assert not list((run / "streams").glob("actor/*")), "groups of rollouts were written to disk"
    assert sum(first.counts().ends.values()) > 0

    messages = printed(run, "weight_update_request")
    assert messages[-1]["kind"] == "training_done"  # type: ignore[index]
    assert printed(run, "stats_test")
    assert printed(run, "rollouts"), "groups are kept for people"
    assert (run / "report" / "rollouts" / "chunk_0.js").is_file()

    more = launch("streams=redis", "finetune.max_train_steps=3")
    assert more.wait() == 0, more.err
    assert more.summary()["completed_steps"] == 3
    assert (run / "streams_0" / "redis" / "dump.rdb").is_file()
    more.counts()
