"""Whether a retrieval service has the texts that the chains were written about: a few are looked up there.

For services without a fingerprint. A private text is looked up in its own task; of the web only pages that
no chain needs are, by their own words, so that no query tells what is researched.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from domains.privacy_hopqa.agent.transport import JsonClient
from retrieval_server.corpus import find_tasks, parse_web_line, read_task

TASKS, PAGES, OF_LINES = 4, 3, 200
"""Texts that are looked up, and the lines of the web corpus among which pages are chosen."""
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
    """The longest text of a few of these tasks and a few pages that are not `gold` (ids without `web/`)."""
    return [*_of_tasks(task_data_root, tasks), *_of_web(web_corpus, gold)]


def _of_tasks(root: str | None, tasks: Sequence[str]) -> Iterator[Sample]:
    folders = find_tasks(Path(root)) if root is not None and Path(root).is_dir() else {}
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
    others = [page for page in pages if page.docid not in gold and page.text.strip()]
    for page in sorted(others, key=lambda one: -len(one.text))[:PAGES]:
        yield Sample(f"web/{page.docid}", "/browsecomp/search", page.text)


async def differing(client: JsonClient, looked_up: Sequence[Sample], exact: bool) -> list[str]:
    """Names of the texts that the service does not have. Raises as the client.

    `exact`: it gives texts as they are, if perhaps not their end.
    """
    same = begins if exact else alike
    return [one.name for one in looked_up if not await _found(client, one, same)]


async def _found(client: JsonClient, sample: Sample, same: Callable[[str, str], bool]) -> bool:
    words = sample.text.split()
    query = " ".join(words[:: max(1, len(words) // QUERY_WORDS)][:QUERY_WORDS])
    body = {"query": query, "k": HITS} | ({} if sample.task_id is None else {"task_id": sample.task_id})
    answer: Any = await client.post(sample.route, body)
    hits = answer.get("hits") if isinstance(answer, Mapping) else None
    texts = [hit.get("content") or hit.get("text") for hit in hits or () if isinstance(hit, Mapping)]
    return any(isinstance(text, str) and same(sample.text, text) for text in texts)


def begins(whole: str, given: str) -> bool:
    """Whether a text begins with another one, which says something."""
    return bool(given.strip()) and whole.startswith(given)


def alike(one: str, other: str) -> bool:
    """Whether two texts are the same but for form and length."""
    first, second = (set(_WORD.findall(text.lower())) for text in (one, other))
    return bool(first and second) and len(first & second) >= ALIKE * min(len(first), len(second))
