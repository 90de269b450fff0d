"""Configuration files as people and other launchers write them: taken, or refused in one line."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl.config import ConfigError
from pipelinerl.config.compose import Composition

GOOD = """
dataset_loader: pipelinerl.domains.guessing.load_problems
actor: {rollout_policy: pipelinerl.domains.guessing.generate_guessing_rollout}
"""
BASE = "defaults: [base, _self_]\n" + GOOD
REFUSED = {
    "hydra's folder": (
        BASE + "log: ${hydra:runtime.cwd}/x\n",
        r"log: \$\{hydra:...\} is known to hydra's own",
    ),
    "hydra's choice": (BASE + "log: ${hydra:runtime.choices.finetune}\n", r"log: \$\{hydra:...\} is known"),
    "a resolver of others": (BASE + "x: ${eval:1+1}\n", "x: Unsupported interpolation type eval"),
    "no list of defaults": ("defaults: base\n" + GOOD, "'odd', defaults must be a list"),
    "a mapping of defaults": ("defaults: {base: true}\n" + GOOD, "'odd', defaults must be a list"),
    "an open bracket": ("seed: [1\n", r"odd.yaml, line 2: no YAML \(.*; mend the line"),
    "a tab": (BASE.rstrip() + "\n\tx: 1\n", r"odd.yaml, line \d: no YAML"),
    "a key twice": (BASE + "seed: 1\nseed: 2\n", r"odd.yaml, line \d: no YAML \(found duplicate key seed"),
    "a list": ("- a\n- b\n", "odd"),
    "a group that is not there": (
        "defaults: [base, {judge: qwen}, _self_]\n" + GOOD,
        "Could not find 'judge/qwen'",
    ),
    "a number for a key": (BASE + "1: x\n", "1"),
    "a list for a section": (
        "defaults: [base, _self_]\nactor: [1]\n",
        "Cannot merge DictConfig with ListConfig",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_odd_file_is_refused_in_one_line(
    name: str, composed: Callable[..., Composition], tmp_path: Path
) -> None:
    content, expected = REFUSED[name]
    (tmp_path / "odd.yaml").write_text(content)
    with pytest.raises(ConfigError, match=expected) as refused:
        made = composed("hardware=cpu", config_dir=tmp_path, config_name="odd")
        importlib.import_module("pipelinerl.config").typed(made.tree)
    assert all("\n" not in line for line in refused.value.problems)


@pytest.mark.parametrize(
    "content",
    [
        BASE + "which: ${now:%Y}\n",
        "defaults: [base, {override finetune: grpo}, _self_]\n" + GOOD,
        "defaults:\n - base\n - override /finetune: base\n - _self_\n" + GOOD,
        "defaults: [base, {optional nothing: here}, _self_]\n" + GOOD,
        "defaults:\n - base\n - override hydra/job_logging: disabled\n - _self_\n" + GOOD,
    ],
)
def test_forms_of_hydra_are_taken(content: str, composed: Callable[..., Composition], tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(content)
    made = composed("hardware=cpu", config_dir=tmp_path, config_name="odd")
    assert made.tree.dataset_loader == "pipelinerl.domains.guessing.load_problems"


@pytest.mark.parametrize(
    "module", ["counting.counting", "guessing.guessing", "math.load_datasets", "tir.datasets"]
)
def test_loaders_stand_where_upstreams_multidomain_loader_looks(module: str) -> None:
    found = importlib.import_module(f"pipelinerl.domains.{module}")
    assert callable(getattr(found, "load_problems", None) or getattr(found, "load_datasets", None))
