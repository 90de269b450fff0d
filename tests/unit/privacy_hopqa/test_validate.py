"""The validator: one line, with file and line number, for each thing that is wrong with a dataset."""

import copy
import json

import pytest

from domains.privacy_hopqa.validate.__main__ import main

AUDIT = {
    "hop_number": 1,
    "question": "What share of stores passed the audit?",
    "answer": "15%",
    "accepted_answer_variants": ["15 percent"],
    "doc_id": "local/DR90001/a/audit.md",
    "hop_type": "L",
}
REGION = {
    "hop_number": 2,
    "question": "Which region reports (1) in (2019)?",
    "answer": "Northmere",
    "doc_id": "web/7",
    "hop_type": "W",
}
ROW = {"task_id": "DR90001", "chain_id": "c1", "pattern": "LW", "n_hops": 2, "hops": [AUDIT, REGION]}
TASK = {"company_info": {"name": "Harlow Foods"}}
PAGES = [{"docid": "7", "url": "u", "text": "In Northmere 15%."}, {"docid": "8", "url": "u", "text": "Else."}]


def changed(row=ROW, hops=None, **fields):
    """The row with other fields; `hops` maps a hop's number to its other fields, None removes a field."""
    found = copy.deepcopy(row) | fields
    for number, changes in (hops or {}).items():
        found["hops"][number - 1] |= changes
    found["hops"] = [{k: v for k, v in hop.items() if v is not None} for hop in found["hops"]]
    return {k: v for k, v in found.items() if v is not None}


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    put(folder / "tasks/DR90001/config/task.json", TASK)
    put(folder / "tasks/DR90001/files/a/audit.md", "# Audit\n\nIn the audit 15 percent of stores passed.\n")
    put(folder / "tasks/DR90001/files/a/qa_dict.json", {"answer": "15%"})
    put(folder / "web.jsonl", PAGES)
    put(folder / "chains_train.jsonl", [ROW])
    return folder


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, list):
        path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    else:
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        path.write_text(text, encoding="utf-8")


def lines(folder, capsys, *more):
    """What the command prints, without the folder; its exit status must say whether that is anything."""
    status = main([str(folder), *more])
    printed = capsys.readouterr()
    found = [line.replace(f"{folder}/", "") for line in printed.out.splitlines()]
    assert status == (1 if found else 0), printed.err
    return found


def test_a_dataset_without_problems(data, capsys):
    assert main([str(data)]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "no problems in 1 chains with 2 hops, 1 private documents, 2 web pages (0 without text)\n"
    )


def another(**fields):
    return changed(chain_id="c2", **fields)


def first(**fields):
    return another(hops={1: fields})


def second(**fields):
    return another(hops={2: fields})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"task_id": "DR90001"}, "hops must be a non-empty list"),
        (changed(task_id="DR7"), "task_id='DR7': no such folder in"),
        (changed(), "chain c1: chain_id occurs twice, first in line 1"),
        (another(), "chain c2: the same hops stand in chains_train.jsonl:1"),
        (another(pattern="LWL"), "chain c2: pattern='LWL' has 3 characters for 2 hops"),
        (another(pattern="WW"), "chain c2: hop 1 is L, but pattern='WW' says W"),
        (first(answer="\ud83d"), "hops[0].answer holds half an emoji"),
        (another(n_hops=3), "chain c2: n_hops=3, but there are 2 hops"),
        (first(hop_type="X"), "chain c2: hop 1: hop_type='X' is no hop type and counts as absent"),
        (first(question="What of (2)?"), "chain c2: hop 1 refers to (2), which is not answered before it"),
        (first(doc_id="web/7"), "chain c2: hop 1 is L, but its gold id is 'web/7'"),
        (first(doc_id=None), "chain c2 hop 1: no doc_id, so no search can find its gold document"),
        (
            first(doc_id="local/DR90001/a/gone.md"),
            "chain c2 hop 1: dangling gold id local/DR90001/a/gone.md: no such document in the task's files",
        ),
        (second(doc_id="web/9"), "chain c2 hop 2: dangling gold id web/9: no such page in web.jsonl"),
        (
            first(answer="16%", accepted_answer_variants=[]),
            "chain c2 hop 1: unanswerable, local/DR90001/a/audit.md holds none of its answers '16%'",
        ),
        (
            second(answer="Southvale"),
            "chain c2 hop 2: unanswerable, web/7 holds none of its answers 'Southvale'",
        ),
    ],
)
def test_a_wrong_row_is_named(data, capsys, row, expected):
    put(data / "chains_train.jsonl", [ROW, row])
    found = lines(data, capsys)
    assert any(line.startswith(f"chains_train.jsonl:2: {expected}") for line in found), found
    assert all(line.startswith("chains_train.jsonl:2: ") for line in found)


def test_every_wrong_row_is_named_not_only_the_first(data, capsys):
    put(data / "chains_train.jsonl", "{broken\n\n[]\n" + json.dumps(changed(chain_id=None)) + "\n")
    found = lines(data, capsys)
    assert [line.split(":")[1] for line in found] == ["1", "3", "4"]
    assert "not JSON" in found[0]


def test_chains_that_stand_in_two_files(data, capsys):
    put(data / "chains_test.jsonl", [ROW])
    found = lines(data, capsys)
    assert len(found) == 2
    assert "chains_train.jsonl:1: chain c1: the same chain_id and task_id stand in" in found[0] + found[1]
    assert "the same hops stand in" in found[0] + found[1]


def files_named(*names):
    shared = {"destination": "x", "app": "y", "qa_type": "z"}
    return {"env_files": [{"source": f"files/a/{name}", **shared} for name in names]}


@pytest.mark.parametrize(
    ("path", "content", "expected"),
    [
        ("config/task.json", {"company_info": {}}, "config/task.json:1: company_info.name is missing"),
        ("config/task.json", '{\n"company_info": \n}', "config/task.json:3: not JSON"),
        ("config/task.json", None, "config/task.json:1: missing; it must hold company_info.name"),
        (
            "files/a/plan.pdf",
            b"%PDF",
            "files/a/plan.pdf:1: has no text copy beside it (plan.md, plan.txt, plan.csv)",
        ),
        ("files/a/empty.md", " \n", "files/a/empty.md:1: holds no text"),
        ("files/a/latin.txt", "x\nZürich".encode("latin-1"), "files/a/latin.txt:2: not UTF-8"),
        (
            "config/env.json",
            files_named("audit.pdf", "lost.pdf", "qa_dict.json"),
            "config/env.json:10: 'files/a/lost.pdf' has no document in files/",
        ),
        ("config/env.json", {"files": []}, "config/env.json:1: must be"),
        ("config/env.json", '{\n"env_files" [', "config/env.json:2: must be"),
    ],
)
def test_a_tree_with_something_missing_is_named(data, capsys, path, content, expected):
    target = data / "tasks/DR90001" / path
    row = changed(company="Harlow Foods")
    put(data / "chains_train.jsonl", [row])
    if content is None:
        target.unlink()
    else:
        put(target, content)
    found = lines(data, capsys)
    assert any(line.startswith(f"tasks/DR90001/{expected}") for line in found), found
    assert not any("dangling" in line for line in found)


def test_two_documents_of_one_name_are_named_and_so_is_a_gold_id_that_means_both(data, capsys):
    put(data / "tasks/DR90001/files/a/audit.csv", "share\n15%\n")
    put(data / "chains_train.jsonl", [changed(hops={1: {"doc_id": "local/DR90001/a/audit.pdf"}})])
    found = lines(data, capsys)
    assert found[0] == (
        "chains_train.jsonl:1: chain c1 hop 1: gold id local/DR90001/a/audit.pdf is a name that "
        "local/DR90001/a/audit.csv and local/DR90001/a/audit.md share"
    )
    assert found[1].startswith(
        "tasks/DR90001/files/a/audit.csv:1: shares the name 'local/dr90001/a/audit' with"
    )
    assert found[2].startswith("tasks/DR90001/files/a/audit.md:1: shares the name")
    put(data / "chains_train.jsonl", [ROW])  # the whole name still means one
    assert not any(line.startswith("chains") for line in lines(data, capsys))


def test_a_missing_files_folder_and_a_folder_that_is_no_task(data, capsys):
    put(data / "tasks/DR90001/files/a/audit.md", "In the audit 15% of stores passed.")
    put(data / "tasks/not a task/files/x.md", "x")
    put(data / "tasks/DR90002/config/task.json", TASK)
    put(data / "chains_train.jsonl", [ROW, changed(chain_id="c2", task_id="DR90002")])
    found = lines(data, capsys)
    assert "tasks/DR90002/files:1: no such folder; documents lie there" in found
    assert any(line.startswith("tasks/not a task:1: its name must match") for line in found)


def test_what_the_server_refuses_or_leaves_out_is_judged_alike(data, capsys):
    task = data / "tasks/DR90001"
    put(task / "files/Eval/page.md", "answers in a folder of that name")
    put(task / "files/DI1_files/x.txt", "text copy")
    put(task / "config/env.json", {"env_files": [{"source": "files/DI1_files/x.pdf"}]})
    assert lines(data, capsys) == []
    put(data / "tasks/DR90002/config/task.json", TASK)
    (data / "tasks/DR90002/files").symlink_to(task / "files", target_is_directory=True)
    (line,) = lines(data, capsys)
    assert line.startswith("tasks:1:") and "leads into the folder of task DR90001" in line


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([*PAGES, PAGES[1]], "web.jsonl:3: duplicate docid '8', first in line 2"),
        ([*PAGES, {"docid": "9"}], "web.jsonl:3: a web document needs docid, url and text"),
        ([*PAGES, {"docid": "", "text": "x"}], "web.jsonl:3: docid ''"),
        ([PAGES[1]], "chains_train.jsonl:1: chain c1 hop 2: dangling gold id web/7"),
        (
            [{"docid": "7", "url": "u", "text": " "}],
            "chains_train.jsonl:1: chain c1 hop 2: unanswerable, its gold page web/7 has no text",
        ),
    ],
)
def test_a_wrong_web_corpus_is_named(data, capsys, pages, expected):
    put(data / "web.jsonl", pages)
    (line,) = lines(data, capsys)
    assert line.startswith(expected)


def test_parts_can_be_named_on_their_own_and_what_was_not_checked_is_said(data, capsys):
    assert main(["--chains", str(data / "chains_train.jsonl"), "--tasks", str(data / "tasks")]) == 0
    assert "not checked for want of --web" in capsys.readouterr().err
    put(data / "chains_train.jsonl", [changed(company="Harlow Foods", task_id="DR7")])
    assert main(["--chains", str(data / "chains_train.jsonl"), "--web", str(data / "web.jsonl")]) == 0


def test_places_that_are_not_there_are_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for arguments in (
        [],
        [str(tmp_path / "gone")],
        [str(tmp_path / "empty")],
        ["--chains", str(tmp_path / "gone.jsonl")],
    ):
        assert main(arguments) == 1
        assert len(capsys.readouterr().err.splitlines()) == 1
