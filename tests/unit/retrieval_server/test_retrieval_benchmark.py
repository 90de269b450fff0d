"""The benchmark at a size that says nothing, so that its code keeps working."""

import json
from pathlib import Path

import pytest

from benchmarks import replicas
from benchmarks.retrieval import main


@pytest.mark.slow
def test_both_back_ends_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "retrieval.json"
    options = ["--documents", "40", "--words", "30", "--clients", "4", "--seconds", "0.2", "--workers", "2"]
    assert main([*options, "--out", str(out)]) == 0
    figures = json.loads(out.read_text())["figures"]
    for backend in ("rank_bm25", "bm25s"):
        assert figures[f"40 {backend}: over HTTP, 4 clients"]["value"] > 0
        assert figures[f"40 {backend}: over HTTP, 99th percentile"]["goal"] == 150
    assert figures["40 bm25s: memory of the build"]["value"] > 0
    assert figures["40 bm25s: faster than rank_bm25"]["value"] > 0


@pytest.mark.slow
def test_replicas_are_measured_and_one_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "replicas.json"
    options = ["--documents", "40", "--words", "30", "--clients", "4", "--seconds", "1", "--rounds", "1"]
    assert replicas.main([*options, "--out", str(out)]) == 0
    figures = json.loads(out.read_text())["figures"]
    assert figures["2 servers: searches"]["value"] > 0
    assert figures["a server killed under load: searches that failed"]["value"] == 0
