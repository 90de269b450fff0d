"""What limits a run on 8, 64 and 512 GPUs: a queueing simulation of the pipeline with measured costs.

    python -m benchmarks.capacity [--gpus 8 64 512] [--seconds 90] [--out FILE] [--figure FILE]

The workload is that of `benchmarks.gpu.trl` on H200s (1.7 billion parameters, groups of 8, prompts of 518
tokens, answers of 512), for which engine and trainer were measured; a larger model is slower on both and asks
less of everything else. Costs come from `results/*.json`: `gpu_engine`, `gpu_trl`, and `unit_costs` for the
processes that there is one of. A group of eight rollouts is a customer of a closed queueing network: actor,
rollout workers, engines, redis (both streams at once), preprocess, trainer. The first row repeats the
measured run on two GPUs. The engine limited that run, and its rate there, pauses included, is the one that it
has here: the row shows what the network takes from this rate, and is no test of the network.
"""

import heapq
import json
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from benchmarks._figures import RESULTS, command_line, write_json
from pipelinerl.observe.figure_style import WIDTH, colour, legend, save

GROUP, ANSWER = 8, 512
IN_FLIGHT = 512
"""Rollouts under way at each engine, as in the measured run."""
STEPS_AHEAD = 2
"""Steps whose samples may wait for the trainer; then no rollout starts, as `max_lag` has it."""
BUSY = 0.9
"""A single process that is busy for this share of the time limits."""
NETWORK, DISK, PER_HOST = 50e9, 2e9, 8
"""Assumed, not measured: bytes per second of a host's network and of a shared file system, GPUs of a host."""
SENT, SAVED = 2, 12
"""Bytes of a parameter in an update (bfloat16), and in a checkpoint (float32 weights, Adam's moments)."""
PARTS = ("actor", "workers", "engines", "redis", "preprocess", "trainer")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of each part. Those of single processes are CPU time on the machine of `unit_costs`."""

    scheduler: float
    """Of a rollout in the actor."""
    worker: float
    """Of a rollout in a worker."""
    token: float
    """Of a sampled token in an engine with hundreds of requests."""
    http: float
    """Of a sampled token in an engine's HTTP processes, in all."""
    redis: float
    """Of a sample in both streams, in the redis server."""
    bytes: float
    """Of a sample in both streams."""
    preprocess: float
    """Of a sample in preprocess."""
    sample: float
    """Of a sample on one GPU of the trainer."""
    call: float
    """Of one engine's calls in an update, in the trainer's main process."""
    update: float
    """Of an update beside these calls."""
    pause: float
    """Of an engine in an update."""

    @classmethod
    def measured(cls) -> "Costs":
        """From the results of the other benchmarks."""
        unit, engine, trl = (figures(name) for name in ("unit_costs", "gpu_engine", "gpu_trl"))
        always = "client, 256 always in flight"
        small, packed = (unit[f"stream {name}: a sample"] for name in ("actor", "training_data"))
        return cls(
            scheduler=unit["actor: a rollout, scheduler"] / 1e6,
            worker=unit["actor: a rollout, worker"] / 1e6,
            token=1 / trl["ours: sampled"],
            http=engine[f"  {always}: APIServer x 4, CPU per token"] / 1e6,
            # The server moves bytes: of records as large as these the rest of its work does not show.
            redis=unit["redis: a record of 8 samples, server"] / GROUP / 1e6 * (small + packed) / small,
            bytes=small + packed,
            preprocess=unit["preprocess: a sample"] / 1e6,
            sample=1 / trl["ours: trainer alone"],
            call=unit["update: calls to 40 engines, CPU of the trainer for each"] / 1e6,
            update=engine["  ahead, 2 packets of 256 MiB: total"] / 1e3,
            pause=engine["paused: ahead, 2 packets of 256 MiB, 256 in flight"] / 1e3,
        )


def figures(name: str) -> dict[str, float]:
    """Values of a result's figures by name."""
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["figures"]
    return {key: float(row["value"]) for key, row in found.items()}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How many there are of each part, and samples of an optimizer step."""

    engines: int
    trainers: int
    step: int
    actors: int = 1
    workers: int = 1
    redis: int = 1
    preprocess: int = 1

    @property
    def gpus(self) -> int:
        return self.engines + self.trainers


@dataclass(eq=False)
class Station:
    """Servers behind one queue; each takes a group for `seconds`."""

    name: str
    servers: int
    seconds: float
    waiting: "deque[int]" = field(default_factory=deque)
    busy: int = 0
    busy_s: float = 0.0
    owed: float = 0.0
    """Pauses that the next groups have to sit out, all servers together."""


class Network:
    """The pipeline as stations through which groups pass; `run` plays it."""

    def __init__(self, costs: Costs, shape: Shape) -> None:
        self._shape, self._pause = shape, costs.pause
        self._step = shape.step // GROUP
        self._step_s = self._step * GROUP * costs.sample / shape.trainers
        self._step_s += costs.update + costs.call * shape.engines
        each = {
            "actor": (shape.actors, costs.scheduler),
            "workers": (shape.workers, costs.worker),
            "engines": (shape.engines, ANSWER * costs.token),
            "redis": (shape.redis, costs.redis),  # of both streams at once: it is one server
            "preprocess": (shape.preprocess, costs.preprocess),
        }
        self._way = [Station(name, count, GROUP * seconds) for name, (count, seconds) in each.items()]
        self._ready, self._training = 0, False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._now, self._count = 0.0, 0
        self._open, self._playing = 0, 0
        self._ends: list[float] = []

    def run(self, seconds: float) -> dict[str, float]:
        """Samples trained per second, and how busy each part is (1: always), over the second half."""
        self._admit()
        self._until(seconds / 2)
        before, first = [station.busy_s for station in self._way], max(0, len(self._ends) - 1)
        self._until(seconds)
        found = {
            station.name: (station.busy_s - was) / station.servers / (seconds / 2)
            for station, was in zip(self._way, before, strict=True)
        }
        steps, ends = len(self._ends) - 1 - first, self._ends[first:]
        each_s = (ends[-1] - ends[0]) / steps  # from one end of a step to another: steps are long
        return found | {"trainer": self._step_s / each_s, "samples": GROUP * self._step / each_s}

    def _admit(self) -> None:
        """Start groups while engines have room and the trainer is not too far behind."""
        room = self._shape.engines * IN_FLIGHT // GROUP
        while self._playing < room and self._open < room + STEPS_AHEAD * self._step:
            self._open += 1
            self._playing += 1
            self._arrive(0)

    def _arrive(self, place: int) -> None:
        if place == len(self._way):
            self._ready += 1
            self._train()
            return
        station = self._way[place]
        station.waiting.append(place)
        self._serve(station)

    def _serve(self, station: Station) -> None:
        while station.waiting and station.busy < station.servers:
            place = station.waiting.popleft()
            station.busy += 1
            taken = station.seconds + station.owed / station.servers
            station.owed -= station.owed / station.servers
            self._at(taken, partial(self._served, station, place, taken))

    def _served(self, station: Station, place: int, taken: float) -> None:
        station.busy -= 1
        station.busy_s += taken
        self._serve(station)
        if station.name == "engines":
            self._playing -= 1
            self._admit()
        self._arrive(place + 1)

    def _train(self) -> None:
        if self._training or self._ready < self._step:
            return
        self._ready -= self._step
        self._training = True
        self._at(self._step_s, self._stepped)

    def _stepped(self) -> None:
        self._training = False
        self._ends.append(self._now)
        self._open -= self._step
        engines = next(station for station in self._way if station.name == "engines")
        engines.owed += self._pause * engines.servers
        self._train()
        self._admit()

    def _at(self, seconds: float, then: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self._now + seconds, self._count, then))

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self._now, _, then = heapq.heappop(self._events)
            then()
        self._now = end


def limits(costs: Costs, shape: Shape) -> dict[str, float]:
    """Samples per second that each part alone would allow: its servers over what a sample asks of one."""
    step_s = shape.step * costs.sample / shape.trainers + costs.update + costs.call * shape.engines
    return {
        "actor": shape.actors / costs.scheduler,
        "workers": shape.workers / costs.worker,
        "engines": shape.engines / (ANSWER * costs.token),
        "redis": shape.redis / costs.redis,
        "preprocess": shape.preprocess / costs.preprocess,
        "trainer": shape.step / step_s,
    }


def shape_of(gpus: int, costs: Costs) -> Shape:
    """GPUs divided so that engines and trainer keep up with each other, and workers enough for them.

    A step has 256 samples for each GPU of the trainer, as in the measured run.
    """
    engine, trainer = 1 / (ANSWER * costs.token), 1 / costs.sample
    engines = min(gpus - 1, max(1, round(gpus * trainer / (engine + trainer))))
    trainers = gpus - engines
    workers = math.ceil(min(engines * engine, trainers * trainer) * costs.worker / BUSY)
    return Shape(engines=engines, trainers=trainers, step=256 * trainers, workers=workers)


def widened(shape: Shape, costs: Costs) -> Shape:
    """As many of each single part as the GPUs ask for: what several actors and preprocesses would give."""
    found = limits(costs, shape)
    wanted = min(found["engines"], found["trainer"])
    parts = ("actor", "redis", "preprocess")
    counts = {name: math.ceil(wanted / found[name] / BUSY) for name in parts}
    return replace(shape, actors=counts["actor"], redis=counts["redis"], preprocess=counts["preprocess"])


def row(costs: Costs, shape: Shape, seconds: float) -> dict[str, Any]:
    """One simulated run beside what each part alone would allow."""
    alone = limits(costs, shape)
    found = Network(costs, shape).run(seconds)
    samples = found.pop("samples")
    of_gpus = min(alone["engines"], alone["trainer"])
    first = min(alone, key=lambda name: alone[name])
    return {
        "shape": asdict(shape) | {"gpus": shape.gpus},
        "samples": samples,
        "of the GPUs": of_gpus,
        "share": samples / of_gpus,
        "alone": alone,
        "busy": found,
        "first": first,
        "HTTP cores": samples * ANSWER * costs.http,
        "stream MB/s": samples * costs.bytes / 1e6,
        "calls of an update": costs.call * shape.engines,
        "transfers": [transfers(shape, parameters) for parameters in (1.7e9, 32e9)],
    }


def transfers(shape: Shape, parameters: float) -> dict[str, float]:
    """Seconds of one update by each way that weights may go to all engines, and of a checkpoint."""
    size = SENT * parameters
    hosts = math.ceil(shape.engines / PER_HOST)
    return {
        "parameters": parameters,
        "one after the other": hosts * size / NETWORK,
        "relayed": size / NETWORK,
        "shared file, read by each engine": shape.engines * size / DISK,
        "shared file, read once by a host": hosts * size / DISK,
        "checkpoint by one rank": SAVED * parameters / DISK,
    }


def simulated(gpus: Sequence[int], seconds: float) -> dict[str, Any]:
    """The measured run, then each size as it is and with more of what limits."""
    costs = Costs.measured()
    measured = figures("gpu_trl")["ours: samples trained"]
    pair = Shape(engines=1, trainers=1, step=256)
    check = row(costs, pair, 10 * seconds)
    rows = {str(count): row(costs, shape_of(count, costs), seconds) for count in gpus}
    wide = {str(count): row(costs, widened(shape_of(count, costs), costs), seconds) for count in gpus}
    return {
        "settings": {"gpus": list(gpus), "seconds": seconds, "group": GROUP, "answer": ANSWER},
        "costs": asdict(costs),
        "check": check | {"measured": measured, "error": check["samples"] / measured - 1},
        "rows": rows,
        "widened": wide,
    }


def draw(found: Mapping[str, Any], figure: Any) -> None:
    """What each part alone would allow, over the number of GPUs, and what the simulation gives."""
    gpus = found["settings"]["gpus"]
    figure.set_size_inches(WIDTH, 4.6)
    axes = figure.subplots()
    for index, name in enumerate(name for name in PARTS if name != "workers"):  # as many as are needed
        marks = {"engines": "-", "trainer": "-"}.get(name, "--")
        rates = [found["rows"][str(n)]["alone"][name] for n in gpus]
        axes.plot(gpus, rates, marks, color=colour(index), label=name)
    for key, mark, label in (
        ("rows", "o", "simulated, one actor and one preprocess"),
        ("widened", "^", "simulated, several"),
    ):
        rates, look = [found[key][str(n)]["samples"] for n in gpus], {"ms": 7, "mfc": "none"}
        axes.plot(gpus, rates, mark, color=colour(-1), label=label, **look)
    axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="samples per second")
    axes.set_xticks(gpus, [str(count) for count in gpus])
    axes.minorticks_off()
    legend(axes, below=True)


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The table for the terminal."""
    check = found["check"]
    yield f"2 GPUs: {check['samples']:.1f} samples/s simulated, {check['measured']:.1f} measured"
    for key in ("rows", "widened"):
        for one in found[key].values():
            busy = ", ".join(f"{name} {share:.0%}" for name, share in one["busy"].items())
            rate = f"{one['samples']:,.0f} of {one['of the GPUs']:,.0f}/s"
            yield f"{one['shape']['gpus']} GPUs: {rate} ({busy})"


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    found = simulated(options.gpus, options.seconds)
    print(*lines(found), sep="\n")
    write_json(options.out or RESULTS / "capacity.json", found)
    save(options.figure or RESULTS / "capacity.png", partial(draw, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
