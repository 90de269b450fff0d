"""The small set in the real formats: loaded, served and validated as a user's own files would be."""

import json
from pathlib import Path

import pytest

from domains.privacy_hopqa.dataset import load_problems
from domains.privacy_hopqa.validate.__main__ import main as validate
from pipelinerl.launch import main as launch
from retrieval_server.store import Store

EXAMPLES = Path(__file__).resolve().parents[3] / "domains" / "privacy_hopqa" / "examples"
OVERRIDES = [
    f"privacy_hopqa.final_train_dataset_path={EXAMPLES}/chains_train.jsonl",
    f"privacy_hopqa.final_val_dataset_path={EXAMPLES}/chains_val.jsonl",
    f"privacy_hopqa.task_data_root={EXAMPLES}/tasks",
    f"privacy_hopqa.web_corpus_path={EXAMPLES}/web.jsonl",
    "train_dataset_names=[train]",
    "test_dataset_names=[val]",
]


@pytest.fixture(scope="module")
def chains():
    files = [str(EXAMPLES / f"chains_{split}.jsonl") for split in ("train", "val")]
    return [p["chain"] for p in load_problems(files, task_data_root=str(EXAMPLES / "tasks"))]


@pytest.fixture(scope="module")
def store():
    return Store.load(EXAMPLES / "tasks", EXAMPLES / "web.jsonl")


def test_the_validator_finds_nothing_wrong():
    assert validate([str(EXAMPLES)]) == 0


def test_every_spelling_of_every_field_is_understood(chains):
    by_id = {chain.chain_id: chain for chain in chains}
    assert len(chains) == 9
    assert {chain.task_id for chain in chains} == {"DR0901", "DR0902"}
    assert {chain.company for chain in chains} == {"Harlow Foods", "Orrin Freight"}
    assert by_id["harlow_vendor_city"].pattern == by_id["harlow_loyalty_award"].pattern == "LW"
    assert by_id["harlow_audit_region"].hops[1].question.startswith("In which region did (1)")
    assert by_id["orrin_hall"].hops[2].dependencies == (2,)
    assert [fact.answer for fact in by_id["orrin_claims_seal"].private_questions("task")] == ["12 days", "38"]


def test_answer_files_and_their_fields_never_appear_in_a_hit(store):
    answers = ["Not indexed", "must never be found", "qa_type", "insight", "specific_question", "How should"]
    hits = [
        hit
        for query in [*answers, "answer question title file documents stores", "the a of and company"]
        for hit in [
            *store.search_web(query, 50, 0),
            *(hit for task in store.task_ids for hit in store.search_local(task, query, 50)),
        ]
    ]
    assert hits
    for answer in answers:
        assert answer not in json.dumps(hits)


def test_the_launcher_accepts_them_without_a_change_of_code(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    arguments = ["+domain=privacy_hopqa", "hardware=cpu", f"output_dir={tmp_path / 'run'}", *OVERRIDES]
    assert launch([*arguments, "validate=true"]) == 0
    assert "the configuration is valid" in capsys.readouterr().out


def test_a_row_that_cannot_be_used_is_an_error_before_anything_starts(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    lines = (EXAMPLES / "chains_train.jsonl").read_text().splitlines()
    row = json.loads(lines[1])
    del row["hops"][0]["answer"]
    path = tmp_path / "chains_train.jsonl"
    path.write_text("\n".join([lines[0], json.dumps(row)]))
    arguments = ["+domain=privacy_hopqa", "hardware=cpu", f"output_dir={tmp_path / 'run'}", *OVERRIDES]
    arguments += [f"privacy_hopqa.final_train_dataset_path={path}", "validate=true"]
    assert launch(arguments) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "chains_train.jsonl:2: hop 1: answer is missing" in line
