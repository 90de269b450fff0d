"""`pipelinerl.domains.X` is `domains.X` itself, whichever is imported first."""

import importlib

import pytest

from tests.support.forked import AFRESH
from tests.unit.launcher.conftest import python

PAIRS = ["guessing", "privacy_hopqa", "privacy_hopqa.data.answers", "privacy_hopqa.scorer.rules"]


@pytest.mark.parametrize("name", PAIRS)
def test_both_names_give_the_same_module(name: str) -> None:
    alias = importlib.import_module(f"pipelinerl.domains.{name}")
    canonical = importlib.import_module(f"domains.{name}")
    assert alias is canonical
    assert canonical.__spec__ is not None and canonical.__spec__.name == f"domains.{name}"


@pytest.mark.usefixtures("forked")
def test_the_alias_may_come_first_and_names_the_real_module() -> None:
    code = (
        "import pipelinerl.domains.privacy_hopqa.dataset as a, domains.privacy_hopqa.dataset as b, sys;"
        "assert a is b and a.__name__ == 'domains.privacy_hopqa.dataset';"
        "assert sum(m is a for m in sys.modules.values()) == 2"
    )
    answer = python("-c", AFRESH + code)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("first", "second"), [("pipelinerl.", ""), ("", "pipelinerl."), ("pipelinerl.", "pipelinerl.")]
)
def test_a_module_leaves_the_function_of_its_name_to_the_package(first: str, second: str) -> None:
    code = (
        f"from {first}domains.math.load_datasets import load_datasets as a;"
        f"from {second}domains.math import load_datasets as b;"
        f"import {second}domains.math.load_datasets;"
        f"from {first}domains.math import load_datasets as c; assert a is b is c"
    )
    answer = python("-c", AFRESH + code)
    assert answer.returncode == 0, answer.stderr


def test_the_published_dotted_paths_resolve() -> None:
    from pipelinerl.domain import resolve_dotted

    rollout = resolve_dotted("pipelinerl.domains.privacy_hopqa.generate_privacy_hopqa_rollout", "k")
    assert rollout.__module__ == "domains.privacy_hopqa.rollouts"
    assert callable(resolve_dotted("pipelinerl.domains.privacy_hopqa.dataset.load_problems", "k"))


def test_a_domain_that_does_not_exist_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pipelinerl\.domains\.nothing"):
        importlib.import_module("pipelinerl.domains.nothing")
