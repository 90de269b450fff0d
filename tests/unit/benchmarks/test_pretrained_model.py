"""What `benchmarks.pretrained_model` says of a model: parity by the runs' rows, rounding, paired forwards."""

import json
from pathlib import Path

import pytest

from benchmarks import forwards, pretrained_model
from tests.support.tiny_model import causal_lm

TINY = (32, 2, 64, 4, 2, 8, 64)


def test_the_largest_difference_of_all_seeds_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("weights/parity_mean_abs", "weights/parity_max_abs")
    rows = [{"parity": dict(zip(names, values, strict=True))} for values in ((0.1, 0.5), (0.2, 0.4))]
    (tmp_path / "runs.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(pretrained_model, "RESULTS", tmp_path)
    assert pretrained_model.met("runs") == {"mean": 0.2, "max": 0.5}


def test_rounding_is_that_of_the_trainer_in_bfloat16(tmp_path: Path) -> None:
    causal_lm(64, hidden=64).save_pretrained(tmp_path)
    assert 1e-4 < pretrained_model.rounding(tmp_path) < 0.5


def test_both_architectures_take_every_kind_of_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(forwards.SHAPES, pretrained_model.SHAPE, TINY)
    found = {one.name: one.value for one in pretrained_model.forwards(tmp_path, rounds=1)}
    for kind in ("32 decodes", "one decode", "a prompt of 256"):
        name = f"{pretrained_model.SHAPE}: {kind}"
        assert found[f"{name}, ratio"] == pytest.approx(
            found[f"{name}, qwen3"] / found[f"{name}, llama"], rel=1e-6
        )
