"""RARO on the CPU, all processes real: a killed run goes on, and everything that it should log is there."""

import json
import signal
from pathlib import Path

import pytest

from benchmarks import experiment
from benchmarks.__main__ import main
from domains.raro.metrics import CRITIC_RATES, PREFIX, SOURCES
from domains.raro.replay import ReplayBuffer, intact
from pipelinerl.observe.history import read_evaluations, read_metrics
from tests.pipeline.conftest import Start

RUN = [
    "+domain=raro_tiny",
    "hardware=cpu",
    "finetune.max_train_steps=4",
    "finetune.gradient_accumulation_passes=80",
    "finetune.save_checkpoint_steps=1",
    "max_lag=160",
    "raro.replay.checkpoint_every_s=0.01",
    "raro.data.countdown.sizes={train: 40, val: 5, test: 8}",
]


def logged(output_dir: Path, role: str) -> set[str]:
    return {name for record in read_metrics(output_dir, role) for name in record}


@pytest.mark.slow
def test_a_killed_run_goes_on_and_logs_every_metric_of_the_game(start: Start) -> None:
    first = start(*RUN)
    out = first.output_dir
    checkpoint = out / "finetune" / "current" / "config.json"
    backup = out / "raro" / "replay.checkpoint.sqlite3"
    first.until(lambda: checkpoint.is_file() and backup.is_file(), "a checkpoint with a copy of the buffer")
    first.send(signal.SIGKILL)
    first.wait()
    rows = ReplayBuffer(out / "raro" / "replay.sqlite3").stats().size
    assert rows > 0 and intact(backup)

    second = start(*RUN)
    assert second.wait() == 0, second.err
    assert ReplayBuffer(out / "raro" / "replay.sqlite3").stats().size >= rows

    actor = logged(out, "actor")
    names = [f"{source}/{name}" for source in SOURCES for name in CRITIC_RATES]
    names += [
        "policy_reward", "answerless_rate", "identical_rate", "length_rule_accuracy", "replay_size",
        "replay_dup_rate", "replay_age", "replay_age_s", "policy_truncated", "policy_answer_too_long",
        "policy_answerless", "policy_unjudged", "replay_empty", "critic_truncated", "critic_parse_fail",
        "critic_zero_advantage_groups", "policy_tokens", "critic_tokens",
    ]  # fmt: skip
    assert {f"actor/{PREFIX}{name}_mean" for name in names} <= actor
    roles = ("policy", "critic")
    assert {f"adv/role/{role}/mass" for role in roles} <= logged(out, "preprocess")
    assert {f"rl/role/{role}/kl" for role in roles} <= logged(out, "finetune")
    (last,) = read_evaluations(out)[-1:]
    assert {PREFIX + "eval_accuracy", PREFIX + "eval_accuracy_greedy"} <= set(last.values)
    assert (out / "report" / "raro.png").is_file()
    assert "RARO" in second.out and "warning" not in second.err


@pytest.mark.slow
def test_the_experiment_runs_small_from_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three arms from a specification; what is finished is read again, not run again."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # the command sets it, for its runs alone
    monkeypatch.setattr(experiment.runs, "leave_in_order", lambda: None)
    out = tmp_path / "table.json"
    command = ["run", "raro_tiny", "--seeds", "0", "--work", str(tmp_path / "runs"), "--out", str(out)]
    command += ["finetune.max_train_steps=3", "eval_every_n_versions=128"]
    command += ["raro.data.countdown.sizes={train: 100, val: 10, test: 20}"]
    main(command)  # its status says that three steps reach no goal
    found = json.loads(out.read_text())
    assert found["rows"].keys() == {"raro_tiny", "raro_rlvr", "raro_sft"}
    assert all(row[0]["curve"]["raro/eval_accuracy"] for row in found["rows"].values())
    assert found["rows"]["raro_tiny"][0]["tenths"]["critic accuracy"]
    assert "raro/eval_accuracy after, raro_tiny - raro_sft" in found["compared"]
    assert out.with_suffix(".png").stat().st_size > 5_000
    capsys.readouterr()
    main(command)
    assert "begins" not in capsys.readouterr().out and json.loads(out.read_text())["rows"] == found["rows"]
