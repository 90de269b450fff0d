"""Whether the functions that a run will call can be imported, and take what they will be given.

The checks before a start read source and import nothing, because the launcher stays without torch and
domains may need it. `validate=true` looks closer: it runs this file in a process of its own.
"""

import contextlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

from pipelinerl.base.errors import ConfigError
from pipelinerl.base.guard import ask
from pipelinerl.config.environments import OWN_KEYS, located_specs
from pipelinerl.config.tree import Config
from pipelinerl.domain import import_dotted, no_module
from pipelinerl.launcher.checks.dotted import LOADER, POLICY, missing_import, refused_call, refused_kind

DEADLINE_S = 300.0
"""Importing torch from a cold network disk takes a minute."""
_BOTH = "dataset_loader, actor.rollout_policy"

Call = tuple[str, str, Sequence[str], Sequence[str]]
"""Key, dotted path, and the arguments that a run gives: the ones by position, and the names of the others."""


def check(cfg: Config) -> list[str]:
    """One line per function that cannot be imported or would refuse its arguments; imports nothing here."""
    try:
        done = ask([sys.executable, "-m", __name__], json.dumps(list(calls(cfg))), DEADLINE_S)
    except subprocess.TimeoutExpired:
        return [f"{_BOTH}: importing them took more than {DEADLINE_S:.0f} s"]
    if done.returncode != 0:
        last = " ".join(done.stderr.split())[-200:]
        return [f"{_BOTH}: importing them ended their process with status {done.returncode}: {last}"]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def calls(cfg: Config) -> Iterator[Call]:
    """The functions of domains that this run calls."""
    if "actor" not in cfg.debug.roles:
        return
    params = cfg.dataset_loader_params
    own = params.get("per_domain_params") or {}
    yield "dataset_loader", cfg.dataset_loader or "", LOADER, list(params)
    for domain, path in (params.get("domain_loaders") or {}).items():
        key = f"dataset_loader_params.domain_loaders.{domain}"
        yield key, str(path), LOADER, list(own.get(domain) or {})
    yield "actor.rollout_policy", cfg.actor.rollout_policy or "", POLICY, []
    for domain, path in cfg.actor.domain_rollouts.items():
        yield f"actor.domain_rollouts.{domain}", path, POLICY, []
    for where, _, spec in located_specs(cfg):
        if "_target_" not in spec:  # which is said where environments are checked
            continue
        arguments = [key for key in spec if key not in {"_target_", *OWN_KEYS}]
        yield f"{where}._target_", str(spec["_target_"]), [], arguments


def problem(key: str, path: str, positional: Sequence[str], named: Sequence[str]) -> str | None:
    """Why a run could not call what stands at `path`, or None. Imports it."""
    try:
        function = import_dotted(path, key)
    except ConfigError as error:
        return str(error)
    if not callable(function):
        return f"{key}={path}: a {type(function).__name__} is no function"
    if missing := missing_import(path):
        return f"{key}={path}: {no_module(missing)}"
    yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    awaits = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if refused := refused_kind(key, path, positional, awaits, yields):
        return refused
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return None
    return refused_call(key, path, signature, positional, named)


def main() -> None:
    """Read calls from stdin, print the problems as the last line."""
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        found = [problem(*call) for call in asked]
    print(json.dumps([" ".join(line.split()) for line in found if line is not None]))


if __name__ == "__main__":
    main()
