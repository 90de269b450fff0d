"""The experiment's table and commands; nothing is trained here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import raro
from benchmarks._figures import RESULTS
from benchmarks._raro_earned import earned
from benchmarks._raro_figure import _completions, plt
from benchmarks._raro_runs import METRICS, kept, read
from benchmarks._raro_table import gain_ratio, lines, table

TINY = raro.GAMES["tiny"]


def test_the_gain_ratio():
    ratio, low, high = gain_ratio([54.4] * 3, [57.7] * 3, [2.0] * 3)
    assert (
        ratio == pytest.approx(52.4 / 55.7) and low == pytest.approx(ratio) and high == pytest.approx(ratio)
    )
    assert gain_ratio([54.0] * 3, [6.0] * 3, [2.0] * 3) is None


def logged(out, arm, steps, before, after):
    """What a finished run leaves: evaluations before and after, trained tokens, finished rollouts."""
    for role in ("launcher", "actor", "finetune"):
        (out / role).mkdir(parents=True)
    (out / "launcher" / "completed.json").write_text(json.dumps({"steps": steps}))
    rows = []
    for turn, value in enumerate((before, after)):
        split = {
            f"actor/{name}/{metric}_mean": value for name in ("val", "test") for metric in METRICS.values()
        }
        step = turn * steps * TINY.step.texts(TINY.arms[arm])
        rows.append({"time": 100.0 + 60 * turn, "step": step, "actor/rollouts_done": 160, **split})
        rows[-1]["actor/raro/fresh/critic_accuracy_mean"] = 0.5 + 0.4 * turn
    (out / "actor" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trained = [
        {"time": 1.0, "step": n, "stats/tokens": 5000, "rl/entropy": 0.5 - 0.01 * n} for n in range(30)
    ]
    (out / "finetune" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in trained))


def test_the_table_and_the_figure_are_made_again_from_the_logs(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise AssertionError("a finished run was started again")

    monkeypatch.setattr(raro.subprocess, "run", refuse)
    monkeypatch.setitem(raro.GAMES, "tiny", replace(TINY, result=tmp_path / "kept" / "raro.json"))
    for seed in range(3):
        for arm, after in (("sft", 0.30), ("raro", 0.60 + seed / 100), ("rlvr", 0.62)):
            logged(tmp_path / f"{arm}_{seed}", arm, 5, 0.25, after)
    found = []
    for _ in range(2):
        assert raro.main(["--out", str(tmp_path), "--steps", "5"]) == 0
        found.append((tmp_path / "table.json").read_text())
    assert found[0] == found[1] == (tmp_path / "kept" / "raro.json").read_text()
    rows = json.loads(found[0])["table"]["sampled"]
    assert rows["raro - sft"]["mean"] == pytest.approx(31.0)
    assert rows["gain ratio"]["ratio"] == pytest.approx(36 / 37)
    run = next(r for r in json.loads(found[0])["runs"] if r["arm"] == "raro")
    assert run["curve"] == {"0": 25.0, "320": 60.0}
    assert run["game"]["critic accuracy"] == {"0": 0.5, "320": 0.9}
    assert run["entropy"] == pytest.approx([0.48, 0.305])
    assert (tmp_path / "curves.png").stat().st_size > 5_000
    said = capsys.readouterr().out
    assert "gain ratio RARO / verifier RL: 0.97" in said and "RARO" in said and "more SFT" in said
    assert lines(table([], TINY.arms), TINY.arms)
    assert raro.main(["--out", str(tmp_path), "--steps", "5", "--arms", "raro"]) == 0
    assert found[0] == (tmp_path / "kept" / "raro.json").read_text()  # one arm is no table to keep


def test_of_more_sft_the_answers_count_that_were_trained_on(tmp_path):
    """Its actor hands texts on far ahead of the trainer."""
    logged(tmp_path / "sft_0", "sft", 3, 0.25, 0.3)
    arms, step = TINY.arms, TINY.step
    assert read(tmp_path / "sft_0", arms, "sft", 0, step, 20).completions == 3 * 64
    logged(tmp_path / "rlvr_0", "rlvr", 3, 0.25, 0.3)
    assert read(tmp_path / "rlvr_0", arms, "rlvr", 0, step, 20).completions == 2 * 160


@pytest.mark.parametrize("path", ["raro", "raro_reference", "gpu_raro"])
def test_the_tables_of_committed_results_are_those_of_their_rows(path):
    content = json.loads((RESULTS / f"{path}.json").read_text())
    again = json.loads(json.dumps(table(kept(content), TINY.arms)))
    assert content["table"] == again
    answers = {run["completions"] for run in content["runs"] if run["arm"] == "sft"}
    assert answers == {content.get("SFT steps", content["steps"]) * content["policy completions per step"]}


@pytest.mark.parametrize(("lengths", "scale"), [((300, 300), "linear"), ((300, 1200), "symlog")])
def test_the_axis_says_what_it_counts_and_how(lengths, scale):
    _, axes = plt.subplots()
    label = _completions(axes, [[0.0], *([0.0, 100.0, float(last)] for last in lengths)])
    plt.close()
    assert axes.get_xscale() == scale
    assert "expert answers" in label and ("linear up to 100, then logarithmic" in label) == (
        scale != "linear"
    )


def answered(answer, reward, version, **more):
    """A policy text as the stream `actor` has it."""
    text = f"<|user|>solve 1 4 6 = 18<|assistant|>4+1=5;<answer>{answer}</answer><|end|>"
    placed = {"group_id": more.pop("group", "0-1"), "rollout_index": 0, "step_index": 0}
    return {"text": text, "reward": reward, "role": "policy", "masked": False} | more | {
        "metadata": {**placed, "model_version": version}
    }  # fmt: skip


def test_what_right_and_wrong_answers_earned_is_read_from_the_records(tmp_path):
    from pipelinerl.streams import SingleStreamSpec, write_to_streams

    right, wrong = "6*(4-1)", "4/1+6"
    with write_to_streams(SingleStreamSpec(tmp_path, "actor")) as stream:
        stream.write([answered(right, 0.6, 0), answered(wrong, 0.2, 5), answered(wrong, 0.4, 9)])
        stream.write([answered(right, 0.5, 99), answered("6*(4-1", 0.0, 90), answered(right, 0.7, 100)])
        stream.write([answered(right, 1.0, 0, masked=True), answered(right, 1.0, 0, role="critic")])
        stream.write([answered(right, 1.0, 0, group="0-eval0-0")])
    found = earned(tmp_path, 100)
    assert found["right"] == [0.3333, *[None] * 8, 0.6667]
    assert found["reward of right"] == [0.6, *[None] * 8, 0.6]
    assert found["reward of wrong"] == [0.3, *[None] * 8, 0.0]
    (tmp_path / "none").mkdir()
    assert earned(tmp_path / "none", 100) == {}


def test_rl_arms_have_equal_policy_completions():
    arms = ("raro", "no_tie", "no_replay", "rlvr", "sft")
    texts = {name: [game.step.texts(game.arms[arm]) for arm in arms] for name, game in raro.GAMES.items()}
    assert texts == {"tiny": [320, 320, 192, 64, 64], "reference": [2112, 2112, 1088, 64, 64]}


@pytest.mark.parametrize("name", list(raro.GAMES))
@pytest.mark.parametrize("arm", list(TINY.arms))
def test_every_command_is_a_valid_run(arm, name, tmp_path):
    from domains.raro.domain import RaroDomain
    from pipelinerl.config.compose import compose
    from pipelinerl.launcher.arguments import parse

    sizes = {"train": 100, "val": 10, "test": 20}
    game = raro.GAMES[name]
    plan = raro.Plan(game, out=tmp_path, steps=8, evaluations=2, sizes=sizes, overrides=("max_lag=null",))
    command = raro.command(plan, arm, 1)
    cfg = compose(parse(command[3:]).overrides).tree
    assert RaroDomain().validate(cfg) == []
    every = 2 if game.arms[arm].best_validation else 4
    assert cfg.eval_every_n_versions == every * game.step.texts(game.arms[arm])
    longer = raro.command(replace(plan, sft_steps=40), arm, 1)
    more = compose(parse(longer[3:]).overrides).tree
    assert more.finetune.max_train_steps == (40 if game.arms[arm].best_validation else 8)
    assert more.eval_every_n_versions == 4 * game.step.texts(game.arms[arm])  # of 40 steps: ten times
    assert dict(cfg.raro.data.countdown.sizes) == sizes and Path(cfg.output_dir) == tmp_path / f"{arm}_1"
    if name == "reference" and arm == "raro":
        weights = dict(cfg.finetune.rl.role_weights)
        assert (cfg.finetune.attempts, cfg.raro.critic_group_size, cfg.finetune.rl.kl_coef) == (16, 16, 1e-3)
        assert weights == {"policy": "1/9", "critic": "8/9"} and cfg.raro.replay.fraction == 0.5
        assert (cfg.raro.tau_crit, cfg.raro.tau_pol) == (0.55, 0.6)


def test_the_experiment_has_as_many_questions_as_it_asks_for():
    from omegaconf import OmegaConf

    from domains.raro.data import load_problems
    from pipelinerl.config.compose import compose

    sizes = ", ".join(f"{split}: {size}" for split, size in raro.SIZES.items())
    overrides = ["+domain=raro", "hardware=cpu", f"raro.data.countdown.sizes={{{sizes}}}"]
    data = OmegaConf.to_container(compose(overrides).tree.raro.data)
    assert {split: len(load_problems([split], data)) for split in raro.SIZES} == raro.SIZES
