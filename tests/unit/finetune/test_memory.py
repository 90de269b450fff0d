"""What the trainer says of its memory, and when it gives unused memory back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelinerl.config.finetune import MemoryDebugConfig
from pipelinerl.finetune.memory import MemoryDebug, host_memory
from pipelinerl.finetune.metrics import StepStatistics
from tests.support.training import Noting, train


def trained(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """The records of four steps."""
    train(folder, Noting(), **changes)
    return [json.loads(line) for line in (folder / "finetune/metrics.jsonl").read_text().splitlines()]


def test_memory_is_reported_after_every_so_many_steps(tmp_path: Path) -> None:
    rows = trained(tmp_path, memory_debug={"enabled": True, "every_n_steps": 2})
    reported = [row["step"] for row in rows if "memory/host_bytes" in row]
    assert reported == [12, 24]
    assert 1e7 < rows[1]["memory/host_bytes"] <= rows[1]["memory/host_peak_bytes"]


def test_no_memory_is_reported_unless_asked_for(tmp_path: Path) -> None:
    assert not any(name.startswith("memory/") for row in trained(tmp_path) for name in row)


def test_the_peak_of_a_device_is_that_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append("reset"))
    for name, size in (("memory_allocated", 3), ("max_memory_allocated", 7), ("memory_reserved", 9)):
        monkeypatch.setattr(torch.cuda, name, lambda device, size=size: size)
    memory = MemoryDebug(MemoryDebugConfig(enabled=True), torch.device("cuda", 0))
    memory.begin()
    figures = memory.measure(1)
    assert calls == ["reset"]
    assert {name: figures[name] for name in figures if "device" in name} == {
        "memory/device_bytes": 3.0,
        "memory/device_peak_bytes": 7.0,
        "memory/device_reserved_bytes": 9.0,
    }
    assert set(host_memory()) < set(figures)


def test_of_several_ranks_the_largest_is_shown() -> None:
    ranks = [StepStatistics(memory={"memory/device_bytes": size}) for size in (2.0, 5.0, 3.0)]
    assert StepStatistics().merge(ranks).memory == {"memory/device_bytes": 5.0}


def test_unused_memory_is_given_back_after_each_step_and_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: order.append("emptied"))
    monkeypatch.setattr(
        Noting, "publish", lambda self, version, _: order.append(f"published {version}") or {}
    )
    trained(tmp_path / "on", cuda_empty_cache=True)
    assert order == ["published 0", *(x for n in (6, 12, 18, 24) for x in ("emptied", f"published {n}"))]
    order.clear()
    trained(tmp_path / "off")
    assert "emptied" not in order
