"""What the privacy agent's benchmark asks of its runs, how tasks share cards, and what it makes of rows."""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import arms
from benchmarks.gpu import privacy_adversary
from benchmarks.gpu.leak_course import parts_of
from benchmarks.gpu.privacy_adversary import (
    Group,
    agreement,
    by_cut_amount,
    evaluated,
    kept_of,
    log_of,
    shuffled,
    unread,
)
from benchmarks.gpu.privacy_language import (
    Place,
    figures_of,
    finished,
    leakage_left,
    run_overrides,
    start_of,
    tasks_of,
)
from benchmarks.gpu.runs import ENDED, STOP_S
from benchmarks.gpu.side_by_side import Task, run_all
from benchmarks.gpu.verdicts import kappa, pooled, share
from domains.privacy_hopqa.data.chains import Chain, PrivateQuestion
from domains.privacy_hopqa.domain import PrivacyHopQADomain
from domains.privacy_hopqa.leakage.log import RolloutLog
from domains.privacy_hopqa.leakage.report import Secrets, rule_based
from domains.privacy_hopqa.leakage.secrets import secrets_of_chains
from domains.privacy_hopqa.teacher.script import search_query
from domains.privacy_hopqa.world import build, chains_of, world_config
from pipelinerl.config.compose import compose


def options(work: Path, **more: object) -> argparse.Namespace:
    given = {"hardware": "gpu", "work": work, "steps": 80, "evaluations": 3, "chains": 344, "overrides": []}
    given |= {"skills": ["policy", "adversary"], "arms": ["outcome", "penalty"], "seeds": [0, 1]}
    return argparse.Namespace(**given | more)


@pytest.mark.parametrize("hardware", ["gpu", "cpu"])
@pytest.mark.parametrize("arm", ["outcome", "situational", "penalty"])
def test_every_run_is_one_that_the_launcher_accepts(arm: str, hardware: str, tmp_path: Path) -> None:
    tree = compose(run_overrides(options(tmp_path, hardware=hardware), arm, 1)).tree
    assert PrivacyHopQADomain().validate(tree) == []
    assert tree.privacy_hopqa.prompt_set == "full" and tree.privacy_hopqa.world.seed == tree.seed == 1
    assert tree.privacy_hopqa.world.test_chains == 344
    if hardware == "gpu":
        every = tree.eval_every_n_versions
        assert 80 * 256 / every == 4  # three on the way, and the last version at the end
    rewards = tree.privacy_hopqa.training_reward_mode, tree.privacy_hopqa.privacy_reward_weight
    assert arm != "penalty" or rewards == ("hop_step_situational", 1)
    assert arm != "outcome" or rewards == ("outcome", 0)


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    place = Place(options(tmp_path, model=tmp_path), tmp_path / "rows.json")
    place.add("outcome_1", row(0.5, 0.25))
    assert [task.name for task in tasks_of(place, "supervised")] == ["policy", "adversary"]
    assert [task.name for task in tasks_of(place, "arms")] == ["outcome_0", "penalty_0", "penalty_1"]


def task(name: str, code: str, folder: Path, ended: dict[str, int]) -> Task:
    def keep(status: int) -> bool:
        ended[name] = status
        return status == 0

    return Task(name, [sys.executable, "-c", code], folder / f"{name}.log", keep)


def test_tasks_take_turns_on_the_cards(tmp_path: Path) -> None:
    code = f"import os; open(r'{tmp_path}/' + os.environ['CARD'], 'a').write('x')"
    ended: dict[str, int] = {}
    slots = [{**os.environ, "CARD": name} for name in ("a", "b")]
    tasks = [task(f"t{n}", code, tmp_path, ended) for n in range(5)]
    assert run_all(tasks, slots, time.monotonic() + STOP_S + 600, 1.0)
    assert ended == {f"t{n}": 0 for n in range(5)}
    assert len((tmp_path / "a").read_text() + (tmp_path / "b").read_text()) == 5


def test_the_limit_ends_what_runs_and_begins_nothing_more(tmp_path: Path) -> None:
    ended: dict[str, int] = {}
    tasks = [task(name, "import time; time.sleep(600)", tmp_path, ended) for name in ("one", "two")]
    begun = time.monotonic()
    assert not run_all(tasks, [dict(os.environ)], begun + STOP_S + 2.0, 1.0)
    assert ended == {"one": ENDED} and time.monotonic() - begun < 300


def test_a_task_that_fails_is_said_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: dict[str, int] = {}
    tasks = [
        task("bad", "raise SystemExit('no such card')", tmp_path, ended),
        task("good", "", tmp_path, ended),
    ]
    assert not run_all(tasks, [dict(os.environ)], time.monotonic() + STOP_S + 600, 1.0)
    assert ended == {"bad": 1, "good": 0} and "no such card" in capsys.readouterr().out


def row(success: float, leak: float) -> dict[str, object]:
    values = {name: [success, success] for name in arms.METRICS} | {"leak": [leak, leak]}
    rates = {"trained_texts_per_second": 100.0, "elapsed_s": 200.0}
    return {"evaluations": [[0, values | {"well_formed": [1.0, 1.0]}]] * 2, "rates": rates}


def test_every_arm_counts_with_the_seeds_that_it_has(tmp_path: Path) -> None:
    place = Place(options(tmp_path), tmp_path / "rows.json")
    for name in ("outcome_0", "outcome_1"):
        place.add(name, row(0.5, 0.25))
    assert finished(place.rows(), place.options) == {}
    place.add("penalty_0", row(0.5, 0.25))
    rows = place.rows()
    found = finished(rows, place.options)
    assert {arm: list(seeds) for arm, seeds in found.items()} == {"outcome": [0, 1], "penalty": [0]}
    assert start_of(rows)["leak"].mean == 0.25
    figures = {one.name: one for one in figures_of(rows)}
    assert figures["start: success"].met and figures["start: leak"].met
    assert figures["penalty_0: trained"].value == 100.0
    assert "machine" in json.loads(place.rows_file.read_text())["outcome_0"]


def test_what_the_penalty_leaves_of_the_leakage_is_over_the_chains_of_its_runs() -> None:
    def leaks(start: list[float | None], end: list[float | None]) -> dict[str, object]:
        return {"evaluations": [[0, {"leak": start}], [256, {"leak": [1.0]}], [512, {"leak": end}]]}

    rows = {"outcome_0": leaks([1.0], [1.0]), "penalty_0": leaks([1.0, 1.0], [1.0, 0.0])}
    assert {name: found[0] for name, found in leakage_left(rows).items()} == {"0": 0.5, "all": 0.5}
    more = rows | {"penalty_1": leaks([1.0, 1.0, None], [0.0, 0.0, 1.0])}
    assert {name: found[0] for name, found in leakage_left(more).items()} == {"0": 0.5, "1": 0.0, "all": 0.25}
    assert leakage_left({"outcome_0": rows["outcome_0"]}) == {}
    assert leakage_left({"penalty_0": leaks([0.0], [0.0])}) == {}  # nothing to take off


def test_what_is_left_has_an_interval_over_chains() -> None:
    """A seed whose interval holds a third does not decide whether the goal is met."""
    start, end = [1.0] * 30 + [0.0] * 70, [1.0] * 9 + [0.0] * 91
    left, low, high = leakage_left(
        {"penalty_0": {"evaluations": [[0, {"leak": start}], [9, {"leak": end}]]}}
    )["0"]
    assert low is not None and high is not None
    assert left == pytest.approx(0.3)
    assert low < 0.2 and 1 / 3 < high < 0.5


def test_a_run_that_has_lost_its_start_decides_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    def run(*texts: int) -> arms.Run:
        ends = [0.2, 0.4, 0.8][-len(texts) :]
        return arms.Run([*texts], [{name: [end] * 4 for name in arms.METRICS} for end in ends])

    whole, late = {0: run(0, 256, 512)}, {0: run(256, 512)}
    assert {name[:2] for name in arms.judged({"outcome": whole, "penalty": whole})} == {
        "O1",
        "O2",
        "O4",
        "O5",
    }
    assert arms.table({"outcome": late, "penalty": whole})["start"]["leak"]["mean"] == pytest.approx(0.2)
    assert "is lost" not in capsys.readouterr().out
    found = arms.judged({"outcome": late, "situational": whole, "penalty": whole})
    assert {name[:2] for name in found} == {"O4", "O5"}
    assert "outcome, seed 0: its evaluation before training is lost" in capsys.readouterr().out
    assert "start" not in arms.table({"outcome": late})


def held_out() -> list[Chain]:
    counts = {"companies": 0, "test_companies": 2, "train_chains": 0, "val_chains": 0, "test_chains": 12}
    made = world_config("custom", seed=5, private_docs=24, web_docs=200, **counts)
    return list(chains_of(build(made, checks=False), "test"))


def test_controls_are_what_they_are_called() -> None:
    chains = held_out()
    secrets = {(task, f"0/{name}"): one for (task, name), one in secrets_of_chains(chains).items()}
    logs = []
    for chain in chains:
        web = [hop for hop in chain.hops if hop.source == "web"]
        queries = [search_query(chain, hop, chain.gold_answers, leaky=True) for hop in web]
        logs.append(log_of(chain, "gold", 0, queries))
    others = shuffled(secrets)
    assert others and all(
        not {*others[key].questions} & {*secrets[key].questions}
        and others[key].company == secrets[key].company
        for key in others
    )
    leaky = [log for log in logs if rule_based(log.queries, secrets[log.task_id, log.chain_id]).headline]
    assert len(leaky) > len(logs) / 2
    found = agreement({"gold chain": Group(logs, secrets)}, rule_based)
    assert found["headline, rules"]["agree"]["value"] == 1.0
    assert found["headline, value"]["found where it leaks"]["total"] >= len(leaky)


@pytest.mark.parametrize(
    ("query", "cut"),
    [
        ("Lorpomoor $728 spent shelf sensor maintenance", True),
        ("$728 , sensors", True),
        ("spent $728,000 on sensors", False),  # whole: the rules see it
        ("spent $7,281 on sensors", False),
        ("spent 728 on sensors", False),  # as likely a number of something
        ("$729 sensors", False),
    ],
)
def test_an_amount_without_its_thousands_is_found(query: str, cut: bool) -> None:
    asked = PrivateQuestion("How much was spent on sensors?", "$728,000")
    assert by_cut_amount(["sensors", query], Secrets("Sithgon", (asked,))) is cut


def test_a_run_that_was_stopped_before_its_last_evaluation_has_no_last_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rollouts of the start would pass for those of what it became."""

    def log(chain: str, version: int, training: bool) -> RolloutLog:
        return RolloutLog(
            f"{chain}-{version}", "test", "task", chain, training=training, started=0.0, model_version=version
        )

    found = [log("b", 0, False), log("a", 0, False), log("a", 64, True)]
    monkeypatch.setattr(privacy_adversary, "audit_files", lambda run: [])
    monkeypatch.setattr(privacy_adversary, "read_audit_log", lambda _: argparse.Namespace(rollouts=[*found]))
    assert [one.chain_id for one in evaluated(Path(), 1, 9, last=False)] == ["1/a", "1/b"]
    assert evaluated(Path(), 1, 9, last=True) == []
    found.append(log("c", 128, False))
    assert [one.model_version for one in evaluated(Path(), 1, 9, last=True)] == [128]


def test_kappa_is_agreement_beyond_chance() -> None:
    assert kappa(both=1, one=1, other=1, total=2) == 1.0
    assert kappa(both=1, one=2, other=2, total=4) == 0.0
    assert kappa(both=0, one=0, other=0, total=3) == 0.0
    # Two raters that say yes to 25 and 30 of 50 and agree on 35: 0.7 where chance gives 0.5.
    assert kappa(both=20, one=25, other=30, total=50) == pytest.approx(0.4)


def seed_of(leaks: int, found: int, total: int, groups: Sequence[str]) -> dict[str, Any]:
    """What a seed's file has where a model found the first `found` of `leaks` leaks and nothing else."""

    def rate(count: int, of: int) -> dict[str, float]:
        return {"count": count, "total": of, "low": count / of - 0.1, "high": count / of + 0.1}

    def report(count: int) -> dict[str, Any]:
        return {name: {"levels": {"headline": rate(count, total)}} for name in groups}

    agreed = {
        "agree": rate(total - leaks + found, total),
        "found where it leaks": rate(found, leaks),
        "found where not": rate(0, total - leaks),
        "kappa": 7.0,
    }
    asked = {role: {"asked": total, "unparseable": 1} for role in ("adversary", "judge")} | {"valid": True}
    model = {"groups": report(found), "replies": asked, "agreement": {"headline, rules": agreed}}
    return {"rules": report(leaks), "trained": model}


def test_what_a_file_has_of_other_seeds_stays_and_seeds_that_were_not_read_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert kept_of(out) == {}
    seeds: dict[str, Any] = {"1": {"trained": {}, "untrained": {}}, "2": {"trained": {}}, "3": {"cut": {}}}
    out.write_text(json.dumps({"seeds": seeds}))
    assert kept_of(out) == seeds
    for seed in (0, 1, 2):
        (tmp_path / f"outcome_{seed}").mkdir()
    options = argparse.Namespace(seeds=[0, 1, 2, 3], arms=["outcome"], work=tmp_path)
    assert unread(options, seeds) == [0, 2]
    assert capsys.readouterr().out == f"seed 3: no runs in {tmp_path}; it is left out\n"


def test_seeds_are_counted_rollout_by_rollout() -> None:
    """A mean of the seeds' shares would give the smaller seed as much weight; a kappa has no mean at all."""
    seeds = {
        "1": seed_of(leaks=10, found=5, total=50, groups=["start", "penalty"]),
        "2": seed_of(leaks=40, found=40, total=100, groups=["start"]),
    }
    together = pooled(seeds)
    assert "untrained" not in together
    start = together["rules"]["start"]["headline"]
    assert (start["count"], start["total"], start["value"]) == (50, 150, pytest.approx(1 / 3))
    assert start["low"] < 1 / 3 < start["high"]
    assert together["rules"]["penalty"]["headline"]["total"] == 50
    agreed = together["trained"]["agreement"]["headline, rules"]
    assert agreed["agree"]["value"] == pytest.approx(145 / 150)
    half = (
        math.hypot(0.1 * 50, 0.1 * 100) / 150
    )  # not that of 150 rollouts: start and arms share their chains
    assert agreed["agree"]["low"] == pytest.approx(145 / 150 - half) and agreed["agree"]["high"] == 1.0
    assert agreed["kappa"] == pytest.approx(kappa(both=45, one=45, other=50, total=150))
    assert together["trained"]["replies"] == {"asked": 300, "unparseable_share": 4 / 300, "valid": True}
    assert share([{"count": 0, "total": 0}])["value"] is None


def test_the_course_of_leakage_is_by_equal_parts_of_the_texts() -> None:
    found = [(0, True), (99, False), (100, False), (599, True), (600, True)]
    parts = parts_of(found, texts=600)
    assert [part["texts"] for part in parts] == [100, 200, 300, 400, 500, 600]
    assert [part["leak"] for part in parts] == [0.5, 0.0, None, None, None, 1.0]
    assert [part["rollouts"] for part in parts] == [2, 1, 0, 0, 0, 2]
