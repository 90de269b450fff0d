"""Generation through the actor's client against the offline engine: the same work on both sides."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks._figures import Figure, at_least
from benchmarks.gpu.load import Load
from benchmarks.gpu.offline import Offline
from benchmarks.gpu.usage import Meter, Used
from benchmarks.gpu.wave import Clients
from pipelinerl.weights.send.engine_state import EngineState

WARM_TOKENS = 64
WINDOW_S = 10.0
THROUGH_S = 120.0
GOAL = 0.95


def _row(
    requests: int, rate: float, usage: dict[str, Used], errors: Sequence[str] = (), what: str = ""
) -> dict[str, Any]:
    row = {
        "requests": requests,
        "tok_s": rate,
        "usage": {role: asdict(one) for role, one in usage.items() if one.us_per_token >= 0.1},
        "errors": list(errors)[:3],
        "failed": len(errors),
    }
    print(f"{what}: {json.dumps(row)}", flush=True)
    return row


def served(
    url: str, group: int, lengths: tuple[int, int, int], counts: Sequence[int], clients: int
) -> dict[str, Any]:
    """`waves`: a row for each number of requests; `steady`: one with the smallest always in flight.

    `lengths`: of the vocabulary, a prompt and an answer. The window of the steady rate begins when the first
    answer of each stream is through, so that prompts and answers are in the mixture that stays.
    """
    vocab, prompt, output = lengths
    waves = []
    with Clients(url, clients, vocab, prompt) as senders:
        senders.wave(min(counts), WARM_TOKENS)
        for count in counts:
            meter = Meter(group)
            wave = senders.wave(count, output)
            usage = meter.read(wave.tokens) | {"client": Used.of(wave.cpu_s, wave.tokens, wave.seconds)}
            waves.append(_row(count, wave.rate, usage, wave.errors, f"served, {count} at once"))
    in_flight = min(counts)
    with Load(url, in_flight, vocab, prompt, output) as load:
        load.wait_through(THROUGH_S)
        engine = EngineState(url, 30.0)
        meter, first = Meter(group), engine.counters()
        time.sleep(WINDOW_S)
        rate = engine.counters().rate_since(first)
        usage = meter.read(round(rate * WINDOW_S))
    steady = _row(in_flight, rate, usage, load.result.get("errors", []), f"served, {in_flight} always")
    return {"waves": waves, "steady": steady}


def offline(engine: Offline, counts: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each number of requests."""
    engine.wait_ready()
    rows = []
    for count in counts:
        meter = Meter(engine.group)
        tokens, seconds = engine.wave(count)
        rows.append(_row(count, tokens / seconds, meter.read(tokens), what=f"offline, {count} at once"))
    return rows


def _usage(name: str, row: dict[str, Any]) -> Iterator[Figure]:
    for role, one in row["usage"].items():
        label = f"  {name}: {role}" + (f" x {one['processes']}" if one["processes"] > 1 else "")
        yield Figure(f"{label}, CPU per token", one["us_per_token"], "us")
        yield Figure(f"{label}, busiest", one["busiest"], "cores")


def throughput_figures(
    by_servers: dict[str, dict[str, Any]], without: Sequence[dict[str, Any]], goal_of: str
) -> Iterator[Figure]:
    """Rates with the CPU time behind them; the goal is that of the servers named `goal_of`."""
    yardstick = {row["requests"]: row["tok_s"] for row in without}
    for row in without:
        name = f"offline engine, {row['requests']} requests"
        yield Figure(name, row["tok_s"], "tok/s")
        yield from _usage(name, row)
    for servers, found in by_servers.items():
        main = servers == goal_of
        suffix = "" if main else f", {servers}"
        for row in found["waves"]:
            count = row["requests"]
            name = f"client, {count} requests{suffix}"
            yield Figure(name, row["tok_s"], "tok/s")
            yield from _usage(name, row)
            if row["failed"]:
                yield Figure(f"  {name}: failed requests", row["failed"], "")
            if count in yardstick:
                label, ratio = f"client / offline, {count}{suffix}", row["tok_s"] / yardstick[count]
                yield at_least(label, ratio, "x", GOAL) if main else Figure(label, ratio, "x")
        steady = found["steady"]
        name = f"client, {steady['requests']} always in flight{suffix}"
        yield Figure(name, steady["tok_s"], "tok/s")
        yield from _usage(name, steady)
