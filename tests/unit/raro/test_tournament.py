"""The tournament with critics whose behaviour is known."""

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.math.pool import VerifierPool
from domains.raro.calls import Caller
from domains.raro.countdown import verify
from domains.raro.parser import ANSWER_1, ANSWER_2, TIE
from domains.raro.tournament import (
    columns,
    configuration,
    main,
    majority,
    match,
    play,
    select,
    summary,
    tournament,
)
from pipelinerl.engines.errors import EngineUnavailable
from tests.support.raro_harness import PROBLEM, ScriptedModel, settings

NUMBERS, TARGET = [3, 8, 11], 33
WRONG = [f"{n}+8+11" for n in range(4, 20)]
RIGHT = "11*(11-8)"


def oracle(right):
    async def judge(first, second):
        if (first in right) == (second in right):
            return TIE
        return ANSWER_1 if first in right else ANSWER_2

    return judge


async def always_tie(first, second):
    return TIE


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
async def test_an_oracle_finds_a_correct_answer_wherever_it_stands(count):
    for seed in range(20):
        answers = [*WRONG[: count - 1], RIGHT]
        assert await tournament(answers, 2, oracle({RIGHT}), random.Random(seed)) == RIGHT


async def test_without_a_correct_answer_some_answer_wins():
    assert await tournament(WRONG[:5], 2, oracle({RIGHT}), random.Random(0)) in WRONG
    assert await tournament([], 2, oracle(set()), random.Random(0)) is None


async def test_a_critic_that_always_ties_picks_as_often_as_a_single_sample_is_right():
    answers = [RIGHT, "11*(8-5)", *WRONG[:6]]
    right = {RIGHT, "11*(8-5)"}
    wins = sum([await tournament(answers, 2, always_tie, random.Random(s)) in right for s in range(1_500)])
    assert abs(wins / 1_500 - 2 / 8) < 0.03


@pytest.mark.parametrize(
    ("answers", "votes", "calls"),
    [(WRONG[:8], 2, 14), (WRONG[:8], 4, 28), (WRONG[:5], 2, 8), (WRONG[:1], 2, 0), ([RIGHT] * 8, 2, 0)],
)
async def test_the_number_of_calls_identical_answers_are_not_compared(answers, votes, calls):
    asked = []

    async def judge(first, second):
        asked.append((first, second))
        return TIE

    assert await tournament(answers, votes, judge, random.Random(1)) in answers
    assert len(asked) == calls
    # Each pair is asked half of the time in each order.
    assert all(asked.count((b, a)) == asked.count((a, b)) for a, b in asked)


async def test_points_of_a_match():
    async def judge_as(verdicts):
        said = iter(verdicts)

        async def judge(first, second):
            return next(said)

        return await match("a", "b", 2, judge)

    assert await judge_as([ANSWER_1, ANSWER_2]) == "a"  # the second vote shows b first
    assert await judge_as([ANSWER_2, ANSWER_1]) == "b"
    assert await judge_as([ANSWER_1, ANSWER_1]) == "a"  # one point each: the earlier one
    assert await judge_as([TIE, ANSWER_1]) == "b"
    assert await judge_as([None, None]) == "a"
    with pytest.raises(ValueError, match="must be even"):
        await match("a", "b", 3, always_tie)


def test_the_most_frequent_answer():
    assert majority(["a", "b", "b"]) == "b" and majority(["a", "b"]) == "a" and majority([]) is None


async def test_a_question_is_played_with_the_prompts_of_training(monkeypatch):
    model = ScriptedModel(
        policy=["<answer>8*(11-8)</answer>", "<answer>11*(11-8)</answer>", "none", "<answer>1</answer>"],
        critic=["[Tie]"],
    )
    monkeypatch.setattr("domains.raro.calls.llm_async_generate", model.generate)
    problem = PROBLEM | {"numbers": [8, 11, 11], "target": 33}
    assert verify("11*(11-8)", problem["numbers"], 33)
    caller = Caller(model.llm(), None)
    first, outcome = await play(
        caller, settings(), problem, sizes=[2, 4], votes=2, rng=random.Random(0), pool=VerifierPool()
    )
    assert (first.n, first.single, first.calls) == (2, 0.5, 2)  # the first two of the four samples
    assert outcome.single == 0.25 and outcome.best_of_n and outcome.calls == 4
    assert len(model.prompts) == 4 + 2 + 4
    assert all("answer>" not in text for text in model.critic_prompts)
    assert summary([columns([outcome])])["single"]["mean"] == 0.25 and summary([]) == {}


SAMPLES = st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=16)
RIGHT_ONES = st.sets(st.sampled_from("abcd"))


@given(SAMPLES, RIGHT_ONES, st.integers(0, 1000))
def test_a_perfect_critic_reaches_the_verifiers_bound(samples, right, seed):
    known = {answer: answer in right for answer in "abcd"}
    found = asyncio.run(select("q", samples, known, 2, oracle(right), random.Random(seed)))
    assert found.tournament == found.best_of_n == any(sample in right for sample in samples)


@given(SAMPLES, RIGHT_ONES, st.integers(0, 1000))
def test_a_critic_that_is_always_wrong_is_right_only_where_nothing_else_is_said(samples, right, seed):
    known = {answer: answer in right for answer in "abcd"}
    found = asyncio.run(select("q", samples, known, 2, oracle(set("abcd") - right), random.Random(seed)))
    said = [sample for sample in samples if sample is not None]
    assert found.tournament == (bool(said) and all(sample in right for sample in said))


@pytest.mark.parametrize("count", [4, 7, 8, 16])
async def test_a_random_critic_is_right_as_often_as_a_sample(count):
    """Also where right answers are said more than once, which a bracket of distinct answers would undo."""
    coin = random.Random(5)

    async def guess(first, second):
        return coin.choice([ANSWER_1, ANSWER_2, TIE, None])

    samples = ["a", "a", "a", "b", "c", "d", "a", "e", *"fghijklm"][:count]
    known = {answer: answer == "a" for answer in samples}
    found = [await select("q", samples, known, 2, guess, random.Random(seed)) for seed in range(1_500)]
    share = sum(one.tournament for one in found) / len(found)
    assert {one.single for one in found} == {samples.count("a") / count}
    assert abs(share - samples.count("a") / count) < 0.03


def test_the_table_pairs_rules_by_question_and_counts_a_question_once():
    one = {
        "single": [0.5, 0.0],
        "majority": [1, 0],
        "tournament": [1, 1],
        "best_of_n": [1, 1],
        "calls": [6, 2],
    }
    other = one | {"tournament": [0, 1]}
    found = summary([one, other])
    assert found["tournament"]["mean"] == 0.75 and found["tournament - majority"]["mean"] == 0.25
    # By question the difference is -0.5 and 1, so no mean of resamples lies outside.
    assert (found["tournament - majority"]["low"], found["tournament - majority"]["high"]) == (-0.5, 1.0)


@pytest.mark.usefixtures("forked")
def test_a_folder_is_served_and_every_seed_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, model = tmp_path / "found.json", "domains/raro/checkpoint"
    given_ = ["--model", model, "--dataset", "hardware=cpu", "--n", "2,3", "--seeds", "0,1", "--limit", "2"]
    assert main([*given_, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [(run["model"], run["seed"]) for run in found["runs"]] == [(model, 0), (model, 1)]
    assert all(len(run["sizes"][n]["tournament"]) == 2 for run in found["runs"] for n in ("2", "3"))
    assert found["table"]["3"]["best_of_n"]["mean"] >= found["table"]["2"]["best_of_n"]["mean"]
    assert "n=3   tournament - majority" in capsys.readouterr().out


def test_the_context_is_that_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def served(model: str, args: argparse.Namespace) -> None:
        asked.append(args.context)
        raise ValueError("enough")

    monkeypatch.setattr("domains.raro.tournament.served", served)
    model = ["--model", "domains/raro/checkpoint"]
    preset = ["--dataset", "hardware=cpu,+preset=raro_pretrained"]
    assert [main([*model, *preset]), main([*model, *preset, "--context", "200"])] == [2, 2]
    assert asked == [384, 200] and capsys.readouterr().err == "tournament: enough\n" * 2


def test_without_a_dataset_the_configuration_is_the_domains() -> None:
    assert configuration("").domain_hooks == "domains.raro.domain.RaroDomain"


def test_commas_in_the_value_of_an_override_do_not_end_it() -> None:
    given_ = (
        "hardware=cpu,raro.data.countdown.target=[11,47],raro.data.files={train: a, test: b},raro.tau_pol=0.7"
    )
    found = configuration(given_).raro
    assert list(found.data.countdown.target) == [11, 47]
    assert dict(found.data.files) == {"train": "a", "test": "b"} and found.tau_pol == 0.7


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        (["--base-url", "http://x", "--n", "8,4"], "--n 8,4: give rising numbers"),
        (["--base-url", "http://x", "--n", "0"], "--n 0"),
        (["--base-url", "http://x", "--model", "m", "other"], "serves one model"),
        ([], "no such folder"),
    ],
)
def test_bad_options_are_one_line(given_, said, capsys):
    assert main(["--model", "m", *given_]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_odd_votes_are_refused_before_anything_is_asked(capsys):
    assert main(["--base-url", "http://x", "--model", "m", "--votes", "3"]) == 2
    assert "must be even" in capsys.readouterr().err


def test_an_engine_that_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def unanswered(args: object) -> None:
        raise EngineUnavailable("http://x", "connection", "refused")

    monkeypatch.setattr("domains.raro.tournament.run", unanswered)
    assert main(["--base-url", "http://x", "--model", "m"]) == 2
    assert capsys.readouterr().err == "tournament: http://x: connection: refused\n"


STARTS_AN_ENGINE = """
import argparse, asyncio, os, signal, sys, time
from domains.raro import tournament
real = asyncio.create_subprocess_exec
async def started(*argv, **options):
    engine = "import os, time; print('engine', os.getpid(), 'on http://x', flush=True); time.sleep(600)"
    process = await real(*argv[: argv.index('-m')], "-c", engine, **options)
    print(process.pid, flush=True)
    return process
asyncio.create_subprocess_exec = started
async def main():
    args = argparse.Namespace(base_url=None, context=8, threads=1)
    async with tournament.served("m", args) as address:
        assert address == "http://x"
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.mark.usefixtures("forked")
def test_the_engine_of_a_tournament_that_is_killed_ends_with_it() -> None:
    command = [sys.executable, "-c", STARTS_AN_ENGINE]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    pid, ends = int(ended.stdout), time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < ends, "the engine goes on"
        time.sleep(0.02)
