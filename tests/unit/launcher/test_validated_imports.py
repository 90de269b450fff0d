"""`validate=true` imports what a run will call, in a process of its own, and says in a line what is wrong."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.launcher.conftest import ROOT, Validate

pytestmark = pytest.mark.usefixtures("forked")

SOUND = """
def load(names, count=3):
    return [{"number": index} for index in range(count)]

async def play(cfg, llm, problem, session):
    raise NotImplementedError
"""


@pytest.fixture
def validated(
    validate: Validate, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """Status and stderr for a module of a user, which other processes find as well."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")

    def run(source: str, *arguments: str) -> tuple[int, str]:
        name = f"own_{len(list(tmp_path.glob('own_*.py')))}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        given = [f"dataset_loader={name}.load", f"actor.rollout_policy={name}.play", f"model_path={model}"]
        return validate("hardware=cpu", *given, *arguments)

    return run


def test_a_sound_domain_is_valid(validated: Callable[..., tuple[int, str]]) -> None:
    assert validated(SOUND, "+dataset_loader_params.count=4") == (0, "")
    noisy = "print('hello'); import sys; print('there', file=sys.stderr)" + SOUND
    assert validated(noisy) == (0, "")


OF_A_CLASS = (
    SOUND
    + """
class Mine:
    @staticmethod
    def problems(names):
        return load(names)

    @classmethod
    async def attempt(cls, cfg, llm, problem, session):
        raise NotImplementedError

class Others(Mine):
    pass
"""
)


def test_methods_of_a_class_may_be_named_as_upstream_may(validated: Callable[..., tuple[int, str]]) -> None:
    """Its programs look them up with hydra's `get_method`."""
    named = "dataset_loader=own_{0}.{1}.problems", "actor.rollout_policy=own_{0}.{1}.{2}"
    assert validated(OF_A_CLASS, *(one.format(0, "Mine", "attempt") for one in named)) == (0, "")
    assert validated(OF_A_CLASS, *(one.format(1, "Others", "attempt") for one in named)) == (0, "")
    status, said = validated(OF_A_CLASS, *(one.format(2, "Mine", "attend") for one in named))
    assert status == 2 and "own_2.Mine has no attend; did you mean attempt" in said


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("import nothing_here" + SOUND, [], "own_0.load: no module named nothing_here; check the spelling"),
        ("from json import nothing" + SOUND, [], "own_0.load: importing own_0 failed: cannot import name"),
        ("1 / 0" + SOUND, [], "own_0.load: importing it failed: ZeroDivisionError: division by zero"),
        ("import os; os._exit(3)" + SOUND, [], "importing them ended their process with status 3"),
        (SOUND, ["+dataset_loader_params.conut=4"], "and takes (names, count=3): got an unexpected keyword"),
        (
            SOUND.replace("problem, session", "problem"),
            [],
            "session) and takes (cfg, llm, problem)",
        ),
        (SOUND.replace("async def play", "play = 5\ndef other"), [], "play: a int is no function"),
        (
            SOUND,
            ["environment={_target_: fractions.Fraction, nmu: 1}"],
            "_target_=fractions.Fraction: is called",
        ),
    ],
)
def test_what_a_run_could_not_call_is_one_line(
    validated: Callable[..., tuple[int, str]], source: str, arguments: list[str], message: str
) -> None:
    status, err = validated(source, *arguments)
    lines = set(err.splitlines())
    assert status == 2 and any(message in line for line in lines), err
    assert all(line.startswith("launcher: ") for line in lines) and len(lines) <= 2
