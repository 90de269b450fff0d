"""`make experiments` trains the environments of other ecosystems: its rule, scripts, and what they need."""

import re
import shlex
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environments, pretrained
from benchmarks._figures import ROOT, command_line
from pipelinerl.config.compose import compose
from pipelinerl.pretrained import MODELS

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
ECOSYSTEMS = {
    "reasoning-gym": {"reasoning_gym"},
    "textarena": {"textarena"},
    "verifiers": {"verifiers"},
    "ServiceNow's PipelineRL": {"counting", "ifeval", "fn_calling", "coding"},
}


def variable(name: str) -> str:
    (value,) = re.findall(rf"^{name} :?\??= ?(.*)$", MAKEFILE, re.MULTILINE)
    return value


def recipe(target: str) -> str:
    (lines,) = re.findall(rf"^{re.escape(target)}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return lines


def commands() -> list[tuple[str, list[str]]]:
    """Scripts of `benchmarks` that the rule runs, with their arguments."""
    found = [(name, []) for name in variable("EXPERIMENTS").split()]
    for words in re.findall(r"^\t\$\(PY\) -m benchmarks\.(.+)$", recipe("experiments"), re.MULTILINE):
        script, *given = shlex.split(words.replace("$(SMOLLM2)", variable("SMOLLM2").strip()))
        found.append((script, given))
    return found


def options_of(script: str, given: list[str]) -> Namespace:
    return command_line(import_module(f"benchmarks.{script}").__doc__, given)


def of_reasoning_gym(options: Namespace) -> set[str]:
    return {str(word) for word in pretrained.overrides_of(options, 0) if word.startswith("+domain=")}


def of_coding(_: Namespace) -> set[str]:
    source = Path(str(import_module("benchmarks.coding").__file__)).read_text(encoding="utf-8")
    return set(re.findall(r'launch\(out, .*"(\w+)"\)', source))


TRAINED: dict[str, Callable[[Namespace], Any]] = {
    "pretrained": of_reasoning_gym,
    "environments": lambda options: {options.domain},
    "text_domains": lambda options: set(options.domains),
    "coding": of_coding,
}
"""Domains that a script trains with these options."""


def trained() -> set[str]:
    found = set[str]()
    for script, given in commands():
        if script in TRAINED:
            found |= {one.removeprefix("+domain=") for one in TRAINED[script](options_of(script, given))}
    return found


def test_six_environments_of_four_ecosystems_learn_in_make_experiments() -> None:
    reached = {name: domains & trained() for name, domains in ECOSYSTEMS.items()}
    assert reached == ECOSYSTEMS
    assert sum(map(len, reached.values())) >= 6 and len(reached) == 4


@pytest.mark.parametrize("script, given", commands())
def test_every_script_is_there_and_takes_its_arguments(script: str, given: list[str]) -> None:
    module = import_module(f"benchmarks.{script}")
    options_of(script, given)
    assert callable(module.main)


def test_a_run_of_each_environment_composes(tmp_path: Path) -> None:
    for domain, overrides in environments.OVERRIDES.items():
        tree = compose([f"+domain={domain}", "hardware=cpu", f"model_path={tmp_path}", *overrides]).tree
        assert tree.finetune.max_train_steps * tree.finetune.gradient_accumulation_passes > 1000


def test_the_rule_installs_what_the_environments_need() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    needed = {"reasoning-gym", "textarena", "verifiers"}
    assert all(f'"{extra}": [' in setup for extra in needed)
    assert set(re.findall(r"\.\[([\w,-]+)\]", recipe("$(ENVIRONMENTS)"))[0].split(",")) == needed
    assert MODELS["smollm2"].remedy.removeprefix("pip install ") in recipe("$(SMOLLM2)/source.json")
    assert re.search(r"^experiments: environments$", MAKEFILE, re.MULTILINE)
    assert re.search(r"^environments: \$\(ENVIRONMENTS\) \$\(SMOLLM2\)/source\.json$", MAKEFILE, re.MULTILINE)
