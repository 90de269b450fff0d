"""Trees composed the way the launcher does it, on a machine without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelinerl.config import Config, ConfigError
from pipelinerl.config.compose import Composition, Request, compose
from pipelinerl.config.validate import checked
from pipelinerl.domain import BaseDomain


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a model with 4096 positions."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Composition]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*overrides: str, **options: object) -> Composition:
        return compose(Request(overrides=list(overrides), **options))  # type: ignore[arg-type]

    return run


@pytest.fixture
def validated(composed: Callable[..., Composition], model: Path) -> Callable[..., Config]:
    """Composes the guessing domain with a small model and validates the core's keys."""

    def run(*overrides: str) -> Config:
        composition = composed("+domain=guessing", f"model_path={model}", *overrides)
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
