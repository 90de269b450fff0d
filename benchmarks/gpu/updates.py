"""Updates of an engine under load: ways of doing them, and what each step of the pause takes."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from benchmarks._figures import Figure, at_most
from benchmarks.gpu.load import Load
from pipelinerl.inference.vllm import pause_routes
from pipelinerl.modeling.model import distinct_parameters
from pipelinerl.weights.send.engine_update import PublishDeadlines
from pipelinerl.weights.send.file_transport import FileTransport
from pipelinerl.weights.send.nccl_transport import NcclTransport
from pipelinerl.weights.send.publisher import KvPolicy, Publisher
from pipelinerl.weights.send.transport import Transport
from pipelinerl.weights.wire import weights_directory

PROMPT = OUTPUT = 512
STREAMS = 256
UPDATES = 7
BETWEEN_S = 0.8
WARM_S = 6.0
MIB = 2**20
IN_PAUSE = {True: ("pause", "finish", "resume"), False: ("pause", "start", "update", "finish", "resume")}
"""Steps of which a pause consists, by whether the version was received ahead of it.

`send` runs beside `update`, `stage` before all others.
"""


@dataclass(frozen=True)
class Variant:
    """A way of updating an engine under load."""

    name: str
    in_flight: int = STREAMS
    megabytes: int = 256
    buffers: int = 2
    kv: str = "keep"
    """`keep` or `recompute`; `pause`: keep, through the route of that name instead of sleep level 0."""
    ahead: bool = True
    """Receive before the pause; otherwise within it."""


DEFAULT = "ahead, 2 packets of 256 MiB"
VARIANTS: tuple[Variant, ...] = (
    Variant(DEFAULT),
    Variant("idle", in_flight=0),
    Variant("received in the pause", ahead=False),
    Variant("ahead, 2 packets of 1 GiB", megabytes=1024),
    Variant("ahead, 4 packets of 64 MiB", megabytes=64, buffers=4),
    Variant("ahead, recompute", kv="recompute"),
    Variant("ahead through /pause", kv="pause"),
)
"""Over NCCL, in the order of what they tell."""
THROUGH_FILES: tuple[Variant, ...] = (
    Variant("ahead through files"),
    Variant("idle through files", in_flight=0),
    Variant("received in the pause, through files", ahead=False),
    Variant("ahead through files, recompute", kv="recompute"),
)
"""The same where there are no packets."""


def variants_of(backend: str) -> tuple[Variant, ...]:
    """The ways of updating an engine with this weight transfer."""
    return THROUGH_FILES if backend.startswith("file") else VARIANTS


def publisher_for(
    url: str,
    backend: str,
    model: PreTrainedModel,
    variant: Variant,
    deadlines: PublishDeadlines | None = None,
) -> Publisher:
    """From where the model lies to an engine with this weight transfer, which receives ahead.

    It also takes what is sent while it is paused.
    """
    transport: Transport
    if backend.startswith("file"):
        size = sum(one.numel() for _, one in distinct_parameters(model)) * model.dtype.itemsize
        folder = weights_directory(Path(tempfile.mkdtemp(prefix="weights-")), size)
        transport = FileTransport(folder, model.dtype, ahead=variant.ahead)
    else:
        transport = NcclTransport(
            model.device,
            model.dtype,
            buffer_bytes=variant.megabytes * MIB,
            buffers=variant.buffers,
            first_port=9100,
            ahead=variant.ahead,
        )
    kv: KvPolicy = "recompute" if variant.kv == "recompute" else "keep"
    publisher = Publisher([url], transport, kv, deadlines or PublishDeadlines(health_s=10.0))
    publisher.wait_ready(60)
    if variant.kv == "pause":  # in place of what the engine's version has said
        publisher.engines[url].routes = pause_routes(None, clear_cache=False)
    return publisher


def update_row(variant: Variant, model: PreTrainedModel, publisher: Publisher, first: int) -> dict[str, Any]:
    """Medians over several updates, in milliseconds, and the share of the time that was paused."""
    reports = []
    begun = time.perf_counter()
    for version in range(first, first + UPDATES):
        time.sleep(BETWEEN_S)
        reports.append(publisher.publish(version, distinct_parameters(model)))
    wall = time.perf_counter() - begun
    steady = reports[1:]
    steps = {step: statistics.median(one.seconds[step] for one in steady) * 1e3 for step in steady[0].seconds}
    paused = [max(one.paused_s.values()) * 1e3 for one in steady]
    inside = IN_PAUSE[variant.ahead]
    between = [whole - 1e3 * sum(one.seconds[step] for step in inside) for whole, one in zip(paused, steady)]
    row = {
        "name": variant.name,
        "in_flight": variant.in_flight,
        "bytes": reports[0].bytes,
        "paused_ms": statistics.median(paused),
        "paused_ms_all": [round(one, 1) for one in paused],
        "steps_ms": steps,
        "in_pause": list(inside),
        "between_steps_ms": statistics.median(between),
        "first_paused_ms": max(reports[0].paused_s.values()) * 1e3,
        "idle_share": sum(max(one.paused_s.values()) for one in reports) / wall,
    }
    print(json.dumps(row), flush=True)
    return row


def updates(
    url: str,
    backend: str,
    model: PreTrainedModel,
    vocab: int,
    variants: int,
    streams: int,
    keep: Callable[[Any], None],
) -> list[dict[str, Any]]:
    """The first `variants` ways, each in a group of its own, with at most so many `streams`.

    `keep` gets the rows as they come.
    """
    rows: list[dict[str, Any]] = []
    for number, variant in enumerate(variants_of(backend)[:variants], start=1):
        variant = replace(variant, in_flight=min(streams, variant.in_flight))
        publisher = publisher_for(url, backend, model, variant)
        try:
            if variant.in_flight:
                with Load(url, variant.in_flight, vocab, PROMPT, OUTPUT) as load:
                    time.sleep(WARM_S)
                    rows.append(update_row(variant, model, publisher, 100 * number))
                rows[-1] |= load.result
            else:
                rows.append(update_row(variant, model, publisher, 100 * number))
        finally:
            publisher.close()
        keep(rows)
    return rows


def update_figures(rows: list[dict[str, Any]]) -> Iterator[Figure]:
    """The pause of each way beside the goal, and its parts."""
    for row in rows:
        name = f"paused: {row['name']}, {row['in_flight']} in flight"
        wanted = row["in_flight"] > 0 and not ("recompute" in row["name"] or "in the pause" in row["name"])
        yield at_most(name, row["paused_ms"], "ms", 100.0) if wanted else Figure(name, row["paused_ms"], "ms")
        for step, value in row["steps_ms"].items():
            part = "of it " if step in row["in_pause"] else ""
            yield Figure(f"  {row['name']}: {part}{step}", value, "ms")
        yield Figure(f"  {row['name']}: of it between steps", row["between_steps_ms"], "ms")
        yield Figure(f"  {row['name']}: share of the time", row["idle_share"], "share")
