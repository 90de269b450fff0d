"""Trees composed the way the launcher does it, on a machine without a GPU."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from omegaconf import DictConfig

from pipelinerl.config import Config, ConfigError
from pipelinerl.config import compose as compose_module
from pipelinerl.config.compose import Composition, Request, compose
from pipelinerl.domain import BaseDomain
from pipelinerl.launcher.validate import checked


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a model with 4096 positions."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


_files_only = compose_module._compose
_known: dict[str, DictConfig] = {}


def remembered(roots: Sequence[Path], config_name: str, overrides: list[str]) -> DictConfig:
    """hydra's part of a composition, computed once per choice of bundled files: most cases share it."""
    if len(roots) > 1:
        return _files_only(roots, config_name, overrides)
    key = " ".join([config_name, *overrides])
    if key not in _known:
        _known[key] = _files_only(roots, config_name, overrides)
    return copy.deepcopy(_known[key])


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Composition]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(compose_module, "_compose", remembered)

    def run(*overrides: str, **options: object) -> Composition:
        return compose(Request(overrides=list(overrides), **options))  # type: ignore[arg-type]

    return run


SIZES = (
    "max_lag=512",
    "finetune.gradient_accumulation_passes=64",
    "finetune.max_train_steps=20",
    "finetune.rl.step_reward_advantages=false",
)
"""Fixed here, so that tuning the example does not change what its contradictions are."""


@pytest.fixture
def validated(composed: Callable[..., Composition], model: Path) -> Callable[..., Config]:
    """Composes the guessing domain with a small model and validates the core's keys."""

    def run(*overrides: str) -> Config:
        composition = composed("+domain=guessing", f"model_path={model}", *SIZES, *overrides)
        return checked(composition.tree, BaseDomain(), devices=0)

    return run


@pytest.fixture
def refusal(validated: Callable[..., Config]) -> Callable[..., str]:
    """The only problem that these overrides cause."""

    def run(*overrides: str) -> str:
        with pytest.raises(ConfigError) as caught:
            validated(*overrides)
        assert all("\n" not in line for line in caught.value.problems)
        return "\n".join(caught.value.problems)

    return run
