"""Generation through the actor's client against the offline engine: the same work on both sides."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks._figures import Figure, at_least
from benchmarks._processes import Server, started
from benchmarks.gpu.clients import clients, end_load, load, wave
from benchmarks.gpu.served import Offline
from benchmarks.gpu.usage import Meter, shares
from pipelinerl.weights.engine_state import EngineState

WARM_TOKENS = 64
WINDOW_S = 10.0
THROUGH_S = 120.0
GOAL = 0.95


def _row(
    what: str, requests: int, rate: float, usage: dict[str, dict[str, float]], errors: Sequence[str] = ()
) -> dict[str, Any]:
    row = {
        "requests": requests,
        "tok_s": rate,
        "usage": {role: one for role, one in usage.items() if one["us_per_token"] >= 0.1},
        "errors": list(errors)[:3],
        "failed": len(errors),
    }
    print(f"{what}: {json.dumps(row)}", flush=True)
    return row


def steady_rate(urls: Sequence[str], seconds: float) -> float:
    """Tokens per second that engines sample meanwhile, by their own counters."""
    engines = [EngineState(url, 30.0) for url in urls]
    first = [one.counters() for one in engines]
    time.sleep(seconds)
    return sum(one.counters().rate_since(at) for one, at in zip(engines, first))


def served(
    server: Server, lengths: tuple[int, int, int], counts: Sequence[int], processes: int
) -> dict[str, Any]:
    """`waves`: a row for each number of requests; `steady`: one with the smallest always in flight.

    `lengths`: of the vocabulary, a prompt and an answer. The window of the steady rate begins when the first
    answer of each stream is through, so that prompts and answers are in the mixture that stays.
    """
    vocab, prompt, output = lengths
    waves = []
    with clients(processes, server.url, vocab, prompt) as senders:
        wave(senders, min(counts), WARM_TOKENS)
        for count in counts:
            meter = Meter(server.process.pid)
            sent = wave(senders, count, output)
            tokens, seconds = sent["tokens"], sent["seconds"]
            usage = meter.read(tokens) | {"client": shares(sent["cpu_s"], tokens, seconds)}
            waves.append(_row(f"served, {count} at once", count, tokens / seconds, usage, sent["errors"]))
    in_flight = min(counts)
    with load(server.url, in_flight, vocab, prompt, output) as child:
        child.expect("THROUGH", THROUGH_S)
        meter = Meter(server.process.pid)
        rate = steady_rate([server.url], WINDOW_S)
        usage = meter.read(round(rate * WINDOW_S))
        errors = end_load(child)["errors"]
    return {"waves": waves, "steady": _row(f"served, {in_flight} always", in_flight, rate, usage, errors)}


def once(
    server: Server, lengths: tuple[int, int, int], counts: Sequence[int], processes: int
) -> dict[str, Any]:
    """`served` of a server that is started for it and gone afterwards. SystemExit is an error like others."""
    with started(server):
        try:
            server.wait_ready()
        except SystemExit as error:
            raise RuntimeError(error) from None
        return served(server, lengths, counts, processes)


def offline(engine: Offline, counts: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each number of requests."""
    engine.wait_ready()
    rows = []
    for count in counts:
        meter = Meter(engine.process.pid)
        tokens, seconds = engine.wave(count)
        rows.append(_row(f"offline, {count} at once", count, tokens / seconds, meter.read(tokens)))
    return rows


def _rate(name: str, row: dict[str, Any]) -> Iterator[Figure]:
    """The rate with the CPU time behind it."""
    yield Figure(name, row["tok_s"], "tok/s")
    for role, one in row["usage"].items():
        label = f"  {name}: {role}" + (f" x {one['processes']}" if one["processes"] > 1 else "")
        yield Figure(f"{label}, CPU per token", one["us_per_token"], "us")
        yield Figure(f"{label}, busiest", one["busiest"], "cores")


def once_figures(found: dict[str, Any] | None, without: dict[str, Any] | None) -> Iterator[Figure]:
    """Of a server that hands outputs over once, beside those of the one that does not."""
    if found is None:
        return
    others = [None] * len(found["waves"]) if without is None else without["waves"]
    for row, other in zip(found["waves"], others, strict=True):
        yield from _rate(f"outputs once, {row['requests']} requests", row)
        if other is not None:
            ratio = row["tok_s"] / other["tok_s"]
            yield Figure(f"outputs once / token by token, {row['requests']}", ratio, "x")
    steady = found["steady"]
    yield from _rate(f"outputs once, {steady['requests']} always in flight", steady)
    if without is not None:
        ratio = steady["tok_s"] / without["steady"]["tok_s"]
        yield Figure(f"outputs once / token by token, {steady['requests']} always", ratio, "x")


def limit_figures(limits: dict[str, Any] | None, servers: dict[str, Any]) -> Iterator[Figure]:
    """What servers reached of that which reading the card's memory allows, by the measured bandwidth."""
    if limits is None:
        return
    yield Figure("a copy on the card", limits["copy_bytes_per_s"] / 1e12, "TB/s")
    for name, found in servers.items():
        for row in [] if found is None else [*found["waves"], found["steady"]]:
            kind = "always" if row is found["steady"] else "at once"
            share = row["tok_s"] / limits["tok_s"][row["requests"]]
            yield Figure(f"{name}, {row['requests']} {kind}: of the card's limit", share, "share")


def throughput_figures(found: dict[str, Any] | None, without: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """Of the server, beside the offline engine's where that was asked for the same."""
    yardstick = {row["requests"]: row["tok_s"] for row in without}
    for row in without:
        yield from _rate(f"offline engine, {row['requests']} requests", row)
    if found is None:
        return
    for row in found["waves"]:
        count = row["requests"]
        name = f"client, {count} requests"
        yield from _rate(name, row)
        if row["failed"]:
            yield Figure(f"  {name}: failed requests", row["failed"], "")
        if count in yardstick:
            yield at_least(f"client / offline, {count}", row["tok_s"] / yardstick[count], "x", GOAL)
    steady = found["steady"]
    yield from _rate(f"client, {steady['requests']} always in flight", steady)
