"""The store: what is indexed, what a hit carries, and that no corpus leaks into another."""

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from retrieval_server.bounds import Bounds
from retrieval_server.corpus import CorpusError, LocalDocument, WebDocument, read_task
from retrieval_server.store import Store, UnknownTask


@pytest.fixture
def store(data: Path) -> Store:
    return Store.load(data / "tasks", data / "web.jsonl")


def test_local_hits_carry_relative_paths_and_full_text(store: Store) -> None:
    (hit,) = store.search_local("DR90001", "cold chain audit")
    assert hit["doc_id"] == "local/DR90001/IN001_pdf/report.md"
    assert hit["content"].endswith("canaryDR90001report shared")
    assert hit["preview"] == hit["content"][:300]
    assert hit["metadata"] == {
        "file_path": "DR90001/files/IN001_pdf/report.md",
        "original_path": "DR90001/files/IN001_pdf/report.pdf",
        "folder_path": "DR90001/files/IN001_pdf",
        "doc_ref": "IN001_pdf/report",
        "title": "Audit report",
    }
    (log,) = store.search_local("DR90001", "staff")
    assert log["metadata"]["original_path"] == "DR90001/files/IN002_chat/log.xlsx"
    assert log["metadata"]["title"] == "log"


def test_web_hits_are_cut_to_max_chars(store: Store) -> None:
    (hit,) = store.search_web("retail")
    assert (hit["docid"], hit["raw_docid"], hit["source"]) == ("web/10", "10", "web")
    assert (len(hit["text"]), hit["text_chars"], hit["truncated"]) == (8000, 14000, True)
    (hit,) = store.search_web("retail", max_chars=0)
    assert (len(hit["text"]), hit["truncated"]) == (14000, False)
    (hit,) = store.search_web("retail", max_chars=10)
    assert hit["text"] == "cold chain"
    (hit,) = store.search_web("storage")
    assert (hit["docid"], hit["text"]) == ("web/9", "public cold storage market naïve shared")


def test_no_answer_is_longer_than_its_bounds(tmp_path: Path) -> None:
    texts = {"huge": "alpha " * 100_000, "large": "alpha " * 40_000, "small": "alpha beta"}
    store = Store(
        {"T": [LocalDocument("T", f"{name}.md", text) for name, text in texts.items()]},
        [WebDocument(name, "u", text) for name, text in texts.items()],
    )
    for hits, field in (
        (store.search_local("T", "alpha"), "content"),
        (store.search_web("alpha", 5, 0), "text"),
    ):
        found = {hit["text_chars"]: (len(hit[field]), hit["truncated"]) for hit in hits}
        assert found == {600_000: (200_000, True), 240_000: (200_000, True), 10: (10, False)}


@pytest.mark.parametrize(
    ("hit_chars", "answer_chars", "expected"),
    [
        (0, 0, [10, 60, 100]),
        (50, 0, [10, 50, 50]),
        (0, 90, [10, 40, 40]),  # the short one stays whole, the others share the rest
        (30, 90, [10, 30, 30]),
        (0, 1, [1, 1, 1]),  # a hit without any text would be no hit
        (10**9, 10**9, [10, 60, 100]),  # never more than the server's own
    ],
)
def test_a_request_can_ask_for_less(hit_chars: int, answer_chars: int, expected: list[int]) -> None:
    hits = [{"text": "x" * chars} for chars in (10, 60, 140)]
    found = Bounds(100, 200).within(hit_chars, answer_chars).cut(hits, "text")
    assert [len(hit["text"]) for hit in found] == expected
    assert [hit["truncated"] for hit in found] == [len(hit["text"]) < hit["text_chars"] for hit in found]


def test_counts(store: Store) -> None:
    assert (store.web_docs, store.skipped_web_docs, store.task_ids) == (3, 1, ["DR90001", "DR90002"])


def test_every_canary_stays_in_its_task(store: Store) -> None:
    for task, other in (("DR90001", "DR90002"), ("DR90002", "DR90001")):
        for part in ("report", "log"):
            canary = f"canary{task}{part}"
            assert len(store.search_local(task, canary)) == 1
            assert canary not in json.dumps(store.search_local(other, f"{canary} shared cold", 50))
            assert store.search_web(canary, 50, 0) == []


def test_answer_files_binaries_and_outside_files_are_never_found(data: Path) -> None:
    link = data / "tasks" / "DR90001" / "files" / "IN001_pdf" / "link.md"
    link.symlink_to(data / "secret.md")
    store = Store.load(data / "tasks", data / "web.jsonl")
    for query in ("canaryanswer", "canarytype", "insight", "canarybinary", "canaryoutside"):
        assert store.search_local("DR90001", query, 50) == []
    everything = json.dumps(store.search_local("DR90001", "shared canary cold", 50))
    assert "canaryanswer" not in everything
    assert "qa_type" not in everything
    assert str(data) not in everything


@pytest.mark.parametrize(
    "name",
    [
        *("QA_DICT.md", "eval.json.txt", "dr_question.v2.csv", "Eval/page.md", "file_dict .md", ".eval.md"),
        *(
            "qa_dict (1).md",
            "Copy of qa_dict.csv",
            "qa_dict - Copy.md",
            "qa_dict copy 2.txt",
            "QA-dict_v2.md",
        ),
        *(
            "eval_backup/page.md",
            "dr question.md",
            "qa_dict_final.md",
            "2_qa_dict.csv",
            "file_dict_old (2).csv",
        ),
        *(
            "qaDict.md",
            "notes.qa_dict.txt",
            "FileDict.csv",
            "drQuestion (1).md",
            "eval .md",
            "qa_dicts.md",
            "DR questions (2).txt",
        ),
        # How file managers and word processors write such names.
        *("eval (copy).md", "eval (another copy)/page.md", "eval (3rd copy).txt", "qa\u2010dict.md"),
        *("Copy of eval.csv", "Copy of Copy of eval.csv", "Copy (2) of eval.md"),
        *("ｑａ＿ｄｉｃｔ.md", "qa\u200b_dict.md", "qa\u00a0dict.md", "qa.dict.md", "\ufeffeval.md"),
    ],
)
def test_answers_under_other_extensions_and_in_folders_are_never_found(name: str, data: Path) -> None:
    """By their names alone: no answer file of the task has this text."""
    path = data / "tasks" / "DR90001" / "files" / "IN009" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("canaryalone shared", encoding="utf-8")
    assert Store.load(data / "tasks", None).search_local("DR90001", "canaryalone", 50) == []


@pytest.mark.parametrize(
    "name",
    [
        "evaluation.md",
        "eval_report.md",
        "profile_dict.md",
        "evals/a.md",
        "retrieval (1).md",
        "old.md",
        "eval 2024.csv",
        "eval (hardcopy).md",
        "e\u0301val.md",
    ],
)
def test_a_name_that_only_resembles_an_answer_file_is_served(name: str, tmp_path: Path) -> None:
    folder = task_of(tmp_path / "DR1")
    (folder / "files" / name).parent.mkdir(exist_ok=True)
    (folder / "files" / name).write_text("the quarter's review")
    assert name in [one.rest for one in read_task("DR1", folder)]


@pytest.mark.parametrize("link", ["DR90003", "DR90003/files", "DR90003/files/deep"])
def test_a_task_that_leads_into_another_is_refused(link: str, data: Path) -> None:
    """Links of an operator may lead anywhere but to the documents of another task."""
    target = data / "tasks" / "DR90001" / ("" if link == "DR90003" else "files")
    path = data / "tasks" / link
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target, target_is_directory=True)
    if link.endswith("deep"):  # not followed at all: it leaves the task's own folder
        (data / "tasks" / "DR90003" / "files" / "own.md").write_text("own", encoding="utf-8")
        found = Store.load(data / "tasks", None).search_local("DR90003", "canaryDR90001report own", 50)
        assert [hit["doc_id"] for hit in found] == ["local/DR90003/own.md"]
        return
    with pytest.raises(CorpusError, match="leads into the folder of task DR90001"):
        Store.load(data / "tasks", None)


def test_a_files_folder_inside_another_task_is_refused(data: Path) -> None:
    (data / "tasks" / "DR90003").mkdir()
    inside = data / "tasks" / "DR90001" / "files" / "IN001_pdf"
    (data / "tasks" / "DR90003" / "files").symlink_to(inside, target_is_directory=True)
    with pytest.raises(CorpusError, match="DR90003 leads into the folder of task DR90001"):
        Store.load(data / "tasks", None)


def test_unknown_tasks_are_refused(store: Store) -> None:
    for task_id in ("DR90003", "../DR90001", "DR90001/files", ""):
        with pytest.raises(UnknownTask):
            store.search_local(task_id, "cold")


def test_shared_aliases_are_marked_and_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    documents = [LocalDocument("T", "f/x.md", "alpha"), LocalDocument("T", "f/x.csv", "beta")]
    with caplog.at_level(logging.WARNING):
        store = Store({"T": documents})
    assert "2 documents share aliases" in caplog.text
    (hit,) = store.search_local("T", "alpha")
    assert "local/t/f/x" in hit["metadata"]["ambiguous_aliases"]
    assert "local/t/f/x.md" not in hit["metadata"]["ambiguous_aliases"]


def test_documents_in_memory_give_the_same_hits(store: Store, data: Path) -> None:
    pages = [
        WebDocument("10", "https://a.example/10", "cold chain audit in retail. " * 500),
        WebDocument("9", "https://a.example/9", "public cold storage market naïve shared"),
        WebDocument("8", "", "weather"),
    ]
    assert Store({}, pages).search_web("cold", 5) == store.search_web("cold", 5)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"docid":"1","text":"a"}', '{"docid":"web/1","text":"b"}'], r"web\.jsonl:2: duplicate docid '1'"),
        (["{"], r"web\.jsonl:1: not a JSON object"),
        (['{"docid":"1"}'], "needs docid, url and text"),
        (['{"docid":null,"text":"a"}'], "docid None"),
        (["version https://git-lfs.github.com/spec/v1", "size 12"], "pointer of git .* git lfs pull"),
    ],
)
def test_broken_web_files_name_file_and_line(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "web.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        Store.load(None, path)


def test_half_an_emoji_in_a_page_is_replaced(tmp_path: Path) -> None:
    """No tokenizer takes it, so that every prompt that shows the page would fail."""
    path = tmp_path / "web.jsonl"
    path.write_text(r'{"docid":"a\ud83d","url":"u\ude00","text":"cold \ud83d chain \ud83d\ude00"}')
    (hit,) = Store.load(None, path).search_web("cold")
    assert (hit["docid"], hit["url"], hit["text"]) == (
        "web/a\ufffd",
        "u\ufffd",
        "cold \ufffd chain \U0001f600",
    )


def test_text_that_is_not_utf8_is_named(data: Path) -> None:
    bad = data / "tasks" / "DR90001" / "files" / "IN001_pdf" / "bad.md"
    bad.write_bytes(b"caf\xe9")
    with pytest.raises(CorpusError, match=r"bad\.md is not UTF-8"):
        Store.load(data / "tasks", None)


def test_utf16_without_a_mark_is_no_text_but_a_stray_zero_is_none(tmp_path: Path) -> None:
    """As UTF-8 it reads as letters with zeros between them, which no query finds."""
    folder = task_of(tmp_path / "DR1")
    (folder / "files" / "more.md").write_bytes(b"the next\0 quarter")
    assert [one.rest for one in read_task("DR1", folder)] == ["more.md", "report.md"]
    (folder / "files" / "more.md").write_bytes("the next quarter".encode("utf-16-le"))
    with pytest.raises(CorpusError, match=r"more\.md is not UTF-8 .* UTF-16"):
        list(read_task("DR1", folder))


@pytest.mark.parametrize("name", [".git/info.txt", ".Trash-0/files/old.md", "__MACOSX/._a.md", ".notes.md"])
def test_what_is_hidden_is_no_document(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = task_of(tmp_path / "DR1")
    hidden = folder / "files" / name
    hidden.parent.mkdir(parents=True, exist_ok=True)
    hidden.write_bytes(b"\0\5\x16\7\xff" if "MACOSX" in name else b"the quarter before")
    assert [one.rest for one in read_task("DR1", folder)] == ["report.md"]
    assert f"1 texts are hidden and not served, first {name}" in caplog.text


def task_of(folder: Path) -> Path:
    (folder / "files" / "deep").mkdir(parents=True)
    (folder / "files" / "report.md").write_text("the quarter")
    (folder / "files" / "deep" / "qa_dict.json").write_text("the answer")
    (folder / "files" / "file_dict.md").write_text("the answer")
    (folder / "config").mkdir()
    (folder / "config" / "eval.json").write_text("the answer")
    return folder


@pytest.mark.parametrize("answers", ["files/file_dict.md", "files/deep/qa_dict.json", "config/eval.json"])
@pytest.mark.parametrize("link", [os.symlink, os.link, shutil.copy])
def test_an_answer_file_is_served_under_no_name(
    answers: str, link: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    folder = task_of(tmp_path / "DR1")
    link(folder / answers, folder / "files" / "notes.md")
    link(folder / "files" / "report.md", folder / "files" / "again.md")
    link(folder / "files" / "notes.md", folder / "files" / "second.txt")
    assert [one.rest for one in read_task("DR1", folder)] == ["again.md", "report.md"]


def test_a_task_of_outward_links_is_refused_and_single_ones_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0123").write_text("the quarter")
    files = tmp_path / "DR1" / "files"
    files.mkdir(parents=True)
    for name in ("a.md", "b.md"):
        (files / name).symlink_to("../../blobs/0123")
    with pytest.raises(CorpusError, match=r"files/a.md leads out .*all its 2 texts.* copy the files"):
        list(read_task("DR1", tmp_path / "DR1"))
    (files / "c.md").write_text("one of its own")
    assert [one.rest for one in read_task("DR1", tmp_path / "DR1")] == ["c.md"]
    assert "2 links lead out of the folder, or nowhere, and are not served" in caplog.text


ANSWERS = '{"answer": "the quarter"}\n'


@pytest.mark.parametrize(
    "copy",
    [ANSWERS, ANSWERS + "\n", ANSWERS.strip(), '{\n  "answer":\n    "the quarter"\n}', "\ufeff" + ANSWERS],
)
def test_a_copy_of_an_answer_file_is_one_however_it_is_spaced(copy: str, tmp_path: Path) -> None:
    folder = task_of(tmp_path / "DR1")
    (folder / "qa_dict.json").write_text(ANSWERS)
    (folder / "files" / "notes.md").write_text(copy)
    (folder / "files" / "more.md").write_text(ANSWERS + "and something of its own")
    assert [one.rest for one in read_task("DR1", folder)] == ["more.md", "report.md"]


@pytest.mark.parametrize("escaped", [False, True])
def test_a_copy_of_an_answer_file_is_one_however_its_json_is_written(escaped: bool, tmp_path: Path) -> None:
    """As a program writes it that has read it: other order of keys, other escapes."""
    folder = task_of(tmp_path / "DR1")
    (folder / "qa_dict.json").write_text('{"q": "wie hei\u00dft es?", "a": ["caf\u00e9", 1]}')
    copy = {"a": ["café", 1], "q": "wie heißt es?"}
    (folder / "files" / "notes.md").write_text(json.dumps(copy, ensure_ascii=escaped, indent=3))
    (folder / "files" / "other.md").write_text(json.dumps(copy | {"a": ["café", 2]}))
    assert [one.rest for one in read_task("DR1", folder)] == ["other.md", "report.md"]


def test_a_copy_of_an_answer_file_is_one_whatever_its_typography(tmp_path: Path) -> None:
    """As a word processor writes it; one word more or another number is another document."""
    folder = task_of(tmp_path / "DR1")
    (folder / "qa_dict.md").write_text('"It\'s final" - 5 of them...')
    (folder / "files" / "notes.md").write_text("“It’s \ufb01nal” – 5\u00a0of them…")
    (folder / "files" / "other.md").write_text("“It’s \ufb01nal” – 6\u00a0of them…")
    assert [one.rest for one in read_task("DR1", folder)] == ["other.md", "report.md"]


ROWS = {
    "q1": {"question": "Which plant had the most leaks?", "answer": "the plant in the north, with 41"},
    "q2": {"question": "When did the new line start?", "answer": "1914"},
}
LINES = [f"{row['question']},{row['answer']}" for row in ROWS.values()]


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        f"# Notes\n\n```json\n{json.dumps(ROWS, indent=4)}\n```\nTo be asked tomorrow.\n",
        "question,answer\n" + "\n".join(LINES),
        "\n".join(f"- **{row['question']}**\n  {row['answer']}" for row in reversed(ROWS.values())),
    ],
)
def test_a_copy_of_an_answer_file_within_a_longer_text_is_one(
    text: str, lines: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A single row of it, or its answers alone, may be what a document says."""
    folder = task_of(tmp_path / "DR1")
    if lines:
        (folder / "qa_dict.jsonl").write_text("\n".join(map(json.dumps, ROWS.values())))
    else:
        (folder / "qa_dict.json").write_text(json.dumps(ROWS))
    (folder / "files" / "notes.md").write_text(text)
    (folder / "files" / "row.md").write_text(f"Minutes: {LINES[0]}")
    (folder / "files" / "said.md").write_text("It was the plant in the north, with 41, since 1914.")
    assert [one.rest for one in read_task("DR1", folder)] == ["report.md", "row.md", "said.md"]
    assert (
        "1 texts hold what an answer file of the task holds and are not served, first notes.md" in caplog.text
    )


def test_a_document_is_no_copy_of_the_file_that_describes_it(tmp_path: Path) -> None:
    """A `file_dict` may tell all that the document says, which was made from it; its own copy is none."""
    folder = task_of(tmp_path / "DR1")
    told = ["Audits of all stores in the north", "The team came in March", "Four of five stores passed"]
    description = json.dumps({"title": told[0], "parts": told[1:], "file_type": "md"})
    (folder / "files" / "deep" / "file_dict.json").write_text(description)
    (folder / "files" / "deep" / "audits.md").write_text(f"# {told[0]}\n\n{told[1]}. {told[2]}.\n")
    (folder / "files" / "notes.md").write_text(description)
    assert [one.rest for one in read_task("DR1", folder)] == ["deep/audits.md", "report.md"]


def test_a_file_without_a_text_beside_it_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = task_of(tmp_path / "DR1")
    for name in ("report.pdf", "plan.PDF", "deep.xlsx", "qa_dict.jsonl", ".DS_Store", "mail.eml", "notes"):
        (folder / "files" / name).write_text("binary")
    os.mkfifo(folder / "files" / "pipe.md")
    assert [one.rest for one in read_task("DR1", folder)] == ["report.md"]
    (line,) = [record.getMessage() for record in caplog.records if "other formats" in record.getMessage()]
    assert "5 files of other formats have no text beside them" in line and "first deep.xlsx" in line


def test_a_text_that_is_not_there_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = task_of(tmp_path / "DR1")
    (folder / "files" / "gone.md").symlink_to("nothing.md")
    assert [one.rest for one in read_task("DR1", folder)] == ["report.md"]
    assert "1 links lead out of the folder, or nowhere" in caplog.text
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12\n"
    (folder / "files" / "large.csv").write_text(pointer)
    (folder / "files" / "large.csv").write_text("/annex/objects/SHA256E-s12--0123.csv\n")
    with pytest.raises(CorpusError, match=r"large.csv is a pointer of git .* git annex get"):
        list(read_task("DR1", folder))
    (folder / "files" / "large.csv").write_text(pointer)
    with pytest.raises(CorpusError, match=r"large.csv is a pointer of git .* git lfs pull"):
        list(read_task("DR1", folder))


def test_an_empty_text_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = task_of(tmp_path / "DR1")
    for name, text in (("a.md", ""), ("a.pdf", "%PDF"), ("b.csv", "\ufeff \n"), ("qa_dict.txt", "")):
        (folder / "files" / name).write_text(text)
    assert [one.rest for one in read_task("DR1", folder)] == ["report.md"]
    (line,) = caplog.messages
    assert line.endswith("2 texts are empty and not served, first a.md")


def test_a_folder_that_may_not_be_read_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = task_of(tmp_path / "DR1")
    (closed := folder / "files" / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != closed)  # to root all are open
    with pytest.raises(CorpusError, match=r"files/closed cannot be read"):
        list(read_task("DR1", folder))


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    folder = task_of(tmp_path / "DR1")
    for name, target in (("loop.md", "loop.md"), ("ping", "pong"), ("pong", "ping")):
        (folder / "files" / name).symlink_to(target)
    assert [one.rest for one in read_task("DR1", folder)] == ["report.md"]


def test_a_name_that_is_no_utf8_is_shown_as_one(tmp_path: Path) -> None:
    """Halves of surrogate pairs stand for its bytes, and no tokenizer takes them."""
    folder = task_of(tmp_path / "DR1")
    os.rename(folder / "files" / "report.md", os.fsencode(folder / "files") + b"/caf\xe9.md")
    (document,) = read_task("DR1", folder)
    assert document.rest == "caf\ufffd.md" and document.metadata()["title"] == "caf\ufffd"


def test_folders_without_end_are_refused(tmp_path: Path) -> None:
    folder = task_of(tmp_path / "DR1")
    here = os.open(folder / "files", os.O_DIRECTORY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    try:
        with pytest.raises(CorpusError, match="folders in folders a thousand deep"):
            list(read_task("DR1", folder))
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)  # Python's own way down is not deep enough either


def test_a_task_without_texts_stays_one(tmp_path: Path) -> None:
    (tmp_path / "DR1" / "files").mkdir(parents=True)
    assert list(read_task("DR1", tmp_path / "DR1")) == []


def test_a_folder_without_tasks_is_refused_and_a_task_without_documents_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "DR1").mkdir()
    (tmp_path / "DR1" / "a.md").write_text("its documents are not in files/")
    with pytest.raises(CorpusError, match=r"holds no task: each is a folder with its documents in files/"):
        Store.load(tmp_path, None)
    for content in ("", "\n", '{"docid": "1", "url": "u", "text": " "}\n'):
        (tmp_path / "web.jsonl").write_text(content)
        with pytest.raises(CorpusError, match=r"web\.jsonl holds no page with a text; give another file"):
            Store.load(None, tmp_path / "web.jsonl")
    for task_id in ("DR2", "DR3"):
        (tmp_path / task_id / "files").mkdir(parents=True)
    with pytest.raises(CorpusError, match=r"holds no document: no task has a text that is served"):
        Store.load(tmp_path, None)
    caplog.clear()
    (tmp_path / "DR3" / "files" / "a.md").write_text("text")
    (tmp_path / "DR 4" / "files").mkdir(parents=True)
    assert Store.load(tmp_path, None).task_ids == ["DR2", "DR3"]
    unnamed, bare, empty = caplog.messages
    assert "1 folders have texts but no files/ with them, and are not served, first 'DR1'" in bare
    assert "1 folders have files/ but no name of a task" in unnamed and "first 'DR 4'" in unnamed
    assert empty == "1 of 2 tasks have no document to find, first: DR2"
