"""A searchable public corpus: a ranker over positions and the documents at these positions."""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from retrieval_server.bm25 import BM25Index
from retrieval_server.corpus import WebDocument
from retrieval_server.manifest import Corpus
from retrieval_server.ranking import Ranker
from retrieval_server.tokens import tokens
from retrieval_server.webfile import WebFile, WebScan


class Documents(Protocol):
    """Documents by position."""

    def __getitem__(self, position: int, /) -> WebDocument: ...


@dataclass(frozen=True, slots=True)
class WebCorpus:
    """One back end and its texts; `skipped_empty` rows had no text and are not indexed."""

    ranker: Ranker
    documents: Documents
    skipped_empty: int = 0
    digest: str = ""
    """SHA-256 of the file, the same for both back ends; of ids and texts where there is no file."""

    def missing(self, docids: Iterable[str]) -> list[str]:
        """Those of the ids, without `web/`, that no indexed document has."""
        return [docid for docid, document in self.named(docids) if document is None]

    def named(self, docids: Iterable[str]) -> Iterator[tuple[str, WebDocument | None]]:
        """Each of the ids, without `web/`, and its indexed document. Reads log N documents for each."""
        in_order = np.argsort(self.ranker.ranks)

        def docid_at(position: int) -> str:
            return self.documents[position].docid

        for docid in docids:
            place = bisect_left(in_order, docid, key=docid_at)
            there = place < len(in_order) and docid_at(in_order[place]) == docid
            yield docid, self.documents[in_order[place]] if there else None

    @classmethod
    def of_documents(cls, documents: Sequence[WebDocument]) -> "WebCorpus":
        """Documents and postings in memory."""
        pairs = ((f"web/{document.docid}", document.text) for document in documents)
        told = hashlib.sha256("".join(f"{one.docid} {one.digest}\n" for one in documents).encode())
        return cls(BM25Index.from_texts(pairs), documents, digest=told.hexdigest())

    @classmethod
    def in_memory(cls, path: Path) -> "WebCorpus":
        """Postings in memory, texts in the file. Raises `CorpusError`."""
        found = WebScan(path)
        token_lists = (tokens(text) for text in found.texts())  # fills found.docids while it is consumed
        ranker = BM25Index((f"web/{docid}" for docid in found.docids), token_lists)
        return cls(ranker, found.file(), found.skipped_empty, Corpus.of(path).sha256)

    @classmethod
    def mapped(cls, path: Path, index: Path) -> "WebCorpus":
        """Postings and texts in files. Raises `IndexMismatch` for an index that is not of this corpus."""
        from retrieval_server.mapped import MappedIndex  # bm25s is imported only where it is used

        ranker = MappedIndex(index, path)
        documents = WebFile(path, ranker.offsets, ranker.sizes)
        return cls(ranker, documents, ranker.manifest.skipped_empty, ranker.manifest.corpus.sha256)
