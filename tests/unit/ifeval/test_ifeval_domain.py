"""Prompts from generators and published files, rewards, the server, and refusals in one line."""

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from omegaconf import OmegaConf

from domains.ifeval import generate_ifeval_rollout, load_problems, verify_answer, verify_answer_rpc
from domains.ifeval.verifier_api import judged_part
from domains.verdict_server import make_app
from tests.support.one_line import check_refusals, check_starts
from tests.support.text_domain import REWARDS, check_bad_row, check_one_server, played, upstreams_file

NAME = "+domain=ifeval"
CONTEXT = {"instruction_id_list": ["punctuation:no_comma", "startend:quotation"], "kwargs": [{}, None]}
GOOGLE = {
    "key": 1000,
    "prompt": "Write a haiku, in at least 3 words.",
    "instruction_id_list": ["length_constraints:number_words", "punctuation:no_comma"],
    "kwargs": [{"num_words": 3, "relation": "at least", "num_bullets": None}, {}],
}
ALLEN = {
    "key": "a",
    "messages": [{"role": "user", "content": "Say it without commas."}],
    "ground_truth": "[{'instruction_id': ['punctuation:no_comma'], 'kwargs': [None]}]",
    "constraint_type": "single",
}


def write_rows(path: Path, *rows: Any) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_generated_prompts_of_training_and_evaluation_are_disjoint() -> None:
    train, test = load_problems(["ifeval"], count=500), load_problems(["ifeval_test"], test_count=100)
    assert (len(train), len(test)) == (500, 100) and train == load_problems("ifeval", count=500)
    assert not {one["task"] for one in train} & {one["task"] for one in test}
    assert len({one["task"] for one in test}) == 100
    assert {one["num_constraints"] for one in train} == {1, 2, 3}
    few = load_problems(["ifeval"], instructions=["punctuation:no_comma"], max_constraints=1, count=20)
    assert {tuple(one["reward_context"]["instruction_id_list"]) for one in few} == {("punctuation:no_comma",)}


def test_both_published_forms_are_read(tmp_path: Path) -> None:
    write_rows(tmp_path / "input_data.jsonl", GOOGLE)
    write_rows(tmp_path / "IF_multi_constraints_upto5.jsonl", *[ALLEN] * 10)
    (google,) = load_problems(["google_ifeval"], data_dir=str(tmp_path))
    assert google["task"] == GOOGLE["prompt"] and google["dataset"] == "google_ifeval"
    assert google["reward_context"] == {
        "instruction_id_list": GOOGLE["instruction_id_list"],
        "kwargs": [{"num_words": 3, "relation": "at least"}, {}],
    }
    train = load_problems(["ifeval"], data_dir=str(tmp_path), test_size=3, seed=42)
    test = load_problems(["ifeval_test"], data_dir=str(tmp_path), test_size=3)
    assert (len(train), len(test)) == (7, 3) and not {p["id"] for p in train} & {p["id"] for p in test}
    given = {"data_dir": str(tmp_path), "test_size": 3, "subset": "train"}
    assert load_problems(["ifeval_test"], **given) == test, "of the training set's names only"
    assert train[0]["task"] == "Say it without commas."
    ruled = ALLEN | {"messages": [{"role": "system", "content": "Be brief."}, *ALLEN["messages"]]}
    write_rows(tmp_path / "ruled.jsonl", ruled)
    assert load_problems(["ruled.jsonl"], data_dir=str(tmp_path))[0]["task"] == "Say it without commas."
    file = str(tmp_path / "input_data.jsonl")
    limited = {most: load_problems([file], max_constraints=most)[0]["num_constraints"] for most in (1, 0)}
    assert limited == {1: 1, 0: 2}, "0 is no limit, as in upstream"
    assert load_problems(["google_ifeval"], data_dir=str(tmp_path), max_prompt_tokens=9) == []


def test_prompts_that_are_left_out_move_no_other_to_the_other_part(tmp_path: Path) -> None:
    unknown = "[{'instruction_id': ['copy:copy'], 'kwargs': [None]}]"
    rows = [
        ALLEN
        | {"messages": [{"role": "user", "content": f"Q{n}"}]}
        | ({"ground_truth": unknown} if n % 3 else {})
        for n in range(60)
    ]
    write_rows(tmp_path / "IF_multi_constraints_upto5.jsonl", *rows)
    order = list(range(60))
    random.Random(42).shuffle(order)
    given: dict[str, Any] = {"data_dir": str(tmp_path), "test_size": 20, "skip_unknown": True}
    for name, of in (("ifeval", order[:40]), ("ifeval_test", order[40:])):
        asked = [problem["task"] for problem in load_problems([name], **given)]
        assert asked == [f"Q{n}" for n in of if n % 3 == 0]


def test_prompts_with_unknown_instructions_are_refused_or_left_out(tmp_path: Path) -> None:
    odd = GOOGLE | {"instruction_id_list": ["copy:copy"], "kwargs": [{}]}
    never = {"num_words": 5, "relation": "less than"}, {"num_words": 5, "relation": "at least"}
    both = GOOGLE | {"instruction_id_list": ["length_constraints:number_words"] * 2, "kwargs": list(never)}
    write_rows(tmp_path / "google_ifeval.jsonl", both)
    with pytest.raises(
        ValueError, match=r"ifeval\.jsonl:1: no response follows both: .*at least 5 and less than 5; sk"
    ):
        load_problems(["google_ifeval"], data_dir=str(tmp_path))
    write_rows(tmp_path / "google_ifeval.jsonl", GOOGLE, odd)
    with pytest.raises(
        ValueError, match=r"google_ifeval\.jsonl:2: instruction 'copy:copy' is not known.*skip"
    ):
        load_problems(["google_ifeval"], data_dir=str(tmp_path))
    assert len(load_problems(["google_ifeval"], data_dir=str(tmp_path), skip_unknown=True)) == 1


def test_a_name_that_needs_files_is_not_proposed_for_itself() -> None:
    for part in (None, "test"):
        with pytest.raises(ValueError, match=r"folder of google_ifeval, or use one of ifeval, ifeval_test, "):
            load_problems(["google_ifeval"], split=part)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "x"}, "neither {prompt, instruction_id_list, kwargs} (IFEval) nor"),
        (GOOGLE | {"kwargs": [{}]}, "expected lists of one length"),
        (GOOGLE | {"prompt": " "}, "prompt ' ': expected a text"),
        (ALLEN | {"ground_truth": "__import__('os')"}, "neither {prompt"),
        (ALLEN | {"ground_truth": ALLEN["ground_truth"][:-1] + ", {}]"}, "neither {prompt"),
        (
            ALLEN | {"messages": [*ALLEN["messages"], *ALLEN["messages"]]},
            "messages: expected a list of messages in",
        ),
        ([1], "a list, expected an object"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: Any, message: str) -> None:
    check_bad_row(load_problems, tmp_path, row, message)


@pytest.mark.parametrize(
    ("said", "partial", "reward", "success", "loose"),
    [
        ('"so it is"', True, 1.0, True, True),
        ('"so, it is"', True, 0.25, False, False),
        ('"so, it is"', False, -0.5, False, False),
        ("so, it is", True, -0.5, False, False),
        ('well\n"so it is"', True, 0.25, False, True),
        ("", True, -1.0, False, False),
    ],
)
async def test_a_response_has_the_share_that_it_follows(
    tmp_path: Path, said: str, partial: bool, reward: float, success: bool, loose: bool
) -> None:
    cfg = OmegaConf.create({"actor": {"ifeval_partial_credit": partial}, "rewards": REWARDS})
    problem = {"task": "Say it.", "reward_context": CONTEXT, "dataset": "ifeval"}
    result = await played(generate_ifeval_rollout, cfg, problem, tmp_path, lambda prompt: said)
    (text,), metrics = result.training_texts, result.metrics
    assert (text.reward, metrics.success, metrics.success_loose) == (reward, success, loose)
    assert (metrics.instructions_total, metrics.no_answer) == (2, said == "")
    assert (result.domain, result.dataset_name) == ("ifeval", "ifeval")


def test_marks_of_a_final_response_are_honoured() -> None:
    assert judged_part("so [BEGIN FINAL RESPONSE] a\nb [END FINAL RESPONSE]") == "a\nb"
    assert judged_part("[BEGIN FINAL RESPONSE] a") == "[BEGIN FINAL RESPONSE] a"


async def test_a_server_says_what_the_process_says() -> None:
    server = TestServer(make_app(verify_answer))
    async with server, ClientSession() as session:
        for said in ('"so"', '"so,"', "so,", ""):
            found = await verify_answer_rpc(session, "127.0.0.1", int(server.port or 0), said, CONTEXT)
            assert found == verify_answer(said, CONTEXT)
        with pytest.raises(ValueError, match=r"HTTP 400: .*instruction 'no' is not known"):
            bad = {"instruction_id_list": ["no"], "kwargs": [{}]}
            await verify_answer_rpc(session, "127.0.0.1", int(server.port or 0), "so", bad)
        for body in (b"{", b"[]", b'{"prediction": "a"}', b'{"prediction": "a", "reward_context": 3}'):
            async with session.post(server.make_url("/verify_answer"), data=body) as answer:
                assert answer.status == 400 and "error" in await answer.json()
        async with session.get(server.make_url("/health")) as answer:
            assert answer.status == 200


def test_wrong_keys_are_one_line_each(dry_run: Callable[..., Any]) -> None:
    check_starts(dry_run, NAME)
    check_refusals(
        dry_run,
        NAME,
        ("train_dataset_names=[google_ifeval]", "dataset 'google_ifeval': give a file, set"),
        ("dataset_loader_params.data_dir=nowhere", "no file nowhere/ifeval.jsonl"),
        ("dataset_loader_params.instructions=[title]", "instructions: 'title' cannot be generated"),
        ("dataset_loader_params.count=0", "count=0"),
        ("dataset_loader_params.count=many", "dataset_loader_params.count=many: give a whole number"),
        (
            "dataset_loader_params.test_count=null",
            "test_count=None: give a whole number",
        ),
        ("actor.task_template=Write", "put {task} where the question goes"),
    )


FILE = """
defaults: [base, _self_]
actor:
  rollout_policy: pipelinerl.domains.ifeval.generate_ifeval_rollout
  system_prompt: ""
  task_template: "{task}"
  task_prompt: ""
  ensure_boxed_answers: false
  ifeval_partial_credit: true
dataset_loader: pipelinerl.domains.ifeval.dataset.load_problems
dataset_loader_params: {max_examples: null, max_constraints: null, seed: 42, huggingface_token: null,
  test_size: 550, max_prompt_tokens: 42000}
train_dataset_names: [ifeval]
test_dataset_names: [ifeval_test]
environments:
  - {key: ifeval, mode: remote, replicas_per_actor: "${world.env_replicas_per_actor}",
     _target_: pipelinerl.domains.ifeval.IFEvalEnvironment}
world: {env_replicas_per_actor: 1}
environment_key: ifeval
"""


def test_upstreams_file_composes_with_its_server(
    tmp_path: Path, dry_run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    tree, load = upstreams_file(tmp_path, "ifeval", FILE, generate_ifeval_rollout)
    with caplog.at_level(logging.INFO):
        assert len(load(tree.train_dataset_names, **tree.dataset_loader_params)) == 2000
    assert "dataset ifeval: 2000 generated problems" in caplog.text and "test_size" in caplog.text
    check_one_server(dry_run, tmp_path, "ifeval")
