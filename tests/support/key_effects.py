"""What becomes of each key of the configuration: a change of it reaches a process, or the code names it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from domains.math.rewards import STATUSES, RewardTable
from domains.math.rewards import get_reward as math_reward
from pipelinerl.actor.worker import sampling_parameters
from pipelinerl.config import Config
from pipelinerl.config.hosts import imagined_hosts
from pipelinerl.config.variants import Variants
from pipelinerl.domain import ServiceSpec
from pipelinerl.launcher.commands import commands
from pipelinerl.launcher.placement import derive, place
from pipelinerl.observe import wandb_run
from pipelinerl.streams.kind import stream_settings
from tests.support.one_host import one_host

ROOT = Path(__file__).resolve().parents[2]
RUN = Path("/runs/run")
SERVICES = [ServiceSpec(name="service", argv=["serve"], url_key="url")]
READERS = [
    *(path for path in (ROOT / "pipelinerl").rglob("*.py") if "checks" not in path.parts),
    ROOT / "domains/math/rewards.py",
    ROOT / "domains/prompts.py",
    ROOT / "domains/dispatcher.py",
]
"""Where keys are read. What only a check reads has no effect."""


def leaves(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key of the tree that is no group, dotted, with its field."""
    for name, field in model.model_fields.items():
        key, kind = prefix + (field.alias or name), field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{key}.")
        else:
            yield key, field


def value_at(cfg: BaseModel, key: str) -> Any:
    node: Any = cfg
    for part in key.split("."):
        node = getattr(node, _attribute(part))
    return node


def with_value(cfg: Any, key: str, value: Any) -> Any:
    """A copy in which the key has this value, whatever the checks would say."""
    first, _, rest = key.partition(".")
    name = _attribute(first)
    return cfg.model_copy(update={name: with_value(getattr(cfg, name), rest, value) if rest else value})


def _attribute(part: str) -> str:
    return "validate_" if part == "validate" else part


def another_value(field: FieldInfo, value: Any) -> Any:
    """Some other value of the field's type; the same where only one is possible."""
    kind = field.annotation
    choices = [c for t in (kind, *get_args(kind)) if get_origin(t) is Literal for c in get_args(t)]
    choices += [name for one in field.metadata if isinstance(one, Variants) for name in one.places]
    if choices:
        return next((choice for choice in choices if choice != value), value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, list):
        return [*value, 7 if "int" in str(kind) else "x"]
    if isinstance(value, dict):
        return {**value, "x": 1}
    if "dict" in str(kind):
        return {"x": 1}
    return 3 if "int" in str(kind) else 2.0 if "float" in str(kind) else "other"


def effects(cfg: Config) -> str:
    """What the processes of a run get to see: placement, commands, sampling, wandb."""
    devices = 0 if cfg.hardware.kind == "cpu" else 8
    here = one_host(devices)
    hosts = here if cfg.world.backend == "local" else imagined_hosts(2, here[0].devices)
    jobs = place(cfg, hosts, ["service"], lambda host, port: True)
    placed = cfg.model_copy(update={"jobs": jobs, "derived_": derive(cfg, jobs)})
    rewards = RewardTable.model_validate(placed.rewards.model_dump())
    children = commands(placed, RUN, SERVICES, hosts, None)
    seen = [
        jobs,
        children,
        stream_settings(placed.streams),
        sampling_parameters(placed.llm.parameters),
        sampling_parameters(placed.test_llm.parameters),
        [math_reward(status, done, rewards) for status in STATUSES for done in (True, False)],
        wandb_run.run_arguments(RUN, placed.wandb) if placed.wandb.use_wandb else None,
    ]
    return repr(seen)


def groups(model: type[BaseModel] = Config, name: str = "cfg") -> Iterator[tuple[str, str]]:
    """Names of the sections' classes, each with the key of its group."""
    yield model.__name__, name
    for key, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from groups(field.annotation, key)


GROUPS = dict(groups())


@cache
def named_in_code() -> frozenset[tuple[str, str]]:
    """(owner, name) of every attribute or item that READERS read.

    `rules = cfg.actor; rules.attempts` counts as `actor.attempts`: names are followed within a file, from
    assignments, from parameters that are annotated with a section, and from `self` in a section's methods.
    """
    found: set[tuple[str, str]] = set()
    for source in READERS:
        module = ast.parse(source.read_text(encoding="utf-8"))
        found |= set(_reads_within(module, _owners(module)))
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef) and node.name in GROUPS:
                found |= set(_reads_within(node, {"self": {GROUPS[node.name]}}))
    return frozenset(found)


def _owners(module: ast.Module) -> dict[str, set[str]]:
    """What each name of a file may stand for."""
    owners: dict[str, set[str]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name):
            owners.setdefault(node.arg, set()).update(filter(None, [GROUPS.get(node.annotation.id)]))
    for alias, owner in _aliases(module):
        owners.setdefault(alias, set()).update({owner} | owners.get(owner, set()))
    return owners


def _reads_within(scope: ast.AST, owners: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(scope):
        owner: str | None = None
        name: str | None = None
        if isinstance(node, ast.Attribute):
            owner, name = _last(node.value), node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            owner, name = _last(node.func.value), _constant(node.args)
        elif isinstance(node, ast.Subscript):
            owner, name = _last(node.value), _constant([node.slice])
        if owner is not None and name is not None:
            yield from ((one, name) for one in {owner} | owners.get(owner, set()))


def _aliases(scope: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts))
            for name, value in pairs:
                values = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
                for last in filter(None, map(_last, values)):
                    if (alias := _last(name)) is not None:
                        yield alias, last


def _last(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _constant(nodes: list[Any]) -> str | None:
    first = nodes[0] if nodes else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
