"""Learning experiments from their specifications: what runs are told, and what is made of them."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from benchmarks import __main__ as command
from benchmarks import _by_metric, _by_task, _compare, _likeliest, _reputation, _spec, experiment
from benchmarks._figures import Figure, at_least
from benchmarks.gpu import side_by_side
from benchmarks.gpu.runs import ENDED
from domains.logic import load_problems
from domains.raro.data import load_problems as raro_problems
from domains.reputation_hacking.game.optimum import Yardstick
from domains.reputation_hacking.game.params import Params
from domains.reputation_hacking.game.policies import CONSTANTS, play, returns
from pipelinerl.config.compose import compose
from pipelinerl.domain import load_domain
from pipelinerl.observe.history import Evaluation

STEPS = [{"stats/samples": 64 * n, "stats/completed_steps": n, "time": 60.0 * n} for n in (1, 2, 3)]
EVALUATIONS = [
    Evaluation(0, {"reward": [0.0, 0.5, None], "success": [0.0, 0.0, None], "no_answer": [None] * 3}),
    Evaluation(130, {"reward": [0.5, 0.5, 0.5], "success": [0.0, 0.0, 0.0], "no_answer": [None] * 3}),
    Evaluation(192, {"reward": [1.0, 0.5, 1.0], "success": [1.0, 0.0, 1.0], "no_answer": [None] * 3}),
]
PROBLEMS = [{"dataset": "test/a"}, {"dataset": "test/a"}, {"dataset": "test/b", "num_constraints": 2}]
SPECS = sorted(one.stem for one in _spec.SPECS.glob("*.yaml"))
READ = {name: experiment.read(name) for name in SPECS}
RUNS = [(name, hardware) for name, spec in READ.items() for hardware in spec.hardware]


EVERY_METRIC = {metric for spec in READ.values() for metric in spec.metrics}
PLAIN = _spec.Spec(about="x", rows="metrics", seeds=[7], arms={"a": _spec.Arm()}, hardware={})


def asked(name: str, *words: object) -> experiment.Experiment:
    options = command.parsed(["run", name, *map(str, words)])
    return experiment.Experiment(experiment.read(name), options)


@pytest.fixture
def a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever folder is read has these steps, evaluations and problems."""
    monkeypatch.setattr(_by_metric, "read_evaluations", lambda _: EVALUATIONS)
    for module in (_by_metric, _by_task):
        monkeypatch.setattr(module, "read_metrics", lambda *_: STEPS)
    monkeypatch.setattr(_by_task, "test_problems", lambda _: PROBLEMS)


@pytest.fixture
def a_run_of_any_domain(a_run: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with the values of `reward` for every metric that some specification asks for."""
    full = [Evaluation(one.version, dict.fromkeys(EVERY_METRIC, one.values["reward"])) for one in EVALUATIONS]
    monkeypatch.setattr(_by_metric, "read_evaluations", lambda _: full)
    monkeypatch.setattr(_by_metric, "resolve_dotted", lambda *_: lambda _: lambda one: one.values["reward"])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.mark.usefixtures("a_run")
def test_a_row_by_metric_has_both_ends_and_the_way_between() -> None:
    row = _by_metric.row_of(7, Path("textarena_7"), PLAIN, PLAIN.arms["a"])
    assert row["values"].keys() == {"reward", "success"}  # one that never applied is left out
    assert row["values"]["success"] == [[0.0, 0.0, None], [1.0, 0.0, 1.0]]
    assert row["curve"]["reward"] == [[0, 0.25], [130, 0.5], [192, pytest.approx(2.5 / 3)]]
    assert (row["texts"], row["steps"], row["training_min"]) == (192, 3, 2.0)
    assert row["texts_per_s"] == pytest.approx(128 / 120)
    table = _by_metric.table_of([row, row | {"seed": 8}])
    assert table["reward"]["difference"]["n"] == 2  # the third problem has no value before
    assert table["reward"]["difference"]["mean"] == pytest.approx(0.5)
    figures = {one.name: one.value for one in _by_metric.figures_of([row], table, "textarena: ")}
    assert figures["textarena: success before"] == 0.0 and figures["textarena: seed 7: training"] == 2.0
    assert figures["textarena: seed 7: success after"] == pytest.approx(2 / 3)


@pytest.mark.usefixtures("a_run")
def test_an_arm_may_count_with_its_best_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    worse = Evaluation(256, {name: [0.0, 0.0, 0.0] for name in ("reward", "success")})
    monkeypatch.setattr(_by_metric, "read_evaluations", lambda _: [*EVALUATIONS, worse])
    last, best = (_by_metric.row_of(7, Path("x"), PLAIN, _spec.Arm(best=best)) for best in (False, True))
    assert last["values"]["reward"][1] == [0.0, 0.0, 0.0]
    assert best["values"]["reward"] == [[0.0, 0.5, None], [1.0, 0.5, 1.0]]
    assert best["curve"] == last["curve"] and best["texts"] == 256


@pytest.mark.usefixtures("a_run")
def test_a_row_keeps_means_over_tenths_of_training_rollouts_and_of_the_trainer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = [{"actor/sometimes_success": share, "step": step} for step, share in enumerate((0.25, 0.75))]
    records = {"actor": groups, "finetune": [{**one, "step": one["stats/samples"]} for one in STEPS]}
    monkeypatch.setattr(_by_metric, "read_metrics", lambda _, role: records[role])
    asked = {"tenths": {"useful": "sometimes_success"}, "trainer_tenths": {"samples": "stats/samples"}}
    row = _by_metric.row_of(7, Path("x"), PLAIN.model_copy(update=asked), PLAIN.arms["a"])
    assert row["tenths"] == {"useful": [0.25, 0.75], "samples": [64.0, 128.0, 192.0]}


def test_a_run_of_one_step_has_no_rate() -> None:
    assert _by_metric.texts_per_s(STEPS) == pytest.approx(128 / 120)
    with pytest.raises(ValueError, match="1 optimizer steps; a rate needs two"):
        _by_metric.texts_per_s(STEPS[:1])


def test_means_of_tenths_have_a_part_for_each_value_of_a_short_run() -> None:
    assert _by_metric.means_of_tenths([n / 20 for n in range(20)])[::9] == pytest.approx([0.025, 0.925])
    assert _by_metric.means_of_tenths([1.0, 2.0]) == [1.0, 2.0] and _by_metric.means_of_tenths([]) == []


@pytest.mark.usefixtures("a_run")
def test_a_row_by_task_counts_minutes_of_training_and_failed_rollouts() -> None:
    row = _by_task.row_of(7, Path("tir_7"))
    assert row["tasks"] == ["a", "a", "2 instructions"]
    assert (row["before"], row["after"], row["failed"]) == ([0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [1, 0])
    assert [one["minutes"] for one in row["curve"]] == [0.0, 1.0, 2.0]
    assert row["training_s"] == 120.0


def test_problems_are_paired_by_group_and_count_once() -> None:
    tasks = ["sums", "sums", "products", "products"]
    rows = [
        {"tasks": tasks, "before": [0, 0, 1, 0], "after": [1, 0, 1, 1]},
        {"tasks": tasks, "before": [1, 0, 0, 0], "after": [1, 1, 1, 1]},
    ]
    table = _by_task.table_of(rows)
    assert list(table) == ["all", "sums", "products"]
    assert [table["sums"][when]["mean"] for when in ("before", "after", "difference")] == [0.25, 0.75, 0.5]
    assert table["all"]["difference"]["n"] == 4 and table["all"]["difference"]["mean"] == 0.625
    # No question became worse, so the interval of the paired difference lies above 0.
    assert 0.0 < table["all"]["difference"]["low"] < 0.625 < table["all"]["difference"]["high"] <= 1.0
    with pytest.raises(AssertionError, match="different questions"):
        _by_task.table_of([rows[0], {**rows[1], "tasks": ["sums"] * 4}])


@pytest.mark.parametrize("kind", experiment.KINDS.values(), ids=list(experiment.KINDS))
def test_a_run_without_a_second_evaluation_is_refused(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_by_metric, "read_evaluations", lambda _: EVALUATIONS[:1])
    with pytest.raises(ValueError, match="logic_0: 1 evaluations"):
        kind.row_of(0, Path("logic_0"), PLAIN, PLAIN.arms["a"])


def test_always_the_same_answer_is_the_most_frequent_one_of_each_group() -> None:
    numbers = [{"dataset": f"test/{kind}", "count": count} for kind in "ab" for count in (1, 1, 1, kind)]
    shares = _likeliest.best_constant([*numbers, {"dataset": "test/c", "answer": "7"}])
    assert shares == {"a": 0.75, "b": 0.75, "c": 1.0}
    assert _likeliest.best_constant([{"dataset": "ifeval", "num_constraints": 1}]) == {}


def test_puzzles_are_always_answered_by_an_order_or_by_who_tells_the_truth() -> None:
    pytest.importorskip("reasoning_gym", reason="pip install 'pipelinerl[reasoning-gym]'")
    tasks = {"web_of_lies": {"n_people": 2}, "word_sorting": {"min_words": 3, "max_words": 3}}
    problems = load_problems(["logic_test"], tasks=tasks, test_count=8)
    assert {type(_likeliest.answer_of(one)[0]) for one in problems[:8]} == {bool}
    assert all(sorted(_likeliest.answer_of(one)) == [0, 1, 2] for one in problems[8:])


def test_runs_are_compared_with_the_most_likely_answers_by_problem() -> None:
    rows = [{"after": [1.0] * 4}, {"after": [1.0, 1.0, 1.0, 0.0]}]
    one = _likeliest.beside(rows, {"success": [1.0, 0.0, 0.0, 1.0], "constant": {"a": 0.5}})
    assert one["success"]["mean"] == 0.5 and one["difference"]["mean"] == 0.375
    figures = {figure.name: figure.value for figure in _likeliest.figures_of("tir", one)}
    assert figures["tir: after, above those"] == 0.375 and figures["tir a: always the same answer"] == 0.5


@pytest.mark.parametrize(("name", "hardware"), RUNS)
def test_every_run_of_a_specification_composes(name: str, hardware: str, model: Path) -> None:
    one = asked(name, "--hardware", hardware, "--model", model)
    for arm in one.place.arms or one.spec.arms:
        tree = compose(one.keys(arm, 3)).tree
        problems = load_domain(tree.domain_hooks).validate(tree)
        assert [said for said in problems if "not installed" not in said] == []
        texts = tree.finetune.gradient_accumulation_passes * tree.finetune.train_batch_size
        every, before_and_after = tree.eval_every_n_versions, 1_000_000
        assert every == before_and_after or 0 < every <= tree.finetune.max_train_steps * texts
        start = one.work / "start" if one.place.start and one.place.needs_model else model
        assert tree.seed == 3 and tree.model_path == str(start)
        assert "{" not in str(tree.get("privacy_hopqa", {}).get("world", {}).get("seed", 3))


def test_arms_of_raro_have_the_methods_values_and_equal_policy_completions() -> None:
    one = asked("raro")
    trees = {arm: compose(one.keys(arm, 0)).tree for arm in one.spec.arms}
    texts = {arm: tree.finetune.gradient_accumulation_passes for arm, tree in trees.items()}
    rl = {"raro": 2, "half": 2, "no_tie": 2, "no_replay": 1, "raro_rlvr": 0}
    assert texts == {"raro_sft": 64} | {arm: 64 * (1 + pairs * 16) for arm, pairs in rl.items()}
    for arm in rl:
        assert (trees[arm].finetune.attempts, trees[arm].finetune.rl.kl_coef) == (16, 1e-3)
        assert trees[arm].eval_every_n_versions == 26 * texts[arm] and trees[arm].max_lag == texts[arm]
    for arm in ("raro", "half", "no_tie", "no_replay"):
        assert (trees[arm].raro.critic_group_size, trees[arm].raro.tau_crit, trees[arm].raro.tau_pol) == (
            16,
            0.55,
            0.6,
        )
        weights = ("1/2", "1/2") if arm == "half" else ("1/9", "8/9")
        assert tuple(trees[arm].finetune.rl.role_weights[role] for role in ("policy", "critic")) == weights
    assert trees["no_tie"].raro.allow_tie is False and trees["no_replay"].raro.replay.fraction == 0
    asked_for = dict(trees["raro"].raro.data.countdown.sizes)
    data = OmegaConf.to_container(trees["raro"].raro.data)
    assert {split: len(raro_problems([split], data)) for split in asked_for} == asked_for


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_arms_of_the_privacy_agent_differ_in_the_reward_alone(hardware: str, model: Path) -> None:
    one = asked("privacy_arms", "--hardware", hardware, "--model", model)
    assert one.arms == ["outcome", "situational", "penalty"]  # the others run where they are named
    trees = {arm: compose(one.keys(arm, 5)).tree for arm in one.spec.arms}
    rewards = {
        arm: (tree.privacy_hopqa.training_reward_mode, tree.privacy_hopqa.privacy_reward_weight)
        for arm, tree in trees.items()
    }
    mode = "hop_step_situational"
    assert rewards == {
        "outcome": ("outcome", 0),
        "situational": (mode, 0),
        "penalty": (mode, 1),
        "stronger": (mode, 3),
        "padded": (mode, 0),
    }
    assert {tree.privacy_hopqa.world.seed for tree in trees.values()} == {5}
    assert {tree.privacy_hopqa.world.test_chains for tree in trees.values()} == {344}
    assert [arm for arm, tree in trees.items() if tree.finetune.rl.pad_step_rewards_for_advantage] == [
        "padded"
    ]
    assert not trees["outcome"].finetune.rl.step_reward_advantages


def test_a_share_of_the_margin_is_that_of_the_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 for the best constant policy, 1 for the optimum, in whatever order the tapes are asked."""
    problems = [{"seed": seed, "c_signal": 0.7} for seed in (10_003, 10_001, 10_002)]
    monkeypatch.setattr(_reputation, "test_problems", lambda _: problems)
    yardstick = Yardstick(Params(c_signal=0.7), {10_001, 10_002, 10_003})
    best, always = (
        dict(zip((10_001, 10_002, 10_003), returns(episodes), strict=True))
        for episodes in (yardstick.optimal, constant(yardstick))
    )
    shares = _reputation.share_of_margin(Path("run"))

    def of(earned: dict[int, float]) -> list[float | None]:
        return shares(Evaluation(0, {"episode_return": [earned[one["seed"]] for one in problems]}))

    assert of(best) == pytest.approx([1.0] * 3) and np.mean(of(always)) == pytest.approx(0.0, abs=1e-9)  # type: ignore[arg-type]


def constant(yardstick: Yardstick) -> Any:
    (policy,) = [one for one in CONSTANTS if one.name == yardstick.constant_name]
    return play(yardstick.params, yardstick.tapes, policy)


def test_a_start_that_begins_with_the_given_model_is_made_and_trained_on(model: Path, tmp_path: Path) -> None:
    one = asked("reputation", "--hardware", "gpu", "--model", model, "--work", tmp_path / "work")
    (made,) = experiment.start_task(one)
    assert (
        f"bootstrap.start={model}" in made.command and f"bootstrap.out={one.work / 'start'}" in made.command
    )
    assert f"model_path={one.work / 'start'}" in one.keys("reputation_hacking", 0)
    (one.work / "start").mkdir(parents=True)
    (one.work / "start" / "recipe.json").write_text("{}")
    assert experiment.start_task(one) == []
    assert (
        experiment.start_task(asked("coding", "--model", model)) == []
    )  # there the model replaces the start


def test_runs_that_share_a_card_are_evaluated_four_times_and_know_their_place(model: Path) -> None:
    one = asked("gpu_environments", "--model", model)
    tree = compose(one.keys("logic", 0)).tree
    texts = tree.finetune.gradient_accumulation_passes
    assert tree.world.share_device and tree.max_lag == 4 * texts
    assert tree.finetune.max_train_steps * texts == 4 * tree.eval_every_n_versions
    assert tree.vllm_config.vllm_kwargs["kv-cache-memory-bytes"] == 8 << 30


@pytest.mark.parametrize(("name", "hardware"), RUNS)
@pytest.mark.usefixtures("a_run_of_any_domain")
def test_every_goal_of_a_specification_is_that_of_some_figure(name: str, hardware: str, model: Path) -> None:
    one = asked(name, "--hardware", hardware, "--model", model)
    rows = {arm: [one.row(arm, seed, Path("run")) for seed in one.seeds] for arm in one.spec.arms}
    tables = {arm: one.kind.table_of(of_arm) for arm, of_arm in rows.items()}
    figures = one.figures(rows, tables)
    figures += _compare.figures_of(_compare.compared(rows, one.spec.compare, one.spec.own_problems))
    for pattern, goal in one.place.goals.items():
        alone = [experiment.with_goal(figure, {pattern: goal}) for figure in figures]
        assert any(figure.goal is not None for figure in alone), pattern
    assert one.place.goals or {figure.goal for figure in figures} == {None}


def test_a_goal_is_a_least_or_a_most() -> None:
    figure = Figure("seed 1: training", 12.0, "min")
    assert experiment.with_goal(figure, {"seed *: training": {"at_most": 10}}).met is False
    assert experiment.with_goal(figure, {"seed *: training": {"at_least": 10}}).met is True
    assert experiment.with_goal(figure, {"seed 2: *": {"at_least": 10}}) == figure
    assert at_least("x", 1.0, "", 2.0).met is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "nothing: no such specification; there are coding"),
        (["pretrained", "--model", "nowhere"], "python -m pipelinerl.pretrained"),
        (["text_domains", "--arms", "chess"], "--arms chess: this experiment has counting"),
        (["coding", "--hardware", "gpu"], "--hardware gpu: this experiment is for cpu"),
    ],
)
def test_what_cannot_begin_is_said_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["run", *words]) == 2
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 1


def test_a_specification_that_compares_with_no_arm_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        "about: x\nrows: metrics\nseeds: [0]\narms: {a: {}}\ncompare: [{arm: a, to: b}]\n"
        "hardware: {cpu: {result: x}}\n"
    )
    with pytest.raises(experiment.SpecError, match=r"one\.yaml: spec: .*b is no arm; there are a"):
        experiment.read(str(path))


def test_a_specification_with_an_unknown_word_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("about: x\nrows: metrics\nseeds: [0]\narms: {}\nhardware: {cpu: {result: x}}\nkey: []\n")
    with pytest.raises(experiment.SpecError, match=r"one\.yaml: key: Extra inputs"):
        experiment.read(str(path))


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words for an experiment of two arms, whose runs of `logic` fail."""
    spec = {"about": "x", "rows": "metrics", "seeds": [0, 1], "arms": {"textarena": {}, "logic": {}}}
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(spec | {"hardware": {"cpu": {"result": "two"}}}))
    script = "import sys; sys.exit(3 if 'logic' in sys.argv[1] else 0)"
    monkeypatch.setattr(experiment.runs, "launcher", lambda out, _: [sys.executable, "-c", script, str(out)])
    monkeypatch.setattr(experiment.runs, "leave_in_order", lambda: None)
    monkeypatch.setattr(side_by_side, "POLL_S", 0.02)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return ["run", str(path), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out.json")]


@pytest.mark.usefixtures("a_run")
def test_a_failed_run_leaves_the_others_and_is_wanted_again(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*tiny, "--limit", "300"]) == 1
    assert "left: logic 0, logic 1" in capsys.readouterr().out
    kept = json.loads((tmp_path / "out.json").read_text())
    assert kept["settings"]["seeds"] == {"textarena": [0, 1]}
    assert kept["table"]["textarena"]["success"]["after"]["n"] == 2
    assert [row["seed"] for row in kept["rows"]["textarena"]] == [0, 1]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert command.main([*tiny, "--limit", "300", "--arms", "textarena"]) == 0
    assert "begins" not in capsys.readouterr().out  # the finished ones are not begun again


@pytest.mark.usefixtures("a_run", "undrawn")
def test_a_finished_run_with_other_keys_is_refused(
    tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*tiny, "--arms", "textarena", "--seeds", "0"]) == 0
    assert command.main([*tiny, "--arms", "textarena", "--seeds", "0", "max_lag=7"]) == 2
    assert "finished with other keys (max_lag=7); use another --work" in capsys.readouterr().err


def test_what_the_limit_ended_has_no_row_and_begins_anew_where_minutes_count(tmp_path: Path) -> None:
    (tmp_path / "tir_0" / "launcher").mkdir(parents=True)
    one = asked("text_domains", "--work", tmp_path, "--arms", "tir", "--seeds", "0")
    likely, run = one.wanted()
    assert likely[:2] == ("tir", "greedy") and run[:2] == ("tir", 0)
    assert (tmp_path / "tir_0" / "launcher").is_dir()
    assert not one.task(*run).keep(ENDED)
    assert not (tmp_path / "tir_0" / "launcher").exists()


def test_runs_beside_each_other_keep_to_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side.os, "sched_getaffinity", lambda _: {4, 5, 6, 7})
    places = side_by_side.slots("cpu", 2, cores=2)
    assert [place[side_by_side.CORES] for place in places] == ["4,5", "6,7"]
    assert side_by_side.CORES not in side_by_side.slots("cpu", 1, cores=2)[0]


def test_an_arm_that_comes_after_another_gets_the_folder_of_its_run_and_waits_for_it(
    tmp_path: Path, model: Path
) -> None:
    one = asked("distillation", "--work", tmp_path, "--model", model)
    assert f"teacher.model_path={tmp_path}/rewards_2/finetune/current" in one.keys("both", 2)
    assert [arm for arm in one.arms if one.is_later(arm)] == ["teacher", "both", "imitation"]
    assert not one.may_begin("both", 2, None) and one.may_begin("rewards", 2, None)
    one.row_file("rewards", 2).write_text("{}")
    assert one.may_begin("both", 2, None) and not one.may_begin("both", 1, None)


def test_an_arm_comes_after_one_that_is_there_and_waits_for_nobody() -> None:
    arms = {"a": _spec.Arm(), "b": _spec.Arm(after="a"), "c": _spec.Arm(after="b")}
    with pytest.raises(ValueError, match="c comes after b, which comes after another arm itself"):
        PLAIN.model_validate({**PLAIN.model_dump(), "arms": arms})
    with pytest.raises(ValueError, match="d is no arm"):
        PLAIN.model_validate({**PLAIN.model_dump(), "arms": {"a": _spec.Arm(after="d")}})
