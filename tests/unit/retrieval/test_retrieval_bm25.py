"""BM25: the reference numbers, and the same ranking as a naive evaluation of the formula."""

import math
import random
from collections import Counter

import pytest

from retrieval_server.bm25 import BM25Index, query_terms, tokens

DOCUMENTS = {
    "D1": "Lee's Market cut packaging cost by 15% in 2020",
    "D2": "Market report 2020: online grocery sales in a new market",
    "D3": "Password policy for remote staff",
}


def naive_ranking(documents: dict[str, str], query: str, k: int) -> list[tuple[str, float]]:
    """The formula, document by document."""
    counted = {doc: Counter(tokens(text)) for doc, text in documents.items()}
    lengths = {doc: count.total() for doc, count in counted.items()}
    average = sum(lengths.values()) / len(documents)
    scores = dict.fromkeys(documents, 0.0)
    for term in query_terms(query):
        df = sum(term in count for count in counted.values())
        idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
        for doc, count in counted.items():
            f = count[term]
            scores[doc] += idf * (f * 2.5 / (f + 1.5 * (1 - 0.75 + 0.75 * lengths[doc] / average)))
    found = sorted((-score, doc) for doc, score in scores.items() if score > 0)
    return [(doc, -score) for score, doc in found[:k]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("market cost 2020", [("D1", 1.781421), ("D2", 1.071778)]),
        ("Market market", [("D2", 0.635887), ("D1", 0.435890)]),
        ("lee's", [("D1", 0.909640)]),
        ("a I", []),
    ],
)
def test_reference_scores(query: str, expected: list[tuple[str, float]]) -> None:
    index = BM25Index.from_texts(DOCUMENTS.items())
    found = [(index.doc_ids[i], score) for i, score in index.search(query, 5)]
    assert [doc for doc, _ in found] == [doc for doc, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-6)


def test_tokens() -> None:
    assert [len(tokens(text)) for text in DOCUMENTS.values()] == [9, 9, 5]
    assert tokens("Don't a I x-ray 3.14 Q1") == ["don't", "ray", "14", "q1"]


@pytest.mark.parametrize("seed", range(4))
def test_ranking_equals_the_naive_formula(seed: int) -> None:
    draw = random.Random(seed)
    words = [f"w{i}" for i in range(40)]
    documents = {
        f"web/{i}": " ".join(draw.choices(words, weights=range(1, 41), k=draw.randrange(0, 30)))
        for i in range(draw.choice([3, 60, 200]))
    }
    index = BM25Index.from_texts(documents.items())
    for _ in range(40):
        query = " ".join(draw.choices([*words, "absent"], k=draw.randrange(1, 7)))
        k = draw.choice([1, 5, 50])
        assert [(index.doc_ids[i], score) for i, score in index.search(query, k)] == naive_ranking(
            documents, query, k
        )


def test_ties_are_broken_by_document_id_and_zero_scores_never_appear() -> None:
    index = BM25Index.from_texts([("web/9", "same text"), ("web/10", "same text"), ("web/2", "other words")])
    assert [index.doc_ids[i] for i, _ in index.search("same", 5)] == ["web/10", "web/9"]
    assert [index.doc_ids[i] for i, _ in index.search("same", 1)] == ["web/10"]


def test_threshold_removes_lower_scores() -> None:
    index = BM25Index.from_texts(DOCUMENTS.items())
    assert [i for i, _ in index.search("market cost 2020", 5, threshold=1.5)] == [0]


def test_empty_corpora_and_wrong_ids() -> None:
    assert BM25Index.from_texts([]).search("market", 3) == []
    assert BM25Index.from_texts([("a", ""), ("b", "?")]).search("market", 3) == []
    with pytest.raises(ValueError, match="not unique"):
        BM25Index.from_texts([("a", "x"), ("a", "y")])
    with pytest.raises(ValueError, match="2 document ids for 1"):
        BM25Index(["a", "b"], [["x"]])


def test_library_interface_still_answers() -> None:
    index = BM25Index.from_texts(DOCUMENTS.items())
    scores = index.get_scores(["market", "market"])
    assert index.get_batch_scores(["market"], [1, 2]) == [scores[1], 0.0]
