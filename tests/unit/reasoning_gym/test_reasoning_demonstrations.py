"""Questions of families with answers to imitate: right, or mostly careless; none is of the evaluation."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from domains.logic import demonstrations as logic
from domains.logic.domain import LogicDomain
from domains.reasoning_gym import demonstrations as families
from domains.reasoning_gym.domain import ReasoningGymDomain
from domains.split import is_held_out
from pipelinerl.config.compose import compose
from pipelinerl.extras.bootstrap.demonstrations import Demonstration

pytest.importorskip("reasoning_gym", reason="pip install 'pipelinerl[reasoning-gym]'")


@dataclass(frozen=True)
class Case:
    domain: LogicDomain | ReasoningGymDomain
    profile: Sequence[str]
    tasks: Collection[str]

    def shown(self, phase: str, *options: str) -> list[Demonstration]:
        cfg = compose([*self.profile, "hardware=cpu", *options]).tree
        return list(self.domain.demonstrations(cfg, 5, phase))


CASES = {
    "logic": Case(LogicDomain(), ["+domain=logic"], logic.MISTAKES),
    "reasoning_gym": Case(
        ReasoningGymDomain(),
        ["+domain=reasoning_gym", "+preset=reasoning_gym_small"],
        families.MISTAKES,
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_exact_answers_are_right_and_careless_ones_mostly_not(case: Case) -> None:
    exact, careless = case.shown("exact"), case.shown("careless")
    assert [one.prompt for one in exact] == [one.prompt for one in careless]
    assert all(one.exact for one in exact) and not any(one.exact for one in careless)
    for task in case.tasks:
        same = [
            right.completion == other.completion
            for right, other in zip(exact, careless, strict=True)
            if right.kind == task
        ]
        assert 0.25 < sum(same) / len(same) < 0.75, task


def test_no_question_of_the_evaluation_is_shown_and_the_fixed_pieces_are_in_the_others(case: Case) -> None:
    asked = [one.prompt for one in case.shown("exact")]
    assert asked and not any(is_held_out(question, 0.2) for question in asked)
    assert all(any(piece in question for question in asked) for piece in case.domain.vocabulary())


@pytest.mark.parametrize("name", CASES)
def test_the_bundled_model_would_be_made_with_the_same_tokens_again(name: str) -> None:
    record = json.loads(Path("domains", name, "checkpoint/recipe.json").read_text())
    assert record["recipe"]["added_tokens"] == list(CASES[name].domain.vocabulary())


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("dataset_loader_params.tasks={%s: {}}", "tasks.%s: has no demonstrations"),
        ("actor.system_prompt=Think.", "demonstrations of .* are of bare questions"),
    ],
)
def test_what_has_no_demonstrations_is_refused(case: Case, option: str, said: str) -> None:
    task = "sudoku" if isinstance(case.domain, LogicDomain) else "mini_sudoku"
    with pytest.raises(ValueError, match=said.replace("%s", task)):
        case.shown("exact", option.replace("%s", task))
