"""BrowseComp-Plus rows as the web corpus `{docid, url, text}`, streamed.

    python -m domains.privacy_hopqa.browsecomp corpus/ --out web.jsonl

Reads local files only: JSON lines (also .gz) and parquet. A row is a page of the corpus (`docid`, `url`,
`text`) or a decrypted query row, of which only the pages in `gold_docs`, `evidence_docs` and `negative_docs`
are taken: decrypted queries and answers must not be published, so they are never written.
"""

import argparse
import gzip
import importlib
import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.dataset import parse_row
from pipelinerl.base.errors import CommandParser, leave, printable

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
PAGE_LISTS = ("gold_docs", "evidence_docs", "negative_docs")
_PARQUET_ROWS = 256


def convert(sources: Iterable[Path], out: Path) -> Counter[str]:
    """Write the pages of all sources to `out`, which appears complete or not at all.

    Equal pages are written once, pages without text not at all: how many were `written`, `repeated` and
    `empty` is returned. Raises ValueError naming file and row: a row
    that is none, an encrypted one, one docid with two texts; OSError.
    """
    summary: Counter[str] = Counter()
    digests: dict[str, bytes] = {}
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with staging.open("w", encoding="utf-8") as file:
            for source in files_of(sources):
                for number, row in rows_of(source):
                    try:
                        for page in pages_of(row):
                            _write(page, file, digests, summary)
                    except ValueError as error:
                        raise ValueError(f"{source}:{number}: {error}") from None
        staging.replace(out)
    finally:
        staging.unlink(missing_ok=True)
    return summary


def files_of(sources: Iterable[Path]) -> list[Path]:
    """The files named, and those below the folders named, in path order. Raises ValueError for others."""
    found: list[Path] = []
    for source in sources:
        inside = sorted(source.rglob("*")) if source.is_dir() else [source]
        known = [path for path in inside if path.is_file() and path.name.endswith(SUFFIXES)]
        if not known:
            raise ValueError(f"{source}: no file that ends in {', '.join(SUFFIXES)}")
        found += known
    return found


def rows_of(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows with their numbers from 1, one in memory at a time. Raises ValueError naming file and row."""
    if path.name.endswith(".parquet"):
        yield from enumerate(_parquet_rows(path), 1)
        return
    with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, parse_row(line, f"{path}:{number}: ")
        except (EOFError, zlib.error) as error:
            raise ValueError(f"{path}: cut short or damaged ({error})") from None


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(
            f"{path}: parquet files need pyarrow; pip install pyarrow, or give JSON lines"
        ) from None
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=_PARQUET_ROWS):
        yield from batch.to_pylist()


def pages_of(row: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The pages of a row. Raises ValueError for a row of another kind."""
    if "canary" in row:
        raise ValueError("the row is encrypted; decrypt it with the data set's own script first")
    if any(key in row for key in PAGE_LISTS):
        for key in PAGE_LISTS:
            for page in row.get(key) or ():
                yield _page(page, key)
    else:
        yield _page(row, "the row")


def _page(row: Any, where: str) -> dict[str, str]:
    if not isinstance(row, Mapping):
        raise ValueError(f"{where} holds a {type(row).__name__}; a page has docid, url and text")
    docid, text, url = row.get("docid"), row.get("text"), row.get("url")
    if isinstance(docid, bool) or not isinstance(docid, str | int) or not str(docid).strip():
        raise ValueError(f"docid={docid!r} is no text and no number; a page has docid, url and text")
    if not isinstance(text, str):
        raise ValueError(f"the page {docid!r} has no text; a page has docid, url and text")
    return {"docid": str(docid).strip().removeprefix("web/"), "url": str(url or ""), "text": text}


def _write(page: dict[str, str], file: Any, digests: dict[str, bytes], summary: Counter[str]) -> None:
    if not page["text"].strip():
        summary["empty"] += 1
        return
    digest = blake2b(page["text"].encode("utf-8"), digest_size=16).digest()
    known = digests.get(page["docid"])
    if known is None:
        digests[page["docid"]] = digest
        file.write(json.dumps(page, ensure_ascii=False, sort_keys=True) + "\n")
        summary["written"] += 1
    elif known == digest:
        summary["repeated"] += 1
    else:
        raise ValueError(f"docid={page['docid']!r} has another text further up; ids are unique")


def main(argv: Sequence[str]) -> int:
    """0; 1 and one line if a row cannot be used."""
    parser = CommandParser(
        prog="browsecomp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", type=Path, nargs="+", help=f"files or folders: {', '.join(SUFFIXES)}")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the web corpus to write")
    arguments = parser.parse_args(argv)
    try:
        summary = convert(arguments.sources, arguments.out)
    except (OSError, ValueError) as error:
        print(printable(f"browsecomp: {error}"), file=sys.stderr)
        return 1
    print(
        f"{summary['written']} pages in {printable(str(arguments.out))}; left out {summary['repeated']} "
        f"repeated ones and {summary['empty']} without text"
    )
    return 0


if __name__ == "__main__":
    leave("browsecomp", lambda: main(sys.argv[1:]))
