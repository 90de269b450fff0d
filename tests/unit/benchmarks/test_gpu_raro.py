"""Chained arithmetic and its players, the runs, and how a call keeps to its limit."""

import json
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import _raro_arithmetic as arithmetic
from benchmarks._raro_table import RunResult, lines, table
from benchmarks.gpu import raro, side_by_side
from benchmarks.gpu.raro_start import encoded, look
from benchmarks.gpu.runs import ENDED
from benchmarks.gpu.side_by_side import run_all, slots
from domains.raro.domain import RaroDomain
from domains.raro.parser import ANSWER_1, ANSWER_2, TIE, extract_answer, parse_verdict
from pipelinerl.config.compose import compose
from pipelinerl.rollouts import MASKED_TOKEN_ID
from tests.support.raro_harness import ScriptedModel


def test_a_question_has_the_result_of_ordinary_arithmetic_and_the_order_of_steps_matters() -> None:
    for chain in arithmetic.chains("train", 300):
        result = arithmetic.result_of(chain)
        assert result == eval(arithmetic.written(chain)) and 0 <= result <= arithmetic.LARGEST
        by_chance = arithmetic.by_chance(chain)
        assert arithmetic.from_left(chain) != result
        assert sum(by_chance.values()) == pytest.approx(1)
        assert by_chance[result] <= arithmetic.MOST_CERTAIN


def test_splits_are_disjoint_and_a_larger_one_only_adds_questions(tmp_path: Path) -> None:
    splits = [set(arithmetic.chains(split, 200)) for split in ("train", "val", "test")]
    assert len(set.union(*splits)) == 600
    assert arithmetic.chains("test", 300)[:200] == arithmetic.chains("test", 200)
    with pytest.raises(ValueError, match="1 different questions of the split none"):
        arithmetic.chains("none", 1)
    files = arithmetic.write_files(tmp_path, {"val": 3})
    rows = [json.loads(line) for line in files["val"].read_text().splitlines()]
    assert [row["question"] for row in rows] == [arithmetic.question(c) for c in arithmetic.chains("val", 3)]


def test_play_knows_the_format_but_no_verdict_knows_the_truth() -> None:
    plays = list(arithmetic.demonstrations(1, 6000, 1000))
    again = arithmetic.demonstrations(1, 6000, 1000)
    assert [play.completion for play in plays] == [play.completion for play in again]
    critics = [play for play in plays if play.role == "critic"]
    answers = [extract_answer(play.completion) for play in plays if play.role == "policy"]
    verdicts = [parse_verdict(play.completion) for play in critics]
    assert None not in answers and Counter(verdicts).keys() == {ANSWER_1, ANSWER_2, TIE}
    assert all(arithmetic.says_truly(play.completion) for play in critics)
    assert not arithmetic.says_truly("I get 3. Answer 1, 3, disagrees. Answer 2, 4, disagrees.\n[Tie]")
    known = {arithmetic.question(chain): chain for chain in arithmetic.chains("train", 1000)}
    right = [
        answer == str(arithmetic.result_of(known[play.prompt.messages[-1]["content"]]))
        for play, answer in zip((play for play in plays if play.role == "policy"), answers)
    ]
    assert 0.25 <= sum(right) / len(right) <= 0.4
    hits = []
    for play, verdict in zip(critics, verdicts):
        _, asked, _, _, first, _, _, second = play.prompt.messages[-1]["content"].split("\n")
        expert = str(arithmetic.result_of(known[asked]))
        if verdict != TIE and first != second:
            hits.append((first if verdict == ANSWER_1 else second) == expert)
    assert 0.46 <= sum(hits) / len(hits) <= 0.54


def test_what_the_start_learns_is_the_completion_and_its_end() -> None:
    llm = ScriptedModel().llm()
    play = next(arithmetic.demonstrations(1, 1, 10))
    (one,) = encoded(llm, [play])
    tokenizer = llm.load_tokenizer()
    prompt = llm.prompt_ids(play.prompt)
    assert one.input_ids[: len(prompt)].tolist() == prompt.tolist()
    assert set(one.labels[: len(prompt)].tolist()) == {MASKED_TOKEN_ID}
    learned = one.labels[len(prompt) :].tolist()
    assert learned[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(learned[:-1]) == play.completion


def test_the_look_counts_what_is_in_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    chains = arithmetic.chains("test", 4)
    said = [
        [f"<answer>{arithmetic.result_of(chains[0])}</answer>", "<answer>x</answer>", "no", None],
        ["[Answer 1]", "[Answer 1]", "[Tie]", "?"],
    ]
    monkeypatch.setattr("benchmarks.gpu.raro_start.sampled", lambda *_: said.pop(0))
    found = look(ScriptedModel().llm(), Path(), 4, "cpu")
    assert (found["answered"], found["right"], found["verdicts"], found["ties"]) == (0.5, 0.25, 0.75, 0.25)
    assert found["critic accuracy"] == 0.5


def plan_in(folder: Path, hardware: str = "gpu") -> raro.Plan:
    setting = raro.ON_CARDS if hardware == "gpu" else raro.REHEARSED
    plan = raro.Plan(hardware, setting, folder, None)
    arithmetic.write_files(folder / "data", {"train": 2, "val": 2, "test": 2})
    return plan


@pytest.mark.parametrize("arm", list(raro.ARMS))
@pytest.mark.parametrize("hardware", ["gpu", "cpu"])
def test_every_run_is_valid_and_has_the_reference_values(arm: str, hardware: str, tmp_path: Path) -> None:
    plan = plan_in(tmp_path, hardware)
    cfg = compose(plan.overrides(arm, 1)).tree
    assert RaroDomain().validate(cfg) == []
    assert cfg.finetune.gradient_accumulation_passes == plan.setting.step.texts(raro.ARMS[arm])
    assert cfg.raro.prompt_set == "full"
    if hardware == "gpu" and arm != "sft":
        assert (cfg.finetune.attempts, cfg.finetune.rl.kl_coef) == (16, 1e-3)
        assert (cfg.raro.tau_crit, cfg.raro.tau_pol) == (0.55, 0.6)
    if hardware == "gpu" and raro.ARMS[arm].critic_groups:
        assert cfg.raro.critic_group_size == 16
        weights = {"policy": "1/2", "critic": "1/2"} if arm == "half" else {"policy": "1/9", "critic": "8/9"}
        assert dict(cfg.finetune.rl.role_weights) == weights
        groups = 1 if arm == "no_replay" else 2
        assert cfg.finetune.gradient_accumulation_passes == 4 * 16 * (1 + groups * 16)


PLAYED = """
import json, sys, time
from pathlib import Path
out = Path(sys.argv[1])
(out / "launcher").mkdir(parents=True, exist_ok=True)
started = out / "started"
started.write_text(started.read_text() + "x" if started.exists() else "x")
time.sleep({seconds})
(out / "launcher" / "completed.json").write_text(json.dumps({{"steps": 1000}}))
"""


def script(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Runs that only mark their end, after so many seconds."""
    monkeypatch.setattr(
        raro, "launcher", lambda out, _: [sys.executable, "-c", PLAYED.format(seconds=seconds), str(out)]
    )
    monkeypatch.setattr(side_by_side, "STOP_S", 0.2)
    monkeypatch.setattr(side_by_side, "POLL_S", 0.02)


def test_runs_share_cards_and_finished_ones_are_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, 0.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    plan, out = plan_in(tmp_path), tmp_path / "out.json"
    places = slots("gpu", 2)
    assert [place["CUDA_VISIBLE_DEVICES"] for place in places] == ["0", "1", "0", "1"]
    queue = [("raro", seed) for seed in range(5)]
    monkeypatch.setattr(raro, "write_all", lambda *_: [])
    assert run_all([raro.task_of(plan, out, *key) for key in queue], places, time.monotonic() + 300, 0.5)
    assert plan.unfinished(queue) == []
    assert all(plan.is_finished("raro", seed) for seed in range(5))


def test_the_limit_ends_what_runs_and_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script(monkeypatch, 600.0)
    plan, queue = plan_in(tmp_path), [("raro", 0), ("rlvr", 0)]
    tasks = [raro.task_of(plan, tmp_path / "out.json", *key) for key in queue]
    began = time.monotonic()
    assert not run_all(tasks, slots("gpu", 1)[:1], began + 1.5, 0.5)
    assert plan.unfinished(queue) == queue and time.monotonic() - began < 300
    assert f"raro seed 0: status {ENDED}" in capsys.readouterr().out
    assert not (plan.run_folder("rlvr", 0) / "started").exists()


def test_a_start_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    with pytest.raises(SystemExit, match="give --model"):
        raro.make_start(plan, time.monotonic() + 5)
    plan.start.mkdir()
    (plan.start / "start.json").write_text("{}")
    assert raro.make_start(plan, time.monotonic() + 5)


def test_metrics_and_ends_of_logs_are_kept_in_one_file(tmp_path: Path) -> None:
    plan = plan_in(tmp_path / "work")
    folder = plan.run_folder("raro", 0) / "actor"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / "actor.log").write_bytes(b"x" * (raro.KEPT_BYTES + 5))
    raro.keep_metrics(plan.work, tmp_path / "kept.tar.gz")
    with tarfile.open(tmp_path / "kept.tar.gz") as kept:
        sizes = {member.name: member.size for member in kept}
    assert sizes == {"raro_0/actor/metrics.jsonl": 3, "raro_0/actor/actor.log": raro.KEPT_BYTES}


def test_the_checks_of_a_run_are_means_of_tenths_and_unknown_where_there_are_none() -> None:
    def run(seed: int, game: dict[str, dict[str, float]]) -> RunResult:
        rates = {"sampled": 1.0, "greedy": 1.0}
        return RunResult("raro", seed, rates, rates, {"0": 1.0}, 10, 1.0, 1.0, 1.0, game)

    curve = {str(at): at / 20 for at in range(20)}
    long = run(0, dict.fromkeys(("critic accuracy", "policy reward", "ties"), curve))
    short = run(1, {"critic accuracy": {}, "policy reward": {"8": 0.5}, "ties": {}})
    found = table([long, short], raro.ARMS)["game"]["raro"]
    assert found["ties"]["first"] == [pytest.approx(0.025), None]
    assert found["ties"]["last"] == [pytest.approx(0.925), None]
    assert found["policy reward"] == {
        "first": [pytest.approx(0.025), 0.5],
        "last": [pytest.approx(0.925), 0.5],
        "change": [pytest.approx(0.1), None],
    }
    assert "  ties                  0.03 -> 0.93, -" in lines(table([long, short], raro.ARMS), raro.ARMS)
