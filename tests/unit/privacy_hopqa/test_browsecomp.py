"""BrowseComp-Plus rows as the web corpus."""

import gzip
import json
import sys
import types

import pytest

from domains.privacy_hopqa.browsecomp import convert, main
from retrieval_server.store import Store


def page(docid, text="Some words.", url="https://a.example/x", **more):
    return {"docid": docid, "text": text, "url": url} | more


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_pages_of_all_files_of_a_folder_become_one_corpus_that_the_server_takes(tmp_path, capsys):
    write(tmp_path / "in" / "b.jsonl", page("2"), page("web/3", "Zürich — pages"), page(4))
    write(tmp_path / "in" / "a.jsonl.gz", page("1", "Cold chain audits"), page("2"), page("5", "  "))
    (tmp_path / "in" / "README.md").write_text("not data")
    out = tmp_path / "out" / "web.jsonl"
    assert main([str(tmp_path / "in"), "--out", str(out)]) == 0
    assert "4 pages" in capsys.readouterr().out
    assert [row["docid"] for row in read(out)] == ["1", "2", "3", "4"]
    assert read(out)[2] == {"docid": "3", "text": "Zürich — pages", "url": "https://a.example/x"}
    (hit,) = Store.load(None, out).search_web("cold audits")
    assert hit["docid"] == "web/1"


def test_of_query_rows_only_pages_are_taken(tmp_path):
    row = {
        "query_id": "q1",
        "query": "SECRET QUERY",
        "answer": "SECRET ANSWER",
        "gold_docs": [page("1", "a")],
        "evidence_docs": [page("1", "a"), page("2", "b")],
        "negative_docs": [page("3", "c")],
    }
    source = write(tmp_path / "queries.jsonl", row)
    summary = convert([source], tmp_path / "web.jsonl")
    assert summary == {"written": 3, "repeated": 1}
    assert "SECRET" not in (tmp_path / "web.jsonl").read_text()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([page("1"), page("1", "another")], "in.jsonl:2: docid='1' has another text further up"),
        ([page("1"), {"docid": "2"}], "in.jsonl:2: the page '2' has no text"),
        ([page(None)], "in.jsonl:1: docid=None"),
        ([page(True)], "in.jsonl:1: docid=True"),
        ([page("1", canary="x")], "in.jsonl:1: the row is encrypted"),
        ([{"gold_docs": ["1"]}], "in.jsonl:1: gold_docs holds a str"),
        (["text"], "in.jsonl:1: expected an object"),
        ([page("1", "\ud800")], "in.jsonl:1: "),
    ],
)
def test_a_row_that_cannot_be_used_is_named_and_nothing_is_written(tmp_path, capsys, rows, words):
    source = write(tmp_path / "in.jsonl", *rows)
    out = tmp_path / "web.jsonl"
    out.write_text("earlier")
    assert main([str(source), "--out", str(out)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert out.read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "web.jsonl"]


def test_files_that_are_cut_short_or_of_another_kind(tmp_path, capsys):
    whole = write(tmp_path / "a.jsonl.gz", *(page(n, f"text {n} " * 50) for n in range(50)))
    whole.write_bytes(whole.read_bytes()[:-40])
    (tmp_path / "b.jsonl").write_text('{"docid": "1"\n')
    (tmp_path / "c.txt").write_text("x")
    damaged = write(tmp_path / "d.jsonl.gz", page("1"))
    damaged.write_bytes(damaged.read_bytes()[:10] + b"\xff" * 40)
    for name in ("a.jsonl.gz", "b.jsonl", "d.jsonl.gz", "c.txt", "absent.jsonl"):
        assert main([str(tmp_path / name), "--out", str(tmp_path / "web.jsonl")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert "a.jsonl.gz: cut short" in lines[0]
    assert "b.jsonl:1: not JSON" in lines[1]
    assert "d.jsonl.gz: cut short or damaged" in lines[2]
    assert all("no file that ends in .jsonl" in line for line in lines[3:])
    assert len(lines) == 5


def test_parquet_files_are_read_in_batches(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    rows = [page(str(n), f"text {n}") for n in range(600)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "corpus.parquet")
    assert convert([tmp_path], tmp_path / "web.jsonl")["written"] == 600


def test_without_pyarrow_a_parquet_file_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", types.ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    assert main([str(tmp_path), "--out", str(tmp_path / "web.jsonl")]) == 1
    assert "pip install pyarrow" in capsys.readouterr().err
