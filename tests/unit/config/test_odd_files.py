"""Configuration files as people and other launchers write them: taken, or refused in one line."""

import importlib
import re
from collections.abc import Callable
from itertools import pairwise
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
    "aliases of aliases": (
        BASE + "a: &a [1]\n" + "".join(f"{n}: &{n} [{f'*{o},' * 9}]\n" for o, n in pairwise("abcdefghijk")),
        r"odd.yaml: its aliases .* stand for more than 100,000 values",
    ),
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
        BASE + "one: &one {x: 1}\nother: [*one, *one]\n",
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


def test_what_is_said_of_a_file_in_a_subfolder_makes_it_compose(
    composed: Callable[..., Composition], tmp_path: Path
) -> None:
    """Upstream's `debug/multi_domain.yaml`: its defaults are those of the folder above."""

    def made(name: str) -> Composition:
        return composed("hardware=cpu", config_dir=tmp_path, config_name=name)

    content = "defaults:\n  - base\n  - games: base\n  - override rewards: pure_success\n  - _self_\n" + GOOD
    (tmp_path / "debug").mkdir()
    (tmp_path / "games").mkdir()
    (tmp_path / "games" / "base.yaml").write_text("most: 3\n")
    file = tmp_path / "debug" / "mixed.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as refused:
        made("debug/mixed")
    assert f"copy {file} to {tmp_path / 'mixed.yaml'}, " in str(refused.value)
    assert str(refused.value).endswith("give --config-name=mixed")
    (tmp_path / "mixed.yaml").write_text(content)
    taken = made("mixed").tree
    assert taken.games.most == 3 and "games" not in taken.debug

    content = f"# @package _global_\n{content}".replace("override rewards", "override /rewards")
    for _ in ("base", "games"):  # its keys stand at the top, so only its defaults need a slash
        file.write_text(content)
        with pytest.raises(ConfigError) as refused:
            made("debug/mixed")
        (instead,) = re.findall(r"write `/(\S.*)` in its defaults", str(refused.value))
        content = content.replace(f"- {instead}\n", f"- /{instead}\n")
    file.write_text(content)
    assert made("debug/mixed").tree.games.most == 3
    file.write_text(content.replace("/games: base", "/games: other"))
    with pytest.raises(ConfigError, match="Could not find 'games/other'; copy that file too"):
        made("debug/mixed")


@pytest.mark.parametrize(
    "module", ["counting.counting", "guessing.guessing", "math.load_datasets", "tir.datasets"]
)
def test_loaders_stand_where_upstreams_multidomain_loader_looks(module: str) -> None:
    found = importlib.import_module(f"pipelinerl.domains.{module}")
    assert callable(getattr(found, "load_problems", None) or getattr(found, "load_datasets", None))
