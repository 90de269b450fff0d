"""No text that a policy writes raises in a judge: each of 10,000 odd texts has a verdict, in time."""

import asyncio
import json
import random
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from domains.coding.verifier_api import evaluate, extract_code, same_output, same_value
from domains.counting.counting import answer_of
from domains.fn_calling.verifier_api import verify_fn_calling_answer
from domains.guessing import guessing, stepwise
from domains.ifeval.instructions import CHECKS
from domains.ifeval.verifier_api import verify_answer as verify_instructions
from domains.ifeval.writing import WRITINGS
from domains.logic.published import JUDGES, judge_row
from domains.math.client import verify_answer_rpc
from domains.math.pool import VerifierPool
from domains.math.rewards import STATUSES
from domains.math.service import make_app
from domains.privacy_hopqa.agent.errors import StageError
from domains.privacy_hopqa.agent.interfaces import Stage
from domains.privacy_hopqa.agent.stages import (
    parse_choice,
    parse_plan,
    parse_read,
    parse_resolution,
    read_reply,
)
from domains.privacy_hopqa.data.answers import answers_match
from domains.raro import countdown
from domains.raro.normalize import normalize
from domains.raro.parser import VERDICTS, extract_answer, parse_verdict
from domains.reasoning_gym.answers import FORMATS
from domains.reasoning_gym.answers import extract_answer as extract_in_format
from domains.reputation_hacking.game.dynamics import ACTIONS
from domains.reputation_hacking.language.prompts import parse_action
from domains.tir.tool import program_of
from pipelinerl.engines.openai.chat import read_tool_calls
from pipelinerl.extras.sandbox.host import Limits, Sandbox
from tests.support.odd_texts import ended_after, texts
from tests.support.sandbox_needed import need_a_sandbox

PER_TEXT_S = 30
"""Of a pure judge, for one text, of which it needs milliseconds: quadratic time in a long one passes it."""

RNG = random.Random(0)
NAMES = list(WRITINGS)
CONTEXT = {
    "instruction_id_list": [*NAMES, "combination:repeat_prompt"],
    "kwargs": [*(WRITINGS[name].draw(RNG) for name in NAMES), {"prompt_to_repeat": "Write."}],
}
NUMBER = {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}}
CALLS: list[dict[str, Any]] = [
    {"category": "simple", "function": [NUMBER], "ground_truth": [{"f": {"x": [1]}}]},
    {
        "category": "parallel",
        "function": [NUMBER],
        "ground_truth": [{"f": {"x": [1]}}, {"f": {"x": ["a", [2]]}}],
    },
    {"category": "irrelevance", "function": [NUMBER], "ground_truth": []},
]
GAMES = {
    "dyck_language": {"question": "q", "answer": "", "metadata": {"full_sequence": "([])"}},
    "time_sequence": {
        "question": "q",
        "metadata": {"records": {"answers": {"answer_maxLen": 90, "answer_nums": 2}}},
    },
}


def ifeval(said: str) -> bool:
    found = verify_instructions(said, CONTEXT)
    return (
        found["answer_status"] in ("correct", "partial", "wrong", "no_answer")
        and len(CHECKS) == len(NAMES) + 1
    )


def fn_calling(said: str) -> bool:
    rows = [verify_fn_calling_answer(said, one) for one in CALLS]
    return all(one["answer_status"] in STATUSES and 0.0 <= one["partial_score"] <= 1.0 for one in rows)


def logic(said: str) -> bool:
    game = {"question": "q", "answer": "12", "metadata": {}}
    return all(judge_row(task, GAMES.get(task, game), said) in STATUSES for task in JUDGES)


def raro(said: str) -> bool:
    answer = extract_answer(said)
    for shown in (said, answer or ""):
        forms = [normalize(task, shown) for task in ("countdown", "text", "math", "solution", "poetry")]
        assert countdown.verify(forms[0], (1, 2, 3, 4), 24) in (False, True)
    return parse_verdict(said) in (None, *VERDICTS) and (answer is None or answer in said)


def privacy(said: str) -> bool:
    def known(name: str) -> str | None:
        return name if name in ("a", "b") else None

    for stage in Stage:
        try:
            value, _ = read_reply(said, stage)
            if stage is Stage.PLAN:
                for action in parse_plan(value, limit=3, no_web=False, earlier=()).actions:
                    action.query.encode()
                continue
            parse_read({"can_answer": True, **value}, min_confidence=0.5)
            options: dict[str, Any] = {"resolve_unread": known, "resolve_read": known, "limit": 3}
            parse_resolution({"answered": True, **value}, has_reads=True, has_positive=True, **options)
            parse_choice(value, resolve=known, limit=3)
        except StageError:  # counted, and part of the stage's contract
            pass
    return answers_match(said[:20_000], ["12%", "the Nile"], "f1_or_substring") in (False, True)


def coding(said: str) -> bool:
    code = extract_code(said)
    program = program_of(said)
    for wanted in ("3", "nan", "1e999999 2", said):
        assert same_output(said, wanted) in (False, True) and same_output(wanted, code) in (False, True)
    try:
        value = json.loads(code or said)
    except (ValueError, RecursionError):
        value = said
    wanted_values: tuple[Any, ...] = (3, "3", [3], [[3]], "[1, 2]", 1e308, said)
    assert all(same_value(value, wanted) in (False, True) for wanted in wanted_values)
    return isinstance(code, str) and (program is None or bool(program))


def games(said: str) -> bool:
    number, action = answer_of(said), parse_action(said, ACTIONS)
    calls = read_tool_calls(said)[1]
    given = [
        extract_in_format(said, form, right)
        for form in FORMATS
        for right in (None, "12", "word", "two words")
    ]
    return (
        (number is None or number >= 0)
        and action in (None, *range(len(ACTIONS)))
        and all(isinstance(call["function"]["name"], str) for call in calls)
        and all(one is None or one for one in given)
    )


def rollouts(said: str) -> bool:
    """Whole games of guessing, whose policies judge inside."""

    async def generate(*_: object) -> Any:
        return SimpleNamespace(completion=said)

    def made(*_: object) -> Any:
        return SimpleNamespace(reward=0.0)

    async def both() -> list[Any]:
        game = {"answer": 3, "highest": 100, "max_guesses": 2}
        return [await stepwise.generate_guessing_rollout(None, None, game, None),  # type: ignore[arg-type]
                await guessing.generate_guessing_rollout(None, None, {"answer": 3}, None)]  # type: ignore[arg-type]  # fmt: skip

    with pytest.MonkeyPatch.context() as patch:
        for module in (stepwise, guessing):
            patch.setattr(module, "llm_async_generate", generate)
            patch.setattr(module, "make_training_text", made)
            patch.setattr(module, "RolloutResult", lambda **values: values)
        return len(asyncio.run(both())) == 2


PURE: dict[str, tuple[Callable[[str], bool], int]] = {
    "ifeval": (ifeval, 300),
    "fn_calling": (fn_calling, 2_500),
    "logic": (logic, 2_000),
    "raro": (raro, 2_000),
    "privacy_hopqa": (privacy, 1_000),
    "coding": (coding, 1_500),
    "games": (games, 600),
    "rollouts": (rollouts, 30),
}
MATH, PROGRAMS = 40, 30
SHARE = 10
"""`make test` judges one text in so many, `make test-all` all of them."""


def test_ten_thousand_texts_are_judged() -> None:
    assert sum(count for _, count in PURE.values()) + MATH + PROGRAMS == 10_000


def _judged(judge: Callable[[str], bool], judged: Iterable[str]) -> None:
    for number, said in enumerate(judged):
        try:
            with ended_after(PER_TEXT_S):
                assert judge(said), "no verdict"
        except BaseException as error:
            raise AssertionError(f"text {number}: {said[:300]!r}: {error!r}"[:800]) from error


@pytest.mark.parametrize("digits", [200_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PURE)
def test_a_number_without_end_has_a_verdict(name: str, digits: int) -> None:
    number = "9" * digits
    _judged(PURE[name][0], (number, f"<answer>[f(x={number})]</answer>"))


@pytest.mark.parametrize("name", PURE)
def test_every_text_has_a_verdict(name: str) -> None:
    _judged(PURE[name][0], texts(PURE[name][1] // SHARE, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", PURE)
def test_many_more_texts_have_a_verdict(name: str) -> None:
    _judged(PURE[name][0], texts(PURE[name][1], seed=2))


async def _answers(count: int, seed: int) -> None:
    """Boxed, here and over HTTP; a worker that is late is ended at the pool's own deadline."""
    pool = VerifierPool(workers=2, deadline_s=0.5)
    golds = ("60%", "p - q", "no solution", r"\frac{1}{2}", "x")
    async with TestServer(make_app(pool)) as server, ClientSession() as session:
        for number, said in enumerate(texts(count, seed)):
            boxed, gold = f"\\boxed{{{said[:900]}}}", golds[number % len(golds)]
            for shown in (said, boxed):
                async with asyncio.timeout(60):
                    assert await pool.verify(shown, gold) in STATUSES, said[:300]
            if number % 5 == 0:
                found = await verify_answer_rpc(session, "127.0.0.1", int(server.port or 0), boxed, gold)
                assert found in STATUSES, said[:300]


async def test_every_boxed_text_has_a_verdict() -> None:
    await _answers(MATH // 5, seed=1)


@pytest.mark.slow
async def test_many_more_boxed_texts_have_a_verdict() -> None:
    await _answers(MATH, seed=2)


ADD = {"call_type": "fn", "fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}
SUM = {"call_type": "std", "inputs": ["1 2"], "outputs": ["3"]}
TESTED = {"call_type": "assert", "tests": ["assert add(1, 2) == 3"], "functions": {"add": "add"}}
HOSTILE = r"""
print("snan")
print("1e999999")
print("9" * 10**6)
print("\ud83d")
print(chr(0) * 9)
def add(a, b): return float("nan")
def add(a, b): return 10**10**5
def add(a, b): return {1: add}
def add(a, b): return eval("[" * 90 + "]" * 90)
def add(a, b): return "\ud83d"
def add(a, b): return complex(10**300, 1)
def add(a, b): raise SystemExit(0)
def add(a, b): raise Exception("\ud83d" * 9)
def add(a, b): return
import os; os.write(3, b"{\"value\": {\"complex\": [1" + b"0" * 400 + b", 0]}}"); os._exit(0)
import os; os.write(3, b"[" * 60000); os._exit(0)
import os; os.write(3, b"{\"value\": {\"dict\": [[{\"tuple\": [[]]}, 1]]}}"); os._exit(0)
""".strip().split("\n")
HOSTILE += ["x = " + "(" * 300, "x = " + "-" * 50_000 + "1", "\x00", "\ud83d"]


async def _programs(count: int, seed: int) -> None:
    need_a_sandbox()
    async with Sandbox(Limits(cpu_s=1, wall_s=20)) as box:
        for said in (*HOSTILE, *texts(count - len(HOSTILE), seed)):
            for context in (ADD, SUM, TESTED):
                async with asyncio.timeout(120):
                    found = await evaluate(box, f"```python\n{said}\n```", context)
                assert found.answer_status in STATUSES and found.answer_status != "correct", said[:300]


async def test_every_program_has_a_verdict() -> None:
    await _programs(len(HOSTILE), seed=1)


@pytest.mark.slow
async def test_many_more_programs_have_a_verdict() -> None:
    await _programs(PROGRAMS, seed=2)
