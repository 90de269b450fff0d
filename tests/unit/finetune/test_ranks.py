"""Two ranks do what one does: same gradient norm, same weights, same books."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipelinerl.finetune.loop import Trainer
from pipelinerl.finetune.ranks import Ranks
from tests.unit.finetune.builders import settings, write_steps
from tests.unit.finetune.conftest import tiny_model

ROOT = Path(__file__).parents[3]
DEADLINE_S = 300
"""Two processes that import torch at the same time need a while on a busy machine."""


def results(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    summary = json.loads((folder / "finetune/summary.json").read_text())
    return load_file(folder / "finetune/current/model.safetensors"), summary


def start_ranks(folder: Path, count: int) -> list[tuple[int, str]]:
    """Exit code and stderr of each rank; the variables are those that a distributed launcher sets."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = str(ROOT / "tests/unit/finetune/two_ranks.py")
    shared = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(count)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(folder)],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        return [(p.wait(DEADLINE_S), p.stderr.read() if p.stderr else "") for p in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.timeout(2 * DEADLINE_S)
def test_two_ranks_equal_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, ranks in ((one, 1), (two, 2)):
        folder.mkdir()
        write_steps(folder, 4, 6, ranks=ranks)
        tiny_model().save_pretrained(folder / "model")
    Trainer(settings(one, tiny_model()), Ranks()).run()
    for code, said in start_ranks(two, 2):
        assert code == 0, said[-2000:]
    (expected, summary), (found, other) = results(one), results(two)
    assert other["grad_norm"] == pytest.approx(summary["grad_norm"], rel=1e-4)
    assert (other["samples"], other["completed_steps"]) == (24, 4)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=1e-4)
