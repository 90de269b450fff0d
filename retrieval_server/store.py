"""The searchable corpora: one web index and one index per task, isolated from each other.

`Store.search_web` and `Store.search_local` return the hit dictionaries that the HTTP answers carry, so checks
in process and requests over HTTP see the same ranking.
"""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval_server.bm25 import index_of
from retrieval_server.bounds import DEFAULT, Bounds
from retrieval_server.corpus import (
    CorpusError,
    LocalDocument,
    WebDocument,
    find_tasks,
    read_task,
)
from retrieval_server.identity import aliases, shared_aliases
from retrieval_server.webcorpus import WebCorpus

logger = logging.getLogger(__name__)

DEFAULT_MAX_CHARS = 8000
PREVIEW_CHARS = 300


class UnknownTask(KeyError):
    """No private corpus of that task id is loaded."""


class TaskCorpus:
    """The private documents of one task and their index."""

    def __init__(self, task_id: str, documents: Iterable[LocalDocument]) -> None:
        self.task_id = task_id
        self.documents = sorted(documents, key=lambda document: document.doc_id)
        self._metadata = [document.metadata() for document in self.documents]
        self._index = index_of([(document.doc_id, document.text) for document in self.documents])
        self._mark_ambiguous_aliases()

    def _mark_ambiguous_aliases(self) -> None:
        """Aliases that two documents share identify neither: clients must not match on them."""
        found = {
            document.doc_id: set().union(*map(aliases, (document.doc_id, *_identity_values(metadata))))
            for document, metadata in zip(self.documents, self._metadata)
        }
        shared = shared_aliases(found)
        for document, metadata in zip(self.documents, self._metadata):
            if document.doc_id in shared:
                metadata["ambiguous_aliases"] = sorted(shared[document.doc_id])
        if shared:
            logger.warning(
                "task %s: %d documents share aliases with another; these aliases are dropped, first: %s",
                self.task_id,
                len(shared),
                sorted(set().union(*shared.values()))[0],
            )

    def search(self, query: str, k: int, threshold: float) -> list[dict[str, Any]]:
        hits = []
        for position, score in self._index.search(query, k, threshold):
            document = self.documents[position]
            hits.append(
                {
                    "doc_id": document.doc_id,
                    "content": document.text,
                    "preview": document.text[:PREVIEW_CHARS],
                    "similarity_score": score,
                    "metadata": dict(self._metadata[position]),
                }
            )
        return hits


def _identity_values(metadata: Mapping[str, Any]) -> list[str]:
    return [metadata[key] for key in ("file_path", "original_path", "doc_ref", "title")]


class Store:
    """All corpora of one server. Nothing in a query can reach a corpus other than the one it names."""

    def __init__(
        self,
        tasks: Mapping[str, Iterable[LocalDocument]],
        web: WebCorpus | Sequence[WebDocument] = (),
        bounds: Bounds = DEFAULT,
    ) -> None:
        self.bounds = bounds
        self._tasks = {task_id: TaskCorpus(task_id, documents) for task_id, documents in tasks.items()}
        if empty := [one.task_id for one in self._tasks.values() if not one.documents]:
            logger.warning(
                "%d of %d tasks have no document to find, first: %s", len(empty), len(self._tasks), empty[0]
            )
        self._web = web if isinstance(web, WebCorpus) else WebCorpus.of_documents(web)
        self.digest = self._digest()
        """Equal for equal corpora: what `X-World` says where the data have no fingerprint."""

    def _digest(self) -> str:
        told = hashlib.sha256(self._web.digest.encode())
        for task_id in sorted(self._tasks):
            for one in self._tasks[task_id].documents:
                told.update(f"\n{one.doc_id} {one.digest}".encode("utf-8", "surrogatepass"))
        return told.hexdigest()

    @classmethod
    def load(
        cls, tasks: Path | None, web: Path | None, index: Path | None = None, bounds: Bounds = DEFAULT
    ) -> "Store":
        """Read task trees below `tasks` and the web file; either may be absent.

        With `index`, the web is searched through that finished index, else through one made in memory.
        Raises `CorpusError` (unreadable text, duplicate docid, malformed line, an index of another corpus)
        or `OSError`.
        """
        folders = find_tasks(tasks) if tasks else {}
        if tasks and not folders:
            raise CorpusError(f"--tasks {tasks} holds no task: each is a folder with its documents in files/")
        documents = {task_id: read_task(task_id, folder) for task_id, folder in folders.items()}
        if web is None:
            store = cls(documents, bounds=bounds)
            if tasks and not any(task.documents for task in store._tasks.values()):
                raise CorpusError(f"--tasks {tasks} holds no document: no task has a text that is served")
            return store
        pages = WebCorpus.mapped(web, index) if index else WebCorpus.in_memory(web)
        if not len(pages.ranker):
            raise CorpusError(f"--web {web} holds no page with a text; give another file, or leave it out")
        return cls(documents, pages, bounds)

    @property
    def backend(self) -> str:
        """The back end of the web corpus: `rank_bm25` or `bm25s`. Tasks are small and always the former."""
        return self._web.ranker.backend

    @property
    def web_docs(self) -> int:
        return len(self._web.ranker)

    @property
    def skipped_web_docs(self) -> int:
        """Web documents without text, which are not indexed."""
        return self._web.skipped_empty

    @property
    def task_ids(self) -> list[str]:
        return list(self._tasks)

    def missing_tasks(self, task_ids: Iterable[str]) -> list[str]:
        """Those of the ids that no loaded task has."""
        return [task_id for task_id in task_ids if task_id not in self._tasks]

    def documents(self, task_ids: Iterable[str]) -> int:
        """How many private documents these tasks have together."""
        return sum(len(self._tasks[one].documents) for one in set(task_ids) & self._tasks.keys())

    def missing_pages(self, docids: Iterable[str]) -> list[str]:
        """Those of the ids, with or without `web/`, that no page of the web corpus has."""
        bare = {docid.removeprefix("web/"): docid for docid in docids}
        return [bare[docid] for docid in self._web.missing(bare)]

    def other_texts(self, digests: Mapping[str, str]) -> list[str]:
        """Those ids, `local/...` or `web/...`, that have no document, or one of another `digest`."""
        pages = {id_.removeprefix("web/"): id_ for id_ in digests if id_.startswith("web/")}
        served = {pages[docid]: page.digest for docid, page in self._web.named(pages) if page is not None}
        for task_id in {
            id_.split("/")[1] for id_ in digests if id_.startswith("local/")
        } & self._tasks.keys():
            served |= {
                one.doc_id: one.digest for one in self._tasks[task_id].documents if one.doc_id in digests
            }
        return [id_ for id_, digest in digests.items() if served.get(id_) != digest]

    def search_web(
        self,
        query: str,
        k: int = 5,
        max_chars: int | None = None,
        threshold: float = 0.0,
        max_answer_chars: int = 0,
    ) -> list[dict[str, Any]]:
        """Hits of the public corpus. `max_chars` None is 8,000 for each; 0 is as much as `bounds` allow."""
        limit = DEFAULT_MAX_CHARS if max_chars is None else max_chars
        hits: list[dict[str, Any]] = []
        for position, score in self._web.ranker.search(query, k, threshold):
            document = self._web.documents[position]
            hits.append(
                {
                    "docid": f"web/{document.docid}",
                    "raw_docid": document.docid,
                    "url": document.url,
                    "text": document.text,
                    "score": score,
                    "source": "web",
                }
            )
        return self.bounds.within(limit, max_answer_chars).cut(hits, "text")

    def search_local(
        self,
        task_id: str,
        query: str,
        k: int = 5,
        threshold: float = 0.0,
        max_chars: int = 0,
        max_answer_chars: int = 0,
    ) -> list[dict[str, Any]]:
        """Hits of one task's private corpus; 0 characters are as many as `bounds` allow.

        Raises `UnknownTask`.
        """
        corpus = self._tasks.get(task_id)
        if corpus is None:
            raise UnknownTask(task_id)
        hits = corpus.search(query, k, threshold)
        return self.bounds.within(max_chars, max_answer_chars).cut(hits, "content")
