"""Second pass of an index build: segments become the files of one `bm25s` index and what serving it needs.

    data, indices, indptr .csc.index.npy, params.index.json   as `bm25s.BM25.load(..., mmap=True)` reads them
    dense_terms.npy i32[D], dense.npy f64[D, N]               terms in half of the documents: scores of all
    terms.bin, term_ends.npy i64[T], term_ids.npy i32[T]      terms in order of their bytes, their numbers
    id_ranks.npy i32[N]                                       place of each document in the order of the ids
    offsets.npy i64[N], sizes.npy i64[N]                      where its row lies in the corpus

Terms are merged range by range, so memory is bounded by a range and the size of the vocabulary.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from retrieval_server.ranking import K1, B, id_ranks, impacts, inverse_document_frequency, length_norms
from retrieval_server.segments import Segment, Vocabulary

DENSE_SHARE = 0.5  # adding a row of all documents is several times faster than adding that many postings
_CSC = ("data", "indices", "indptr")
FILES = frozenset(
    {
        *(f"{name}.csc.index.npy" for name in _CSC),
        *("params.index.json", "dense_terms.npy", "dense.npy", "terms.bin", "term_ends.npy", "term_ids.npy"),
        *("id_ranks.npy", "offsets.npy", "sizes.npy"),
    }
)
"""Every file of an index but its manifest."""
_LOW_32 = np.int64(0xFFFFFFFF)


def merge(
    segments: Sequence[Segment],
    vocabulary: Vocabulary,
    folder: Path,
    progress: Callable[[int], None],
    range_postings: int,
) -> int:
    """Write all files of the index but its manifest; returns the number of postings.

    `progress` is told how many postings are written.
    """
    frequencies = np.zeros(len(vocabulary), dtype=np.int64)
    for segment in segments:
        frequencies[segment.array("terms")] += np.diff(segment.array("starts"))
    lengths = _joined(segments, "lengths", np.int32)
    indptr = np.concatenate([[0], np.cumsum(frequencies)]).astype(np.int64)
    np.save(folder / "indptr.csc.index.npy", indptr)
    with (
        (folder / "data.csc.index.npy").open("wb") as data,
        (folder / "indices.csc.index.npy").open("wb") as indices,
    ):
        _write_header(data, "<f8", (int(indptr[-1]),))
        _write_header(indices, "<i4", (int(indptr[-1]),))
        for docs, scores in _scored(segments, lengths, frequencies, indptr, range_postings):
            scores.tofile(data)
            docs.tofile(indices)
            progress(data.tell() // scores.itemsize)
    _write_parameters(folder, len(lengths))
    write_dense(folder)
    _write_terms(vocabulary, folder)
    np.save(
        folder / "id_ranks.npy", id_ranks([docid for segment in segments for docid in segment.docids()[0]])
    )
    np.save(folder / "offsets.npy", _joined(segments, "offsets", np.int64))
    np.save(folder / "sizes.npy", _joined(segments, "sizes", np.int64))
    return int(indptr[-1])


def _joined(segments: Sequence[Segment], name: str, dtype: type[np.integer]) -> NDArray[np.integer]:
    return np.concatenate([np.zeros(0, dtype=dtype), *(segment.array(name) for segment in segments)])


def _scored(
    segments: Sequence[Segment],
    lengths: NDArray[np.integer],
    frequencies: NDArray[np.int64],
    indptr: NDArray[np.int64],
    range_postings: int,
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
    """Documents and scores of the postings, range of terms by range of terms, by term and then document."""
    average = float(lengths.sum()) / len(lengths) if len(lengths) else 0.0
    norms = length_norms(lengths, average, K1, B)
    distinct, which = np.unique(frequencies, return_inverse=True)
    idf = np.array([inverse_document_frequency(int(df), len(lengths)) for df in distinct])[which]
    for first, last in _ranges(indptr, range_postings):
        terms, docs, occurrences = _postings(segments, first, last)
        yield docs, impacts(idf[terms], occurrences, norms[docs], K1)


def _ranges(indptr: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Ranges of terms with at most `size` postings, or of a single term."""
    first, terms = 0, len(indptr) - 1
    while first < terms:
        last = int(np.searchsorted(indptr, indptr[first] + size, side="right")) - 1
        last = min(max(last, first + 1), terms)
        yield first, last
        first = last


def _postings(
    segments: Sequence[Segment], first: int, last: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Terms, documents and occurrences of the postings of terms `first` to `last`, by term, then document."""
    parts: list[tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]] = []
    for segment in segments:
        terms, starts = segment.array("terms"), segment.array("starts")
        low, high = np.searchsorted(terms, (first, last))
        span = slice(int(starts[low]), int(starts[high]))
        repeated = np.repeat(terms[low:high], np.diff(starts[low : high + 1]))
        parts.append((repeated, segment.array("docs")[span], segment.array("occurrences")[span]))
    terms, docs, occurrences = (np.concatenate(column).astype(np.int32) for column in zip(*parts))
    # Segments follow each other in the order of the documents, so places decide between equal terms.
    order = np.sort((terms.astype(np.int64) << 32) | np.arange(len(terms))) & _LOW_32
    return terms[order], docs[order], occurrences[order]


def write_dense(folder: Path) -> None:
    """Write the scores of frequent terms once more, as rows."""
    data, indices, indptr = (np.load(folder / f"{name}.csc.index.npy", mmap_mode="r") for name in _CSC)
    documents = int(json.loads((folder / "params.index.json").read_bytes())["num_docs"])
    terms = np.flatnonzero(np.diff(indptr) >= max(DENSE_SHARE * documents, 1)).astype(np.int32)
    np.save(folder / "dense_terms.npy", terms)
    with (folder / "dense.npy").open("wb") as rows:
        _write_header(rows, "<f8", (len(terms), documents))
        for term in terms:
            row = np.zeros(documents)
            row[indices[indptr[term] : indptr[term + 1]]] = data[indptr[term] : indptr[term + 1]]
            row.tofile(rows)


def _write_header(file: BinaryIO, descr: str, shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})


def _write_parameters(folder: Path, documents: int) -> None:
    """In the words of `bm25s`: ATIRE's term frequency and Lucene's idf are the formula of this project."""
    fields = {
        "k1": K1,
        "b": B,
        "delta": 0.0,
        "method": "atire",
        "idf_method": "lucene",
        "dtype": "float64",
        "int_dtype": "int32",
        "num_docs": documents,
        "version": version("bm25s"),
        "backend": "numpy",
    }
    (folder / "params.index.json").write_text(json.dumps(fields, indent=1), encoding="utf-8")


def _write_terms(vocabulary: Vocabulary, folder: Path) -> None:
    terms = sorted(vocabulary)
    (folder / "terms.bin").write_bytes(b"".join(terms))
    np.save(folder / "term_ends.npy", np.cumsum([len(term) for term in terms], dtype=np.int64))
    np.save(folder / "term_ids.npy", np.array([vocabulary[term] for term in terms], dtype=np.int32))
