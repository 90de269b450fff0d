"""The back end for small corpora: `rank_bm25`'s Okapi class, as it is wherever its formula is the one wanted.

Of the library are the parameters, the document lengths, what an occurrence weighs in a document, and for
small corpora (a task's documents) counting and scoring. Replaced are

- its idf, ln((N - df + 0.5) / (df + 0.5)), in both classes here. It is 0 for a term that half of the
  documents hold and negative beyond; such a term gets a quarter of the mean idf, which in a corpus of a few
  documents can be negative as well, so that a document is found by nothing or below those without the term.
  `ranking.py` has the idf that is used, always above 0 and the same for every back end.
- in larger corpora its dictionary per document and its `get_scores`, which visits every document for each
  query term: 350 ms a query over 100,000 documents, 0.7 with the postings of `BM25Index`
  (`benchmarks/results/retrieval.json`). The scores have the same bits.
- its `get_top_n`, which returns documents of score zero and leaves the order of equal scores open.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from retrieval_server.ranking import K1, B, best, id_ranks, impacts, inverse_document_frequency, length_norms
from retrieval_server.tokens import query_terms, tokens

__all__ = ["BM25Index", "OkapiIndex", "index_of", "query_terms", "tokens"]

LIBRARY_DOCUMENTS = 256
"""Up to so many the library's own scoring is fast enough: 2.1 ms a query at 1,200 documents."""
_DENSE_SHARE = 0.25  # terms in more than this share of the documents are kept as dense vectors


class OkapiIndex(BM25Okapi):
    """The library's index with the project's idf, over `doc_ids[i]` with tokens `token_lists[i]`.

    At least one document. `token_lists` is consumed once. It must yield exactly one list per document id;
    `doc_ids` is read after it. Raises `ValueError` for repeated ids.
    """

    backend = "rank_bm25"

    def __init__(
        self,
        doc_ids: Iterable[str],
        token_lists: Iterable[Sequence[str]],
        k1: float = K1,
        b: float = B,
    ) -> None:
        super().__init__(token_lists, k1=k1, b=b)
        self.doc_ids = list(doc_ids)
        if len(self.doc_ids) != self.corpus_size:
            raise ValueError(f"{len(self.doc_ids)} document ids for {self.corpus_size} token lists")
        self.ranks = id_ranks(self.doc_ids)

    def __len__(self) -> int:
        return int(self.corpus_size)

    @classmethod
    def from_texts(cls, documents: Iterable[tuple[str, str]]) -> Self:
        """Index `(doc_id, text)` pairs."""
        pairs = list(documents)
        return cls([doc_id for doc_id, _ in pairs], (tokens(text) for _, text in pairs))

    def _calc_idf(self, nd: dict[str, int]) -> None:
        self.idf = {term: inverse_document_frequency(df, self.corpus_size) for term, df in nd.items()}

    def search(self, query: str, k: int, threshold: float = 0.0) -> list[tuple[int, float]]:
        """As `Ranker.search` says; positions are those of `doc_ids`."""
        # The library divides by the average length, which is 0 where no document has a term.
        known = [term for term in query_terms(query) if term in self.idf]
        return best(self.get_scores(known), self.ranks, k, threshold) if known else []


class BM25Index(OkapiIndex):
    """The same over postings in memory, for many documents; an empty corpus is allowed.

    `token_lists` is never kept, so a corpus can be streamed through it.
    """

    def _initialize(self, corpus: Iterable[Sequence[str]]) -> dict[str, int]:
        """Build term-major postings; replaces one dictionary per document in the library."""
        vocabulary: dict[str, int] = {}
        term_of, doc_of, count_of, lengths = array("i"), array("i"), array("i"), array("i")
        for doc, document in enumerate(corpus):
            lengths.append(len(document))
            for term, count in Counter(document).items():
                term_of.append(vocabulary.setdefault(term, len(vocabulary)))
                doc_of.append(doc)
                count_of.append(count)
        terms = np.frombuffer(term_of, dtype=np.int32) if term_of else np.zeros(0, dtype=np.int32)
        order = np.argsort(terms, kind="stable")
        frequencies = np.bincount(terms, minlength=len(vocabulary))
        self.doc_len = np.array(lengths, dtype=np.int64)
        self.corpus_size = len(lengths)
        self.avgdl = sum(lengths) / len(lengths) if lengths else 0.0
        self._vocabulary = vocabulary
        self._offsets = np.concatenate([[0], np.cumsum(frequencies)]).astype(np.int64)
        self._docs = np.array(doc_of, dtype=np.int32)[order]
        self._counts = np.array(count_of, dtype=np.int32)[order]
        return {term: int(frequencies[i]) for term, i in vocabulary.items()}

    def _calc_idf(self, nd: dict[str, int]) -> None:
        """The idf, then every posting's finished contribution to a score."""
        super()._calc_idf(nd)
        n = self.corpus_size
        idf_of_posting = np.repeat(np.array(list(self.idf.values())), np.diff(self._offsets))
        norms = length_norms(self.doc_len, self.avgdl, self.k1, self.b)
        self._impacts = impacts(idf_of_posting, self._counts, norms[self._docs], self.k1)
        del self._counts
        self._dense: dict[int, NDArray[np.float64]] = {}
        for i in np.flatnonzero(np.diff(self._offsets) > _DENSE_SHARE * n):
            vector = np.zeros(n)
            vector[self._docs[self._offsets[i] : self._offsets[i + 1]]] = self._impacts[
                self._offsets[i] : self._offsets[i + 1]
            ]
            self._dense[int(i)] = vector

    def get_scores(self, query: Iterable[str]) -> NDArray[np.float64]:
        """Scores `[N]` of the query terms, each distinct term counted once."""
        scores = np.zeros(self.corpus_size)
        for term in dict.fromkeys(query):
            i = self._vocabulary.get(term)
            if i is None:
                continue
            if i in self._dense:
                scores += self._dense[i]
            else:
                span = slice(self._offsets[i], self._offsets[i + 1])
                scores[self._docs[span]] += self._impacts[span]  # a document occurs once per term
        return scores

    def get_batch_scores(self, query: Iterable[str], doc_ids: Sequence[int]) -> list[float]:
        """Scores of the documents at the given positions."""
        return self.get_scores(query)[list(doc_ids)].tolist()


def index_of(documents: Sequence[tuple[str, str]]) -> OkapiIndex:
    """An index of `(doc_id, text)` pairs: the library's own where it is fast enough."""
    small = 0 < len(documents) <= LIBRARY_DOCUMENTS
    return (OkapiIndex if small else BM25Index).from_texts(documents)
