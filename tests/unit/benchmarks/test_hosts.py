"""Benchmarks of several hosts: their arithmetic, and how one asks a shared folder; no Ray, no namespaces."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks import network_folder
from benchmarks.gpu.several_hosts import Found, figures_of


def run_row(rate: float, pauses: list[float], first: float) -> dict[str, Any]:
    return {
        "steady": {"trained_per_s": rate},
        "max_paused_s": pauses,
        "total_s": [1.0],
        "first_process_s": first,
        "first_step_s": 2 * first,
    }


def step_row(ms: float) -> dict[str, Any]:
    return {"sharded": {"an optimizer step": {"value": ms}}}


def test_arms_are_compared_by_medians_of_all_rounds_and_have_goals_on_cards_only() -> None:
    rows = {
        "local": [run_row(10.0, [0.1, 0.3], 3.0), run_row(12.0, [0.2], 5.0)],
        "ray": [run_row(11.0, [0.2], 6.0)],
        "two_nodes": [run_row(5.5, [0.4], 9.0)],
        "step": [step_row(100.0)],
        "two_nodes_step": [step_row(105.0)],
    }
    found = {one.name: one for one in figures_of(Found(rows), gpu=True)}
    assert found["ray / local: samples trained"].value == 1.0
    assert found["ray beyond local: to the first process"].value == 2.0
    assert found["two_nodes / local: paused by an update"].value == pytest.approx(2.0)
    assert found["two_nodes / one host: sharded step"].value == pytest.approx(1.05)
    missed = [name for name, one in found.items() if one.met is False]
    assert missed == ["two_nodes / local: paused by an update"]
    assert found["two_nodes / local: samples trained"].met is None
    assert not any("two_hosts" in name for name in found)
    assert all(one.met is None for one in figures_of(Found(rows), gpu=False))


def test_one_who_looks_into_a_shared_folder_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_folder, "IN_VAIN_S", 0.1)
    folder, out = tmp_path / "shared", tmp_path / "found.json"
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(network_folder.answer, folder, 2)
        words = ["--rounds", "2", "--folder", str(folder), "--out", str(out)]
        monkeypatch.setattr(sys, "argv", ["network_folder", *words])
        assert network_folder.main() == 0
        answered.result()
    found = json.loads(out.read_text())
    assert {way: len(seconds) for way, seconds in found["seconds"].items()} == {"exists": 2, "is_there": 2}
    assert found["settings"]["mount"]
