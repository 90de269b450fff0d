"""The domain's configurations and tasks: composed, disjoint by position, and refused in one line."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.one_line import check_refusals, check_starts

NAME = "+domain=verifiers"
ID = "dataset_loader_params.env.taskset.id"


@pytest.mark.usefixtures("tasksets")
def test_the_evaluation_has_the_first_tasks_and_training_those_behind() -> None:
    from domains.verifiers import load_problems
    from domains.verifiers.environments import EnvironmentRefused

    env = {"taskset": {"id": "numbers_v1", "most": 12}}
    problems = load_problems(["train", "test"], env, test_count=5)
    names = [json.loads(one["task"])["name"] for one in problems]
    assert names == [f"n{index}" for index in [5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4]]
    assert {one["dataset"] for one in problems} == {"train/numbers_v1", "test/numbers_v1"}
    assert len({one["id"] for one in problems}) == 12
    other = {"taskset": {"id": "numbers_v1", "most": 3}}
    assert len(load_problems(["train"], env, test_env=other)) == 12
    assert len(load_problems(["test"], env, test_env=other)) == 3
    for params, message in (
        ({"env": {"taskset": {"id": "dialogue_v1"}}}, "count: dialogue_v1 has no end"),
        ({"env": env, "test_count": 12}, "train: numbers_v1 has no more than 12 tasks"),
        ({"env": {"taskset": {"id": "none_such"}}}, "taskset 'none_such' not found"),
        ({"env": {"taskset": {"id": "numbers_v1", "few": 3}}}, "ValidationError"),
    ):
        with pytest.raises(EnvironmentRefused, match=message) as refused:
            load_problems(["train"], **params)
        assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("tasksets")
def test_a_seat_is_played_in_the_worker_unless_somebody_names_another_program() -> None:
    from domains.verifiers.environments import configured

    seats = configured({"taskset": {"id": "debate_v1"}, "left": {"harness": {"id": "bash"}}})
    assert [seat.harness.id for seat in (seats.left, seats.right, seats.judge)] == [
        *("bash", "pipelinerl_inproc", "pipelinerl_inproc")
    ]
    assert {seat.runtime.type for seat in (seats.left, seats.right, seats.judge)} == {"subprocess"}
    assert seats.right.sampling.max_tokens == 2
    remote = configured({"taskset": {"id": "debate_v1"}, "left": {"runtime": {"type": "docker"}}})
    assert (remote.left.runtime.type, remote.right.runtime.type) == ("docker", "subprocess")
    for named in ({"id": "null"}, {"id": None}, {"tool_timeout": 9.0}, None):
        left = configured({"taskset": {"id": "debate_v1"}, "left": {"harness": named}}).left
        assert left.harness.id == "pipelinerl_inproc"
        assert left.harness.tool_timeout == (named or {}).get("tool_timeout", 600.0)


@pytest.mark.usefixtures("tasksets")
def test_a_program_that_needs_a_container_is_refused_without_one() -> None:
    from domains.verifiers.environments import EnvironmentRefused, configured

    left = {"harness": {"id": "codex"}}
    with pytest.raises(EnvironmentRefused, match=r"left: the program codex needs a container") as refused:
        configured({"taskset": {"id": "debate_v1"}, "left": left})
    assert "\n" not in str(refused.value)
    seats = configured({"taskset": {"id": "debate_v1"}, "left": left | {"runtime": {"type": "docker"}}})
    assert seats.left.harness.id == "codex"


@pytest.mark.usefixtures("tasksets")
def test_a_start_is_refused_in_one_line(dry_run: Callable[..., Any]) -> None:
    check_refusals(
        dry_run,
        NAME,
        ("env.taskset.id names no taskset",),
        (f"{ID}=none_such", "taskset 'none_such' not found"),
        (f"{ID}=dialogue_v1", "count: dialogue_v1 has no end"),
        (f"{ID}=tools_v1", "verifiers.renderer is null and tools_v1 has tools"),
        (f"{ID}=numbers_v1", "verifiers.render=qwen3", "did you mean verifiers.renderer?"),
    )
    check_starts(dry_run, NAME, f"{ID}=tools_v1", "verifiers.renderer=qwen3")
    check_starts(dry_run, NAME, f"{ID}=dialogue_v1", "dataset_loader_params.count=4")


def test_the_missing_package_is_one_line(
    dry_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    status, _, err = dry_run(NAME, f"{ID}=numbers_v1")
    assert status == 2 and err.strip().endswith("pip install 'pipelinerl[verifiers]'")
    assert len(err.splitlines()) == 1
