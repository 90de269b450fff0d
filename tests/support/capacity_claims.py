"""What `benchmarks/results/capacity.json` says for the tables of `docs/capacity.md`."""

from typing import Any

from tests.support.claims import Claim
from tests.support.measured import Cells, Value, figure, result

CAPACITY = "docs/capacity.md"
PARTS = {
    "actor, a rollout": "scheduler",
    "rollout worker, a rollout": "worker",
    "engine, a sampled token": "token",
    "its HTTP processes, a sampled token": "http",
    "redis, a sample in both streams": "redis",
    "preprocess, a sample": "preprocess",
    "trainer, a sample on one GPU": "sample",
    "trainer, the calls of an update to one engine": "call",
    "trainer, an update beside them": "update",
    "an engine's pause in an update": "pause",
}


def costs(row: Cells) -> list[Value]:
    """Microseconds."""
    return [1e6 * result("capacity")["costs"][PARTS[row[0]]]]


def sizes(row: Cells) -> list[Value]:
    """GPUs and their shares, samples per second, and how busy the single processes are in percent."""
    found = result("capacity")["rows"][row[0]]
    shape, alone = found["shape"], found["alone"]
    busy = [100 * found["busy"][name] for name in ("actor", "redis", "preprocess", "trainer")]
    split = [shape["engines"], shape["trainers"], shape["workers"]]
    assert row[-1] == f"{found['first']}, {alone[found['first']]:,.0f}"
    return [*split, found["of the GPUs"], found["samples"], *busy, alone[found["first"]]]


def widened(row: Cells) -> list[Value]:
    """How many of each single part, and what the simulation gives with them."""
    found = result("capacity")["widened"][row[0]]
    parts = [found["shape"][name] for name in ("actors", "preprocess", "redis")]
    return [*parts, found["samples"], 100 * found["share"]]


def weights(row: Cells) -> list[Value]:
    """Seconds of an update by each way, and of a checkpoint."""
    gpus, billions = row[0].split(", ")
    moved = {f"{one['parameters'] / 1e9:g}B": one for one in result("capacity")["rows"][gpus]["transfers"]}
    found = moved[billions]
    return [value for name, value in found.items() if name != "parameters"]


def _row(gpus: str = "512") -> dict[str, Any]:
    return dict(result("capacity")["rows"][gpus])


SENTENCES: dict[str, Claim] = {
    "capacity, the measured run": (
        CAPACITY,
        r"it gives (\S+) samples a second, and\s+(\S+) were measured, (\d+) % more; (\S+) on a second",
        lambda: [
            result("capacity")["check"]["samples"],
            result("capacity")["check"]["measured"],
            -100 * result("capacity")["check"]["error"],
            figure("gpu_trl_defaults", "ours: samples trained"),
        ],
    ),
    "capacity, bytes": (
        CAPACITY,
        r"A sample takes (\d+) kB in both.*?(\d+) MB/s go into redis",
        lambda: [result("capacity")["costs"]["bytes"] / 1e3, _row()["stream MB/s"]],
    ),
    "capacity, calls": (
        CAPACITY,
        r"spends (\d+) ms of an update on the HTTP calls",
        lambda: [1e3 * _row()["calls of an update"]],
    ),
    "capacity, checkpoint": (
        CAPACITY,
        r"One in an\s+hour is (\d+) % of the time",
        lambda: [100 * _row()["transfers"][1]["checkpoint by one rank"] / 3600],
    ),
}
