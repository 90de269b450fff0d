"""The back end for small corpora: `rank_bm25`'s Okapi class over postings in memory.

The library supplies the parameters and the interface. Its idf can be negative and its `get_scores` visits
every document once per query term, so both are replaced here.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from retrieval_server.ranking import K1, B, best, id_ranks, impacts, inverse_document_frequency, length_norms
from retrieval_server.tokens import query_terms, tokens

__all__ = ["BM25Index", "query_terms", "tokens"]

_DENSE_SHARE = 0.25  # terms in more than this share of the documents are kept as dense vectors


class BM25Index(BM25Okapi):
    """An immutable index over `doc_ids[i]` with tokens `token_lists[i]`; an empty corpus is allowed.

    `token_lists` is consumed once and never kept, so a corpus can be streamed through it. It must yield
    exactly one list per document id; `doc_ids` is read after it. Raises `ValueError` for repeated ids.
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
    def from_texts(cls, documents: Iterable[tuple[str, str]]) -> "BM25Index":
        """Index `(doc_id, text)` pairs."""
        pairs = list(documents)
        return cls([doc_id for doc_id, _ in pairs], (tokens(text) for _, text in pairs))

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
        """Never-negative idf, then every posting's finished contribution to a score."""
        n = self.corpus_size
        self.idf = {term: inverse_document_frequency(df, n) for term, df in nd.items()}
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

    def search(self, query: str, k: int, threshold: float = 0.0) -> list[tuple[int, float]]:
        """As `Ranker.search` says; positions are those of `doc_ids`."""
        return best(self.get_scores(query_terms(query)), self.ranks, k, threshold)
