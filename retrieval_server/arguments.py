"""Arguments of `python -m retrieval_server`, checked before anything is opened."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from retrieval_server.access import check_binding, read_token
from retrieval_server.backends import ASKED, Asked, Backend, choose, default_index
from retrieval_server.bounds import ANSWER_CHARS, HIT_CHARS, Bounds
from retrieval_server.limits import DEFAULT_MAX_WAITING
from retrieval_server.world import world_fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What one server serves and how; `index` is None for a corpus that is indexed in memory."""

    tasks: Path | None
    web: Path | None
    backend: Backend
    index: Path | None
    host: str
    port: int
    fingerprint: str | None
    token: str | None
    workers: int
    threads: int
    max_waiting: int
    bounds: Bounds
    worker: tuple[int, int, int, int] | None
    """For a process of several: its number and the inherited descriptors of socket, board and parent."""


_STEERS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")


def printable(text: str) -> str:
    """One line as a terminal may show it: what would steer it is written out, as `\\x1b`."""
    return _STEERS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class Parser(argparse.ArgumentParser):
    """What it says of an argument steers no terminal."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def parse_arguments(argv: list[str]) -> Arguments:
    """Ends the process with status 2 and one line for what is missing or contradictory; raises `AccessError`
    for a way of serving that is refused and `CorpusError` for files that their world does not know."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.tasks is None and given.web is None:
        parser.error("nothing to serve; pass --tasks DIR, --web FILE or both")
    if given.tasks is not None and not given.tasks.is_dir():
        parser.error(f"--tasks {given.tasks} is not a directory")
    if given.web is not None and not given.web.is_file():
        parser.error(f"--web {given.web} is not a file")
    for name in ("workers", "threads", "max_waiting", "max_hit_chars", "max_answer_chars"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(given, name)} is not at least 1")
    if not 0 <= given.port <= 65535:
        parser.error(f"--port {given.port} is not between 0 and 65535")
    asked: Asked = "bm25s" if given.index is not None and given.backend == "auto" else given.backend
    backend = choose(given.web, asked)
    if backend == "bm25s" and given.web is None:
        parser.error("--backend bm25s is for a web corpus; pass --web FILE")
    if backend != "bm25s" and given.index is not None:
        parser.error(f"--index {given.index} is for --backend bm25s; leave one of them out")
    token = read_token(given.token_file)
    check_binding(given.host, given.allow_remote, token)
    return Arguments(
        tasks=given.tasks,
        web=given.web,
        backend=backend,
        index=(given.index or default_index(given.web)) if backend == "bm25s" else None,
        host=given.host,
        port=given.port,
        fingerprint=given.fingerprint or world_fingerprint(given.tasks, given.web),
        token=token,
        workers=given.workers,
        threads=given.threads,
        max_waiting=given.max_waiting,
        bounds=Bounds(given.max_hit_chars, given.max_answer_chars),
        worker=tuple(given.worker) if given.worker else None,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="retrieval_server", description="Serve BM25 retrieval over HTTP.")
    parser.add_argument("--tasks", type=Path, help="folder of private task trees")
    parser.add_argument("--web", type=Path, help="public corpus, JSON lines {docid, url, text}")
    parser.add_argument("--backend", choices=ASKED, default="auto", help="auto: by the size of --web")
    parser.add_argument("--index", type=Path, help="bm25s index, built if absent (default: beside --web)")
    parser.add_argument("--host", default="127.0.0.1", help="if not loopback: --allow-remote and a token")
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--allow-remote", action="store_true", help="let other machines reach the server")
    parser.add_argument("--token-file", type=Path, help="bearer token that searches need (mode 600)")
    parser.add_argument("--fingerprint", help="of the data; default: of manifest.json beside them")
    parser.add_argument("--workers", type=int, default=1, help="processes over one index and one port")
    parser.add_argument("--threads", type=int, default=2, help="searches at a time in each process")
    parser.add_argument("--max-waiting", type=int, default=DEFAULT_MAX_WAITING, help="searches; then 429")
    parser.add_argument("--max-hit-chars", type=int, default=HIT_CHARS, help="a longer text is cut")
    parser.add_argument("--max-answer-chars", type=int, default=ANSWER_CHARS, help="of all hits together")
    parser.add_argument("--worker", type=int, nargs=4, help=argparse.SUPPRESS)
    return parser
