"""Puzzles of families and of published rows, their verdicts and rewards; refusals in one line."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from omegaconf import OmegaConf

from domains.logic import generate_logic_rollout, load_problems, verify_answer_rpc
from domains.logic.dataset import FAMILIES
from domains.logic.published import JUDGES, judge_row
from domains.logic.verifier_api import ask_verdict, judged
from domains.pool import JudgePool
from domains.reasoning_gym.families import entry
from domains.reasoning_gym.scoring import make_pool
from domains.verdict_server import make_app
from tests.support.one_line import check_refusals, check_starts
from tests.support.text_domain import REWARDS, check_bad_row, check_one_server, played, upstreams_file

NAME = "+domain=logic"


def game(answer: str, **metadata: Any) -> str:
    return json.dumps({"question": "q", "answer": answer, "metadata": metadata})


def row(task: str, answer: str, **more: Any) -> dict[str, Any]:
    return {"question": f"{task}?", "info": json.dumps({"task": task, "game_data_str": game(answer)}), **more}


@pytest.fixture
def families() -> None:
    pytest.importorskip("reasoning_gym", reason="pip install 'pipelinerl[reasoning-gym]'")


TIMES = game("", records={"answers": {"answer_maxLen": 90, "answer_nums": 2}})


@pytest.mark.parametrize(
    ("task", "data", "response", "status"),
    [
        ("boolean_expressions", game("A, C"), r"So \boxed{c, a}.", "correct"),
        ("boolean_expressions", game("A, C"), r"So \boxed{A}.", "wrong"),
        ("boolean_expressions", game("A, C"), r"\boxed{\text{A, C}}", "correct"),
        ("boolean_expressions", game("A, C"), r"\boxed{\mathbf{A} and \mathbf{C}}", "correct"),
        ("boolean_expressions", game("A, C"), r"\boxed{\text{A, B}}", "wrong"),
        ("object_counting", game("12"), r"\boxed{\text{12}}", "correct"),
        ("word_sorting", game("ant, bee"), r"\boxed{\text{ant},\ \text{bee}}", "correct"),
        ("word_sorting", game("ant, bee"), r"\boxed{\text{bee, ant}}", "wrong"),
        ("boolean_expressions", game("A, C"), "A and C", "no_answer"),
        ("object_counting", game("12"), r"<think>11</think> \boxed{12}", "correct"),
        ("object_counting", game("12"), " 12\n", "correct"),
        ("object_counting", game("12"), "It is 12.", "no_answer"),
        ("object_counting", game("12"), r"<think>\boxed{12}", "no_answer"),
        ("word_sorting", game("ant, bee"), r"\boxed{ant,bee}", "correct"),
        ("word_sorting", game("ant, bee"), r"\boxed{bee, ant}", "wrong"),
        ("web_of_lies", game("yes, no"), "Ann lies.\n**yes, no**", "correct"),
        ("web_of_lies", game("yes, no"), "The answer is: true, false.", "correct"),
        ("web_of_lies", game("yes, no"), "yes", "wrong"),
        ("web_of_lies", game("yes, no"), "So:\n\n**Answer:** yes, no", "correct"),
        ("web_of_lies", game("yes, no"), "So:\n\n**Answer:** no, yes", "wrong"),
        ("web_of_lies", game("yes, no"), "**Answer: yes, no**", "correct"),
        ("web_of_lies", game("yes, no"), "**Final answer:** The answer is yes, no.", "correct"),
        ("web_of_lies", game("yes, no"), "**Yes**, **No**", "correct"),
        ("web_of_lies", game("yes, no"), "Ann: **no**, Bob: **yes**", "wrong"),
        ("web_of_lies", game("yes, no"), "Not **no, no** but **yes, no**", "correct"),
        ("web_of_lies", game("yes, no"), "**Answer:** unknown", "no_answer"),
        ("web_of_lies", game("yes, no"), "I do not know", "no_answer"),
        ("time_sequence", TIMES, "[1, 1] or rather [90, 2]", "correct"),
        ("time_sequence", TIMES, "[90, 3]", "wrong"),
        ("time_sequence", TIMES, "90 and 2", "no_answer"),
        ("dyck_language", game("", full_sequence="([])"), '"( [ ] )"', "correct"),
        ("dyck_language", game("", full_sequence="([])"), "([)]", "wrong"),
        ("dyck_language", game("", full_sequence="([])"), "It is ([])", "no_answer"),
    ],
)
def test_published_tasks_are_judged(task: str, data: str, response: str, status: str) -> None:
    assert judge_row(task, data, response) == status == judge_row(task, json.loads(data), response)
    assert judge_row(task, data, "") == "no_answer"


def test_published_rows_are_read_split_and_left_out(tmp_path: Path) -> None:
    hard = "avg@16_qwen3_4b_instruct_2507"
    rows = [row("object_counting", str(n), **{hard: n / 20}) for n in range(20)] + [row("web_of_lies", "yes")]
    (tmp_path / "INTELLECT-3-RL.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    given: dict[str, Any] = {"data_dir": str(tmp_path), "dataset_id": "PrimeIntellect/INTELLECT-3-RL"}
    train, test = (load_problems([name], **given, test_size=5) for name in ("logic", "logic_test"))
    assert (len(train), len(test)) == (16, 5) and not {p["id"] for p in train} & {p["id"] for p in test}
    assert {problem["logic_task"] for problem in [*train, *test]} == {"object_counting", "web_of_lies"}
    assert train[0]["dataset"] in ("logic@object_counting", "logic@web_of_lies")
    assert load_problems(["logic"], **given, test_size=5, split="test")[0]["id"].startswith("logic-")
    asked = [p["task"] for p in load_problems(["logic"], **given, test_size=5, split="test")]
    assert asked == [p["task"] for p in test]
    path = str(tmp_path / "INTELLECT-3-RL.jsonl")
    assert len(load_problems([path], max_difficulty=0.5)) == 12  # those without a difficulty stay
    assert len(load_problems([path], tasks_to_skip=["object_counting"])) == 1
    parts = (
        [p["task"] for p in load_problems([path], test_size=5, split=part)] for part in ("train", "test")
    )
    assert list(map(len, parts)) == [16, 5]


def test_rows_that_are_left_out_move_no_other_row_to_the_other_part(tmp_path: Path) -> None:
    """Parts first, then tasks and difficulties, as in upstream: no evaluation is another run's training."""
    hard, tasks = "avg@16_qwen3_4b_instruct_2507", ("object_counting", "arrow_maze", "web_of_lies")
    rows = [row(tasks[n % 3], "yes" if n % 3 else str(n), **{hard: n / 60}) for n in range(60)]
    rows = [one | {"question": f"Q{n}"} for n, one in enumerate(rows)]
    (tmp_path / "INTELLECT-3-RL.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    order = list(range(60))
    random.Random(42).shuffle(order)
    held_out = {f"Q{n}" for n in order[-20:]}
    given: dict[str, Any]
    for given in ({}, {"max_difficulty": 0.5}, {"tasks_to_skip": ["web_of_lies"]}):
        parts: dict[str, set[str]] = {}
        for name in ("logic", "logic_test"):
            found = load_problems([name], data_dir=str(tmp_path), test_size=20, skip_unknown=True, **given)
            parts[name] = {problem["task"] for problem in found}
        assert parts["logic_test"] and parts["logic_test"] <= held_out and not parts["logic"] & held_out


def test_rows_of_other_tasks_are_refused_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(row("object_counting", "1")) + "\n" + json.dumps(row("arrow_maze", "x")))
    with pytest.raises(
        ValueError, match=r"mine\.jsonl:2: task 'arrow_maze' has a verifier of its own.*skip_unk"
    ):
        load_problems([str(path)])
    assert len(load_problems([str(path)], skip_unknown=True)) == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"question": "q"}, "expected {question, info}"),
        ({"question": "q", "info": "{"}, "expected {question, info}"),
        ({"question": "q", "info": "{}"}, "info: expected task and game_data_str"),
        ({"question": "q", "info": {"task": "web_of_lies", "game_data": "["}}, "game_data is no object"),
        (row("web_of_lies", " "), "task web_of_lies: no answer in game_data"),
        (row("time_sequence", "x"), "task time_sequence: no answer in game_data"),
        (row("object_counting", "two"), "answer 'two' is no whole number"),
        (3, "a int, expected an object"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, bad: Any, message: str) -> None:
    check_bad_row(load_problems, tmp_path, bad, message)


@pytest.mark.usefixtures("families")
def test_every_task_has_a_family_whose_right_answer_is_right() -> None:
    tasks: dict[str, Any] = {task: {} for task in FAMILIES}
    train = load_problems(["logic"], tasks=tasks, count=2)
    assert {problem["logic_task"] for problem in train} == FAMILIES.keys()
    assert {problem["dataset"] for problem in train} == {f"logic/{task}" for task in FAMILIES}
    test = load_problems(["logic_test"], tasks={"web_of_lies": {}}, test_count=20)
    assert len({problem["task"] for problem in test}) == 20
    assert JUDGES.keys() - FAMILIES.keys() == {"dyck_language"}


@pytest.fixture
async def pool(families: None) -> Any:
    async with make_pool(1, 60.0, 2048) as made:
        yield made


async def test_a_generated_puzzle_is_judged_here_and_by_a_server(pool: JudgePool) -> None:
    (problem,) = load_problems(["logic"], tasks={"date_understanding": {}}, count=1)
    context = problem["reward_context"]
    right = entry(*(context[key] for key in ("task", "options", "seed", "index")))["answer"]

    async def judge(prediction: str, reward_context: dict[str, Any], answer_format: Any) -> dict[str, Any]:
        return await judged(pool, prediction, reward_context, answer_format)

    server = TestServer(make_app(judge))
    async with server, ClientSession() as session:
        cases = ((f"<answer>{right}</answer>", "correct"), ("<answer>x</answer>", "wrong"), ("", "no_answer"))
        for said, status in cases:
            found = await judged(pool, said, context)
            asked = session, "127.0.0.1", int(server.port or 0), said, context
            assert await ask_verdict(*asked) == found
            assert await verify_answer_rpc(*asked) == status, (
                "the status alone, as upstream's policies compare"
            )


async def test_the_rewards_are_those_of_the_table(tmp_path: Path) -> None:
    cfg = OmegaConf.create({"actor": {}, "rewards": REWARDS})
    problem = {
        "task": "Who lies?",
        "reward_context": {"task": "web_of_lies", "game_data": game("yes, no")},
        "dataset": "logic@web_of_lies",
    }
    for said, reward in (("**yes, no**", 1.0), ("**no, no**", -0.5), ("well", -1.0)):
        result = await played(generate_logic_rollout, cfg, problem, tmp_path, lambda _, said=said: said)
        (text,) = result.training_texts
        assert (text.reward, result.metrics.success) == (reward, reward == 1.0)
        assert (result.domain, result.dataset_name) == ("logic", "logic@web_of_lies")


@pytest.mark.usefixtures("families")
def test_wrong_keys_are_one_line_each(dry_run: Callable[..., Any]) -> None:
    check_starts(dry_run, NAME)
    check_refusals(
        dry_run,
        NAME,
        ("train_dataset_names=[puzzles]", "dataset 'puzzles': name train, logic"),
        ("dataset_loader_params.tasks={sudoko: {}}", "tasks.sudoko: no such task; did you mean sudoku?"),
        ("dataset_loader_params.tasks={sudoku: {size: 3}}", "tasks.mini_sudoku.size: leave it out"),
        ("dataset_loader_params.data_dir=nowhere", "no file nowhere/logic.jsonl"),
        ("logic.answer_format=number", "logic.answer_format='number': input should be"),
        ("actor.task_template=Solve", "put {task} where the question goes"),
    )


FILE = """
defaults: [base, _self_]
actor: {rollout_policy: pipelinerl.domains.logic.generate_logic_rollout, system_prompt: "",
  task_template: "{task}", task_prompt: "", ensure_boxed_answers: false}
dataset_loader: pipelinerl.domains.logic.dataset.load_problems
dataset_loader_params: {dataset_id: PrimeIntellect/INTELLECT-3-RL, dataset_config: logic, split: train,
  subset: train, test_size: 550, min_difficulty: 0.0, max_difficulty: 1.0,
  difficulty_column: avg@16_qwen3_4b_instruct_2507, tasks_to_skip: [arc_agi, dyck_language],
  max_examples: null, seed: 42, huggingface_token: null}
train_dataset_names: [logic]
test_dataset_names: [logic_test]
environments:
  - {key: logic, mode: remote, replicas_per_actor: "${world.env_replicas_per_actor}",
     _target_: pipelinerl.domains.logic.LogicEnvironment}
world: {env_replicas_per_actor: 1}
environment_key: logic
"""


def test_upstreams_file_composes_and_says_what_its_data_need(
    tmp_path: Path, dry_run: Callable[..., Any]
) -> None:
    tree, load = upstreams_file(tmp_path, "logic", FILE, generate_logic_rollout)
    params = dict(tree.dataset_loader_params)
    with pytest.raises(
        ValueError, match=r"^dataset_id=PrimeIntellect/INTELLECT-3-RL: nothing is downloaded; set "
    ):
        load(tree.train_dataset_names, **params)
    rows = [row("object_counting", "1") for _ in range(600)]
    (tmp_path / "INTELLECT-3-RL.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    params["data_dir"] = str(tmp_path)
    assert len(load(tree.train_dataset_names, **params)) == 50
    assert len(load(tree.test_dataset_names, **params)) == 550
    check_one_server(dry_run, tmp_path, "logic")
