"""Every key of the configuration changes what a process does or gets, or is refused when it is set."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import SecretStr

from pipelinerl.base.errors import ConfigError
from pipelinerl.config import Config, keys
from pipelinerl.config.compose import Composition
from pipelinerl.config.legacy import WRITTEN_BY_LAUNCHERS
from pipelinerl.launcher.checks.inert import UNREAD
from tests.support.key_effects import (
    another_value,
    effects,
    leaves,
    named_in_code,
    value_at,
    with_value,
)
from tests.unit.config.conftest import DEFAULTS

KEYS = dict(leaves())
CPU = {"hardware.kind": "cpu", "engine.kind": "embedded", "weights.transport": "file"}

NEEDED: dict[str, dict[str, Any]] = {
    "streams": {"streams.backend": "redis"},
    "world.reference_start_port": {"world.preprocessor_fraction": 1},
    "actor.domain_mix": {"world.env_replicas": 4},
    "environment_key": {"environment": {"_target_": "package.Maze"}},
    "vllm_config.python": {"vllm_config.version": "0.26.0"},
    "weights.lora": {"finetune.lora.enabled": True},
    "world.actor_hosts": {"world.backend": "ray", "world.actor_fraction": 12},
    "world.interface": {"world.backend": "ray"},
}
"""What has to be switched on before a key, or a key below it, can have an effect."""

ENVIRONMENTS = {"maze": {"_target_": "package.Maze"}}
VALUES: dict[str, Any] = {
    "environments": {**ENVIRONMENTS, "other": ENVIRONMENTS["maze"]},
    "actor.domain_mix": {"maze": 1.0, "other": 1.0},
    "streams.password": SecretStr("word"),
    "vllm_config.version": "0.26.0",
    "world.actor_fraction": 2,
    "world.actor_hosts": 1,
    "wandb.wandb_workspace_root": "/",
    **{f"teacher.by_{kind}": {"x": "folder"} for kind in ("role", "domain")},
    "wandb.wandb_resume": "never",
}
"""Where any other value of the type will not do."""

FIXED = {
    "world.replicas": "one possible value",
    "fsdp.param_dtype": "refused unless it says what finetune.load_as_bf16 says",
    "fsdp.buffer_dtype": "refused unless fp32",
    "finetune.config_name": "refused unless it is model_path",
    "finetune.attempts": "the tree's `attempts`, which is read, takes its value",
}
"""Keys without an effect of their own, and why none is lost."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Config]:
    """A run on GPUs and one on a CPU, neither checked."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({"vocab_size": 31}))
    given = {"finetune": {"config_name": str(folder)}, "environments": ENVIRONMENTS}
    gpu = Config.model_validate({"model_path": str(folder), **given})
    cpu = gpu
    for key, value in CPU.items():
        cpu = with_value(cpu, key, value)
    return {"gpu": gpu, "cpu": cpu}


def below(key: str, parents: Any) -> Any:
    return next((parent for parent in parents if key == parent or key.startswith(f"{parent}.")), None)


def has_effect(key: str, run: Config, seen: dict[str, str]) -> bool:
    """Whether another value of the key shows in what processes see; `seen` keeps what they see else."""
    needed = NEEDED.get(below(key, NEEDED) or "", {})
    others = {name: value for name, value in needed.items() if name != key}
    for name, value in others.items():
        run = with_value(run, name, value)
    if (circumstances := repr(others)) not in seen:
        seen[circumstances] = effects(run)
    value = VALUES[key] if key in VALUES else another_value(KEYS[key], value_at(run, key))
    try:
        return effects(with_value(run, key, value)) != seen[circumstances]
    except ConfigError:  # another value is refused
        return True


def is_named(key: str) -> bool:
    """Whether code of the product reads an attribute or item of that name of that group."""
    group, _, name = f".{key}".rpartition(".")
    name = "validate_" if name == "validate" else name
    last = group.rpartition(".")[2]
    owners = (last, *OTHER_NAMES.get(last, ())) if group else ("cfg", "config", "tree", "self")
    return any((owner, name) in named_in_code() for owner in owners)


OTHER_NAMES = {"rl": ("config", "self"), "memory_debug": ("memory",), "finetune": ("self",)}
"""What sections are called in functions that get them as an argument, or in their own properties."""

WITHOUT_EFFECT = {*UNREAD, *FIXED, *WRITTEN_BY_LAUNCHERS}


def test_every_key_reaches_a_process_or_is_read_by_one(runs: dict[str, Config]) -> None:
    silent = [key for key in KEYS if below(key, WITHOUT_EFFECT) is None]
    for run in runs.values():
        seen: dict[str, str] = {}
        silent = [key for key in silent if not has_effect(key, run, seen)]
    unnamed = [key for key in silent if not is_named(key)]
    assert unnamed == []


def test_a_key_that_nothing_reads_would_be_found(runs: dict[str, Config]) -> None:
    for key in UNREAD:
        assert not is_named(key) and not has_effect(key, runs["gpu"], {}), key


@pytest.mark.parametrize("key", sorted({*UNREAD, *FIXED}))
def test_a_key_without_effect_exists_and_says_why_in_one_line(key: str) -> None:
    reason = UNREAD.get(key) or FIXED[key]
    assert key in KEYS and reason and "\n" not in reason


LEFT_TO_THE_MEMORY_PLAN = {
    "use_fsdp": "auto",
    "world.actor_fraction": None,
    "world.finetune_fraction": None,
    "vllm_config.vllm_kwargs.gpu-memory-utilization": None,
    "vllm_config.vllm_kwargs.tensor-parallel-size": None,
}
"""Of upstream's fixed values."""


def test_the_defaults_of_a_run_are_the_known_ones(composed: Callable[..., Composition]) -> None:
    tree = composed("hardware=gpu").tree
    OmegaConf.resolve(tree)
    known = keys.leaves(DEFAULTS) | LEFT_TO_THE_MEMORY_PLAN
    assert len(known) > 120
    assert {key: value for key, value in keys.leaves(tree).items() if key in known} == known


@pytest.mark.parametrize(
    ("overlay", "expected"),
    [
        ("grpo", {"rl.policy_loss": "ppo", "attempts": 8}),
        (
            "gspo",  # of the file of this name in upstream's folder
            {"rl.policy_loss": "gspo", "rl.epsilon_low": 3e-4, "rl.epsilon_high": 4e-4, "attempts": 8},
        ),
        ("ppo", {"rl.policy_loss": "ppo", "attempts": 1, "rl.value_loss_coef": 0.1}),
        ("actor_critic", {"rl.policy_loss": "reinforce", "attempts": 1, "rl.value_loss_coef": 0.1}),
    ],
)
def test_an_overlay_changes_what_its_name_says(
    composed: Callable[..., Composition], overlay: str, expected: dict[str, Any]
) -> None:
    tree = composed("hardware=gpu", f"finetune={overlay}").tree
    assert {key: OmegaConf.select(tree.finetune, key) for key in expected} == expected
    head = tree.finetune.model_class.endswith("with-value-head")
    assert head == ("rl.value_loss_coef" in expected)
