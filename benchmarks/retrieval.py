"""Speed of retrieval: ms per query in the server and queries per second over HTTP.

    python benchmarks/retrieval.py [--documents 1200 100000] [--clients 64] [--seconds 5]

Documents and queries are synthetic with word frequencies as in natural text (Zipf). Prints JSON lines and
writes them to `benchmarks/results/retrieval.json`.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from retrieval_server.store import Store

VOCABULARY = 50_000
QUERY_WORDS = 8
START_DEADLINE_S = 600.0


def texts(count: int, words_each: int, seed: int) -> Iterator[str]:
    """Texts of about `words_each` words drawn from a Zipf-like distribution."""
    draw = np.random.default_rng(seed)
    cumulative = np.cumsum(1 / np.arange(10, VOCABULARY + 10))
    for _ in range(count):
        drawn = np.searchsorted(cumulative, draw.random(words_each) * cumulative[-1])
        yield " ".join(f"word{i}" for i in drawn)


def write_corpus(path: Path, documents: int) -> None:
    with path.open("w", encoding="utf-8") as out:
        for i, text in enumerate(texts(documents, 200, seed=0)):
            out.write(json.dumps({"docid": str(i), "url": f"https://example.org/{i}", "text": text}) + "\n")


def in_server(web: Path, queries: list[str]) -> dict[str, float]:
    """Load time in seconds and milliseconds per query of `Store.search_web`."""
    start = time.perf_counter()
    store = Store.load(None, web)
    loaded = time.perf_counter()
    times = []
    for query in queries:
        before = time.perf_counter()
        store.search_web(query, 5)
        times.append((time.perf_counter() - before) * 1000)
    return {
        "load_s": round(loaded - start, 2),
        "ms_per_query_mean": round(float(np.mean(times)), 3),
        "ms_per_query_p99": round(float(np.quantile(times, 0.99)), 3),
    }


def over_http(web: Path, queries: list[str], clients: int, seconds: float) -> dict[str, float]:
    """Queries per second and latency of `clients` in a closed loop against a server process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "retrieval_server", "--web", str(web), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        return asyncio.run(_load(process, port, queries, clients, seconds))
    finally:
        process.terminate()
        process.wait(30)


async def _load(
    process: subprocess.Popen[bytes], port: int, queries: list[str], clients: int, seconds: float
) -> dict[str, float]:
    connector = aiohttp.TCPConnector(limit=clients)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:
        await _until_healthy(session, process)
        return await _closed_loop(session, queries, clients, seconds)


async def _until_healthy(session: aiohttp.ClientSession, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(START_DEADLINE_S):
        while process.poll() is None:
            await asyncio.sleep(0.2)
            try:
                async with session.get("/health") as response:
                    if (await response.json())["status"] == "ok":
                        return
            except aiohttp.ClientConnectionError:
                continue
    raise RuntimeError(f"the server ended with status {process.returncode} before it was healthy")


async def _closed_loop(
    session: aiohttp.ClientSession, queries: list[str], clients: int, seconds: float
) -> dict[str, float]:
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        turn = number
        while (before := time.perf_counter()) < end:
            body = {"query": queries[turn % len(queries)], "k": 5}
            async with session.post("/browsecomp/search", json=body) as response:
                assert response.status == 200, await response.text()
                await response.read()
            times.append((time.perf_counter() - before) * 1000)
            turn += clients

    started = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    elapsed = time.perf_counter() - started
    return {
        "queries_per_s": round(len(times) / elapsed, 1),
        "latency_ms_p50": round(float(np.quantile(times, 0.5)), 1),
        "latency_ms_p99": round(float(np.quantile(times, 0.99)), 1),
    }


def measure(documents: int, clients: int, seconds: float) -> dict[str, Any]:
    queries = list(texts(200, QUERY_WORDS, seed=1))
    with tempfile.TemporaryDirectory() as folder:
        web = Path(folder) / "web.jsonl"
        write_corpus(web, documents)
        found: dict[str, Any] = {"documents": documents, "clients": clients}
        found |= in_server(web, queries)
        found |= over_http(web, queries, clients, seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[1_200])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    results = []
    for documents in arguments.documents:
        results.append(measure(documents, arguments.clients, arguments.seconds))
        print(json.dumps(results[-1]))
    path = Path(__file__).parent / "results" / "retrieval.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
