"""The actor as a process, with workers, against engines that misbehave."""

import asyncio
import random
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from pipelinerl.observe.blocked import BlockWatch
from pipelinerl.observe.history import read_status
from pipelinerl.observe.progress import status_line
from pipelinerl.observe.remarks import RemarkWatch
from pipelinerl.observe.summary import summarise
from pipelinerl.run_state.accounting import Outcome, RolloutCounts, reconcile
from tests.support.actor_run import ActorRun, tiny_model, write_config
from tests.support.fake_engine import FakeEngine, said
from tests.support.metric_tables import names_in, undocumented
from tests.support.processes import DEADLINE_S


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def answer():
    return said("42")


def groups(run: ActorRun) -> list[list[dict]]:
    return run.read("actor")


def next_request_waits(engine: FakeEngine) -> Callable[[], bool]:
    """Whether a request is in flight that is not answered any more."""
    engine.delay_s = 600.0
    asked = engine.counts["requests"]
    return lambda: engine.counts["requests"] > asked


def worker_is_ready(output_dir: Path) -> bool:
    log = output_dir / "actor" / "worker_0.log"
    return log.exists() and "is in rotation" in log.read_text()


def test_a_synchronous_run_trains_evaluates_and_accounts_for_every_rollout(tmp_path: Path, model, answer):
    with FakeEngine(answer) as engine:
        write_config(tmp_path, model, [engine], eval_every_n_versions=4)
        with ActorRun(tmp_path, announces=False) as run:
            run.until(lambda: worker_is_ready(tmp_path))
            assert engine.counts["requests"] == 0, "workers start while the first version is on its way"
            assert len(psutil.Process(run.process.pid).children()) == 1
            run.trainer.weight_update_success(0)
            run.until(lambda: len(groups(run)) == 2)
            run.update(engine, 4)
            run.until(lambda: len(groups(run)) == 4)
            run.update(engine, 8)
            run.until(lambda: len(groups(run)) == 6)
            run.trainer.training_done()
            assert run.end() == (0, "")
            evaluations = run.read("stats_test")
            assert [record["version"] for record in evaluations] == [0, 4, 8]
            assert evaluations[0]["values"]["reward"] == [0.0, 1.0, 2.0]
            assert evaluations[0]["test_reward_mean"] == 1.0
            texts = [text for group in groups(run) for text in group]
            assert len(run.read("actor_test")) == 9
            (first, *_), rest = run.read("stats_rollouts"), run.read("stats_rollouts")[1:]
            assert len(rest) == 5
            assert [one["index"] for one in first["rollouts"]] == [0, 1]
            assert {one["ending"] for one in first["rollouts"]} == {"done"}
            assert all(one["reward"] is not None and one["seconds"] > 0 for one in first["rollouts"])
        assert engine.counts["answered"] == 12 + 9
        assert [s["max_tokens"] for s in engine.sampling].count(6) == 9
    for number, group in enumerate(groups(run)):
        versions = {text["metadata"]["model_version"] for text in group}
        assert versions == {number // 2 * 4}
        assert sorted(text["metadata"]["rollout_index"] for text in group) == [0, 1]
    assert all(text["weight_versions"] == [[text["metadata"]["model_version"], 0, 3]] for text in texts)
    counts = reconcile(tmp_path)
    assert counts.adds_up
    assert (counts.started, counts.unfinished) == (12, 12)
    assert counts.eval_ends[Outcome.EVAL_DONE] == 9


DRAWN = """
import random
from tests.support.toy_domain import result, text

SECRETS = [random.randint(0, 10**6) for _ in range(8)]


def load(names):
    return [{"id": i, "secret": SECRETS[i]} for i in range(8)]


async def play(cfg, llm, problem, session):
    assert SECRETS[problem["id"]] == problem["secret"], "another draw than the loader's"
    return result([text()], reward=float(problem["secret"]))
"""


def test_what_a_domains_module_draws_when_it_is_imported_follows_from_the_seed(tmp_path: Path, model, answer):
    (tmp_path / "drawn_domain.py").write_text(DRAWN)

    class Beside(subprocess.Popen[str]):
        def __init__(self, argv: list[str], env: dict[str, str], **options: Any) -> None:
            env["PYTHONPATH"] += f":{tmp_path}"
            super().__init__(argv, env=env, **options)

    stops = {"rollout_policy": "drawn_domain.play", "on_rollout_error": "stop"}
    names: dict[str, Any] = {"dataset_loader": "drawn_domain.load", "train_dataset_names": ["all"]}
    with FakeEngine(answer) as engine:
        write_config(tmp_path, model, [engine], seed=7, eval_every_n_versions=8, actor=stops, **names)
        with ActorRun(tmp_path, start=Beside) as run:
            (record,) = run.until(lambda: run.read("stats_test"))
    drawn = random.Random(7)
    assert record["values"]["reward"] == [float(drawn.randint(0, 10**6)) for _ in range(8)]


def test_a_worker_that_dies_before_the_first_version_ends_the_run_by_its_name(tmp_path: Path, model, answer):
    with FakeEngine(answer) as engine:
        write_config(tmp_path, model, [engine], eval_every_n_versions=0)
        with ActorRun(tmp_path, announces=False) as run:
            run.until(lambda: worker_is_ready(tmp_path))
            (worker,) = psutil.Process(run.process.pid).children()
            worker.kill()
            run.trainer.weight_update_success(0)
            assert run.end() == (1, "actor: rollout worker 0 died with exit code -9; its log says more")


def test_a_first_group_that_never_ends_holds_up_no_other_and_is_named(tmp_path: Path, model, answer):
    hangs = {"rollout_policy": "tests.support.toy_domain.hang_in_the_first_group"}
    watch = BlockWatch(tmp_path)
    with FakeEngine(answer) as engine:
        write_config(tmp_path, model, [engine], eval_every_n_versions=0, actor=hangs)
        with ActorRun(tmp_path) as run:
            (line,) = run.until(lambda: list(watch.lines()))
            assert line.startswith("rollout worker 0 ") and " blocked for " in line
            assert "rollout 0-000000/0 at " in line and "toy_domain.py:" in line
            run.until(lambda: len(groups(run)) == 1)
            (samples,) = groups(run)
            assert {sample["group_id"] for sample in samples} == {"0-000001"}
            said = read_status(tmp_path)
            said["actor"]["oldest_since"] -= 30  # what is younger is not worth a word
            shown = str(status_line({}, RolloutCounts(), said, None, 61.0))
            assert " | oldest rollout 0-000000/0 for " in shown
            run.trainer.training_done()
            assert run.end()[0] == 0


def test_a_rollout_that_holds_the_interpreter_is_named_at_once_and_again_when_it_ends_the_run(
    tmp_path: Path, model, answer
):
    """No thread of its worker runs, and none could say so. Its own interpreter had shown life before."""
    holds = {"rollout_policy": "tests.support.toy_domain.hold_the_interpreter"}
    watch, deadline = BlockWatch(tmp_path), {"silent_deadline_s": 20}
    with FakeEngine(answer) as engine:
        write_config(tmp_path, model, [engine], eval_every_n_versions=0, actor=holds, watchdog=deadline)
        with ActorRun(tmp_path, start=subprocess.Popen) as run:
            (line,) = run.until(lambda: list(watch.lines()))
            assert line.startswith("rollout worker 0 is blocked for 1") and "no thread of it runs" in line
            assert "by rollout 0-000000/1 at " in line and " hold_the_interpreter < " in line
            stacks = (tmp_path / "actor" / "worker_0" / "held.txt").read_text()
            assert stacks.count("Thread 0x") > 2
            code, said = run.end()
    assert code == 1 and said.startswith("actor: rollout worker 0 shows no sign of life for 2")
    assert "held by rollout 0-000000/1 at " in said and "toy_domain.py:" in said


def loading(waits: list[dict[str, Any]]) -> list[str]:
    """Names of waits for problems; workers may still start beside them."""
    return [wait["name"] for wait in waits if wait["name"].startswith("the problems")]


def test_a_loader_that_blocks_is_named_and_a_thread_that_it_leaves_holds_up_no_end(
    tmp_path: Path, model, answer
):
    file = tmp_path / "go"
    loader = {"dataset_loader": "tests.support.toy_domain.load_when_told"}
    loader |= {"dataset_loader_params": {"file": str(file)}}
    with FakeEngine(answer) as engine:
        write_config(tmp_path, model, [engine], eval_every_n_versions=0, **loader)
        with ActorRun(tmp_path, start=subprocess.Popen) as run:
            waits = run.until(lambda: loading(read_status(tmp_path).get("actor", {}).get("waits", [])))
            assert waits == ["the problems of tests.support.toy_domain.load_when_told"]
            file.touch()
            run.until(lambda: groups(run))
            run.trainer.training_done()
            assert run.end()[0] == 0


def test_problems_that_are_trained_on_under_another_name_are_remarked(tmp_path: Path, model, answer):
    """The loader makes the same numbers for every name. The status after the end is of no evaluation."""
    watch = RemarkWatch(tmp_path)
    with FakeEngine(answer) as engine:
        write_config(tmp_path, model, [engine], eval_every_n_versions=1000)
        with ActorRun(tmp_path) as run:
            (line,) = run.until(lambda: list(watch.lines()))
            run.until(lambda: len(groups(run)) == 2)
            engine.delay_s = 2.5  # looked at once a second
            run.update(engine, 4)
            run.trainer.training_done()
            run.until(lambda: read_status(tmp_path)["actor"].get("test_problems") == 3)
            assert run.end() == (0, "")
            assert [record["version"] for record in run.read("stats_test")] == [0, 4]
    assert line.startswith("actor: 3 of 3 test problems are trained on too")
    assert summarise(tmp_path).evaluated_on == "test problems (3 of 3 trained on too)"
    assert "test_problems" not in read_status(tmp_path)["actor"]


def test_each_odd_answer_is_retried_or_counted_and_the_run_goes_on(tmp_path: Path, model, answer):
    watch = RemarkWatch(tmp_path)
    with FakeEngine(answer) as engine:
        engine.misbehave.extend([500, 404, b"nonsense", {"choices": []}, engine.reply([], "abort")])
        write_config(tmp_path, model, [engine], eval_every_n_versions=0, max_lag=96, eval_at_end=False)
        with ActorRun(tmp_path) as run:
            run.until(lambda: len(groups(run)) >= 49)
            run.trainer.training_done()
            assert run.end()[0] == 0
    assert not [line for line in watch.lines() if "trained on too" in line]  # nothing is evaluated
    counts = reconcile(tmp_path)
    assert counts.adds_up
    assert counts[Outcome.FAILED] == 2, counts.lines()
    (reason, *_) = counts.reasons[Outcome.FAILED]
    assert "404" in reason


def test_a_domain_that_always_raises_ends_the_run_with_its_reason(tmp_path: Path, model, answer):
    with FakeEngine(answer) as engine:
        params = {"count": 3, "raise": "the sandbox is on fire"}
        write_config(tmp_path, model, [engine], eval_every_n_versions=0, dataset_loader_params=params)
        with ActorRun(tmp_path) as run:
            code, line = run.end()
    assert code == 1
    assert line.startswith("actor: ") and "the sandbox is on fire" in line
    assert reconcile(tmp_path).adds_up


def test_a_resumed_actor_goes_on_where_the_restored_version_was(tmp_path: Path, model, answer):
    """The one that goes on names its worker when that is killed."""
    with FakeEngine(answer) as engine:
        write_config(tmp_path, model, [engine], eval_every_n_versions=1000, eval_at_end=False)
        with ActorRun(tmp_path) as run:
            run.until(lambda: len(groups(run)) == 2)
            run.update(engine, 4)
            run.until(lambda: len(groups(run)) == 4)
            first = groups(run)
        remarks = RemarkWatch(tmp_path)
        with ActorRun(tmp_path, version=4) as run:
            run.until(lambda: len(groups(run)) == 6)
            again = groups(run)[4:]
            assert not [line for line in remarks.lines() if "no snapshot" in line]
            assert len(run.read("stats_test")) == 1
            waiting = next_request_waits(engine)
            run.update(engine, 8)
            run.until(waiting)
            (worker,) = psutil.Process(run.process.pid).children()
            worker.kill()
            assert run.end() == (1, "actor: rollout worker 0 died with exit code -9; its log says more")
    prompts = [
        sorted({text["prompt_tokens"] for text in group} | {group[0]["text"]}, key=str) for group in first
    ]
    assert prompts[2:] == [sorted({t["prompt_tokens"] for t in g} | {g[0]["text"]}, key=str) for g in again]
    ids = {text["group_id"] for group in [*first, *again] for text in group}
    assert len(ids) == 6
    assert reconcile(tmp_path).adds_up


def test_a_resumed_actor_whose_snapshots_were_removed_says_so(tmp_path: Path, model, answer):
    watch = RemarkWatch(tmp_path)
    with FakeEngine(answer) as engine:
        write_config(tmp_path, model, [engine], eval_every_n_versions=0)
        engine.version = "4"
        with ActorRun(tmp_path, version=4) as run:
            run.until(lambda: groups(run))
            (line,) = [one for one in watch.lines() if "no snapshot" in one]
            assert line.startswith(
                "actor: no snapshot of the actor up to version 4 (actor/state was removed)"
            )
            run.trainer.training_done()
            assert run.end()[0] == 0


def test_an_actor_that_draws_by_difficulty_reports_it_and_a_resume_goes_on_with_its_rates(
    tmp_path: Path, model, answer
):
    """The toy's reward is the problem's number: of 0, 1 and 2 only the middle one is in the band."""
    by = {"sampling": "difficulty", "difficulty": {"metric": "reward", "low": 0.5, "high": 1.5}}
    rates = {0: 0.0, 1: 1.0, 2: 2.0}
    with FakeEngine(answer) as engine:
        write_config(tmp_path, model, [engine], eval_every_n_versions=1000, eval_at_end=False, actor=by)
        with ActorRun(tmp_path) as run:
            for version in range(4, 44, 4):  # two groups, of two rollouts, for each version
                run.until(lambda: len(groups(run)) == version // 2)  # noqa: B023
                run.update(engine, version)
            run.until(lambda: len(run.read("stats")) == 10)
            (evaluation,) = run.read("stats_test")
            record, measured = run.read("stats")[-1], run.read("stats_rollouts")
        with ActorRun(tmp_path, version=40) as run:
            run.until(lambda: len(run.read("stats_rollouts")) >= len(measured) + 2)
            run.trainer.training_done()
            assert run.end() == (0, "")
            later = run.read("stats_rollouts")[-2:]
    assert evaluation["values"]["reward"] == [0.0, 1.0, 2.0]
    assert record["sampling/known"] == 3 and record["sampling/known_in_band"] == pytest.approx(1 / 3)
    assert record["sampling/known_rate_mean"] == 1.0
    assert {"sampling/in_band", "sampling/first"} <= record.keys()
    assert undocumented("actor", names_in(tmp_path, "actor")) == []
    assert all(one["rate"] == rates[one["problem"]] for one in [*measured, *later])
    assert sum(one["problem"] == 1 for one in measured[10:20]) > 5
    # Of a problem that was forgotten the first group would be measured again.
    counts = {one["problem"]: one["measured_groups"] for one in measured[:20]}
    assert all(one["measured_groups"] > counts[one["problem"]] >= 2 for one in later)


def test_plain_functions_run_beside_the_loop_on_two_engines(tmp_path: Path, model, answer):
    """While none is answered each engine has as many requests as slots, however slow the other is."""
    let_go = threading.Event()

    async def held(_: web.Request) -> web.Response:
        await asyncio.to_thread(let_go.wait, DEADLINE_S)
        return web.json_response(one.reply(answer([])))

    with FakeEngine(answer) as one, FakeEngine(answer) as two:
        for engine in (one, two):
            # The first group tells how many texts a rollout has; until then no other may start.
            engine.misbehave.extend([engine.reply(answer([])), *[held] * 4])
        policy = {"rollout_policy": "tests.support.toy_domain.play_plain", "rollout_workers": 2}
        write_config(tmp_path, model, [one, two], eval_every_n_versions=0, actor=policy, max_lag=10_000)
        with ActorRun(tmp_path, job=2) as run:
            try:
                run.until(lambda: min(one.counts["requests"], two.counts["requests"]) >= 5 and groups(run))
                assert (one.counts["requests"], two.counts["requests"], len(groups(run))) == (5, 5, 1)
            finally:
                let_go.set()
            run.until(lambda: len(groups(run)) >= 16)
            run.until(next_request_waits(one))
            workers = psutil.Process(run.process.pid).children()
            run.process.kill()
            _, outlived = psutil.wait_procs(workers, timeout=DEADLINE_S)
            assert len(workers) == 2 and not outlived
