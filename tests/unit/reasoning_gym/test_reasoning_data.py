"""Questions: the same for the same name, disjoint between training and evaluation, refused in one line."""

import os
import random
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from domains.reasoning_gym.data import chosen, load_problems
from domains.reasoning_gym.families import HASHED, NO_DATA, entry, known
from domains.reasoning_gym.scoring import judge
from domains.split import is_held_out

DIGITS = {"max_terms": 2, "max_digits": 1}
SMALL: dict[str, Any] = {"chain_sum": DIGITS, "products": {"max_digits": 1}, "letter_counting": {}}


def questions(name: str, **params: Any) -> list[str]:
    return [problem["question"] for problem in load_problems([name], **({"tasks": SMALL} | params))]


@pytest.mark.usefixtures("families")
def test_equal_names_give_equal_problems_and_other_names_others() -> None:
    assert load_problems(["train", "test"], SMALL) == [
        *load_problems(["train"], SMALL),
        *load_problems(["test"], SMALL),
    ]
    assert questions("train", count=50) == questions("train", count=50)
    assert questions("train", count=50) != questions("train_2", count=50)


@pytest.mark.usefixtures("families")
def test_each_family_has_its_share_and_its_own_curve() -> None:
    found = Counter(problem["dataset"] for problem in load_problems(["train"], SMALL, count=30))
    assert found == {f"train/{task}": 30 for task in SMALL}
    ids = [problem["id"] for problem in load_problems(["train", "train_2"], SMALL, count=300)]
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("families")
def test_no_question_of_the_evaluation_is_ever_trained() -> None:
    """Also in families of a hundred questions, and whatever options and names the training has."""
    asked = questions("test")
    assert len(asked) == len(set(asked))
    trained = questions("train", count=3000) + questions("train_2", tasks=SMALL | {"chain_sum": {}})
    assert set(asked).isdisjoint(trained)
    products = [question for question in asked if "multiplication" in question]
    assert 5 < len(products) < 40  # a fifth of a hundred, which is fewer than test_count


@pytest.mark.usefixtures("families")
def test_validation_asks_what_neither_training_nor_the_evaluation_asks() -> None:
    train, val, test = (set(questions(name, validation=0.1)) for name in ("train", "val", "test"))
    assert val and val.isdisjoint(train | test) and test == set(questions("test"))
    with pytest.raises(ValueError, match=r"give dataset_loader_params\.validation"):
        questions("val")
    with pytest.raises(ValueError, match=r"validation=0\.9: a share"):
        questions("train", validation=0.9)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_share_that_is_held_out_is_the_wanted_one(share: float) -> None:
    held = [is_held_out(f"What is {n}?", share) for n in range(4000)]
    assert abs(sum(held) / 4000 - share) < 0.03
    assert all(is_held_out(f"What is {n}?", 0.6) for n, was in enumerate(held) if was)


def test_a_family_that_is_null_is_left_out() -> None:
    assert chosen({"gcd": None, "lcm": {"max_value": 9}}) == {"lcm": '{"max_value": 9}'}
    for nothing in ({}, {"gcd": None}):
        with pytest.raises(ValueError, match="names no family"):
            chosen(nothing)


@pytest.mark.usefixtures("families")
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"tasks": {"chain_sums": {}}}, r"tasks.chain_sums: no such family; did you mean chain_sum\?"),
        ({"tasks": {"composite": {}}}, "tasks.composite: no such family; composite mixes other families"),
        (
            {"tasks": {"gcd": {"max_valu": 9}}},
            r"tasks.gcd.max_valu: no such option; did you mean max_value\?",
        ),
        ({"tasks": {"gcd": {"seed": 9}}}, "tasks.gcd.seed: leave it out; it follows from the dataset's name"),
        ({"tasks": {"gcd": {"size": 9}}}, "tasks.gcd.size: leave it out; count says"),
        ({"tasks": {"gcd": {"max_value": 0}}}, r"tasks.gcd=\{'max_value': 0\}: max_value must be"),
        ({"tasks": {"gcd": {"max_value": "many"}}}, r"tasks.gcd=\{'max_value': 'many'\}: '>' not supported"),
        ({"tasks": {"gcd": 3}}, "tasks.gcd=3: options are a mapping"),
        ({"tasks": SMALL, "count": 0}, "count=0, test_count=64, held_out=0.2: counts begin at 1"),
        ({"tasks": SMALL, "held_out": 1.0}, "held_out=1.0: counts begin at 1, and the share"),
        ({"tasks": SMALL, "dataset_names": ["gsm8k"]}, "dataset 'gsm8k': a name begins with train or test"),
        ({"tasks": {"products": {"max_digits": 1}}, "held_out": 1 - 1e-9}, "is held out; lower held_out"),
    ],
    ids=str,
)
def test_what_cannot_be_made_is_refused_in_one_line(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        load_problems(**({"dataset_names": ["train"]} | params))
    assert "\n" not in str(refused.value)


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r"cannot be imported.*; pip install 'pipelinerl\[reasoning-gym\]'"):
        load_problems(["train"], {"no_such_family": {}})


HASHES = """
import hashlib, json, sys
from domains.reasoning_gym.families import HASHED, known, make
found = {}
for task in known():
    if task in HASHED:
        continue
    data = make(task, {}, 77)
    found[task] = [hashlib.md5(data[index]["question"].encode()).hexdigest() for index in range(3)]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("families")
def test_questions_do_not_depend_on_the_hash_seed_of_a_process() -> None:
    """All but those in `HASHED`, which are refused without a fixed seed."""
    told = []
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        told.append(subprocess.run([sys.executable, "-c", HASHES], env=env, capture_output=True, check=True))
    assert told[0].stdout == told[1].stdout and len(told[0].stdout) > 1000


@pytest.mark.usefixtures("families")
def test_questions_do_not_depend_on_what_a_process_drew_before() -> None:
    """`list_functions` draws some inputs from the process-wide generator."""
    told = []
    for before in (1, 2):
        entry.cache_clear()
        random.seed(before)
        told.append([entry("list_functions", "{}", 7, index) for index in (13, 22, 47)])
        assert random.random() == random.Random(before).random()
    assert told[0] == told[1]


@pytest.mark.usefixtures("families")
def test_a_family_that_depends_on_the_hash_seed_is_refused_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks: dict[str, Any] = {"ransom_note": {}}
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(ValueError, match="start the run with PYTHONHASHSEED=0 in its environment"):
        load_problems(["train"], tasks, count=1)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert load_problems(["train"], tasks, count=1)


@pytest.mark.slow
@pytest.mark.usefixtures("families")
def test_every_family_makes_questions_and_knows_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's whole list: a question, its right answer and a wrong one, scored from 0 to 1."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    tasks = sorted(known())
    assert len(tasks) == 105 and not HASHED - set(tasks) and not NO_DATA.keys() & set(tasks)
    wrong_answers = 0
    for problem in load_problems(["train"], {task: {} for task in tasks}, count=1):
        keys = ("task", "options", "seed", "index", "question")
        for completion in ("", "5", "blah <answer>[1]</answer>"):
            found = judge(*(problem[key] for key in keys), completion, "auto")
            assert isinstance(found, tuple) and (found[0] is None or 0.0 <= found[0] <= 1.0)
            wrong_answers += found[0] in (None, 0.0)
    assert wrong_answers > 200
