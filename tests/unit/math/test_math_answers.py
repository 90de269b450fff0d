"""What the verifier says of an answer, and that nothing written in a box can hold it up."""

import asyncio
import time

import pytest

from domains.math.answers import verify_answer
from domains.math.pool import MAX_GOLD_LENGTH, VerifierPool
from domains.math.rewards import RewardTable, get_reward

# Gold answer, what is in the box, status.
TABLE = [
    ("42", "42", "correct"),
    ("42", "43", "wrong"),
    ("42", "42.0", "correct"),
    ("1/2", "0.5", "correct"),
    ("1/2", r"\frac12", "correct"),
    (r"\frac{1}{2}", r"\frac{2}{4}", "correct"),
    (r"\sqrt{8}", r"2\sqrt{2}", "correct"),
    (r"\pi", "3.14", "wrong"),
    ("x^2+1", "1+x^2", "correct"),
    ("x^2+1", "x^2-1", "wrong"),
    ("(1,2)", "(1, 2)", "correct"),
    ("(1,2)", "(2, 1)", "wrong"),
    ("[1,2)", "[1,2]", "wrong"),
    (r"\{1,2,3\}", r"\{3,2,1\}", "correct"),
    (r"\{1,2\}", r"\{1,2,3\}", "wrong"),
    ("1,000", "1000", "correct"),
    ("18", r"18 \text{ dollars}", "correct"),
    ("$18$", "18", "correct"),
    ("-3", "-3", "correct"),
    ("-3", "3", "wrong"),
    ("10^3", "1000", "correct"),
    (r"\frac{3}{4}", "0.75", "correct"),
    ("blue", "blue", "correct"),
    ("blue", "Blue", "correct"),
    ("blue", "lube", "wrong"),
    (r"\text{Evelyn}", "Evelyn", "correct"),
    (r"\text{Evelyn}", r"\text{Carla}", "wrong"),
    ("A", "A", "correct"),
    ("A", "B", "wrong"),
    ("2x+3=7", "2x+3=7", "correct"),
    ("5", r"\text{five}", "wrong"),
    ("42", "]", "unparsable"),
    ("1", "(" * 40 + "]", "unparsable"),
    ("no way", r" $\text{no   way}.$ ", "correct"),
    ("7", " 7.", "correct"),
]


@pytest.mark.parametrize(("gold", "boxed", "status"), TABLE)
def test_a_boxed_answer_is_judged(gold: str, boxed: str, status: str) -> None:
    assert verify_answer(f"So it is \\boxed{{{boxed}}}.", gold) == status


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("It is 42.", "no_answer"),
        ("", "no_answer"),
        (r"\boxed{}", "unparsable"),
        (r"\boxed{ }", "unparsable"),
        (r"\boxed", "unparsable"),
        (r"\boxed 42", "unparsable"),
        (r"\boxed{42", "unparsable"),
        (r"\boxed{" + "1" * 1001 + "}", "unparsable"),
        (r"\boxed{41} no, \boxed{42}", "correct"),
        (r"\boxed{42} no, \boxed{41}", "wrong"),
        (r"\boxed {42}", "correct"),
    ],
)
def test_the_last_box_counts_and_a_missing_one_is_told_apart(text: str, status: str) -> None:
    assert verify_answer(text, "42") == status


HOSTILE = [
    "10^{10^{10}}",
    "9^{9^{9^{9}}}",
    "(10^{100000000})!",
    r"\frac{1}{" * 150 + "2" + "}" * 150,
    "(" * 450 + "1" + ")" * 450,
    r"\int_0^1 " * 60 + "x",
    r"\sqrt{" * 150 + "x" + "}" * 150,
    "x^" * 400 + "x",
    "1" * 900 + "^" + "9" * 90,
    "\\" * 900,
    "{" * 450 + "}" * 450,
    "\x00\ud800"[:1] + "∑∏√∞" * 100,
    r"\begin{pmatrix}" + "1&" * 300 + r"\end{pmatrix}",
    "__import__('os').system('touch /tmp/owned')",
    "exec('1')",
]


async def test_hostile_answers_end_in_time_and_the_pool_goes_on() -> None:
    async with VerifierPool(workers=2, deadline_s=0.5) as pool:
        began = time.monotonic()
        statuses = await asyncio.gather(*(pool.verify(f"\\boxed{{{text}}}", "42") for text in HOSTILE))
        assert time.monotonic() - began < 200
        assert set(statuses) <= {"wrong", "unparsable"} and statuses[0] == "unparsable"
        assert pool.counts["timeouts"] > 0
        pool.deadline_s = 60.0
        assert await pool.verify(r"\boxed{2/4}", "1/2") == "correct"
        with pytest.raises(ValueError, match=f"at most {MAX_GOLD_LENGTH} are compared"):
            await pool.verify(r"\boxed{1}", "1" * (MAX_GOLD_LENGTH + 1))


async def test_a_cancelled_question_does_not_answer_the_next_one() -> None:
    async with VerifierPool(workers=1, deadline_s=100.0) as pool:
        slow = asyncio.create_task(pool.verify(r"\boxed{10^{10^{10}}}", "1"))
        await asyncio.sleep(0.1)
        slow.cancel()
        assert await pool.verify(r"\boxed{2/4}", "1/2") == "correct"
        assert await pool.verify(r"\boxed{3/4}", "1/2") == "wrong"


@pytest.mark.parametrize(
    "settings", [{"workers": 0}, {"deadline_s": 0}, {"memory_mb": 10}], ids=lambda s: next(iter(s))
)
def test_a_pool_that_cannot_work_is_refused(settings: dict[str, float]) -> None:
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        VerifierPool(**settings)  # type: ignore[arg-type]


NUMBERS = {
    "correct_answer_finished": 1.0,
    "correct_answer_not_finished": 0.5,
    "wrong_answer_finished": -0.1,
    "wrong_answer_not_finished": -0.2,
    "no_answer_finished": -0.3,
    "no_answer_not_finished": -0.4,
    "unparsable_finished": -0.5,
    "unparsable_not_finished": -0.6,
}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("status", ["correct", "wrong", "no_answer", "unparsable"])
def test_each_status_has_its_number(status: str, finished: bool) -> None:
    prefix = {"correct": "correct_answer", "wrong": "wrong_answer"}.get(status, status)
    expected = NUMBERS[f"{prefix}_{'finished' if finished else 'not_finished'}"]
    assert get_reward(status, finished, RewardTable(**NUMBERS)) == expected


def test_unknown_statuses_and_incomplete_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="answer status 'right' is unknown; use one of correct"):
        get_reward("right", True, RewardTable(**NUMBERS))
    with pytest.raises(ValueError, match="correct_answer_finished"):
        RewardTable(**{name: value for name, value in NUMBERS.items() if name != "correct_answer_finished"})
    assert RewardTable(**NUMBERS).buffer_tokens == 0
