"""BM25 in both back ends: the reference numbers, and the ranking of a naive evaluation of the formula."""

import json
import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_bm25 import BM25, BM25Okapi

from retrieval_server.bm25 import LIBRARY_DOCUMENTS, BM25Index, OkapiIndex, index_of
from retrieval_server.index import build
from retrieval_server.mapped import MappedIndex
from retrieval_server.ranking import best
from retrieval_server.tokens import count_tokens, tokens
from tests.support.naive import NaiveRanking

DOCUMENTS = {
    "D1": "Lee's Market cut packaging cost by 15% in 2020",
    "D2": "Market report 2020: online grocery sales in a new market",
    "D3": "Password policy for remote staff",
}
Search = Callable[..., list[tuple[str, float]]]


def of_the_library(documents: dict[str, str], _folder: Path) -> Search:
    """What a task's documents are searched with; more of them than a task may have are, too, here."""
    index = OkapiIndex.from_texts(documents.items()) if documents else index_of([])
    return lambda *arguments: [(index.doc_ids[i], score) for i, score in index.search(*arguments)]


def in_memory(documents: dict[str, str], _folder: Path) -> Search:
    index = BM25Index.from_texts(documents.items())
    return lambda *arguments: [(index.doc_ids[i], score) for i, score in index.search(*arguments)]


def mapped(documents: dict[str, str], folder: Path) -> Search:
    """The same documents through a corpus file and an index of several segments."""
    web = folder / "web.jsonl"
    rows = [{"docid": doc.removeprefix("web/"), "url": "u", "text": text} for doc, text in documents.items()]
    web.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    build(web, folder / "index", postings_at_a_time=200)
    index = MappedIndex(folder / "index", web)
    ids = [doc for doc, text in documents.items() if text.strip()]
    return lambda *arguments: [(ids[i], score) for i, score in index.search(*arguments)]


BACKENDS = pytest.mark.parametrize(
    "backend", [of_the_library, in_memory, mapped], ids=["library", "rank_bm25", "bm25s"]
)


@BACKENDS
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("market cost 2020", [("D1", 1.781421), ("D2", 1.071778)]),
        ("Market market", [("D2", 0.635887), ("D1", 0.435890)]),
        ("lee's", [("D1", 0.909640)]),
        ("a I", []),
    ],
)
def test_reference_scores(
    backend: Callable[..., Search], query: str, expected: list[tuple[str, float]], tmp_path: Path
) -> None:
    found = backend(DOCUMENTS, tmp_path)(query, 5)
    assert [doc for doc, _ in found] == [doc for doc, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-6)


SCRIPTS = {
    "fr": "Le chiffre d’affaires de Crédit Élan a augmenté de 15 % en 2023.",
    "ru": "Выручка компании Ромашка выросла на 15 процентов.",
    "ar": "ارتفعت إيرادات الشركة خمسة عشر في المئة",
    "hi": "दिल्ली में कंपनी की बिक्री बढ़ी",
    "ja": "東京支社の売上高は二〇二三年に増加した。",
    "zh": "北京分公司的销售额去年增长了。",
    "th": "ยอดขายของบริษัทเพิ่มขึ้น",
    "ko": "서울에서 매출이 늘었다",
    "en": "The revenue of the company grew by 15 percent.",
}


@BACKENDS
@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("credit elan", "fr"),
        ("CRE\u0301DIT ÉLAN d'affaires", "fr"),
        ("ВЫРУЧКА РОМАШКИ компании", "ru"),
        ("إيرادات الشركة", "ar"),
        ("कंपनी की बिक्री", "hi"),
        ("売上高", "ja"),
        ("销售额增长", "zh"),
        ("ยอดขาย", "th"),
        ("서울 매출", "ko"),
        ("revenue", "en"),
    ],
)
def test_documents_of_every_script_are_found(
    backend: Callable[..., Search], query: str, document: str, tmp_path: Path
) -> None:
    found = backend(SCRIPTS, tmp_path)(query, 5)
    assert found[:1] == NaiveRanking(SCRIPTS).search(query, 1)
    assert found[0][0] == document


def random_text(draw: random.Random, words: list[str], longest: int) -> str:
    """Frequent words are frequent in all texts; some texts repeat, so that scores are equal."""
    return " ".join(
        draw.choices(words, weights=[1 / (i + 2) for i in range(len(words))], k=draw.randrange(longest))
    )


@cache
def ranked(documents: int, queries: int) -> tuple[dict[str, str], dict[tuple[str, int, float], object]]:
    """A corpus, and what the naive formula finds in it: by query, number of hits and threshold."""
    draw = random.Random(documents)
    words = [f"w{i}" for i in range(150)] + ["don't", "x9", "long" * 50]
    pool = [random_text(draw, words, 30) + " w0" for _ in range(documents - documents // 5)]
    texts = pool + draw.choices(pool, k=documents // 5)
    draw.shuffle(texts)
    corpus = {f"web/{i}": text for i, text in enumerate(texts)}
    naive, found = NaiveRanking(corpus), {}
    for _ in range(queries):
        query = random_text(draw, [*words, "absent"], 9)
        asked = query, draw.choice([1, 5, 50]), draw.choice([0.0, 0.0, 1.5])
        found[asked] = naive.search(*asked)
    return corpus, found


@BACKENDS
@pytest.mark.parametrize(("documents", "queries"), [(7, 150), (80, 250), (400, 350)])
def test_ranking_equals_the_naive_formula(
    backend: Callable[..., Search], documents: int, queries: int, tmp_path: Path
) -> None:
    corpus, expected = ranked(documents, queries)
    search = backend(corpus, tmp_path)
    for asked, found in expected.items():
        assert search(*asked) == found, asked


@BACKENDS
def test_ties_are_broken_by_document_id_and_zero_scores_never_appear(
    backend: Callable[..., Search], tmp_path: Path
) -> None:
    search = backend({"web/9": "same text", "web/10": "same text", "web/2": "other words"}, tmp_path)
    assert [doc for doc, _ in search("same", 5)] == ["web/10", "web/9"]
    assert [doc for doc, _ in search("same", 1)] == ["web/10"]


@BACKENDS
def test_hundreds_of_equal_scores_are_ordered_by_id(backend: Callable[..., Search], tmp_path: Path) -> None:
    search = backend({f"web/{i}": "same text" for i in range(500)}, tmp_path)
    assert [doc for doc, _ in search("same", 50)] == sorted(f"web/{i}" for i in range(500))[:50]


@BACKENDS
def test_threshold_removes_lower_scores(backend: Callable[..., Search], tmp_path: Path) -> None:
    search = backend(DOCUMENTS, tmp_path)
    assert [doc for doc, _ in search("market cost 2020", 5, 1.5)] == ["D1"]


@BACKENDS
def test_corpora_without_any_term(backend: Callable[..., Search], tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert backend({}, tmp_path / "none")("market", 3) == []
    assert backend({"a": "?", "b": "!"}, tmp_path)("market", 3) == []


def test_wrong_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="not unique"):
        BM25Index.from_texts([("a", "x"), ("a", "y")])
    with pytest.raises(ValueError, match="2 document ids for 1"):
        BM25Index(["a", "b"], [["x"]])


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]), max_size=700), st.integers(1, 50))
def test_selection_equals_sorting(scores: list[float], k: int) -> None:
    order = list(range(len(scores)))
    random.Random(k).shuffle(order)
    expected = sorted((i for i in range(len(scores)) if scores[i] > 0), key=lambda i: (-scores[i], order[i]))
    found = best(np.array(scores, dtype=np.float64), np.array(order, dtype=np.int32), k, 0.0)
    assert found == [(i, scores[i]) for i in expected[:k]]


def test_tokens() -> None:
    assert [len(tokens(text)) for text in DOCUMENTS.values()] == [9, 9, 5]
    assert tokens("Don't a I x-ray 3.14 Q1") == ["don't", "ray", "14", "q1"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Lee’s naïve Café in İstanbul, Straße", "lee's naive cafe in istanbul strasse"),
        ("cafe\u0301 ﬁne ＡＢＣ１２ Ⅳ m²", "cafe fine abc12 iv m2"),
        ("Выручка «Ромашки» выросла; Ёлка", "выручка ромашки выросла елка"),
        ("ΟΔΟΣ οδός Łódź snake_case", "οδοσ οδοσ łodz snake case"),
        ("بيع الشركة, שלום עולם", "بيع الشركة שלום עולם"),
        ("दिल्ली की बिक्री", "दिल्ली की बिक्री"),
        ("東京都は15%。", "東 京 都 は 東京 京都 都は 15"),
        ("서울은 iPhone발매", "서 울 은 서울 울은 iphone 발 매 발매"),
        ("น้ำ", "น้ํ า น้ํา"),
        ("日 a я 9", "日"),
    ],
)
def test_words_of_other_scripts(text: str, found: str) -> None:
    assert tokens(text) == found.split()


@given(
    st.one_of(st.text(), st.text(alphabet="aBc9' .\N{KELVIN SIGN}éİ’\n\u0301東ーの서น้ कि\ud800\U00020000"))
)
def test_counted_tokens_are_the_tokens(text: str) -> None:
    assert count_tokens(text) == Counter(token.encode() for token in tokens(text))


def test_the_arrays_are_those_that_bm25s_computes(tmp_path: Path) -> None:
    draw = random.Random(1)
    corpus = {str(i): random_text(draw, [f"w{j}" for j in range(60)], 25) + " end" for i in range(90)}
    mapped(corpus, tmp_path)
    ours = bm25s.BM25.load(tmp_path / "index", load_vocab=False, show_progress=False)
    theirs = bm25s.BM25(method="atire", idf_method="lucene", dtype="float64")
    vocabulary: dict[str, int] = {}
    ids = [[vocabulary.setdefault(t, len(vocabulary)) for t in tokens(text)] for text in corpus.values()]
    theirs.index((ids, vocabulary), show_progress=False)
    assert ours.scores["num_docs"] == theirs.scores["num_docs"]
    for name in ("data", "indices", "indptr"):
        assert np.array_equal(ours.scores[name], theirs.scores[name]), name


def test_library_interface_still_answers() -> None:
    index = BM25Index.from_texts(DOCUMENTS.items())
    scores = index.get_scores(["market", "market"])
    assert index.get_batch_scores(["market"], [1, 2]) == [scores[1], 0.0]


def test_small_corpora_are_scored_by_the_library_with_another_idf_only() -> None:
    replaced = {name for name in vars(BM25Okapi) | vars(BM25) if name in vars(OkapiIndex)}
    assert replaced - {"__module__", "__doc__", "__dict__", "__weakref__"} == {"__init__", "_calc_idf"}
    for count, expected in ((0, BM25Index), (1, OkapiIndex), (LIBRARY_DOCUMENTS + 1, BM25Index)):
        assert type(index_of([(str(i), "text") for i in range(count)])) is expected


def test_every_term_of_a_small_corpus_finds_its_documents() -> None:
    """Why the idf is replaced: `in` stands in all six documents, `audit` in three."""
    corpus = {str(i): "in audit" if i < 3 else "in store" for i in range(6)}
    index = OkapiIndex.from_texts(corpus.items())
    library = BM25Okapi([tokens(text) for text in corpus.values()])
    assert library.idf["audit"] == 0 and library.idf["in"] < 0
    assert index.idf["audit"] > index.idf["in"] > 0
    assert [position for position, _ in index.search("audit", 5)] == [0, 1, 2]
