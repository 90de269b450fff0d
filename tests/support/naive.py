"""The formula, document by document: what every back end must agree with, bit for bit."""

import math
from collections import Counter

from retrieval_server.tokens import query_terms, tokens


class NaiveRanking:
    """Documents by id; `search` visits each of them."""

    def __init__(self, documents: dict[str, str]) -> None:
        self._counted = {doc: Counter(tokens(text)) for doc, text in documents.items()}
        self._lengths = {doc: count.total() for doc, count in self._counted.items()}
        self._average = sum(self._lengths.values()) / max(len(documents), 1)

    def search(self, query: str, k: int, threshold: float = 0.0) -> list[tuple[str, float]]:
        scores = dict.fromkeys(self._counted, 0.0)
        n = len(scores)
        for term in query_terms(query):
            df = sum(term in count for count in self._counted.values())
            idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
            for doc, count in self._counted.items():
                if f := count[term]:
                    norm = 1.5 * (1 - 0.75 + 0.75 * self._lengths[doc] / self._average)
                    scores[doc] += idf * (f * 2.5 / (f + norm))
        found = sorted((-score, doc) for doc, score in scores.items() if score > 0 and score >= threshold)
        return [(doc, -score) for score, doc in found[:k]]
