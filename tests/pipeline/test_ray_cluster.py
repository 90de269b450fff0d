"""What is asked of a real Ray cluster, and what is said when it is not there or too small."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelinerl.base.errors import ConfigError
from pipelinerl.base.waits import WaitExpired
from pipelinerl.launch import main

ray = pytest.importorskip("ray", reason="Ray is not installed")


ONE_CPU_HOST = """
import sys
import ray
from pipelinerl.config.machine import WorldConfig
from pipelinerl.launcher.ray_backend import RayBackend
with RayBackend(WorldConfig(backend="ray", ray_address=sys.argv[1]), None, 60.0) as backend:
    print(len(backend.hosts), ray.is_initialized())
"""


@pytest.fixture(scope="module")
def one_node() -> Iterator[None]:
    """A cluster of this process's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the user's home
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
        ray.init(address="local", num_cpus=1, **options)  # without an address another cluster would be joined
        yield
        ray.shutdown()


def test_what_no_host_can_give_is_refused_at_once_and_missing_hosts_by_name(one_node: None) -> None:
    from pipelinerl.launcher.ray_backend import _nodes, _reserve

    with pytest.raises(ConfigError, match="the cluster cannot give 1000 GPUs on its hosts"):
        _reserve([{"GPU": 1000.0}], 60.0)
    with pytest.raises(WaitExpired, match=r"3 hosts in the Ray cluster \(world\.hosts\): there are 1"):
        _nodes(3, False, 0.3)
    assert len(_nodes(None, False, 0.3)) == 1


def test_a_run_on_one_host_without_gpus_does_not_stay_in_the_cluster(one_node: None) -> None:
    """Ray ends a process that is connected some time after the cluster's head has gone."""
    command = [sys.executable, "-c", ONE_CPU_HOST, ray.get_runtime_context().gcs_address]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert told.stdout.split() == ["1", "False"], told.stderr


def test_a_cluster_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    run = ["+domain=guessing", "hardware=cpu", "world.backend=ray", f"output_dir={tmp_path / 'run'}"]
    assert main([*run, "world.ray_address=127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert "world.ray_address=127.0.0.1:1: " in said and "ray start --head" in said
