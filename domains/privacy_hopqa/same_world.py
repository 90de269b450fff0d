"""Whether files, or a retrieval service, have the texts that the chains were written about.

Files are looked at by the chains' gold documents, a service without a fingerprint by texts. Our own is asked
by digests: of every text of the chains' tasks, and of pages from all over the web corpus. In one of another
make a few texts are looked up: a private text in its own task, and of the web only pages that no chain needs,
by their own words, so that no query tells what is researched.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.agent.transport import JsonClient
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.validate.pages import check_pages, page_aliases
from domains.privacy_hopqa.validate.problems import GoldReference
from domains.privacy_hopqa.validate.trees import check_tree, gold_problems
from retrieval_server.corpus import WebDocument, find_tasks, parse_web_line, read_task

TASKS, PAGES, OF_LINES = 4, 3, 200
"""Texts that are looked up, and the lines of the web corpus among which pages are chosen."""
WHOLE_BYTES, SPREAD = 32 << 20, 2_000
"""A web corpus of so many bytes is compared whole; of a larger one so many pages, evenly spread."""
QUERY_WORDS, HITS = 40, 10
ALIKE = 0.9
"""Share of the shorter text's words that the other has; a service may have converted or cut what it holds."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Sample:
    """One text, where it is looked up, and its name in messages."""

    name: str
    route: str
    text: str
    task_id: str | None = None


def samples(
    task_data_root: str | None, web_corpus: str | None, tasks: Sequence[str], gold: Collection[str]
) -> list[Sample]:
    """The longest text of a few of these tasks and a few pages none of whose names is in `gold`."""
    return [*_of_tasks(task_data_root, tasks), *_of_web(web_corpus, gold)]


def without_gold(
    chains: Sequence[Chain], task_data_root: str | None, web_corpus: str | None
) -> dict[str, tuple[int, int]]:
    """By setting, hops whose gold document is not there or holds none of the answers, and hops looked at.

    Private hops are those of a few tasks; those of the web are looked at where its corpus is small.
    """
    place, found = Path("chains"), dict[str, tuple[int, int]]()
    hops = [(chain, hop) for chain in chains for hop in chain.hops if hop.gold_values]
    references = [GoldReference(place, line, *pair) for line, pair in enumerate(hops)]
    if task_data_root is not None:
        folders, named = _folders(task_data_root), list(dict.fromkeys(chain.task_id for chain in chains))
        some = named[:: max(1, len(named) // TASKS)][:TASKS]
        trees = {task: check_tree(folders[task])[1] for task in some if task in folders}
        private = [one for one in references if one.hop.source == "local" and one.chain.task_id in some]
        trees_of = [(one, trees.get(one.chain.task_id)) for one in private]
        lost = sum(tree is None or bool(gold_problems(one, tree)) for one, tree in trees_of)
        found["task_data_root"] = lost, len(private)
    web = None if web_corpus is None else Path(web_corpus)
    if web is not None and web.is_file() and web.stat().st_size <= WHOLE_BYTES:
        wrong = {one.line for one in check_pages(web, references).problems if one.path == place}
        found["web_corpus_path"] = len(wrong), sum(one.hop.source == "web" for one in references)
    return found


def _of_tasks(root: str | None, tasks: Sequence[str]) -> Iterator[Sample]:
    folders = _folders(root)
    known = [task for task in tasks if task in folders]
    for task in known[:: max(1, len(known) // TASKS)][:TASKS]:
        document = max(read_task(task, folders[task]), key=lambda one: len(one.text), default=None)
        if document is not None:
            yield Sample(document.doc_id, "/local/search", document.text, task)


def _of_web(file: str | None, gold: Collection[str]) -> Iterator[Sample]:
    if file is None or not Path(file).is_file():
        return
    with Path(file).open("rb") as lines:
        pages = [parse_web_line(line, f"{file}:{at}") for at, line in enumerate(islice(lines, OF_LINES), 1)]
    others = [page for page in pages if page_aliases(page).isdisjoint(gold) and page.text.strip()]
    for page in sorted(others, key=lambda one: -len(one.text))[:PAGES]:
        yield Sample(f"web/{page.docid}", "/browsecomp/search", page.text)


def digests(task_data_root: str | None, web_corpus: str | None, tasks: Sequence[str]) -> dict[str, str]:
    """By id, the digest of each document of these tasks, and of pages from all over the web corpus."""
    known = {task: folder for task, folder in _folders(task_data_root).items() if task in tasks}
    private = chain.from_iterable(read_task(task, folder) for task, folder in known.items())
    found = {document.doc_id: document.digest for document in private}
    pages = (page for page in _spread(web_corpus) if page.text.strip())  # those without are not served
    return found | {f"web/{page.docid}": page.digest for page in pages}


def _folders(root: str | None) -> dict[str, Path]:
    return find_tasks(Path(root)) if root is not None and Path(root).is_dir() else {}


def _spread(file: str | None) -> Iterator[WebDocument]:
    """All pages of a corpus, or of a large one those at places that are equally far from each other."""
    if file is None or not Path(file).is_file():
        return
    size = Path(file).stat().st_size
    with Path(file).open("rb") as lines:
        if size <= WHOLE_BYTES:
            yield from (parse_web_line(line, file) for line in lines if line.strip())
            return
        for at in range(0, size, size // SPREAD):
            lines.seek(at)
            if at:
                lines.readline()  # the rest of a line
            if (line := lines.readline()).strip():
                yield parse_web_line(line, f"{file}, byte {at}")


async def lacking(client: JsonClient, looked_up: Sequence[Sample]) -> list[Sample]:
    """The texts that a search does not find. Raises as the client."""
    return [one for one in looked_up if not await _found(client, one)]


def foreign(lacked: Sequence[Sample], looked_up: Sequence[Sample]) -> list[str]:
    """Names of what is lacked, where that is half of the private texts or of the pages; else nothing.

    A service may have converted what it holds, or find another text first.
    """
    for route in dict.fromkeys(one.route for one in looked_up):
        of, absent = (sum(one.route == route for one in some) for some in (looked_up, lacked))
        if 2 * absent >= of:
            return [one.name for one in lacked]
    return []


async def _found(client: JsonClient, sample: Sample) -> bool:
    words = sample.text.split()
    query = " ".join(words[:: max(1, len(words) // QUERY_WORDS)][:QUERY_WORDS])
    body = {"query": query, "k": HITS} | ({} if sample.task_id is None else {"task_id": sample.task_id})
    answer: Any = await client.post(sample.route, body)
    hits = answer.get("hits") if isinstance(answer, Mapping) else None
    texts = [hit.get("content") or hit.get("text") for hit in hits or () if isinstance(hit, Mapping)]
    return any(isinstance(text, str) and alike(sample.text, text) for text in texts)


def alike(one: str, other: str) -> bool:
    """Whether two texts are the same but for form and length."""
    first, second = (set(_WORD.findall(text.lower())) for text in (one, other))
    return bool(first and second) and len(first & second) >= ALIKE * min(len(first), len(second))
