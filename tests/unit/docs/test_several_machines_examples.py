"""Examples for Slurm, KubeRay, SkyPilot and hosts by hand: their syntax, their schemas and their commands."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelinerl.launch import main

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "docs/examples/several_machines"
SCRIPTS = ("slurm.sh", "by_hand.sh")
MODULE = "python -m pipelinerl.launch "
TOKEN = "ab" * 32
FAKES = {
    "scontrol": 'echo "host-a"; echo "host-b"',
    "srun": 'shift; echo "srun: $*"; while [ "$1" != -- ]; do shift; done; shift; "$@"; exit 1',
    "ray": 'echo "ray: $*"; echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" > "$RUN/token"',
    "python": 'echo "python: $*"; exit ${FAILS:-0}',
}
"""Commands of a cluster. `srun` ends with 1 after a run that succeeded, as Ray's symmetric-run may."""
GROUP = {"rayStartParams": dict, "template": dict}
WORKERS = GROUP | dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), int) | {"groupName": str}
RAY_JOB = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "entrypoint": str,
        "submissionMode": str,
        "backoffLimit": int,
        "shutdownAfterJobFinishes": bool,
        "ttlSecondsAfterFinished": int,
        "rayClusterSpec": {"rayVersion": str, "headGroupSpec": GROUP, "workerGroupSpecs": [WORKERS]},
    },
}
"""What the example uses of KubeRay's RayJob, ray.io/v1, written from its API types."""


def loaded(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))


def shell_of(name: str) -> str:
    """What of an example a shell executes."""
    if name.endswith(".sh"):
        return (EXAMPLES / name).read_text(encoding="utf-8")
    found = loaded(name)
    return str(found["spec"]["entrypoint"] if "spec" in found else found["setup"] + found["run"])


@pytest.mark.parametrize("name", [*SCRIPTS, "kuberay.yaml", "skypilot.yaml"])
def test_the_shell_can_read_it(name: str) -> None:
    checked = subprocess.run(
        ["bash", "-n"], input=shell_of(name), text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("name", [*SCRIPTS, "kuberay.yaml", "skypilot.yaml"])
def test_its_command_composes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All but where its output goes, which the test's machine does not have."""
    (command,) = re.findall(MODULE + r"(.*?)(?:\|\||;|$)", shell_of(name).replace("\\\n", " "), re.MULTILINE)
    words = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", word) for word in shlex.split(command)]
    assert "world.backend=ray" in words
    words = [word for word in words if not word.startswith(("$@", "output_dir="))]
    status = main([*words, f"output_dir={tmp_path}", "--cfg", "job"])
    assert status == 0, capsys.readouterr().err


def executed(name: str, tmp_path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script where the commands of a cluster only say what they were asked."""
    for command, body in FAKES.items():
        path = tmp_path / "bin" / command
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "bin/activate").write_text("")
    given = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "RUN": str(tmp_path / "run"), "FAILS": ""}
    given |= {
        "VENV": str(tmp_path),
        "SLURM_JOB_NODELIST": "host-[a-b]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "7",
    } | env
    script = ["bash", str(EXAMPLES / name), *arguments]
    return subprocess.run(script, env=given, text=True, capture_output=True, timeout=300, check=False)


def test_slurm_starts_one_task_on_each_host_and_its_status_is_the_runs(tmp_path: Path) -> None:
    done = executed("slurm.sh", tmp_path, "max_lag=512")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("srun: ")]
    assert "ray symmetric-run --address host-a:6379 --min-nodes 2" in line
    assert line.endswith("max_lag=512")
    assert executed("slurm.sh", tmp_path, FAILS="1").returncode == 1
    assert executed("slurm.sh", tmp_path).returncode == 0


def test_slurm_gives_all_hosts_one_token_and_another_to_each_job(tmp_path: Path) -> None:
    """Exported before `srun`, which hands it to every task."""
    text = (EXAMPLES / "slurm.sh").read_text()
    assert text.index("export RAY_AUTH_MODE=token RAY_AUTH_TOKEN") < text.index("\nsrun ")
    made = re.findall(r"RAY_AUTH_TOKEN=(\$\(.*\))", text)[0]
    tokens = {
        subprocess.run(
            ["bash", "-c", f"echo {made}"], text=True, capture_output=True, check=True
        ).stdout.strip()
        for _ in range(2)
    }
    assert len(tokens) == 2 and all(re.fullmatch(r"[0-9a-f]{64}", token) for token in tokens)


def test_hosts_by_hand(tmp_path: Path) -> None:
    head = executed("by_hand.sh", tmp_path, "head", "10.0.0.1", "max_lag=512", RAY_AUTH_TOKEN=TOKEN)
    assert head.returncode == 0, head.stderr
    start, run, stop = head.stdout.splitlines()
    assert start.startswith("ray: start --head --node-ip-address=10.0.0.1 --port=6379")
    assert "world.hosts=2" in run and run.endswith("max_lag=512")
    assert stop == "ray: stop"
    worker = executed("by_hand.sh", tmp_path, "worker", "10.0.0.1", "10.0.0.2", RAY_AUTH_TOKEN=TOKEN)
    assert worker.stdout == "ray: start --address=10.0.0.1:6379 --node-ip-address=10.0.0.2 --block\n"
    assert (tmp_path / "run/token").read_text() == f"token {TOKEN}\n"
    refused = executed("by_hand.sh", tmp_path, "head", "10.0.0.1")
    assert refused.returncode != 0 and "set it to the same 64 hexadecimal digits" in refused.stderr


def typed(value: Any) -> Any:
    """A tree with the type of each leaf; what is Kubernetes' or Ray's own is one."""
    if isinstance(value, list):
        return [typed(one) for one in value]
    if not isinstance(value, dict):
        return type(value)
    return {key: dict if key in ("rayStartParams", "template") else typed(one) for key, one in value.items()}


def test_the_rayjob_has_the_fields_of_its_type() -> None:
    job = loaded("kuberay.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert typed(job) == RAY_JOB
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]
    assert f"world.hosts={1 + workers['replicas']}" in job["spec"]["entrypoint"]
    for group in (cluster["headGroupSpec"], workers):
        assert all(type(value) is str for value in group["rayStartParams"].values())
        spec = group["template"]["spec"]
        mounted = {mount["name"] for one in spec["containers"] for mount in one["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}
