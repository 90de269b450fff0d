"""Hooks: configuration checks, presets, warnings, report, demonstrations."""

import copy
import importlib.util
import itertools
import json
import random
import shutil
from collections import Counter
from functools import cache

import pytest
import yaml
from omegaconf import OmegaConf

from domains.raro.checks import question_cost
from domains.raro.config import settings_of
from domains.raro.countdown import verify
from domains.raro.data import data_settings
from domains.raro.demonstrations import critic_line, distance, evaluation
from domains.raro.domain import RaroDomain
from domains.raro.expressions import literals, parse
from domains.raro.generator import split_of
from domains.raro.metrics import CRITIC_RATES, length_rule
from domains.raro.parser import ANSWER_1, TIE, extract_answer, parse_verdict
from domains.raro.report import checks, first_accuracy, sections
from domains.raro.runtime import open_buffer
from domains.raro.watch import WINDOW, Watch
from pipelinerl.config.compose import compose
from tests.support.light_figures import draw_light_ones_only
from tests.support.tiny_model import hub_snapshot


@cache
def composed(domain, hardware):
    return compose([f"+domain={domain}", f"hardware={hardware}"]).tree


def tree(*overrides, domain="raro", hardware="cpu"):
    chosen = copy.deepcopy(composed(domain, hardware))
    for override in overrides:
        key, _, value = override.partition("=")
        OmegaConf.update(chosen, key, yaml.safe_load(value), merge=False, force_add=True)
    return chosen


@pytest.mark.parametrize("domain", ["raro", "raro_tiny", "raro_rlvr", "raro_sft"])
@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_presets_are_valid(domain, hardware):
    assert RaroDomain().validate(tree(domain=domain, hardware=hardware)) == []


def test_reference_values_of_the_method():
    cfg = tree(hardware="gpu")
    assert (cfg.raro.tau_pol, cfg.raro.tau_crit, cfg.raro.replay.fraction) == (0.6, 0.55, 0.5)
    assert (cfg.finetune.attempts, cfg.raro.critic_group_size, cfg.raro.replay.capacity) == (16, 16, 20_000)
    assert (cfg.finetune.rl.kl_coef, cfg.finetune.learning_rate) == (1e-3, 1e-6)
    assert dict(cfg.finetune.rl.role_weights) == {"policy": "1/9", "critic": "8/9"}
    assert not cfg.finetune.rl.divide_advantage_by_std and not cfg.finetune.rl.filter_zero_advantage_groups
    assert dict(cfg.finetune.rl.role_lengths) == {"policy": 2048, "critic": 1024}


@pytest.mark.parametrize("domain", ["raro", "raro_tiny", "raro_rlvr"])
@pytest.mark.parametrize(("hardware", "questions"), [("gpu", 16), ("cpu", 8)])
def test_a_step_holds_whole_questions_and_no_text_is_older_than_two(domain, hardware, questions):
    cfg = tree(domain=domain, hardware=hardware)
    cost = question_cost(settings_of(cfg), cfg.finetune.attempts)
    assert cfg.finetune.gradient_accumulation_passes == questions * cost
    assert cfg.max_lag <= 2 * questions * cost
    assert cfg.finetune.max_train_steps <= 500


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("raro.tau_crit=0.5", "tau_crit=0.5 must lie in"),
        ("raro.tau_pol=1.1", "raro.tau_pol"),
        ("raro.replay.fraction=1", "raro.replay.fraction"),
        ("raro.replay.fraction=-0.1", "raro.replay.fraction"),
        ("raro.critic_group_size=1", "raro.critic_group_size"),
        (
            "finetune.gradient_accumulation_passes=79",
            "a step of 79 samples holds 2.0 questions of 40 samples each",
        ),
        ("finetune.attempts=1", "finetune.attempts=1: the policy's baseline needs at least 2"),
        ("finetune.rl.step_reward_advantages=false", "policy and critic have rewards of their own"),
        ("finetune.rl.role_weights={policy: 1, critic: 1, other: 1}", 'set {policy: "1/9", critic: "8/9"}'),
        ("raro.reward=verifier", "set {policy: 1}"),
        ("raro.reward=expert", "belong together"),
        ("engine.max_model_len=175", "engine.max_model_len=175: a critic call needs up to 176 tokens"),
        ("finetune.seq_length=215", "finetune.seq_length=215: a policy call needs up to 216"),
        ("raro.replay.backend=redis", "backend=redis needs redis://"),
        ("raro.data.source=deepmath", "answer_form"),
        ("raro.data.source=poetry", "no file for this split"),
        ("raro.replay.path=/no/such/folder/x.sqlite3", "its folder does not exist"),
    ],
)
def test_problems_are_found_before_anything_starts(override, message):
    assert any(message in line for line in RaroDomain().validate(tree(override))), override


def test_a_verifier_that_is_missing_or_cannot_be_is_named(monkeypatch):
    poems = ("raro.reward=verifier", "raro.data.source=poetry")
    lines = RaroDomain().validate(tree(*poems, domain="raro_rlvr"))
    assert any("nothing verifies answers of raro.data.source=poetry" in line for line in lines)
    real = importlib.util.find_spec
    monkeypatch.setattr("domains.raro.checks.find_spec", lambda n: None if n == "math_verify" else real(n))
    lines = RaroDomain().validate(tree("raro.data.source=deepmath", "raro.data.answer_form=result"))
    assert any("pip install 'pipelinerl[math]'" in line for line in lines)


def test_a_buffer_in_redis_is_accepted():
    remedy = ("raro.replay.backend=redis", "raro.replay.path=redis://:secret@10.0.0.1:6379/0")
    assert RaroDomain().validate(tree(*remedy)) == []


def test_the_hooks_restore_and_back_up_the_buffer(tmp_path):
    from tests.support.raro_harness import pair

    cfg = OmegaConf.create(
        OmegaConf.to_container(tree("raro.replay.checkpoint_every_s=0.001"), resolve=False)
    )
    cfg.output_dir = str(tmp_path)
    domain = RaroDomain()
    assert domain.prepare(cfg, tmp_path) == {}
    domain.attach(cfg, tmp_path)
    domain._backups.buffer.put(pair("a"))
    assert domain.checkpoint() == {}
    domain._backups.running.result(200)
    assert (tmp_path / "raro" / "replay.checkpoint.sqlite3").is_file()
    domain._backups.buffer.close()
    for path in (tmp_path / "raro").glob("replay.sqlite3*"):
        path.unlink()
    again = RaroDomain()
    again.prepare(cfg, tmp_path)
    again.attach(cfg, tmp_path)
    assert again._backups.buffer.stats().size == 1


def test_starting_over_forgets_a_buffer_outside_of_the_run(tmp_path):
    """Half of the critic's pairs would be a dead run's."""
    from tests.support.raro_harness import pair

    out, path = tmp_path / "run", tmp_path / "elsewhere" / "replay.sqlite3"
    path.parent.mkdir()
    cfg = tree(f"raro.replay.path={path}")
    domain = RaroDomain()
    for _ in range(2):
        domain.prepare(cfg, out)
        domain.attach(cfg, out)
        assert domain._backups.buffer.stats().size == 0
        domain._backups.buffer.put(pair("a"))
        domain._backups.buffer.close()
        domain.start_over(cfg, out)
        assert not list(path.parent.iterdir())


def test_runs_of_one_name_have_buffers_of_their_own_in_a_server(tmp_path):
    pytest.importorskip("redis")
    from tests.support.raro_harness import pair
    from tests.support.redis_server import redis_server

    with redis_server(tmp_path) as port:
        cfg = tree("raro.replay.backend=redis", f"raro.replay.path=redis://127.0.0.1:{port}/0")
        settings = settings_of(cfg)
        one, other = (open_buffer(settings, tmp_path / name / "run") for name in "ab")
        one.put(pair("a"))
        assert (one.stats().size, other.stats().size) == (1, 0)
        RaroDomain().start_over(cfg, tmp_path / "b" / "run")
        assert one.stats().size == 1
        RaroDomain().start_over(cfg, tmp_path / "a" / "run")
        assert one.stats() == other.stats()
    with pytest.raises(OSError, match="the replay buffer's server does not answer"):
        RaroDomain().start_over(cfg, tmp_path / "a" / "run")


def test_warnings_when_the_game_degenerates(tmp_path, caplog):
    def warned(verdicts, lengths=()):
        watch = Watch(tmp_path / "w.jsonl")
        found = watch.add(verdicts)
        for length in lengths:
            found += watch.add([], length)
        return " | ".join(found)

    fair = random.Random(0).choices([ANSWER_1, "[Answer 2]", TIE], k=WINDOW)
    assert warned(fair) == "" and warned(fair[:-1] * 1) == ""
    assert "could not be read" in warned([None] * 201 + fair[:799])
    assert "ties" in warned([TIE] * 960 + fair[:40])
    assert "name answer 1" in warned([ANSWER_1] * 900 + [TIE] * 100)
    assert "giveaway" in warned(fair, [1.0] * WINDOW)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "w.jsonl").read_text().splitlines()]
    assert {"parse", "tie", "position", "form"} <= set(kinds)
    assert all(record.remark for record in caplog.records), "the launcher prints them"


def test_a_warning_comes_once_per_window():
    watch = Watch(None)
    assert watch.add([None] * WINDOW) and not watch.add([None] * (WINDOW - 1)) and watch.add([None])


def test_the_length_rule():
    assert [length_rule("ab", x) for x in ("abc", "ab", "a")] == [1.0, 0.5, 0.0]


def test_demonstrations_never_look_at_the_truth_and_stay_on_training_numbers():
    cfg, verdicts, judged, right = tree(), Counter(), Counter(), []
    spec = data_settings(OmegaConf.to_container(cfg.raro.data, resolve=True)).countdown
    for seed, phase in itertools.product(range(4), ("play", "rules")):
        made = list(RaroDomain().demonstrations(cfg, seed, phase))
        assert seed or made == list(RaroDomain().demonstrations(cfg, seed, phase))
        for one in made:
            first, *answers = one.prompt.splitlines()
            numbers, target = [int(n) for n in first.split("=")[0].split()[1:]], int(first.split("=")[1])
            assert split_of(spec, numbers) == "train"
            if one.kind == "policy":
                right.append(verify(extract_answer(one.completion), numbers, target))
                continue
            shown = [answer.split(": ")[1] for answer in answers]
            used = [tuple(sorted(literals(parse(answer)))) for answer in shown]
            assert all(split_of(spec, list(row)) == "train" for row in used if len(row) == 3)
            verdict = parse_verdict(one.completion)
            verdicts[verdict] += 1
            good = [verify(answer, numbers, target) for answer in shown]
            if verdict != TIE and good[0] != good[1]:
                judged[good[0] == (verdict == ANSWER_1)] += 1
    share = {verdict: count / verdicts.total() for verdict, count in verdicts.items()}
    assert 0.1 < share[TIE] < 0.25 and abs(share[ANSWER_1] - share["[Answer 2]"]) < 0.08
    assert judged.total() > 400 and 0.44 < judged[True] / judged.total() < 0.56
    assert 0.25 < sum(right) / len(right) < 0.45


def test_evaluations_are_written_step_by_step():
    assert critic_line(parse("8*(11-8)")) == "8 8 11:11-8=3,8*3=24"
    assert critic_line(parse("7/2+1")) == "1 2 7:7/2=?"
    assert evaluation(parse("8*(11-8)")) == "11-8=3,8*3=24"
    assert evaluation(parse("3-8")) == "3-8=-5" and evaluation(parse("7/2+1")) == "7/2=?"
    assert distance(parse("3-8"), 24) == -29 and distance(parse("7/2+1"), 24) is None


def records(n):
    rows = []
    for step in range(n):
        row = {"step": step, "actor/rollouts_done": 8.0, "actor/raro/fresh/committed_mean": 4.0}
        row |= {f"actor/raro/fresh/{name}_mean": 0.5 for name in CRITIC_RATES}
        rows.append(row | {"actor/raro/policy_reward_mean": step / n, "actor/raro/replay_age_mean": 3.0})
    return rows


@pytest.mark.parametrize("model", ["domains/raro/checkpoint", "Owner/in-the-cache", "Owner/of-the-hub"])
@pytest.mark.parametrize("reward", ["critic", "verifier"])
def test_rows_longer_than_the_context_is_budgeted_for_are_named(tmp_path, model, reward, monkeypatch):
    """A tokenizer at hand counts; without one a text is refused whose characters alone are too many."""
    if model == "Owner/in-the-cache":
        snapshot = hub_snapshot(monkeypatch, tmp_path / "hub", model)
        shutil.copytree("domains/raro/checkpoint", snapshot, dirs_exist_ok=True)
    rows = [{"question": "12 + 3", "expert_answer": "15"}, {"question": "1 " * 400, "expert_answer": "5"}]
    rows += [{"question": f"{n}", "expert_answer": "1 + " * 400 + "1"} for n in range(2)]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    files = f"raro.data.files={{train: {path}, test: {path}}}"
    domain = "raro" if reward == "critic" else "raro_rlvr"
    cfg = tree("raro.data.source=jsonl", files, f"model_path={model}", domain=domain)
    found = [line for line in RaroDomain().validate(cfg) if str(path) in line]
    said = [f"{path}:2: question has ", f"{path}:3: expert_answer has "][: 2 if reward == "critic" else 1]
    assert [line[: len(start)] for line, start in zip(found, said, strict=True)] == said
    counts = [int(line.split(" has ")[1].split()[0]) for line in found]
    by_characters = [133, 266][: len(said)]
    if model == "Owner/of-the-hub":
        assert counts == by_characters
    else:
        assert all(count > least for count, least in zip(counts, by_characters, strict=True))
    wide = ("raro.max_question_tokens=9000", "raro.max_answer_tokens=9000")
    cfg = tree("raro.data.source=jsonl", files, f"model_path={model}", *wide, domain=domain)
    assert not [line for line in RaroDomain().validate(cfg) if str(path) in line]


def test_sanity_checks_of_a_run():
    assert first_accuracy(records(13)) == pytest.approx(0.5) and first_accuracy(records(12)) is None
    text = "\n".join(checks(records(20)))
    assert "0.50 (0.40 to 0.60" in text and "0.025, 0.925" in text and "changed by 0.000" in text


def test_the_report_has_a_table_warnings_and_a_figure(tmp_path, monkeypatch):
    draw_light_ones_only(monkeypatch)
    assert sections(tmp_path) == []
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "metrics.jsonl").write_text("\n".join(map(json.dumps, records(20))) + "\n")
    (tmp_path / "raro").mkdir()
    (tmp_path / "raro" / "warnings.jsonl").write_text('{"kind": "tie", "text": "only ties"}\n')
    (section,) = sections(tmp_path)
    assert ("critic accuracy, fresh", "0.500", "0.500") in section.rows
    assert "warning: only ties" in section.text
    assert (tmp_path / "report" / "raro.png").stat().st_size > 10_000
