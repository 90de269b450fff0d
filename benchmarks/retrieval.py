"""Search in both back ends: time of a query in the server, queries per second over HTTP, memory, indexing.

    python -m benchmarks.retrieval [--documents 1200 100000] [--words 200] [--workers 1] [--backends bm25s]

Texts and queries are drawn from the Zipf-Mandelbrot law (1 / (rank + 10)^1.35 over a million words: about
1,500 distinct words in a text of 5,000), so many words of a query occur in most documents, which is hard on
BM25. 30 kB of text are 7,250 words. `--corpus FILE` takes a corpus that is there, with its index if any.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
from rank_bm25 import BM25Okapi

from benchmarks._figures import Figure, at_least, at_most, report
from retrieval_server.backends import default_index
from retrieval_server.ranking import inverse_document_frequency
from retrieval_server.store import Store
from retrieval_server.tokens import query_terms, tokens
from retrieval_server.webfile import WebScan

VOCABULARY = 1_000_000
EXPONENT, OFFSET = 1.35, 10
QUERY_WORDS = 8
QUERIES = 200
LIBRARY_QUERIES = 5
LARGE = 100_000
START_DEADLINE_S = 600.0
BACKENDS = ("rank_bm25", "bm25s")


@dataclass(frozen=True)
class Load:
    """How the server is asked."""

    clients: int
    seconds: float
    workers: int


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
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "retrieval_server.index", "--web", str(web)], check=True)
    seconds = time.perf_counter() - started
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


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

    class Okapi(BM25Okapi):
        def _calc_idf(self, nd: dict[str, int]) -> None:
            self.idf = {term: inverse_document_frequency(df, self.corpus_size) for term, df in nd.items()}

    index = Okapi(map(tokens, WebScan(web).texts()))
    started = time.perf_counter()
    for query in queries:
        index.get_scores(query_terms(query))
    return (time.perf_counter() - started) * 1000 / len(queries)


@contextlib.contextmanager
def server(web: Path, backend: str, workers: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "retrieval_server", "--web", str(web), "--port", str(port)]
    command += ["--backend", backend, "--workers", str(workers)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process, port
    finally:
        process.terminate()
        process.wait(30)


async def over_http(
    process: subprocess.Popen[bytes], port: int, queries: Sequence[str], load: Load
) -> tuple[list[float], float, dict[str, float]]:
    """Milliseconds of each request of clients in a closed loop; queries per second; what the server used:
    memory in MB, and milliseconds of CPU a query."""
    connector = aiohttp.TCPConnector(limit=load.clients)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:
        await _until_ready(session, process)
        await _closed_loop(session, queries, load.clients, min(1.0, load.seconds))
        async with session.get("/health") as response:
            pids = [worker["pid"] for worker in (await response.json())["workers"]]
        before = cpu_s(pids)
        times, rate = await _closed_loop(session, queries, load.clients, load.seconds)
        used = {"CPU": (cpu_s(pids) - before) * 1000 / len(times)}
        return times, rate, used | resident_mb(pids)


async def _until_ready(session: aiohttp.ClientSession, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(START_DEADLINE_S):
        while process.poll() is None:
            await asyncio.sleep(0.2)
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get("/ready") as response:
                    if response.status == 200:
                        return
    raise RuntimeError(f"the server ended with status {process.returncode} before it was ready")


async def _closed_loop(
    session: aiohttp.ClientSession, queries: Sequence[str], clients: int, seconds: float
) -> tuple[list[float], float]:
    times: list[float] = []
    started = time.perf_counter()

    async def client(number: int) -> None:
        turn = number
        while (before := time.perf_counter()) < started + seconds:
            body = {"query": queries[turn % len(queries)], "k": 5}
            async with session.post("/browsecomp/search", json=body) as response:
                assert response.status == 200, await response.text()
                await response.read()
            times.append((time.perf_counter() - before) * 1000)
            turn += clients

    await asyncio.gather(*(client(number) for number in range(clients)))
    return times, len(times) / (time.perf_counter() - started)


def cpu_s(pids: Sequence[int]) -> float:
    """Seconds of CPU that processes have used, in user and system mode."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def resident_mb(pids: Sequence[int]) -> dict[str, float]:
    """Memory of processes: all that is resident, and what is not pages of files, which they share."""
    found = {"VmRSS": 0.0, "RssAnon": 0.0}
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        for name in found:
            found[name] += int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) / 1024
    return found


def measure_backend(web: Path, backend: str, load: Load, documents: int) -> list[Figure]:
    """Figures of one back end at one size, named `<documents> <backend>: ...`."""
    name = f"{documents} {backend}:"
    queries = list(texts(QUERIES, QUERY_WORDS, seed=1))
    figures = []
    if backend == "bm25s" and not default_index(web).exists():
        seconds, peak_mb = build_index(web)
        figures += [
            Figure(f"{name} index built", seconds, "s"),
            Figure(f"{name} memory of the build", peak_mb, "MB"),
        ]
    started = time.perf_counter()
    store = Store.load(None, web, default_index(web) if backend == "bm25s" else None)
    figures.append(Figure(f"{name} loaded", time.perf_counter() - started, "s"))
    times, cpu = in_server(store, queries)
    del store
    large = documents >= LARGE
    mean, p99 = float(np.mean(times)), float(np.quantile(times, 0.99))
    label = f"{name} a query in the server"
    figures.append(at_most(label, mean, "ms", 2.0) if large else Figure(label, mean, "ms"))
    figures.append(Figure(f"{name} the same, 99th percentile", p99, "ms"))
    figures.append(Figure(f"{name} the same, CPU", cpu, "ms"))
    with server(web, backend, load.workers) as (process, port):
        latencies, rate, used = asyncio.run(over_http(process, port, queries, load))
    label = f"{name} over HTTP, {load.clients} clients"
    figures.append(at_least(label, rate, "queries/s", 500) if large else Figure(label, rate, "queries/s"))
    latency, label = float(np.quantile(latencies, 0.99)), f"{name} over HTTP, 99th percentile"
    figures.append(Figure(label, latency, "ms") if large else at_most(label, latency, "ms", 150.0))
    figures.append(Figure(f"{name} over HTTP, CPU of the server", used["CPU"], "ms"))
    figures.append(Figure(f"{name} resident, {load.workers} processes", used["VmRSS"], "MB"))
    figures.append(Figure(f"{name} of it not pages of files", used["RssAnon"], "MB"))
    return figures


def measure(web: Path, documents: int, backends: Sequence[str], load: Load) -> list[Figure]:
    figures = [figure for backend in backends for figure in measure_backend(web, backend, load, documents)]
    per_query = {figure.name: figure.value for figure in figures}
    if "rank_bm25" in backends:
        ms = library_ms(web, list(texts(LIBRARY_QUERIES, QUERY_WORDS, seed=2)))
        label = f"{documents} rank_bm25's own get_scores"
        per_query[label] = ms
        figures.append(Figure(label, ms, "ms"))
        for backend in backends:
            ratio = ms / per_query[f"{documents} {backend}: a query in the server"]
            figures.append(Figure(f"{documents} {backend}: faster than that", ratio, "x"))
    if set(backends) == set(BACKENDS):
        ours, mapped = (per_query[f"{documents} {backend}: a query in the server"] for backend in BACKENDS)
        figures.append(Figure(f"{documents} bm25s: faster than rank_bm25", ours / mapped, "x"))
    return figures


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs="+", default=[1_200, LARGE])
    parser.add_argument("--words", type=int, default=200, help="of a document")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=1, help="processes of the server")
    parser.add_argument("--corpus", type=Path, help="JSON lines of the one number of --documents")
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/retrieval.json)")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    arguments = parse_arguments(argv)
    load = Load(arguments.clients, arguments.seconds, arguments.workers)
    figures: list[Figure] = []
    for documents in arguments.documents:
        with tempfile.TemporaryDirectory() as folder:
            web = arguments.corpus or Path(folder) / "web.jsonl"
            if arguments.corpus is None:
                write_corpus(web, documents, arguments.words)
            figures += measure(web, documents, arguments.backends, load)
    settings = {
        "words": arguments.words,
        "clients": load.clients,
        "seconds": load.seconds,
        "workers": load.workers,
    }
    report("retrieval", figures, settings, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
