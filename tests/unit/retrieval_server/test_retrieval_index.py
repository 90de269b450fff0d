"""Index builds: a kill at any moment, other corpora, other versions, damage, two builders at once."""

import fcntl
import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from retrieval_server import manifest, tokens
from retrieval_server.corpus import CorpusError
from retrieval_server.index import build, main
from retrieval_server.manifest import IndexMismatch, Manifest
from retrieval_server.mapped import MappedIndex
from retrieval_server.merge import FILES
from retrieval_server.progress import lines
from retrieval_server.store import Store
from tests.support.one_line import check_one_line


def write_corpus(path: Path, rows: int, word: str = "topic") -> Path:
    """Every ninth row is without text."""
    texts = ["" if i % 9 == 4 else f"{word} page{i} shared w{i % 7} " * (1 + i % 3) for i in range(rows)]
    lines = (json.dumps({"docid": f"d{i}", "url": f"u/{i}", "text": text}) for i, text in enumerate(texts))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def web(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "web.jsonl", 60)


def test_an_index_gives_the_hits_of_postings_in_memory(web: Path, tmp_path: Path) -> None:
    made = build(web, tmp_path / "index", postings_at_a_time=30)
    memory, mapped = Store.load(None, web), Store.load(None, web, tmp_path / "index")
    assert (memory.backend, mapped.backend) == ("rank_bm25", "bm25s")
    assert (mapped.web_docs, mapped.skipped_web_docs) == (memory.web_docs, memory.skipped_web_docs) == (53, 7)
    for query in ("shared", "topic w3 page17", "page5 page6", "nothing"):
        assert mapped.search_web(query, 50) == memory.search_web(query, 50)
    asked = ["web/d0", "d59", "d4", "d100", "", "web/D0"]  # d4 is without text
    assert mapped.missing_pages(asked) == memory.missing_pages(asked) == ["d4", "d100", "", "web/D0"]
    assert made == Manifest.read(tmp_path / "index")
    assert not list(tmp_path.glob("*.building"))


class Killed(BaseException):
    """Stands for the end of the process."""


def killer(step: str, after: int) -> Callable[..., object]:
    """A progress that kills the build at the given call of the given step."""

    @contextmanager
    def progress(name: str, _total: int) -> Iterator[Callable[[int], None]]:
        calls = 0

        def update(_done: int) -> None:
            nonlocal calls
            calls += 1
            if name == step and calls == after:
                raise Killed

        yield update

    return progress


@pytest.mark.parametrize(
    ("step", "after"),
    [
        ("reading the corpus", 1),
        *(("counting terms", n) for n in (1, 2, 17, 40, 60)),
        ("merging", 1),
        ("merging", 4),
    ],
)
def test_a_build_that_was_killed_goes_on_and_gives_the_same_index(
    step: str, after: int, web: Path, tmp_path: Path
) -> None:
    build(web, tmp_path / "whole", postings_at_a_time=30)
    index = tmp_path / "index"
    with pytest.raises(Killed):
        build(web, index, progress=killer(step, after), postings_at_a_time=30)  # type: ignore[arg-type]
    assert not index.exists()
    kept = {path: path.stat().st_ino for path in tmp_path.glob("index.building/segment-*")}
    build(web, index, progress=check_kept(kept), postings_at_a_time=30)  # type: ignore[arg-type]
    assert content(index) == content(tmp_path / "whole")


def check_kept(kept: dict[Path, int]) -> Callable[..., object]:
    """Finished segments are not made again."""

    @contextmanager
    def progress(name: str, _total: int) -> Iterator[Callable[[int], None]]:
        yield lambda _done: None
        if name == "counting terms":
            assert all(path.stat().st_ino == inode for path, inode in kept.items())

    return progress


@pytest.mark.usefixtures("forked")
def test_kill_9_of_the_command_leaves_no_index_and_the_next_one_finishes(tmp_path: Path) -> None:
    web = write_corpus(tmp_path / "web.jsonl", 900)
    index = tmp_path / "index"
    code = """
        import os, signal, sys
        from contextlib import contextmanager
        from pathlib import Path
        from retrieval_server.index import build

        web, index, last = map(Path, sys.argv[1:])

        def dies(_done):
            if last.exists():
                os.kill(os.getpid(), signal.SIGKILL)

        @contextmanager
        def progress(_name, _total):
            yield dies

        build(web, index, progress=progress, postings_at_a_time=100)
    """
    made = tmp_path / "index.building" / "segment-000005"
    command = [sys.executable, "-c", textwrap.dedent(code), str(web), str(index)]
    assert subprocess.run([*command, str(made)], timeout=200).returncode == -signal.SIGKILL
    assert made.exists()
    assert not index.exists()
    with pytest.raises(IndexMismatch, match="holds no finished index"):
        MappedIndex(index, web)
    subprocess.run([*command, str(tmp_path / "never")], check=True, timeout=200)
    build(web, tmp_path / "whole")
    assert content(index) == content(tmp_path / "whole")


def test_a_finished_index_is_left_as_it_is(web: Path, tmp_path: Path) -> None:
    build(web, tmp_path / "index")
    inode = (tmp_path / "index").stat().st_ino
    build(web, tmp_path / "index", replace=True)
    assert (tmp_path / "index").stat().st_ino == inode


def test_another_corpus_is_refused_until_it_may_replace(web: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build(web, index)
    web.write_text(web.read_text().replace("page1 ", "page9 "), encoding="utf-8")  # the same size
    with pytest.raises(IndexMismatch, match=r"index was built from another corpus than .*--replace"):
        MappedIndex(index, web)
    with pytest.raises(IndexMismatch, match="another corpus"):
        build(web, index)
    build(web, index, replace=True)
    assert len(MappedIndex(index, web).search("page9", 50)) > 0


@pytest.mark.parametrize("name", ["thesis.txt", "photos/one.npy", ".hidden"])
def test_a_folder_that_holds_anything_else_is_never_replaced(name: str, web: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build(web, index)
    write_corpus(web, 61)
    (index / name).parent.mkdir(exist_ok=True)
    (index / name).write_text("precious")
    with pytest.raises(IndexMismatch, match=r"belongs to no index, so it is not replaced; pass --index"):
        build(web, index, replace=True)
    assert (index / name).read_text() == "precious"
    with pytest.raises(IndexMismatch, match="holds 'index"):
        build(web, tmp_path, replace=True)
    assert web.is_file()


def test_a_file_in_the_place_of_the_index_is_kept(web: Path) -> None:
    before = web.read_bytes()
    with pytest.raises(OSError, match="Not a directory"):
        build(web, web, replace=True)
    assert web.read_bytes() == before


def test_the_files_of_an_index_are_known_by_name(web: Path, tmp_path: Path) -> None:
    build(web, tmp_path / "index")
    assert set(content(tmp_path / "index")) == FILES | {manifest.NAME}


def test_a_copy_of_the_corpus_is_the_same_corpus(web: Path, tmp_path: Path) -> None:
    build(web, tmp_path / "index")
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(web.read_bytes())
    assert MappedIndex(tmp_path / "index", copy).search("shared", 1)


@pytest.mark.parametrize(("name", "value"), [("FORMAT", 2), ("K1", 1.2)])
def test_an_index_of_another_version_is_refused_by_name(
    name: str, value: float, web: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(web, tmp_path / "index")
    with pytest.raises(Killed):
        build(web, tmp_path / "half", progress=killer("counting terms", 9))  # type: ignore[arg-type]
    monkeypatch.setattr(manifest, name, value)
    with pytest.raises(IndexMismatch, match=rf"{name.lower()}=.*, this program uses {value}; build it again"):
        MappedIndex(tmp_path / "index", web)
    with pytest.raises(IndexMismatch, match=rf"half\.building has {name.lower()}=.*--replace"):
        build(web, tmp_path / "half")
    build(web, tmp_path / "half", replace=True)


def test_an_index_of_ascii_words_is_refused_with_the_command_that_replaces_it(
    web: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(tokens, "VERSION", 1)
        build(web, tmp_path / "index")
    with pytest.raises(IndexMismatch) as error:
        MappedIndex(tmp_path / "index", web)
    said = "has tokens=1, this program uses 2; build it again: python -m retrieval_server.index --index"
    check_one_line(str(error.value), said)


def test_a_half_build_of_another_corpus_is_refused(web: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    with pytest.raises(Killed):
        build(web, index, progress=killer("counting terms", 9))  # type: ignore[arg-type]
    write_corpus(web, 61)
    with pytest.raises(IndexMismatch, match="begun with another content of the corpus"):
        build(web, index)
    assert build(web, index, replace=True).documents == 54


def test_replace_keeps_a_half_build_that_fits(web: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    with pytest.raises(Killed):
        build(web, index, progress=killer("merging", 1), postings_at_a_time=30)  # type: ignore[arg-type]
    kept = {path: path.stat().st_ino for path in tmp_path.glob("index.building/segment-*")}
    assert len(kept) > 2
    build(web, index, replace=True, progress=check_kept(kept), postings_at_a_time=30)  # type: ignore[arg-type]


def test_what_a_kill_after_the_publication_left_is_removed(web: Path, tmp_path: Path) -> None:
    build(web, tmp_path / "index")
    (tmp_path / "index.building" / "segment-000000").mkdir(parents=True)
    build(web, tmp_path / "index")
    assert not (tmp_path / "index.building").exists()


def test_a_place_that_cannot_be_written_is_named(web: Path, tmp_path: Path) -> None:
    (tmp_path / "index.lock").mkdir()
    with pytest.raises(OSError, match=r"cannot write .*index\.lock: .*; pass --index DIR"):
        build(web, tmp_path / "index")


@pytest.mark.parametrize("name", ["data.csc.index.npy", "terms.bin", "id_ranks.npy", "params.index.json"])
def test_a_damaged_index_is_refused_by_the_file(name: str, web: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build(web, index)
    (index / name).write_bytes((index / name).read_bytes()[:-1])
    with pytest.raises(IndexMismatch, match=rf"{name} is \d+ bytes, expected \d+"):
        MappedIndex(index, web)
    (index / name).unlink()
    with pytest.raises(IndexMismatch, match=rf"{name} is missing"):
        MappedIndex(index, web)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"parameters": null}'])
def test_a_damaged_manifest_is_refused(text: str, web: Path, tmp_path: Path) -> None:
    build(web, tmp_path / "index")
    (tmp_path / "index" / "manifest.json").write_text(text)
    with pytest.raises(IndexMismatch, match="build it again"):
        MappedIndex(tmp_path / "index", web)


def test_two_builders_do_not_meet(web: Path, tmp_path: Path) -> None:
    with (tmp_path / "index.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(IndexMismatch, match="being built by another process"):
            build(web, tmp_path / "index")
        with pytest.raises(IndexMismatch, match="being built by another process"):
            build(web, tmp_path / "index", wait_s=0.3)
    build(web, tmp_path / "index")


def test_a_build_of_another_process_is_awaited_and_taken_over(web: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build(web, tmp_path / "elsewhere")
    with (tmp_path / "index.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(build, web, index, wait_s=200.0)
            time.sleep(0.5)
            assert not waiting.done()
            (tmp_path / "elsewhere").rename(index)
            inode = index.stat().st_ino
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert waiting.result(200) == Manifest.read(index)
    assert index.stat().st_ino == inode


def test_a_corpus_that_changes_under_the_build_is_refused(web: Path, tmp_path: Path) -> None:
    @contextmanager
    def progress(name: str, _total: int) -> Iterator[Callable[[int], None]]:
        yield lambda _done: None
        if name == "counting terms":
            write_corpus(web, 61)

    with pytest.raises(CorpusError, match="changed while it was indexed"):
        build(web, tmp_path / "index", progress=progress)
    assert not (tmp_path / "index").exists()
    assert build(web, tmp_path / "index").documents == 54


def test_a_broken_row_is_named_with_its_line_also_after_a_resume(web: Path, tmp_path: Path) -> None:
    rows = web.read_text().splitlines()
    web.write_text("\n".join([*rows, rows[3]]) + "\n", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(CorpusError, match=r"web\.jsonl:61: duplicate docid 'd3'"):
            build(web, tmp_path / "index", postings_at_a_time=30)


def test_the_command_tells_what_it_made(
    web: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--web", str(web)]) == 0
    told = capsys.readouterr()
    assert "web.jsonl.bm25s: 53 documents (7 without text left out)" in told.out
    assert "counting terms: 100%" in told.err
    web.write_text("{\n", encoding="utf-8")
    assert main(["--web", str(web), "--replace", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith(f"retrieval_server.index: {web}:1: not a JSON object")


def test_lines_are_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with lines("step", 200) as update:
        for done in range(200):
            update(done)
    assert capsys.readouterr().err == "step: 100% after 0 s\n"


def test_an_index_holds_no_pickles(web: Path, tmp_path: Path) -> None:
    build(web, tmp_path / "index")
    for path in (tmp_path / "index").glob("*.npy"):
        np.load(path, allow_pickle=False)
