"""The tournament with critics whose behaviour is known."""

import random

import pytest

from domains.math.pool import VerifierPool
from domains.raro.calls import Caller
from domains.raro.countdown import verify
from domains.raro.parser import ANSWER_1, ANSWER_2, TIE
from domains.raro.tournament import main, majority, match, play, summary, tournament
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
    wins = sum([await tournament(answers, 2, always_tie, random.Random(s)) in right for s in range(4_000)])
    assert abs(wins / 4_000 - 2 / 8) < 0.03


@pytest.mark.parametrize(
    ("answers", "votes", "calls"),
    [(WRONG[:8], 2, 14), (WRONG[:8], 4, 28), (WRONG[:5], 2, 8), (WRONG[:1], 2, 0), ([RIGHT] * 8, 2, 0)],
)
async def test_the_number_of_calls_identical_answers_counting_once(answers, votes, calls):
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
    outcome = await play(caller, settings(), problem, n=4, votes=2, rng=random.Random(0), pool=VerifierPool())
    assert outcome.single == 0.25 and outcome.best_of_n and outcome.calls == 4
    assert all("answer>" not in text for text in model.critic_prompts)
    assert summary([outcome])["single"] == 0.25 and summary([]) == {}


def test_odd_votes_are_refused_before_anything_is_asked(capsys):
    assert main(["--base-url", "http://x", "--model", "m", "--votes", "3"]) == 2
    assert "votes even" in capsys.readouterr().err


def test_an_engine_that_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def unanswered(args: object) -> None:
        raise EngineUnavailable("http://x", "connection", "refused")

    monkeypatch.setattr("domains.raro.tournament.run", unanswered)
    assert main(["--base-url", "http://x", "--model", "m"]) == 2
    assert capsys.readouterr().err == "tournament: http://x: connection: refused\n"
