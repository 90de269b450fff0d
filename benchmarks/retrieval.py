"""Search in both back ends: time of a query in the server, queries per second over HTTP, memory, indexing.

    python -m benchmarks.retrieval [--documents 1200 100000] [--words 200] [--workers 1]
                                   [--backends rank_bm25 bm25s]
                                   [--clients 64] [--seconds 5.0] [--corpus FILE] [--out FILE]

Texts and queries are drawn from the Zipf-Mandelbrot law (1 / (rank + 10)^1.35 over a million words: about
1,500 distinct words in a text of 5,000), so many words of a query occur in most documents, which is hard on
BM25. 30 kB of text are 7,250 words. `--workers`: processes of the server. `--corpus FILE` takes a corpus that
is there, with its index if any; its number of documents is `--documents`.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import numpy as np
import psutil

from benchmarks._figures import Figure, at_least, at_most, command_line, report
from benchmarks._processes import Server, started
from pipelinerl.base.ports import is_free
from retrieval_server.backends import default_index
from retrieval_server.bm25 import OkapiIndex
from retrieval_server.store import Store
from retrieval_server.tokens import query_terms, tokens
from retrieval_server.webfile import WebScan

VOCABULARY = 1_000_000
EXPONENT, OFFSET = 1.35, 10
QUERY_WORDS, QUERIES, LIBRARY_QUERIES = 8, 200, 5
LARGE = 100_000
START_DEADLINE_S = 600.0
BACKENDS = ("rank_bm25", "bm25s")


def texts(count: int, words_each: int, seed: int) -> Iterator[str]:
    """Texts of `words_each` words."""
    draw = np.random.default_rng(seed)
    cumulative = np.cumsum(1 / (np.arange(1, VOCABULARY + 1) + OFFSET) ** EXPONENT)
    names = np.array([f"w{rank:x}" for rank in range(VOCABULARY)], dtype=object)
    for _ in range(count):
        yield " ".join(names[np.searchsorted(cumulative, draw.random(words_each) * cumulative[-1])])


def write_corpus(path: Path, documents: int, words: int) -> None:
    with path.open("w", encoding="utf-8") as out:
        for i, text in enumerate(texts(documents, words, seed=0)):
            out.write(json.dumps({"docid": str(i), "url": f"https://example.org/{i}", "text": text}) + "\n")


def build_index(web: Path) -> tuple[float, float]:
    """Seconds of the build in a process of its own, and the largest resident memory of any child in MB."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "retrieval_server.index", "--web", str(web)], check=True)
    return time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def in_server(store: Store, queries: Sequence[str]) -> tuple[list[float], float]:
    """Milliseconds of each `Store.search_web`, and of CPU on average, after one round to warm up."""
    for query in queries:
        store.search_web(query, 5)
    times = []
    cpu = time.process_time()
    for query in queries:
        before = time.perf_counter()
        store.search_web(query, 5)
        times.append((time.perf_counter() - before) * 1000)
    return times, (time.process_time() - cpu) * 1000 / len(queries)


def library_ms(web: Path, queries: Sequence[str]) -> float:
    """Milliseconds of one `get_scores` of the library's class with only its idf replaced."""
    found = WebScan(web)
    token_lists = map(tokens, found.texts())  # fills found.docids while it is consumed
    index = OkapiIndex(found.docids, token_lists)
    begun = time.perf_counter()
    for query in queries:
        index.get_scores(query_terms(query))
    return (time.perf_counter() - begun) * 1000 / len(queries)


async def over_http(
    url: str, queries: Sequence[str], load: argparse.Namespace
) -> tuple[list[float], float, dict[str, float]]:
    """Milliseconds of each request of clients in a closed loop; queries per second; what the server used:
    memory in MB (all that is resident, and what is not pages of files, which processes share), and
    milliseconds of CPU a query."""
    connector = aiohttp.TCPConnector(limit=load.clients)
    async with aiohttp.ClientSession(url, connector=connector) as session:
        await closed_loop(session, queries, load.clients, min(1.0, load.seconds))
        async with session.get("/health") as response:
            workers = [psutil.Process(worker["pid"]) for worker in (await response.json())["workers"]]
        before = sum(sum(worker.cpu_times()[:2]) for worker in workers)
        times, rate = await closed_loop(session, queries, load.clients, load.seconds)
        spent = sum(sum(worker.cpu_times()[:2]) for worker in workers) - before
    memory = [worker.memory_info() for worker in workers]
    used = {"CPU": spent * 1000 / len(times), "resident": sum(one.rss for one in memory) / 2**20}
    used["anonymous"] = sum(one.rss - one.shared for one in memory) / 2**20
    return times, rate, used


async def closed_loop(
    session: aiohttp.ClientSession, queries: Sequence[str], clients: int, seconds: float
) -> tuple[list[float], float]:
    times: list[float] = []
    begun = time.perf_counter()

    async def client(turn: int) -> None:
        while (before := time.perf_counter()) < begun + seconds:
            body = {"query": queries[turn % len(queries)], "k": 5}
            async with session.post("/browsecomp/search", json=body) as response:
                assert response.status == 200, await response.text()
                await response.read()
            times.append((time.perf_counter() - before) * 1000)
            turn += clients

    await asyncio.gather(*map(client, range(clients)))
    return times, len(times) / (time.perf_counter() - begun)


def measure_backend(web: Path, backend: str, load: argparse.Namespace, documents: int) -> Iterator[Figure]:
    """Figures of one back end at one size, named `<documents> <backend>: ...`."""
    name, large = f"{documents} {backend}:", documents >= LARGE
    queries = list(texts(QUERIES, QUERY_WORDS, seed=1))
    if backend == "bm25s" and not default_index(web).exists():
        seconds, peak_mb = build_index(web)
        yield Figure(f"{name} index built", seconds, "s")
        yield Figure(f"{name} memory of the build", peak_mb, "MB")
    begun = time.perf_counter()
    store = Store.load(None, web, default_index(web) if backend == "bm25s" else None)
    yield Figure(f"{name} loaded", time.perf_counter() - begun, "s")
    times, cpu = in_server(store, queries)
    del store
    yield at_most(f"{name} a query in the server", float(np.mean(times)), "ms", 2.0 if large else None)
    yield Figure(f"{name} the same, 99th percentile", float(np.quantile(times, 0.99)), "ms")
    yield Figure(f"{name} the same, CPU", cpu, "ms")
    port = next(filter(is_free, range(18300, 65536)))
    argv = [sys.executable, "-m", "retrieval_server", "--web", str(web), "--port", str(port)]
    argv += ["--backend", backend, "--workers", str(load.workers)]
    server = Server(argv, port, Path(os.devnull))
    with started(server):
        server.wait_ready(START_DEADLINE_S, "/ready")
        latencies, rate, used = asyncio.run(over_http(server.url, queries, load))
    p99 = float(np.quantile(latencies, 0.99))
    yield at_least(f"{name} over HTTP, {load.clients} clients", rate, "queries/s", 500 if large else None)
    yield at_most(f"{name} over HTTP, 99th percentile", p99, "ms", None if large else 150.0)
    yield Figure(f"{name} over HTTP, CPU of the server", used["CPU"], "ms")
    yield Figure(f"{name} resident, {load.workers} processes", used["resident"], "MB")
    yield Figure(f"{name} of it not pages of files", used["anonymous"], "MB")


def measure(web: Path, documents: int, backends: Sequence[str], load: argparse.Namespace) -> list[Figure]:
    figures = [figure for backend in backends for figure in measure_backend(web, backend, load, documents)]
    value = {figure.name: figure.value for figure in figures}
    per_query = [value[f"{documents} {backend}: a query in the server"] for backend in backends]
    if "rank_bm25" in backends:
        ms = library_ms(web, list(texts(LIBRARY_QUERIES, QUERY_WORDS, seed=2)))
        figures.append(Figure(f"{documents} rank_bm25's own get_scores", ms, "ms"))
        for backend, ours in zip(backends, per_query):
            figures.append(Figure(f"{documents} {backend}: faster than that", ms / ours, "x"))
    if set(backends) == set(BACKENDS):
        by_backend = dict(zip(backends, per_query))
        ratio = by_backend["rank_bm25"] / by_backend["bm25s"]
        figures.append(Figure(f"{documents} bm25s: faster than rank_bm25", ratio, "x"))
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv, backends=BACKENDS)
    figures: list[Figure] = []
    for documents in options.documents:
        with tempfile.TemporaryDirectory() as folder:
            web = options.corpus or Path(folder) / "web.jsonl"
            if options.corpus is None:
                write_corpus(web, documents, options.words)
            figures += measure(web, documents, options.backends, options)
    report(
        "retrieval",
        figures,
        {name: getattr(options, name) for name in ("words", "clients", "seconds", "workers")},
        options.out,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
