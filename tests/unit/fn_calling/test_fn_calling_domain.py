"""Problems generated, of BFCL's data and of files; prompts, rewards, the server; refusals in one line."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from omegaconf import OmegaConf

from domains.fn_calling import (
    generate_fn_calling_rollout,
    load_problems,
    verify_fn_calling_answer,
    verify_fn_calling_answer_rpc,
)
from domains.fn_calling.problems import CATEGORIES
from domains.fn_calling.rollouts import messages_of
from domains.verdict_server import make_app
from tests.support.one_line import check_refusals, check_starts
from tests.support.text_domain import REWARDS, check_bad_row, check_one_server, played, upstreams_file

NAME = "+domain=fn_calling"
ADD = {
    "name": "add",
    "description": "Adds.",
    "parameters": {
        "type": "dict",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
ROW = {
    "id": "simple_python_0",
    "question": [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Add 1 and 2."}]],
    "function": [ADD],
}
TRUTH = {"id": "simple_python_0", "ground_truth": [{"add": {"a": [1], "b": [2]}}]}
TWO = {"category": "parallel", "function": [ADD], "ground_truth": [*TRUTH["ground_truth"]] * 2}

QUESTIONS = "BFCL_v4_simple_python.json"


def bfcl_data(folder: Path, *rows: Any) -> None:
    (folder / "possible_answer").mkdir(parents=True)
    (folder / "BFCL_v4_simple_python.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "possible_answer/BFCL_v4_simple_python.json").write_text(json.dumps(TRUTH) + "\n")
    (folder / "BFCL_v4_irrelevance.json").write_text(json.dumps(ROW | {"id": "irrelevance_0"}) + "\n")


def test_generated_problems_of_the_parts_are_disjoint() -> None:
    asked = {}
    for part in ("train", "validation", "test"):
        problems = load_problems([f"fn_calling@{part}"], count=200, test_count=50)
        assert problems == load_problems(f"fn_calling@{part}", count=200, test_count=50)
        assert len(problems) == len(CATEGORIES) * (200 if part == "train" else 50)
        asked[part] = {json.dumps([one["task"], one["extra_info"]["oai_tools"]]) for one in problems}
    assert (
        not asked["train"] & (asked["validation"] | asked["test"]) and not asked["validation"] & asked["test"]
    )
    one = load_problems(["train"], count=1, categories=["simple"])[0]
    assert one["dataset"] == "train/simple" and one["reward_context"]["category"] == "simple"


@pytest.mark.parametrize("wheel", [False, True])
def test_bfcls_data_are_read_from_a_folder_and_from_a_wheel(tmp_path: Path, wheel: bool) -> None:
    place = tmp_path / "data"
    bfcl_data(place, ROW)
    if wheel:
        with ZipFile(tmp_path / "bfcl_eval-1-py3-none-any.whl", "w") as archive:
            for path in place.rglob("*.json"):
                archive.write(path, f"bfcl_eval/data/{path.relative_to(place)}")
        place = tmp_path / "bfcl_eval-1-py3-none-any.whl"
    found = load_problems(["bfcl_simple_python", "bfcl_irrelevance"], data_dir=str(place))
    assert [one["id"] for one in found] == [
        "bfcl_simple_python-simple_python_0",
        "bfcl_irrelevance-irrelevance_0",
    ]
    assert found[0]["reward_context"] == {
        "category": "simple_python",
        "function": [ADD],
        "ground_truth": TRUTH["ground_truth"],
    }
    assert found[1]["reward_context"]["ground_truth"] == []
    with pytest.raises(ValueError, match=r"no BFCL_v4_multiple\.json.*pip install --no-deps bfcl-eval"):
        load_problems(["bfcl_multiple"], data_dir=str(place))


USER = {"role": "user", "content": "Add 1 and 2."}


def test_rows_of_bfcls_form_are_read_from_a_file(tmp_path: Path) -> None:
    row = {"question": "Add 1 and 2.", "function": ADD, "ground_truth": TRUTH["ground_truth"]}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**ROW, "ground_truth": []}))
    first, second = load_problems([str(tmp_path / "mine.jsonl")])
    assert (first["reward_context"]["category"], first["task"]) == ("simple", "Add 1 and 2.")
    assert second["reward_context"]["category"] == "irrelevance"
    # As BFCL has them: the answer may lack what the schema requires, and gives no value for an option.
    listed = {**ADD["parameters"]["properties"], "digits": {"type": "array"}}
    optional = ADD | {"parameters": ADD["parameters"] | {"properties": listed}}
    wanted = [{"add": {"a": [1], "b": ["", 2], "digits": [""]}}]
    kept = json.dumps(row | {"function": optional, "ground_truth": wanted})
    (tmp_path / "kept.jsonl").write_text(kept)
    assert load_problems([str(tmp_path / "kept.jsonl")])[0]["reward_context"]["ground_truth"] == wanted
    for bad, message in (
        (row | {"question": ""}, "question: expected a text or messages"),
        # Another question than the row's would be asked, or none.
        (row | {"question": [[USER], [USER]]}, "question is no list of one turn"),
        (
            row | {"question": [USER, {"role": "assistant", "content": "3"}]},
            "of which the last is the user's",
        ),
        (
            row | {"question": [{"role": "user", "content": [{"type": "text", "text": "q"}]}]},
            "messages in texts",
        ),
        (
            row | {"category": "irrelevance"},
            "category irrelevance: no call is wanted, and ground_truth holds one",
        ),
        (
            row | {"function": [{"name": "add", "parameters": "{}"}]},
            "function: expected a list of {name, param",
        ),
        (row | {"function": [{"name": "add"}]}, "function: expected a list of {name, parameters}"),
        (row | {"ground_truth": [{"sub": {}}]}, "ground_truth: expected a list of"),
        # Rows that no call solves.
        (row | {"ground_truth": [{"add": {"z": [1]}}]}, "ground_truth: no call equals add with these values"),
        (row | {"ground_truth": [{"add": {}}]}, "ground_truth: no call equals add with these values"),
        (row | {"ground_truth": [{"add": {"a": []}}]}, "ground_truth: no call equals add"),
        (row | {"ground_truth": [{"add": {"a": 1}}]}, "ground_truth: add: expected {argument: [allowed"),
        (ROW, "ground_truth: missing; BFCL keeps it in possible_answer/"),
        (row | {"category": "simple", "ground_truth": []}, "ground_truth: missing"),
        (row | {"ground_truth": None}, "ground_truth: missing"),
        ([], "a list, expected an object"),
    ):
        check_bad_row(load_problems, tmp_path, bad, message)


def test_functions_stand_in_the_system_message_behind_what_the_run_says(tmp_path: Path) -> None:
    bfcl_data(tmp_path / "data", ROW)
    (problem,) = load_problems(["bfcl_simple_python"], data_dir=str(tmp_path / "data"))
    cfg = OmegaConf.create({"actor": {"system_prompt": "You help.", "task_template": "{task} Now!"}})
    system, question = messages_of(cfg, problem)
    assert system["role"] == "system" and question == {"role": "user", "content": "Add 1 and 2. Now!"}
    first, tools, last = system["content"].split("\n\n")
    assert (first, last) == ("You help.", "Be brief.")
    assert json.loads(tools.splitlines()[1]) == ADD and "<tool_calls>[" in tools


@pytest.mark.parametrize(
    ("said", "reward", "status"),
    [
        (
            '<tool_calls>[{"name":"add","arguments":{"a":1,"b":2}},{"add":{"a":1,"b":2}}]</tool_calls>',
            1.0,
            "correct",
        ),
        ('<tool_calls>[{"name":"add","arguments":{"a":1,"b":2}}]</tool_calls>', 0.25, "wrong"),
        ('<tool_calls>[{"name":"add","arguments":{"a":1,"b":3}}]</tool_calls>', -0.5, "wrong"),
        ("no", -1.0, "no_answer"),
        ("<tool_calls>no</tool_calls>", 0.0, "unparsable"),
    ],
)
async def test_the_calls_that_are_made_have_their_share(
    tmp_path: Path, said: str, reward: float, status: str
) -> None:
    cfg = OmegaConf.create({"actor": {}, "rewards": REWARDS})
    problem = {"task": "Add.", "reward_context": TWO, "extra_info": {"oai_tools": [ADD]}, "dataset": "train"}
    result = await played(generate_fn_calling_rollout, cfg, problem, tmp_path, lambda prompt: said)
    (text,), metrics = result.training_texts, result.metrics
    assert (text.reward, text.metadata["fn_calling"]["answer_status"]) == (reward, status)
    assert (metrics.success, metrics.no_answer) == (status == "correct", status == "no_answer")
    assert (metrics.no_error, result.domain) == (status != "unparsable", "fn_calling")


async def test_a_server_says_what_the_process_says() -> None:
    server = TestServer(make_app(verify_fn_calling_answer))
    async with server, ClientSession() as session:
        where: dict[str, Any] = {"session": session, "host": "127.0.0.1", "port": server.port}
        for said in ("add(a=1, b=2)", "[add(a=1, b=2), add(a=1, b=2)]", "no", "<tool_calls>no</tool_calls>"):
            found = await verify_fn_calling_answer_rpc(**where, generation=said, reward_context=TWO)
            assert found == verify_fn_calling_answer(said, TWO)
        with pytest.raises(ValueError, match="HTTP 400"):
            await verify_fn_calling_answer_rpc(**where, generation="add(a=1)", reward_context={})


def test_wrong_keys_are_one_line_each(
    dry_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("domains.fn_calling.dataset.find_spec", lambda name: None)
    check_starts(dry_run, NAME)
    check_refusals(
        dry_run,
        NAME,
        ("train_dataset_names=[bfcl@train]", "bfcl-eval is not installed; pip install --no-deps bfcl-eval=="),
        ("train_dataset_names=[tools]", "dataset 'tools': name fn_calling, bfcl, bfcl_ and one of"),
        ("train_dataset_names=[fn_calling@dev]", "a part is train, validation, test, all"),
        ("dataset_loader_params.categories=[easy]", "categories=['easy']: choose from simple"),
        ("dataset_loader_params.held_out=1", "held_out=1"),
        ("actor.task_template=Call", "put {task} where the question goes"),
    )


FILE = """
defaults: [base, _self_]
actor:
  rollout_policy: pipelinerl.domains.fn_calling.generate_fn_calling_rollout
  system_prompt: ""
  task_template: "{task}"
  task_prompt: ""
  ensure_boxed_answers: false
dataset_loader: pipelinerl.domains.fn_calling.dataset.load_problems
dataset_loader_params: {dataset_id: owner/data, dataset_config: all, allowed_call_types: [],
  split_ratios: {train: 0.9, validation: 0.05, test: 0.05}, max_examples_per_split: 2048,
  trust_remote_code: true, huggingface_token: null}
train_dataset_names: [fn_calling@train]
test_dataset_names: [fn_calling@validation]
environments:
  - {key: fn_calling, mode: remote, _target_: pipelinerl.domains.fn_calling.AgenticToolsEnvironment}
environment_key: fn_calling
"""


def test_upstreams_file_composes_and_says_what_its_data_need(
    tmp_path: Path, dry_run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    tree, load = upstreams_file(tmp_path, "fn_calling", FILE, generate_fn_calling_rollout)
    params = dict(tree.dataset_loader_params)
    with pytest.raises(
        ValueError, match=r"^dataset_id=owner/data: nothing is downloaded; set dataset_loader_para"
    ):
        load(tree.train_dataset_names, **params)
    params["dataset_id"] = None
    with caplog.at_level(logging.INFO):
        assert len(load(tree.train_dataset_names, **params)) == 2048
    assert "split_ratios is not read; held_out=0.2" in caplog.text
    check_one_server(dry_run, tmp_path, "fn_calling")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (QUESTIONS, b'{"id": "a"', f"{QUESTIONS}:2: no JSON"),
        (QUESTIONS, '{"id": "é"}'.encode("latin-1"), f"{QUESTIONS}:2: no JSON: 'utf-8' codec"),
        (QUESTIONS, b"[1]", f"{QUESTIONS}:2: a row of BFCL has id, question, function; id is missing"),
        (QUESTIONS, b'{"id": "a", "question": [[]]}', f"{QUESTIONS}:2: .* function is missing"),
        (QUESTIONS, json.dumps(ROW | {"question": []}).encode(), "question is no list of one turn"),
        (QUESTIONS, json.dumps(ROW | {"question": ROW["question"] * 2}).encode(), "several turns"),
        (f"possible_answer/{QUESTIONS}", b'{"id": "b"}', f"{QUESTIONS}:2: .* ground_truth is missing"),
    ],
)
def test_a_damaged_file_of_bfcl_is_named_with_its_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    bfcl_data(tmp_path, ROW)
    with (tmp_path / name).open("ab") as file:
        file.write(content + b"\n")
    with pytest.raises(ValueError, match=message):
        load_problems(["bfcl_simple_python"], data_dir=str(tmp_path))


def test_a_line_separator_inside_of_a_text_of_bfcl_ends_no_row(tmp_path: Path) -> None:
    said = "Add 1\u2028and 2.\x85"
    asked = [[{"role": "user", "content": said}]]
    bfcl_data(tmp_path)
    line = json.dumps(ROW | {"question": asked}, ensure_ascii=False)
    (tmp_path / QUESTIONS).write_text(line, encoding="utf-8")
    assert load_problems(["bfcl_simple_python"], data_dir=str(tmp_path))[0]["task"] == said
