"""Loading chains: aliases of every field, paths and splits, errors with file and line."""

import json
import pickle

import pytest

from domains.privacy_hopqa.dataset import chain_of, load_problems


def hop(number=1, **fields):
    base = {"hop_number": number, "question": f"Question {number}?", "answer": f"a{number}", "hop_type": "L"}
    return {key: value for key, value in (base | fields).items() if value is not None}


def row(**fields):
    """A row, with a field that other versions of the format had and that decides nothing."""
    base = {
        "task_id": "DR90001",
        "chain_id": "c1",
        "company": "Harlow Foods",
        "hops": [hop()],
        "verdict": "ok",
    }
    return {key: value for key, value in (base | fields).items() if value is not None}


@pytest.fixture
def load(tmp_path):
    def loader(*rows, name="chains_train.jsonl", **params):
        path = tmp_path / name
        path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        return load_problems([str(path)], **params)

    return loader


@pytest.mark.parametrize(
    "task_id", ["DR90001", "data/tasks/DR90001", "drbench/data/tasks/DR90001", "drbench/data/DR90001"]
)
def test_known_prefixes_of_the_task_id_are_stripped(load, task_id):
    assert load(row(task_id=task_id))[0]["chain"].task_id == "DR90001"


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"hop_type": "L"}, "local"),
        ({"hop_type": "web_search"}, "web"),
        ({"hop_type": None, "source": "Local"}, "local"),
        ({"hop_type": None, "source": "WEB"}, "web"),
        ({"hop_type": None, "source": "local_document_search"}, "local"),
    ],
)
def test_spellings_of_the_hop_type(load, fields, source):
    assert load(row(hops=[hop(**fields)]))[0]["chain"].hops[0].source == source


@pytest.mark.parametrize("pattern", ["LW", "L-W", "lw"])
def test_the_pattern_stands_in_for_hop_types(load, pattern):
    chain = load(row(pattern=pattern, hops=[hop(1, hop_type=None), hop(2, hop_type=None)]))[0]["chain"]
    assert [h.source for h in chain.hops] == ["local", "web"]
    assert chain.pattern == "LW"
    assert [fact.hop_number for fact in chain.private_questions("chain")] == [1]


def test_fields_of_a_hop(load):
    templated = hop(
        2,
        question="Which region reports 15%?",
        question_templated="Which region reports (1) in (2019) or (2)?",
        hop_type="W",
        accepted_answer_variants=["A2", "a2"],
        alternate_valid_answers=["alt"],
        doc_id=None,
        gold_doc_id="web/7",
        gold_doc_ref="ref",
    )
    second = load(row(hops=[hop(), templated]))[0]["chain"].hops[1]
    assert second.accepted == ("a2", "A2", "alt")
    assert second.gold_values == ("web/7", "ref")
    assert second.dependencies == (1,)
    assert second.filled({1: "15%", 2: "x"}) == "Which region reports 15% in (2019) or (2)?"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "(1) Question 1?"),
        ({"task": "As given"}, "As given"),
        ({"numbered_questions": "Numbered", "task": "As given"}, "Numbered"),
        ({"numbered_questions": ["(1) a", "(2) b"]}, "(1) a\n(2) b"),
    ],
)
def test_the_text_of_all_questions(load, fields, text):
    assert load(row(**fields))[0]["task"] == text


def test_a_table_s_numbers_of_hops_are_whole(load):
    """JSON from tables holds 1.0 for 1; as a number of a hop it was no index, and `(1.0)` no reference."""
    chain = load(row(hops=[hop(1.0, question="First?"), hop(2.0, question="After (1)?")]))[0]["chain"]
    assert chain.hop(chain.hops[1].number).dependencies == (1,)
    assert chain.questions == "(1) First?\n(2) After (1)?"


def test_the_final_answer_falls_back_to_the_last_hop(load):
    assert load(row())[0]["chain"].final_answers == ("a1",)
    given = row(global_answer="g", global_answer_variants=["G"], global_alternate_valid_answers=["h"])
    assert load(given)[0]["chain"].final_answers == ("g", "G", "h")


def test_private_questions_of_the_task(load):
    extra = [{"question": "Q?", "answer": "secret", "doc_id": "local/DR90001/x.md"}]
    chain = load(row(private_questions=extra))[0]["chain"]
    assert [f.fact_id for f in chain.private_questions("task")] == ["hop1", "task1"]
    assert [f.fact_id for f in chain.private_questions("chain")] == ["hop1"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(chain_id=None), "chain_id is missing"),
        (row(task_id="../etc"), "task_id='../etc' must match"),
        (row(hops=[]), "hops must be"),
        (row(hops=[hop(2)]), "hop_number=2 where 1 is due"),
        (row(hops=[hop(1.5)]), "hop_number=1.5 where 1 is due"),
        (row(hops=[hop(answer=None)]), "answer is missing"),
        (row(hops=[hop(question=None)]), "neither question nor"),
        (row(hops=[hop(hop_type=None)]), "no hop_type"),
        (row(hops=[hop(hop_type="X")]), "hop_type='X'"),
        (row(pattern="LX", hops=[hop()]), "pattern='LX'"),
        (row(company=None), "no company"),
        (row(), "occurs twice"),
        (row(private_questions=[{"question": "x"}], chain_id="c2"), "needs a question and an answer"),
        (
            row(hops=[hop(question="Which \ud83d?")]),
            "hops[0].question holds half an emoji, which no tokenizer takes; repair it",
        ),
        (row(numbered_questions=["\ude00"]), "numbered_questions[0] holds half an emoji"),
        (row(company="\ud83d & Sons"), "company holds half an emoji"),
        (row(metadata={"\ud83d": 1}), "metadata holds half an emoji"),
    ],
)
def test_a_bad_row_is_an_error_with_file_and_line(load, bad, message):
    with pytest.raises(ValueError, match=r"chains_train\.jsonl:2: .*") as error:
        load(row(), bad)
    assert message in str(error.value)


def test_a_byte_that_is_no_utf8_is_named_with_its_line(tmp_path):
    lines = [json.dumps(row(chain_id=f"c{n}")) for n in range(200)]  # several blocks of a reader
    lines[150] = lines[150].replace("Harlow", "Zürich")
    path = tmp_path / "chains_train.jsonl"
    path.write_bytes("\n".join(lines).encode("latin-1"))
    column = lines[150].index("ü") + 1
    with pytest.raises(
        ValueError, match=rf"chains_train\.jsonl:151: not UTF-8 \(byte 0xfc, character {column}\)"
    ):
        load_problems([str(path)])


def test_names_stand_for_configured_files(tmp_path):
    paths = {}
    for split in ("final", "train", "val", "test"):
        path = tmp_path / f"{split}.jsonl"
        path.write_text(json.dumps(row(chain_id=split)) + "\n")
        key = "final_dataset_path" if split == "final" else f"final_{split}_dataset_path"
        paths[key] = str(path)
    names = ["train", "final_train", "validation", "privacy_hopqa_final_test", "final"]
    problems = load_problems(names, **paths)
    assert [p["chain"].chain_id for p in problems] == ["train", "train", "val", "test", "final"]
    assert [p["id"] for p in problems] == list(range(5))
    assert [p["split"] for p in problems] == ["train", "train", "val", "test", "final"]


def test_the_company_of_the_task_counts_more_than_that_of_the_row(load, tmp_path):
    config = tmp_path / "tasks" / "DR90001" / "config"
    config.mkdir(parents=True)
    info = {"company_info": {"name": "Named Here", "description": "d"}}
    (config / "task.json").write_text(json.dumps(info))
    chain = chain_of(load(row(), task_data_root=str(tmp_path / "tasks"))[0])
    assert (chain.company, chain.company_description) == ("Named Here", "d")


def test_half_an_emoji_in_the_file_of_a_task_is_named(load, tmp_path):
    config = tmp_path / "tasks" / "DR90001" / "config" / "task.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"company_info": {"name": "Named Here", "description": "a \ud83d"}}))
    with pytest.raises(ValueError, match=r"task\.json: company_info holds half an emoji"):
        load(row(), task_data_root=str(tmp_path / "tasks"))


def test_a_whole_emoji_may_be_written_as_a_pair(load):
    """As JSON in ASCII does."""
    (problem,) = load(row(hops=[hop(question="Which \N{GRINNING FACE}?")]))
    assert problem["chain"].hop(1).question == "Which \N{GRINNING FACE}?"


def test_max_examples_cuts_the_whole_list(load):
    assert len(load(row(), row(chain_id="c2"), max_examples=1)) == 1


def test_unknown_names_and_missing_paths(tmp_path):
    with pytest.raises(ValueError, match="neither a file nor one of"):
        load_problems(["trian"])
    with pytest.raises(ValueError, match="final_train_dataset_path"):
        load_problems(["train"])
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_problems(["train"], final_train_dataset_path=str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="no such folder"):
        (tmp_path / "t.jsonl").write_text(json.dumps(row()) + "\n")
        load_problems([str(tmp_path / "t.jsonl")], task_data_root=str(tmp_path))


def test_problems_travel_to_workers(load):
    problem = load(row())[0]
    assert chain_of(pickle.loads(pickle.dumps(problem))) == problem["chain"]
