"""Searches per second of the privacy agent's own client with one retrieval server and with several replicas.

    python -m benchmarks.replicas [--replicas 2] [--documents 20000] [--words 200] [--clients 64]
                                  [--seconds 5.0] [--rounds 3] [--out FILE]

The servers share one index on disk. Rounds with one server and with all alternate; then one server is killed
under load. Client and servers share the cores of this machine, so what more servers give depends on how many
there are: CPU per search says what a core of its own would give.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import aiohttp
import psutil

from benchmarks._figures import Figure, at_least, at_most, command_line, report
from benchmarks._processes import Server, started, stop
from benchmarks.retrieval import QUERIES, QUERY_WORDS, START_DEADLINE_S, build_index, texts, write_corpus
from domains.privacy_hopqa.agent.replicas import Replicas
from domains.privacy_hopqa.agent.search_service import ask_health
from domains.privacy_hopqa.agent.transport import Client, JsonClient, Retries
from pipelinerl.base.ports import is_free

SEARCH = "/browsecomp/search"
TIMEOUT_S = 30.0


async def searches(client: Client, queries: Sequence[str], load: argparse.Namespace) -> list[float]:
    """When each search of a closed loop ended, in seconds of `time.perf_counter`. None may fail."""
    ends: list[float] = []
    until = time.perf_counter() + load.seconds

    async def one(turn: int) -> None:
        while time.perf_counter() < until:
            await client.post(SEARCH, {"query": queries[turn % len(queries)], "k": 5})
            ends.append(time.perf_counter())
            turn += load.clients

    await asyncio.gather(*map(one, range(load.clients)))
    return ends


class Measured:
    """Rates and CPU milliseconds per search, of the servers and of this process, over the rounds."""

    def __init__(self, servers: Sequence[Server], queries: Sequence[str], load: argparse.Namespace) -> None:
        self._processes = [psutil.Process(server.process.pid) for server in servers]
        self._queries, self._load = queries, load
        self.rates: list[float] = []
        self.server_ms: list[float] = []
        self.client_ms: list[float] = []

    async def round(self, client: Client) -> None:
        begun, here, there = time.perf_counter(), time.process_time(), self._cpu_s()
        count = len(await searches(client, self._queries, self._load))
        self.rates.append(count / (time.perf_counter() - begun))
        self.server_ms.append(1000 * (self._cpu_s() - there) / count)
        self.client_ms.append(1000 * (time.process_time() - here) / count)

    def _cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)


async def measure(servers: Sequence[Server], load: argparse.Namespace) -> list[Figure]:
    queries = list(texts(QUERIES, QUERY_WORDS, seed=1))
    urls, count = [server.url for server in servers], len(servers)
    connector = aiohttp.TCPConnector(limit=load.clients)
    async with aiohttp.ClientSession(connector=connector) as session:
        alone = JsonClient(urls[0], session, TIMEOUT_S)
        replicas = Replicas(urls, partial(ask_health, expected=None))
        together = replicas.client(session, TIMEOUT_S, Retries())
        one, all_of_them = Measured(servers, queries, load), Measured(servers, queries, load)
        for _ in range(load.rounds):
            await one.round(alone)
            await all_of_them.round(together)
        killed = asyncio.get_running_loop().call_later(load.seconds / 2, servers[0].process.kill)
        ends = sorted(await searches(together, queries, load))
        killed.cancel()
    pause_ms = 1000 * max(after - before for before, after in pairwise(ends))
    return list(_figures(one, all_of_them, count, pause_ms))


def _figures(one: Measured, many: Measured, count: int, pause_ms: float) -> Iterator[Figure]:
    for name, measured in (("1 server", one), (f"{count} servers", many)):
        yield Figure(f"{name}: searches", statistics.median(measured.rates), "queries/s")
        yield Figure(f"{name}: CPU of a search, server", statistics.median(measured.server_ms), "ms")
        yield Figure(f"{name}: CPU of a search, client", statistics.median(measured.client_ms), "ms")
    ratios = [more / less for more, less in zip(many.rates, one.rates)]
    yield at_least(f"{count} servers: rate of 1 server", statistics.median(ratios), "x", 0.9)
    yield Figure(
        "1 server on a core of its own, at most", 1000 / statistics.median(one.server_ms), "queries/s"
    )
    yield at_most("a server killed under load: longest pause of all searches", pause_ms, "ms", 1000.0)
    yield at_most("a server killed under load: searches that failed", 0.0, "", 0.0)  # the first would raise


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        web = Path(folder) / "web.jsonl"
        write_corpus(web, options.documents, options.words)
        build_index(web)
        servers = []
        for port in [port for port in range(18400, 65536) if is_free(port)][: options.replicas]:
            argv = [sys.executable, "-m", "retrieval_server", "--web", str(web), "--port", str(port)]
            servers.append(Server([*argv, "--backend", "bm25s"], port, Path(os.devnull)))
            stack.enter_context(started(servers[-1]))
        for server in servers:
            server.wait_ready(START_DEADLINE_S, "/ready")
        figures = asyncio.run(measure(servers, options))
        stop(*(server.process for server in servers))
    names = ("replicas", "documents", "words", "clients", "seconds", "rounds")
    report("replicas", figures, {name: getattr(options, name) for name in names}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
