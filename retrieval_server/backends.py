"""Which back end searches a corpus, and where its index lies. Pure: looks at sizes and names only."""

from pathlib import Path
from typing import Literal, get_args

Backend = Literal["rank_bm25", "bm25s"]
Asked = Literal["auto", "rank_bm25", "bm25s"]
ASKED = get_args(Asked)
LARGE_CORPUS_BYTES = 32 << 20
"""From here on an index in memory takes several seconds and a gigabyte, again for each process."""


def choose(web: Path | None, asked: Asked = "auto") -> Backend:
    """The back end of a public corpus; without one there is nothing to map."""
    if asked != "auto":
        return asked
    return "bm25s" if web is not None and web.stat().st_size >= LARGE_CORPUS_BYTES else "rank_bm25"


def default_index(web: Path) -> Path:
    """The index folder of a corpus, beside it: runs and servers share it."""
    return web.with_name(f"{web.name}.bm25s")


def start_deadline_s(web: Path | None) -> float:
    """Seconds within which a server can search; a missing index is built first, at 2 MB/s or better."""
    return 60.0 + (web.stat().st_size / 2e6 if web is not None else 0.0)


def describe(web: Path | None, backend: Backend) -> str:
    """One phrase for people: the back end and the size that chose it."""
    if web is None:
        return f"{backend}, no web corpus"
    where = f"index {default_index(web)}" if backend == "bm25s" else "index in memory"
    return f"{backend}, {web.stat().st_size / 1e6:,.1f} MB of web text, {where}"
