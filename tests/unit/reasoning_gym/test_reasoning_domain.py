"""The domain's configurations: composed, and refused in one line before anything starts."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from domains.reasoning_gym.families import cached, entry
from pipelinerl.config.compose import compose
from tests.support.one_line import check_refusals, check_starts

NAME = "+domain=reasoning_gym"
TASKS = "dataset_loader_params.tasks"


@pytest.mark.usefixtures("families")
def test_the_default_mixture_starts_on_both_kinds_of_hardware(dry_run: Callable[..., Any]) -> None:
    check_starts(dry_run, NAME)


def test_a_mixture_is_chosen_on_the_command_line() -> None:
    tree = compose([NAME, "hardware=cpu", f"{TASKS}={{lcm: {{max_value: 9}}, gcd: null}}"]).tree
    tasks = tree.dataset_loader_params.tasks
    assert tasks.lcm == {"max_value": 9} and tasks.gcd is None and tasks.products


@pytest.mark.usefixtures("families")
def test_wrong_families_options_and_settings_are_one_line_each(dry_run: Callable[..., Any]) -> None:
    check_refusals(
        dry_run,
        NAME,
        (f"{TASKS}={{chain_sums: {{}}}}", "tasks.chain_sums: no such family; did you mean chain_sum?"),
        (f"{TASKS}={{gcd: {{max: 3}}}}", "tasks.gcd.max: no such option"),
        ("dataset_loader_params.count=0", "count=0"),
        ("train_dataset_names=[gsm8k]", "a name begins with train or test or val"),
        ("actor.task_template=Solve", "put {task} where the question goes"),
        ("reasoning_gym.answer_format=number", "reasoning_gym.answer_format='number': input should be"),
        ("reasoning_gym.reward=gold", "set both or neither"),
        ("finetune.rl.policy_loss=sft", "reasoning_gym.reward=gold and policy_loss=sft belong together"),
        ("reasoning_gym.deadline=1", "did you mean reasoning_gym.deadline_s?"),
    )


@pytest.mark.usefixtures("families")
def test_a_family_without_answers_cannot_be_imitated(dry_run: Callable[..., Any]) -> None:
    """It would be taught to say None."""
    imitation, family = (
        ("reasoning_gym.reward=gold", "finetune.rl.policy_loss=sft"),
        f"+{TASKS}.rush_hour={{}}",
    )
    said = "dataset_loader_params.tasks.rush_hour: its questions have no answer of their own"
    check_refusals(dry_run, NAME, (*imitation, family, said))
    for given in (imitation, (family,)):
        check_starts(dry_run, NAME, *given)


def test_the_missing_package_is_one_line(
    dry_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    for cache in (cached, entry):  # of families that earlier tests made
        cache.cache_clear()
    status, _, err = dry_run(NAME)
    assert status == 2 and err.strip().endswith("pip install 'pipelinerl[reasoning-gym]'")
    assert len(err.splitlines()) == 1
