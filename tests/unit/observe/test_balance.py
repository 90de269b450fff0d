"""Which side limits, from metrics as the roles write them, and what the launcher says about it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelinerl.config import Config
from pipelinerl.config.machine import Job
from pipelinerl.config.tree import Config as Tree
from pipelinerl.engines.cpu import kind as cpu
from pipelinerl.engines.vllm import kind as vllm
from pipelinerl.observe import balance as module
from pipelinerl.observe.balance import BalanceWatch, balance, remedies
from pipelinerl.observe.report import markdown, report_sections
from pipelinerl.observe.summary import summarise


def trained(
    steps: int, waited: float, worked: float = 1.0, first: int = 1, start: float = 100.0
) -> Iterator[dict[str, Any]]:
    """Records of steps that waited and worked so long, the first of them with a long wait for engines."""
    before = 60.0
    for index in range(steps):
        yield {
            "time": start + index * (waited + worked),
            "stats/completed_steps": first + index,
            "stats/time_waiting_for_data": before + index * waited,
            "throughput/sec_per_step": waited + worked,
        }


def looked(idle: float, upto: float = 60.0, start: float = 95.0) -> Iterator[dict[str, Any]]:
    """The actor's records: no request at all in its first ten seconds, then a share of looks."""
    for since in range(10, int(upto), 5):
        share = (10.0 + idle * (since - 10)) / since
        yield {
            "time": start + since - 10,
            "actor/time_since_start": float(since),
            "actor/requests/engine_idle_share": share,
        }


@pytest.mark.parametrize(
    ("waited", "idle", "side", "said"),
    [
        (
            0.0,
            0.43,
            "trainer",
            "the trainer limits (the trainer waited for samples 0% of the time, engines w",
        ),
        (1.5, 0.02, "engines", "the engines limit (the trainer waited for samples 60% of the time"),
        (0.1, 0.1, "both", "keep pace"),
        (1.0, 0.5, "neither", "what lies between them"),
    ],
)
def test_the_side_that_the_other_waits_for_limits(waited: float, idle: float, side: str, said: str) -> None:
    found = balance(list(trained(10, waited)), list(looked(idle)))
    assert found is not None and (found.steps, found.side) == (9, side)
    assert found.trainer_waits == pytest.approx(waited / (1 + waited))
    assert found.engines_idle == pytest.approx(idle, abs=0.001)
    assert said in str(found)


def test_without_looks_at_engines_the_trainer_s_waiting_decides() -> None:
    for waited, side in ((0.0, "trainer"), (1.0, "engines")):
        found = balance(list(trained(3, waited)), [])
        assert found is not None and (found.side, found.engines_idle) == (side, None)
    assert balance(list(trained(1, 0.0)), []) is None
    assert balance([{"time": 1.0}], []) is None


def test_the_first_step_behind_a_resume_is_left_out() -> None:
    """Four steps without a wait, and behind the launch four more: the first of these waited 50 s."""
    later = [
        r | {"stats/time_waiting_for_data": r["stats/time_waiting_for_data"] + 50.0}
        for r in trained(4, 0.0, first=5, start=300.0)
    ]
    steps = [*trained(4, 0.0), *later]
    counted, waited = balance(steps, [], [90.0, 250.0]), balance(steps, [])
    assert counted is not None and (counted.steps, counted.trainer_waits) == (6, 0.0)
    assert waited is not None and (waited.steps, waited.trainer_waits) == (7, 1.0)


def test_steps_made_again_and_an_actor_started_again_count_once() -> None:
    steps = [*trained(6, 1.0), *trained(6, 1.0, first=4, start=300.0)]
    found = balance(steps, [*looked(0.9), *looked(0.0)])
    assert found is not None and found.steps == 5 + 5
    assert found.engines_idle == pytest.approx(0.0, abs=0.001)


TREE: dict[str, Any] = {
    "jobs": [
        Job(kind="actor_llm", idx=0, gpus=[0]),
        Job(kind="actor", idx=1),
        Job(kind="finetune", idx=2, gpus=[1]),
    ],
    "derived": {"trainer_ranks": 1, "texts_per_step": 8, "texts_per_update": 8},
}


def config(**changes: Any) -> Config:
    return Config.model_validate(TREE | changes)


SLOW_ENGINE = {"vllm_kwargs": {"max-num-batched-tokens": 1024, "async-scheduling": False}}
TWO_ENGINES = {"jobs": [Job(kind="actor_llm", idx=3, gpus=[2]), *TREE["jobs"]]}
TWO_TRAINERS = {"jobs": [*TREE["jobs"][:2], Job(kind="finetune", idx=2, gpus=[1, 2])]}
CPU = {
    "hardware": {"kind": "cpu"},
    "engine": {"kind": "embedded"},
    "jobs": [job.model_copy(update={"gpus": []}) for job in TREE["jobs"]],
}


@pytest.mark.parametrize(
    ("side", "changes", "expected"),
    [
        ("trainer", {}, "a smaller llm.parameters.max_tokens (8192), a smaller model_path, more GPUs"),
        ("trainer", {"finetune": {"gradient_checkpointing": True}}, "finetune.gradient_checkpointing=auto"),
        ("trainer", {"finetune": {"compile": False}}, "finetune.compile=auto"),
        ("trainer", {"finetune": {"share_prefixes": False}}, "finetune.share_prefixes=true"),
        ("trainer", {"finetune": {"seq_packing": False}}, "finetune.seq_packing=true"),
        ("trainer", TWO_ENGINES, "a larger world.finetune_fraction (4)"),
        ("trainer", {"hardware": {"devices": 2}}, "more GPUs for the trainer, hardware.devices (2)"),
        ("trainer", CPU, "hardware.threads_per_process=2"),
        ("engines", CPU, "engine.threads=2"),
        (
            "engines",
            CPU | {"engine": {"kind": "embedded", "prefix_cache": False}},
            "engine.prefix_cache=true, engine.threads=2",
        ),
        (
            "engines",
            {"vllm_config": {"vllm_kwargs": {"enable-prefix-caching": False}}, "max_lag": 16},
            "vllm_config.vllm_kwargs.enable-prefix-caching=true, max_lag=24",
        ),
        ("engines", TWO_TRAINERS, "a larger world.actor_fraction (4), more actor.llm_max_rollouts (64)"),
        ("engines", {"max_lag": 16}, "max_lag=24"),
        ("engines", {"max_lag": 128}, "more actor.llm_max_rollouts (64)"),
        (
            "engines",
            {"vllm_config": SLOW_ENGINE, "max_lag": 0},
            "vllm_config.vllm_kwargs.max-num-batched-tokens=8192, "
            "vllm_config.vllm_kwargs.async-scheduling=true, max_lag=8",
        ),
        ("neither", {"max_lag": 0}, "max_lag=8, more actor.rollout_workers (1)"),
        ("both", {}, ""),
    ],
)
def test_only_keys_that_would_help_this_run_are_named(
    monkeypatch: pytest.MonkeyPatch, side: Any, changes: dict[str, Any], expected: str
) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 16)
    found = ", ".join(remedies(config(**changes), side))
    assert found == expected


ON_ONE_CARD = {"jobs": [Job(kind="actor_llm", idx=3, gpus=[0]), *TREE["jobs"]], "engine": {"per_card": 2}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            ON_ONE_CARD,
            "weights.transport=nccl, engine.per_card=1, a larger finetune.weight_update_interval (1)",
        ),
        ({}, "weights.transport=nccl, a larger finetune.weight_update_interval (1)"),
        ({"world": {"share_device": True}}, "a larger finetune.weight_update_interval (1)"),
        (CPU, "a larger finetune.weight_update_interval (1)"),
    ],
)
def test_updates_that_hold_the_trainer_are_told_with_what_makes_them_shorter(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], expected: str
) -> None:
    """A step of 3 s, of which the trainer waited for nothing, and an update of 2 s behind each of them."""
    monkeypatch.setattr(module, "_cores", lambda: 2)
    cfg = config(**changes, weights={"transport": "file"})
    steps = [{**record, "weights/total_s": 2.0} for record in trained(10, 0.0, worked=3.0)]
    for idle, side in ((0.43, "trainer"), (0.1, "both")):
        found = balance(steps, list(looked(idle)))
        assert found is not None and found.side == side
        assert found.updates == pytest.approx(2 / (3 + 2))
        assert str(found).endswith(", updates of the engines held the trainer 40%)")
        assert ", ".join(remedies(cfg, side, (), found.updates)) == expected
    # Also where most of an update went on beside the steps.
    few = balance([{**record, "weights/held_s": 0.7} for record in steps], list(looked(0.43)))
    assert few is not None and "updates" not in str(few)  # 19 %


def test_two_engines_on_a_card_leave_no_card_for_the_trainer() -> None:
    assert "world.finetune_fraction" not in ", ".join(remedies(config(**ON_ONE_CARD), "trainer"))


@pytest.mark.parametrize("side", ["trainer", "engines"])
def test_a_small_machine_whose_keys_are_all_set_is_told_what_is_left(
    monkeypatch: pytest.MonkeyPatch, side: Any
) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 2)
    cfg = config(**CPU | {"llm": {"parameters": {"max_tokens": 96}}})
    left = ["a smaller llm.parameters.max_tokens (96)", "a smaller model_path", "more cores than 2"]
    assert remedies(cfg, side) == left


def budgeted(ahead: int, waiting: int = 0, versions: int = 10, update: int = 8) -> list[dict[str, Any]]:
    """The actor's records at its versions, with so many texts reserved beyond the one before."""
    return [
        {
            "actor/trainer_model_version": number * update,
            "actor/reserved_texts": (number - 1) * update + 5.0 + ahead,
            "actor/discarded_texts": 5,
            "actor/problem_queue_size": waiting,
        }
        for number in range(1, versions + 1)
    ]


@pytest.mark.parametrize(
    ("max_lag", "actor", "expected"),
    [
        (256, budgeted(264), "max_lag=264"),  # 128 slots for rollouts of many texts
        (256, budgeted(263), "more actor.llm_max_rollouts (64)"),
        (256, budgeted(280, waiting=3), "more actor.llm_max_rollouts (64)"),  # slots are full as well
        (256, budgeted(264, versions=1), "more actor.llm_max_rollouts (64)"),
        (256, [*budgeted(264, versions=4), *budgeted(100, versions=6)], "more actor.llm_max_rollouts (64)"),
        (None, budgeted(264), "more actor.llm_max_rollouts (64)"),
    ],
)
def test_max_lag_is_named_where_the_records_show_that_it_holds_groups_back(
    monkeypatch: pytest.MonkeyPatch, max_lag: int | None, actor: list[dict[str, Any]], expected: str
) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 2)
    cfg = config(**TWO_ENGINES, max_lag=max_lag)
    for side in ("neither", "engines"):
        assert remedies(cfg, side, actor)[-1] == expected


def test_the_launcher_names_max_lag_from_the_actor_s_records(tmp_path: Path) -> None:
    watch = BalanceWatch(config(output_dir=str(tmp_path), max_lag=256))
    looks = list(looked(0.5, start=95.0))
    budget = budgeted(264, versions=len(looks))
    write(tmp_path, "actor", [one | other for one, other in zip(looks, budget, strict=True)])
    write(tmp_path, "finetune", list(trained(12, 1.0)))
    line = watch.line()
    assert line is not None and "neither trainer nor engines" in line and "; to change: max_lag=264" in line


def test_every_key_that_may_be_named_exists() -> None:
    source = "".join(Path(str(one.__file__)).read_text() for one in (module, cpu, vllm))
    for key in (
        *("finetune.gradient_checkpointing", "finetune.compile", "world.finetune_fraction", "engine.threads"),
        *("world.actor_fraction", "hardware.devices", "hardware.threads_per_process", "max_lag"),
        *("actor.rollout_workers", "actor.llm_max_rollouts"),
    ):
        assert key in source
        node: Any = Tree()
        for part in key.split("."):
            node = getattr(node, part)


def write(folder: Path, role: str, records: list[dict[str, Any]]) -> None:
    (folder / role).mkdir(exist_ok=True)
    with (folder / role / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_the_launcher_says_it_once_after_ten_steps_of_this_start(tmp_path: Path) -> None:
    write(tmp_path, "finetune", list(trained(30, 0.0)))  # of an earlier start
    watch = BalanceWatch(config(output_dir=str(tmp_path), max_lag=16))
    assert watch.line() is None
    steps = list(trained(12, 3.0, first=31, start=1000.0))
    write(tmp_path, "actor", list(looked(0.0, start=995.0)))
    write(tmp_path, "finetune", steps[:9])
    assert watch.line() is None
    write(tmp_path, "finetune", steps[9:])
    assert watch.line() == (
        "after 42 steps: the engines limit (the trainer waited for samples 75% of the time, "
        "engines without requests 0%); to change: max_lag=24"
    )
    write(tmp_path, "finetune", list(trained(12, 0.0, first=43, start=2000.0)))
    assert watch.line() is None


def test_a_pause_to_compile_does_not_count(tmp_path: Path) -> None:
    watch = BalanceWatch(config(output_dir=str(tmp_path)))
    write(tmp_path, "finetune", list(trained(5, 3.0)))
    behind = list(trained(10, 0.0, 1.2, first=6, start=220.0))
    write(tmp_path, "finetune", behind[:9])
    assert watch.line() is None
    write(tmp_path, "finetune", behind[9:])
    line = watch.line()
    assert line is not None and line.startswith("after 15 steps: the trainer limits")


@pytest.mark.parametrize("kind", ["actor", "finetune"])
def test_a_part_of_a_run_has_no_other_side(tmp_path: Path, kind: str) -> None:
    jobs = [job for job in TREE["jobs"] if job.kind == kind]
    watch = BalanceWatch(config(output_dir=str(tmp_path), jobs=jobs))
    write(tmp_path, "finetune", list(trained(12, 0.0)))
    assert watch.line() is None


def test_the_summary_of_a_run_has_its_balance(tmp_path: Path) -> None:
    write(tmp_path, "finetune", list(trained(20, 0.0)))
    write(tmp_path, "actor", list(looked(0.6)))
    found = summarise(tmp_path)
    assert found.to_json()["balance"]["limit"] == "trainer"
    assert "Over 19 steps the trainer limits" in markdown("", report_sections(found, []), {})
    (tmp_path / "finetune/metrics.jsonl").unlink()
    write(tmp_path, "finetune", list(trained(9, 0.0)))  # too few to judge by
    assert "the trainer limits" not in markdown("", report_sections(summarise(tmp_path), []), {})
    (tmp_path / "finetune/metrics.jsonl").unlink()
    assert summarise(tmp_path).to_json()["balance"] is None
