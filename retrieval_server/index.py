"""Build the index of a large public corpus: `python -m retrieval_server.index --web web.jsonl [--index DIR]`.

The build works in `DIR.building` and gives the folder its final name last, so what is served is always whole.
A build that was killed goes on behind its last segment when the same command is run again.
"""

import argparse
import fcntl
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from retrieval_server import manifest
from retrieval_server.arguments import Parser, printable
from retrieval_server.backends import default_index
from retrieval_server.corpus import CorpusError
from retrieval_server.manifest import Corpus, IndexMismatch, Manifest, check_parameters
from retrieval_server.merge import FILES, merge
from retrieval_server.progress import Progress, shown, silent
from retrieval_server.segments import POSTINGS_AT_A_TIME, Counts, make_segments
from retrieval_server.status import exit_status

_PLAN = "build.json"
_LOCK_POLL_S = 0.2


def build(
    web: Path,
    index: Path,
    replace: bool = False,
    progress: Progress = silent,
    postings_at_a_time: int = POSTINGS_AT_A_TIME,
    wait_s: float = 0.0,
) -> Manifest:
    """Build the index of `web` in the folder `index`; one that is there and fits is left as it is.

    `replace` discards a finished or half-built index that does not fit. If another process builds this index,
    it is awaited for `wait_s` seconds. Raises `CorpusError` for a broken corpus, `IndexMismatch` for an index
    that does not fit or is being built by another process, and for a folder that holds more; `OSError`.
    """
    index.parent.mkdir(parents=True, exist_ok=True)
    working = index.with_name(f"{index.name}.building")
    with _only_builder(index, wait_s):
        if (found := _finished(index, web, replace)) is not None:
            shutil.rmtree(working, ignore_errors=True)  # left by a kill right after the publication
            return found
        with progress("reading the corpus", web.stat().st_size) as read:
            corpus = Corpus.of(web, read)
        _open_working_folder(working, corpus, replace)
        with progress("counting terms", corpus.bytes) as counted:
            segments, vocabulary = make_segments(web, working, counted, postings_at_a_time)
        result = working / "index"
        shutil.rmtree(result, ignore_errors=True)
        result.mkdir()
        with progress("merging", sum(segment.postings for segment in segments)) as merged:
            postings = merge(segments, vocabulary, result, merged, postings_at_a_time)
        made = _manifest(segments[-1].counts if segments else Counts(), postings, corpus, result)
        if not corpus.is_same_file(web):
            shutil.rmtree(working)
            raise CorpusError(f"{web} changed while it was indexed; leave it alone and run the build again")
        _publish(made, result, index)
        shutil.rmtree(working)
    return made


def _finished(index: Path, web: Path, replace: bool) -> Manifest | None:
    """The index that is there and fits, None if there is none or it may be replaced."""
    if not index.exists():
        return None
    try:
        found = Manifest.read(index)
        found.check(index, web)
    except IndexMismatch:
        if not replace:
            raise
        _check_replaceable(index)
        return None
    return found


def _check_replaceable(index: Path) -> None:
    """A folder that is named by mistake is never removed. Raises `IndexMismatch` naming a file of it."""
    strangers = sorted({path.name for path in index.iterdir()} - FILES - {manifest.NAME})
    if strangers:
        raise IndexMismatch(
            f"{index} holds {strangers[0]!r}, which belongs to no index, so it is not replaced; "
            "pass --index DIR for a folder of its own"
        )


@contextmanager
def _only_builder(index: Path, wait_s: float) -> Iterator[None]:
    """Hold the build's lock, which the system frees when the process ends, however it ends."""
    deadline = time.monotonic() + wait_s
    path = index.with_name(f"{index.name}.lock")
    try:
        opened = path.open("w")
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}; pass --index DIR for another place") from error
    with opened as lock:
        while not _locked(lock):
            if time.monotonic() >= deadline:
                raise IndexMismatch(f"{index} is being built by another process; wait until it is done")
            time.sleep(_LOCK_POLL_S)
        yield


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_working_folder(working: Path, corpus: Corpus, replace: bool) -> None:
    """Go on with the build that is there if it is of this corpus and program, else begin one."""
    path = working / _PLAN
    if path.is_file():
        try:
            _check_plan(json.loads(path.read_bytes()), corpus, working)
            return
        except IndexMismatch:
            if not replace:
                raise
    shutil.rmtree(working, ignore_errors=True)
    working.mkdir()
    unnamed = working / f"{_PLAN}.unfinished"
    plan = {"parameters": manifest.parameters(), "corpus": asdict(corpus)}
    manifest.write_synced(unnamed, json.dumps(plan, indent=1).encode())
    unnamed.rename(path)


def _check_plan(plan: dict[str, Any], corpus: Corpus, working: Path) -> None:
    remedy = "pass --replace to begin anew"
    check_parameters(plan["parameters"], working, remedy)
    if plan["corpus"]["sha256"] != corpus.sha256:
        raise IndexMismatch(f"{working} was begun with another content of the corpus; {remedy}")


def _manifest(counts: Counts, postings: int, corpus: Corpus, folder: Path) -> Manifest:
    return Manifest(
        parameters=manifest.parameters(),
        corpus=corpus,
        documents=counts.documents,
        skipped_empty=counts.skipped_empty,
        terms=counts.terms,
        postings=postings,
        files={path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    )


def _publish(made: Manifest, result: Path, index: Path) -> None:
    """Write the manifest, then let the whole folder appear under its name at once."""
    made.write(result)
    manifest.sync_folder(result)
    if index.exists():
        shutil.rmtree(index)
    result.rename(index)
    manifest.sync_folder(index.parent)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m retrieval_server.index", description=__doc__)
    parser.add_argument(
        "--web", type=Path, required=True, help="public corpus, JSON lines {docid, url, text}"
    )
    parser.add_argument(
        "--index", type=Path, help="folder of the index (default: the corpus's name + .bm25s)"
    )
    parser.add_argument("--replace", action="store_true", help="discard an index that does not fit")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument(
        "--wait-s", type=float, default=0.0, help="for another process that builds this index"
    )
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if not arguments.web.is_file():
        parser.error(f"--web {arguments.web} is not a file")
    arguments.index = arguments.index or default_index(arguments.web)
    return arguments


def _end_with_parent(pipe: int) -> None:
    """Wait for the end of file of a pipe that the parent holds open, then end: the next build goes on."""
    os.read(pipe, 1)
    os._exit(1)


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    if arguments.parent is not None:
        threading.Thread(target=_end_with_parent, args=(arguments.parent,), daemon=True).start()
    try:
        progress = silent if arguments.quiet else shown()
        made = build(arguments.web, arguments.index, arguments.replace, progress, wait_s=arguments.wait_s)
    except (OSError, ValueError) as error:
        print(printable(f"retrieval_server.index: {error}"), file=sys.stderr)
        return exit_status(error)
    print(
        f"{printable(str(arguments.index))}: {made.documents} documents "
        f"({made.skipped_empty} without text left out), {made.terms} terms, "
        f"{made.postings} postings, fingerprint {made.fingerprint[:16]}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
