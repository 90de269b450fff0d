"""Environment servers: found by key, started from their target, named when they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from pipelinerl.config import ConfigError
from pipelinerl.environment import make_environment
from pipelinerl.utils import get_environment_jobs, resolve_environment_key


class Recorder:
    """An environment that notes its port."""

    def __init__(self, path: str) -> None:
        self.path = path

    def launch(self, port: int) -> None:
        Path(self.path).write_text(str(port))


TARGET = "tests.unit.launch.test_environment.Recorder"


def tree(**values: object) -> DictConfig:
    return OmegaConf.create({"environment": None, "environments": None, "environment_key": None, **values})


def job(index: int, key: str) -> dict[str, object]:
    return {"kind": "environment", "idx": index, "environment_key": key, "environment_index": 0}


def test_an_environment_is_made_from_its_target(tmp_path: Path) -> None:
    spec = {"_target_": TARGET, "path": str(tmp_path / "port"), "mode": "remote", "replicas_per_actor": 1}
    for cfg, key in (
        (tree(environment=spec), "environment"),
        (tree(environments={"game": spec}), "game"),
        (tree(environments=[{**spec, "key": "game"}]), "game"),
    ):
        make_environment(cfg, key).launch(7777)
        assert (tmp_path / "port").read_text() == "7777"


def test_an_unknown_key_and_a_target_without_launch_are_named() -> None:
    with pytest.raises(ConfigError, match="environment b: not configured; there is a"):
        make_environment(tree(environments={"a": {"_target_": TARGET}}), "b")
    with pytest.raises(ConfigError, match=r"environment a: dict has no launch\(port\)"):
        make_environment(tree(environments={"a": {"_target_": "builtins.dict"}}), "a")


def test_rollouts_find_the_servers_of_their_environment() -> None:
    specs = {"a": {"_target_": TARGET}, "b": {"_target_": TARGET}}
    cfg = tree(environments=specs, jobs=[job(0, "a"), job(1, "b"), {"kind": "actor", "idx": 2}])
    assert [found.idx for found in get_environment_jobs(cfg)] == [0, 1]
    assert [found.idx for found in get_environment_jobs(cfg, "b")] == [1]
    cfg.environment_key = "a"
    assert resolve_environment_key(cfg) == "a"
    assert [found.idx for found in get_environment_jobs(cfg)] == [0]


def test_the_only_environment_needs_no_key() -> None:
    assert resolve_environment_key(tree(environment={"_target_": TARGET})) == "environment"
    assert resolve_environment_key(tree(), default="x") == "x"
