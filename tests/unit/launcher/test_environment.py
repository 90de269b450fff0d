"""Environment servers: found by key, started from their target, named when they cannot be; `PerTree`."""

import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from pipelinerl.config import Config, ConfigError, load_tree
from pipelinerl.config.environments import replicas
from pipelinerl.launcher import environment_server
from pipelinerl.launcher.commands import commands
from pipelinerl.launcher.environment_server import make_environment
from pipelinerl.launcher.supervision.core import PERMANENT
from pipelinerl.utils import PerTree, get_environment_jobs, resolve_environment_key
from tests.support.one_host import one_host
from tests.unit.launcher.conftest import Placed


class Recorder:
    """An environment that notes its port."""

    def __init__(self, path: str) -> None:
        self.path = path

    def launch(self, port: int) -> None:
        Path(self.path).write_text(str(port))


TARGET = "tests.unit.launcher.test_environment.Recorder"


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


@pytest.mark.parametrize(
    ("target", "key", "message"),
    [
        (TARGET, "b", "environment b: not configured; there is a"),
        ("builtins.dict", "a", r"environment a: dict has no launch\(port\)"),
        ("nothing.at.All", "a", "environment a: .*nothing"),
    ],
)
def test_what_cannot_be_made_is_named_in_one_line(target: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_environment(tree(environments={"a": {"_target_": target}}), key)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import absent_package", "no module named absent_package; check the spelling or install it"),
        ("raise RuntimeError('no licence')", "importing it failed: RuntimeError: no licence"),
        ("class Wrong:\n    pass", "of_a_user has no Game"),
        ("class Game:\n    def __init__(self): raise OSError('no levels.json')", "OSError('no levels.json')"),
    ],
)
def test_the_line_says_why_an_environment_cannot_be_made(
    source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_a_user.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "of_a_user", raising=False)
    with pytest.raises(ConfigError) as caught:
        make_environment(tree(environments={"a": {"_target_": "of_a_user.Game"}}), "a")
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith("environment a: ")
    assert reason in caught.value.problems[0]


def test_what_cannot_be_made_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"idx": 3, "name": "environment_3", "environment_key": "a", "port": 1}
    cfg = tree(environments={"a": {"_target_": "nothing.at.All"}}, jobs=[job])
    monkeypatch.setattr(environment_server, "load_tree", lambda *_: cfg)
    monkeypatch.setattr(environment_server, "setup_logging", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["environment_server", str(tmp_path), "--job", "3"])
    assert environment_server.main() in PERMANENT
    assert "nothing" in capsys.readouterr().err


PAIR = {"math": {"_target_": TARGET}, "maze": {"_target_": TARGET, "replicas_per_actor": 3}}


@pytest.mark.parametrize(
    ("world", "mix", "expected"),
    [
        ({}, None, {"math": 1, "maze": 6}),
        ({"env_replicas": 4}, None, {"math": 4, "maze": 6}),
        ({"env_replicas_per_actor": 2}, None, {"math": 4, "maze": 6}),
        ({"env_replicas": 0}, None, {"math": 0, "maze": 6}),
        ({"env_replicas": 4}, {"math": 3, "maze": 1}, {"math": 3, "maze": 2}),
        ({"env_replicas": 4}, {"math": 1, "maze": 99}, {"math": 1, "maze": 6}),
        ({"env_replicas": 4}, {"math": 1, "guessing": 1}, {"math": 2, "maze": 0}),
        ({"env_replicas": 4}, {"math": 1, "maze": 0}, {"math": 4, "maze": 0}),
        ({"env_replicas": 4}, {"guessing": 1}, {"math": 4, "maze": 6}),
    ],
)
def test_servers_follow_engines_and_the_mixture_of_domains(
    world: dict[str, int], mix: dict[str, float] | None, expected: dict[str, int]
) -> None:
    cfg = Config.model_validate({"world": world, "actor": {"domain_mix": mix}, "environments": PAIR})
    assert replicas(cfg, engines=2) == expected


def test_other_modes_have_no_servers() -> None:
    own = {"_target_": TARGET, "mode": "embedded"}
    for mode, expected in (("remote", ["math", "maze"]), ("embedded", [])):
        cfg = Config.model_validate(
            {"environments": {**PAIR, "own": own}, "world": {"environment_mode": mode}}
        )
        assert list(replicas(cfg, engines=1)) == expected


def test_the_launcher_starts_checks_and_restarts_each_server(placed: Placed, tmp_path: Path) -> None:
    cfg, out = placed(
        f"environments={{maze: {{_target_: {TARGET}, path: x}}}}",
        "world.env_replicas=2",
        "world.environment_start_port=7790",
    )
    assert "maze: 2 servers" in out
    servers = cfg.jobs_of("environment")
    assert [(job.environment_key, job.environment_index) for job in servers] == [("maze", 0), ("maze", 1)]
    children = {child.name: child for child in commands(cfg, tmp_path / "run", [], one_host(), None)}
    first = children["environment_0"]
    assert first.health is not None and first.health.url == f"{servers[0].url}/health"
    assert first.health.start_deadline_s == cfg.engine.start_deadline_s
    assert first.max_restarts == cfg.engine.max_restarts
    assert {"environment_0", "environment_1"} <= set(children["actor"].depends)
    assert "pipelinerl.launcher.environment_server" in (tmp_path / "run/environment_1/start.sh").read_text()
    assert [job.url for job in get_environment_jobs(load_tree(tmp_path / "run"))] == [
        job.url for job in servers
    ]


def test_rollouts_find_the_servers_of_their_environment() -> None:
    specs = {"a": {"_target_": TARGET}, "b": {"_target_": TARGET}}
    cfg = tree(environments=specs, jobs=[job(0, "a"), job(1, "b"), {"kind": "actor", "idx": 2}])
    assert [found.idx for found in get_environment_jobs(cfg)] == [0, 1]
    assert [found.idx for found in get_environment_jobs(cfg, "b")] == [1]
    cfg.environment_key = "a"
    assert resolve_environment_key(cfg) == "a"
    assert [found.idx for found in get_environment_jobs(cfg)] == [0, 1], "without a key of all, as upstream"


def test_the_only_environment_needs_no_key() -> None:
    assert resolve_environment_key(tree(environment={"_target_": TARGET})) == "environment"
    assert resolve_environment_key(tree(), default="x") == "x"


@pytest.mark.parametrize(
    ("mix", "expected"),
    [({"maze": 1.0}, "maze"), ({"maze": 1.0, "math": 0.0}, "maze"), ({"maze": 1, "math": 2}, "x"), ({}, "x")],
)
def test_environments_of_domains_that_are_not_drawn_do_not_count(
    mix: dict[str, float], expected: str
) -> None:
    cfg = tree(environments=PAIR, actor={"domain_mix": mix})
    assert resolve_environment_key(cfg, default="x") == expected


def test_the_only_environment_counts_where_no_drawn_domain_has_its_name() -> None:
    cfg = tree(environment={"_target_": TARGET}, actor={"domain_mix": {"math": 1.0}})
    assert resolve_environment_key(cfg) == "environment"


def test_a_value_is_made_once_per_tree() -> None:
    made: list[DictConfig] = []

    def make(cfg: DictConfig) -> int:
        made.append(cfg)
        return len(made)

    held, one, equal = PerTree(make), OmegaConf.create({"a": 1}), OmegaConf.create({"a": 1})
    assert [held.of(one), held.of(one), held.of(equal), held.of(equal)] == [1, 1, 2, 2]
    assert made[0] is one and made[1] is equal
