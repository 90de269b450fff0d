"""Test problems that are trained on too, under another name, in another order, with other spaces."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelinerl.actor.run import _compare
from pipelinerl.observe.summary import summarise
from pipelinerl.run_state.shared_problems import (
    digest,
    has_former,
    is_unknown,
    note_digest,
    note_former,
    note_shared,
    noted_shared,
    shared,
)

QUESTIONS = [f"How many apples are {number} apples and one more?" for number in range(40)]
Row = dict[str, Any]


def row(number: int, **more: Any) -> Row:
    return {"id": f"train-{number}", "question": QUESTIONS[number], "answer": str(number + 1), **more}


TRAIN = [row(number, dataset="train", level=1) for number in range(30)]


@pytest.mark.parametrize(
    ("test", "count"),
    [
        ([row(n, id=f"other-{n}", dataset="test") for n in reversed(range(30))], 30),
        ([row(n, question=f"  {QUESTIONS[n].upper()}\n", split="test") for n in range(25, 35)], 5),
        ([row(n, level=7, answer=f"{n + 1}.0") for n in range(28, 32)], 2),
        ([row(n) for n in range(30, 40)], 0),
        ([], 0),
    ],
    ids=["copied", "spaces_and_case", "other_numbers_beside", "others", "none"],
)
def test_texts_decide_whatever_they_are_called(test: list[Row], count: int) -> None:
    assert shared(TRAIN, test) == count


@pytest.mark.parametrize(
    ("trained", "tested", "count"),
    [
        ({"question": QUESTIONS[3], "solution": "Three and one are four."}, {"question": QUESTIONS[3]}, 1),
        ({"question": QUESTIONS[3]}, {"question": QUESTIONS[3], "solution": "Three and one are four."}, 1),
        ({"text": "A document of some length", "question": QUESTIONS[3]}, {"question": QUESTIONS[4]}, 0),
        ({"question": "Où est le café de Paris?"}, {"question": "Où est le cafe\u0301 de Paris?"}, 1),
        ({"question": QUESTIONS[3]}, {"task": QUESTIONS[3].upper(), "answer": "4"}, 1),
        ({"question": QUESTIONS[3]}, {"messages": [{"role": "user", "content": QUESTIONS[3]}]}, 1),
        ({"question": QUESTIONS[3]}, {"task": QUESTIONS[4], "answer": "4"}, 0),
        (
            {"_id": "5a8b57f25542995d1e6f1371", "q": QUESTIONS[3]},
            {"_id": "5adcb61f5542992c1e3a24c1", "q": QUESTIONS[3]},
            1,
        ),
        (
            {"qid": "webqsp-train-00000017", "q": QUESTIONS[3]},
            {"qid": "webqsp-dev-0000000018", "q": QUESTIONS[3]},
            1,
        ),
        (
            {"question": "小明有三个苹果，又买了一个，他有几个苹果。"},
            {"question": "小明有三个苹果，又买了一个，他有几个苹果"},
            1,
        ),
        ({"question": "كم عدد التفاحات في السلة الآن؟"}, {"question": "كم عدد التفاحات في السلة الآن"}, 1),
        ({"question": QUESTIONS[3]}, {"question": "\ufeff" + QUESTIONS[3].replace("pp", "p\u200bp")}, 1),
        ({"question": "What's the “final” offer?"}, {"question": 'What’s the "\ufb01nal" offer?'}, 1),
        ({"question": "It’s „finite“ – or not…"}, {"question": "It's ``finite'' - or\u00a0not..."}, 1),
        (
            {"question": "Was it 10−3 that he said?"},
            {"question": "Ｗａｓ it\u202f１０－３ that he said？"},
            1,
        ),
        ({"question": "Was it «ten» that he said?"}, {"question": "Was it “ten” that he said?"}, 1),
        ({"question": "Compute 5² of the former"}, {"question": "Compute 52 of the former"}, 0),
        ({"question": "Compute 3½ of the former"}, {"question": "Compute 31⁄2 of the former"}, 0),
        ({"question": "Compute 3-4 of the former"}, {"question": "Compute 3--4 of the former"}, 0),
        ({"question": QUESTIONS[3]}, {"question": QUESTIONS[3].rstrip("?")}, 1),
        ({"question": QUESTIONS[3]}, {"question": f"“{QUESTIONS[3]}”."}, 1),
        ({"question": "Compute the value of 5!"}, {"question": "Compute the value of 5"}, 0),
        ({"question": "Differentiate the function y'"}, {"question": "Differentiate the function y"}, 0),
        ({"question": "Find $x^3$ where $$x = 4.$$"}, {"question": r"Find \(x^3\) where \[x = 4.\]"}, 1),
        ({"question": "Find $x^3$ where $$x = 4.$$"}, {"question": r"Find \(x^3\) where \[x = 5.\]"}, 0),
        ({"question": "Which of these match ^ab$"}, {"question": "Which of these match ^ab"}, 0),
        ({"question": "2+3=?"}, {"question": "2+3=?", "system": "Answer with one number."}, 1),
        ({"system": "Add both.", "of": [2, 3]}, {"system": "Multiply both.", "of": [2, 3]}, 0),
        ({"numbers": [3, 4], "target": 7}, {"numbers": [3.0, 4.0], "target": 7.0}, 1),
        ({"numbers": [3, 4], "target": 7}, {"numbers": [3.5, 4.0], "target": 7.0}, 0),
    ],
)
def test_a_problem_is_known_in_another_form(trained: Row, tested: Row, count: int) -> None:
    assert shared([trained], [tested]) == count


def test_a_text_that_all_problems_have_says_nothing() -> None:
    system = "You are a calculator. Answer with one number."
    train = [{"system": system, "question": f"{n}+1"} for n in range(30)]
    test = [{"system": system, "question": f"{n}+1"} for n in range(29, 33)]
    assert shared(train, test) == 1


def test_problems_without_texts_are_compared_whole_and_chats_by_their_messages() -> None:
    assert shared([{"id": 1, "answer": 7, "highest": 100}], [{"id": 2, "answer": 7, "highest": 100}]) == 1
    assert shared([{"id": 1, "answer": 7, "highest": 100}], [{"id": 1, "answer": 8, "highest": 100}]) == 0
    chats = [
        [{"prompt": [{"role": "user", "content": QUESTIONS[n]}], "extra": {"index": at}} for n in numbers]
        for at, numbers in ((0, range(20)), (1, range(15, 25)))
    ]
    assert shared(*chats) == 5


SYSTEM = ("You are a helpful assistant.", "Solve the following problem.")


def chat(number: int, system: str, *more: Row) -> Row:
    said = [{"role": "system", "content": system}, {"role": "user", "content": QUESTIONS[number]}, *more]
    return {"messages": said}


@pytest.mark.parametrize(
    ("train", "test", "count"),
    [
        ([chat(n, SYSTEM[0]) for n in range(30)], [chat(n, SYSTEM[1]) for n in range(25, 35)], 5),
        (TRAIN, [row(n, question=QUESTIONS[n] + "\nBox the answer.") for n in range(25, 35)], 5),
        ([row(n, question="Think. " + QUESTIONS[n]) for n in range(30)], [row(n) for n in range(25, 35)], 5),
        (TRAIN, [row(n, question=f"“{QUESTIONS[n][:-1]}”\nBox the answer.") for n in range(25, 35)], 5),
        (TRAIN, [row(n, question=f"{QUESTIONS[n]} And how many in {n} years?") for n in range(25, 35)], 0),
        (
            [row(n % 30, solution=f"The solution number {n} of four") for n in range(120)],
            [row(n) for n in range(25, 35)],
            5,
        ),
        (TRAIN, [row(n, solution=f"Another solution, number {n}") for n in range(25, 35)], 5),
        (
            [*TRAIN, *({"task": f"{question} Or not?", "kind": 1} for question in QUESTIONS[:30])],
            [{"text": f"{QUESTIONS[n]} Or not?", "kind": 2} for n in range(25, 35)],
            5,
        ),
        ([{"q": f"{n} + 1 ="} for n in range(30)], [{"task": f"{n}+1="} for n in range(25, 35)], 5),
        (
            [{"ask": "Sort these numbers, largest first", "of": f"{n} 7"} for n in range(30)],
            [{"ask": "Sort these numbers, largest first", "of": f"{n} 7"} for n in range(25, 35)],
            5,
        ),
        (
            [row(n, passage=f"A passage that is number {n // 5}") for n in range(30)],
            [row(n, passage=f"A passage that is number {n // 7}") for n in range(30, 40)],
            0,
        ),
    ],
    ids=[
        "another_system_prompt",
        "an_instruction_behind",
        "an_instruction_before",
        "an_instruction_behind_a_quotation",
        "a_further_question",
        "several_solutions",
        "another_solution",
        "several_loaders",
        "short_texts_of_other_names",
        "one_instruction_for_all",
        "passages_of_several_questions",
    ],
)
def test_what_is_asked_decides_and_not_its_wrapping(train: list[Row], test: list[Row], count: int) -> None:
    assert shared(train, test) == count


STEPS = "Solve it step by step. The last line is of the form Answer: $Answer.\n\n{}\n\nBegin now."
BOXED = "{} Please reason step by step, and put your final answer within \\boxed{{}}."
FORMULAS = [f"Let $x$ be positive. Find\n\\[\n\\frac{{{n}}}{{x}} = 4,\n\\]\nif $x < {n}$." for n in range(40)]
EGGS = [f"A farmer by the river sells {n} eggs a day for {n % 7} dollars each." for n in range(40)]
LISTS = [f"{n} {n * 7 % 101} {n * 3 % 17} 12 55 71" for n in range(40)]


def asked(texts: list[str], form: str, **more: str) -> list[Row]:
    """Each text in a form, with further columns in which `{}` is its number."""
    return [
        {"prompt": form.format(text), **{key: value.format(n) for key, value in more.items()}}
        for n, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("train", "test", "count"),
    [
        (asked(QUESTIONS[:30], STEPS), asked(QUESTIONS[25:], BOXED), 5),
        (asked(FORMULAS[:30], "{}"), asked(FORMULAS[25:], BOXED), 5),
        (asked(FORMULAS[:30], STEPS), asked(FORMULAS[25:], "{}"), 5),
        (asked(LISTS[:30], "Sort ascending: {}"), asked(LISTS[25:], "Sort descending: {}"), 0),
        (asked(EGGS[:30], "{} How much in 2 days?"), asked(EGGS[25:], "{} How much in 5 days?"), 0),
        (asked(EGGS[:30], "{} How much is it?"), asked(EGGS[25:], "{} How many does he eat?"), 0),
        (
            asked(QUESTIONS[:30], "{}", problem_id="numina_train_{:06}"),
            asked(QUESTIONS[25:], "{}", problem_id="numina_test_{:06}"),
            5,
        ),
        (
            asked(QUESTIONS[:30], "{}", url="https://example.org/problems/{}"),
            asked(QUESTIONS[25:], "{}", hint="Remember the rule number {}"),
            5,
        ),
        (
            asked(
                QUESTIONS[:30], "{}", generated_solution="The first solution is {}", uniqueId="train/{:012}"
            ),
            asked(
                QUESTIONS[25:], "{}", generated_solution="The second solution is {}", uniqueId="test/{:012}"
            ),
            5,
        ),
        (
            asked(QUESTIONS[:30], "{}", system_prompt="The date of today is 2024-01-{:02}"),
            asked(QUESTIONS[25:], "{}", system_prompt="The date of today is 2025-01-{:02}"),
            5,
        ),
        (
            asked(["Solve the game of the day"] * 30, "{}", task_id="train_game_of_day_{:06}"),
            asked(["Solve the game of the day"] * 30, "{}", task_id="valid_game_of_day_{:06}"),
            0,
        ),
        (
            asked(["What does the picture show?", *QUESTIONS[:29]], "{}", image_id="train_picture_{:06}"),
            asked(["What does the picture show?", *QUESTIONS[30:]], "{}", image_id="valid_picture_{:06}"),
            0,
        ),
    ],
    ids=[
        "instructions_of_both",
        "a_formula_of_several_lines",
        "a_formula_of_several_lines_behind",
        "another_task_for_the_same_lists",
        "another_number_in_the_last_sentence",
        "another_question_of_the_same_facts",
        "ids_of_both",
        "other_columns_of_each",
        "a_generated_solution",
        "a_system_prompt_of_each_problem",
        "ids_of_one_question",
        "pictures",
    ],
)
def test_columns_and_instructions_of_both_sides_do_not_hide_a_question(
    train: list[Row], test: list[Row], count: int
) -> None:
    assert shared(train, test) == count


def test_a_question_that_is_there_often_is_still_one() -> None:
    """Sixteen samples of each of fifteen problems, and training on copies of one."""
    train = asked(QUESTIONS[:30], "{}")
    assert shared(train, asked(QUESTIONS[20:35] * 16, BOXED)) == 160
    assert shared([row(7, copy=n) for n in range(128)], train) == 1
    scored = [row(n % 15, score=n, solution=f"This is the solution number {n}") for n in range(120)]
    assert shared(scored, asked(QUESTIONS[10:20], "{}", level="{}")) == 5
    sums = [{"instruction": "Compute the following sum.", "input": f"{n}+{n}"} for n in range(31)]
    assert (shared(sums[:30], sums[30:]), shared(sums[:30], sums[29:30])) == (0, 1)


def test_what_a_model_says_in_sharegpts_form_is_no_question() -> None:
    train, test = (
        [
            {
                "conversations": [
                    {"from": "human", "value": QUESTIONS[n]},
                    {"from": "gpt", "value": f"{said} {n}"},
                ]
            }
            for n in numbers
        ]
        for said, numbers in (("I begin with the apples of", range(30)), ("My answer will be", range(25, 35)))
    )
    assert shared(train, test) == 5


def test_a_short_value_of_many_problems_is_their_content() -> None:
    asked = [{"word": f"word{n}", "letter": letter} for n in range(100) for letter in "dorw"]
    assert shared(asked[::2], asked[1::2]) == 0
    assert shared(asked[:200], asked[150:250]) == 50


@pytest.mark.parametrize("key", ["name", "number", "index", "key", "row"])
def test_a_name_that_alone_tells_problems_apart_is_their_content(key: str) -> None:
    train = [{key: n, "game": "chess"} for n in range(30)]
    test = [{key: n, "game": "chess"} for n in range(25, 35)]
    assert shared(train, test) == 5
    assert shared([{key: n} for n in range(30)], [{key: n} for n in range(25, 35)]) == 5
    of_sets = [[{key: n, "id": f"{kind}-{n}", "dataset": kind} for n in range(30)] for kind in ("a", "b")]
    assert shared(*of_sets) == 30 and shared([{"id": 1}, {"id": 2}], [{"id": 2}, {"id": 3}]) == 1
    assert digest(train) != digest([*train[1:], {key: 99, "game": "chess"}])


def test_how_often_a_value_is_there_belongs_to_a_problem() -> None:
    assert shared([{"numbers": [1, 1, 2]}], [{"numbers": [1, 2, 2]}]) == 0
    assert shared([{"numbers": [1, 1, 2]}], [{"numbers": [1, 1, 2]}]) == 1


def test_a_problem_within_an_object_is_known_by_its_texts() -> None:
    @dataclass(frozen=True, slots=True)
    class Chain:
        id: str
        question: str

    train, test = (
        [{"chain": Chain(f"{kind}-{n}", QUESTIONS[n])} for n in numbers]
        for kind, numbers in (("train", range(30)), ("test", range(25, 35)))
    )
    assert shared(train, test) == 5


def test_arrays_are_read_like_lists() -> None:
    """As pandas gives the columns of a parquet file; numpy shows a long one with an ellipsis."""
    trained = [{"prompt": np.array([{"role": "user", "content": text}])} for text in QUESTIONS[:30]]
    assert shared(trained, [{"question": text} for text in QUESTIONS[25:35]]) == 5
    long = [{"values": np.arange(2000)}, {"values": np.where(np.arange(2000) == 1000, 0, np.arange(2000))}]
    assert shared(long[:1], long[1:]) == 0 and shared(long[:1], [{"values": list(range(2000))}]) == 1
    assert digest(long[:1]) != digest(long[1:])


def test_what_was_counted_is_kept_for_the_report(tmp_path: Any) -> None:
    assert noted_shared(tmp_path) == ""
    note_shared(tmp_path, 0, 40)
    assert noted_shared(tmp_path) == ""
    note_shared(tmp_path, 12, 40)
    assert noted_shared(tmp_path) == "12 of 40" and not is_unknown(tmp_path)


@pytest.mark.parametrize("damaged", [b"\xb12 of 40\n", b"12 of", b"", b"[1, 2]\n", bytes(range(256))])
def test_a_damaged_count_is_not_known(damaged: bytes, tmp_path: Path) -> None:
    note_shared(tmp_path, 12, 40)
    (tmp_path / "actor" / "shared_problems").write_bytes(damaged)
    assert noted_shared(tmp_path) == "" and is_unknown(tmp_path)


def test_a_damaged_digest_differs(tmp_path: Path) -> None:
    note_digest(tmp_path, "test", digest(TRAIN))
    (tmp_path / "actor" / "test_digest").write_bytes(b"\xff\xfe")
    assert note_digest(tmp_path, "test", digest(TRAIN)) not in ("", digest(TRAIN))


def test_other_problems_have_another_digest_and_the_same_ones_the_same(tmp_path: Any) -> None:
    others = [TRAIN[1], TRAIN[0], *TRAIN[2:]]
    digests = [digest(rows) for rows in (TRAIN, TRAIN[:5], others, [*TRAIN[:-1], row(31)])]
    assert len({*digests}) == 4 and digests[1].startswith("5 ")
    assert digest([dict(one) for one in TRAIN]) == digests[0] and digest([]) == ""
    assert [note_digest(tmp_path, "test", one) for one in digests[:2]] == ["", digests[0]]
    assert note_digest(tmp_path, "training", digests[0]) == ""


def test_objects_and_sets_have_the_same_digest_in_each_process() -> None:
    class Picture:
        pass

    one, two = ([{"picture": Picture(), "words": {"a", "b", "c"}, "n": n} for n in range(3)] for _ in "ab")
    assert digest(one) == digest(two) and " at 0x" in str(one[0]["picture"])


def test_a_run_without_training_problems_calls_no_test_problem_held_out(tmp_path: Path) -> None:
    assert summarise(tmp_path).evaluated_on == "test problems", "nobody has looked, or the note was removed"
    _compare(tmp_path, [], [row(1)])
    assert summarise(tmp_path).evaluated_on == "test problems" and noted_shared(tmp_path) == ""
    _compare(tmp_path, [row(2)], [row(1)])
    assert summarise(tmp_path).evaluated_on == "held-out problems" and not is_unknown(tmp_path)
    _compare(tmp_path, [row(1)], [row(1)])
    assert summarise(tmp_path).evaluated_on == "test problems (1 of 1 trained on too)"
    note_former(tmp_path)  # as a resume on other problems does
    assert not has_former(tmp_path / "another") and has_former(tmp_path)
    _compare(tmp_path, [row(1)], [row(1)])
    assert summarise(tmp_path).evaluated_on == "test problems (1 of 1 trained on too)"
    _compare(tmp_path, [row(2)], [row(1)])
    assert summarise(tmp_path).evaluated_on == "test problems", "nobody knows whether it was a former one"
