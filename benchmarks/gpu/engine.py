"""Stock vLLM as the pipeline uses it: generation through the actor's client, weights in flight over NCCL.

    python -m benchmarks.gpu.engine [--size 1.7B] [--rows parity update throughput failure] [--gpus 0 1]
                                    [--variants 4] [--in-flight 256 512] [--api-servers 0 ...]
                                    [--backends nccl_ahead ...] [--clients 2] [--cpu] [--port 8300]
                                    [--folder /tmp/pipelinerl-bench] [--out FILE]

Random weights of a Qwen3 architecture. The engine has one GPU and the trainer's side another; with
`--gpus 0 0` they share one, which NCCL has to be told (`NCCL_MULTI_RANK_GPU_ENABLE=1`, from 2.30; otherwise
`--backends file_ahead`). `--cpu` rehearses the same on a CPU build of vLLM with a tiny model, weights through
files.

- `update`: updates while requests are in flight, received ahead or not and by the size of the packets;
  seconds of each step, what lies between them, and the share of the time in which nothing was generated.
  `--variants` measures the first ways only.
- `parity`: log-probabilities of the engine after an update against transformers' forward, tied weights; of
  both against float32.
- `throughput`: waves of N requests of 512 + 512 tokens with log-probabilities, against the same wave of the
  offline engine with the same flags, on the trainer's card while the server rests; beside it the rate with N
  requests always in flight, and the CPU time of every process. `--api-servers 4 1` does it with each of these
  numbers of HTTP front-ends (0: as a run has), for all but the first with the smallest N only; `--backends`
  are their weight transfers. All servers start together; the other rows take the first.
- `failure`: the engine is stopped with SIGSTOP in the middle of a broadcast; the publisher has to name it at
  its deadline and to free its sender.

The KV cache of every engine is what its requests need, so several fit on a card.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks._figures import RESULTS, Figure, at_most, command_line, report, write_json
from benchmarks._processes import Server, stop
from benchmarks.gpu import throughput
from benchmarks.gpu.cards import OUTPUT, PROMPT, UPDATING, check_cards, counts_of, engine_kwargs
from benchmarks.gpu.runs import Terminated, leave_in_order, write_partial
from benchmarks.gpu.served import (
    PYTHON,
    Offline,
    engine_argv,
    model_config,
    model_folder,
    named_vllm,
    vllm_server,
)
from benchmarks.gpu.updates import TrainerSide, random_model, update_figures
from pipelinerl.inference.vllm import api_servers, installed_version

ROWS = ("parity", "update", "throughput", "failure")


@dataclass(frozen=True)
class Asked:
    """A server that is to be measured."""

    api_servers: int
    backend: str
    """Of its weight transfer."""

    def __str__(self) -> str:
        return f"API servers {self.api_servers}, {self.backend}"


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    options = command_line(__doc__, argv, rows=ROWS)
    options.out = options.out or RESULTS / "gpu_engine.json"
    options.gpus = [str(gpu) for gpu in options.gpus]
    if options.cpu:
        options.size, options.gpus = "tiny", ["", ""]
        options.backends = [one.replace("nccl", "file") for one in options.backends]
    return options


def asked(options: argparse.Namespace) -> list[Asked]:
    """The servers, in the order of the command line; a back-end that is not given is the last that is."""

    def of_a_run() -> int:
        return 1 if options.cpu else api_servers(len(os.sched_getaffinity(0)), 1, len(set(options.gpus)))

    counts = [count or of_a_run() for count in options.api_servers]
    backends = options.backends + options.backends[-1:] * (len(counts) - len(options.backends))
    return list(dict.fromkeys(Asked(*pair) for pair in zip(counts, backends)))


class Rows:
    """What was found, by row; kept beside the table as it comes, since this may be ended at any time."""

    def __init__(self, out: Path) -> None:
        self.found: dict[str, Any] = {}
        self._out = out

    def failed(self, name: str, problem: str) -> None:
        print(f"{name} FAILED: {problem}", flush=True)
        self.found.setdefault("errors", {})[name] = problem

    def keep(self, name: str, rows: Any) -> None:
        self.found[name] = rows
        write_partial(self._out, self.found)

    def take(self, name: str, work: Callable[[], Any], into: dict[str, Any] | None = None) -> None:
        """What `work` gives, or why it failed, which costs no other row."""
        try:
            (self.found if into is None else into)[name] = work()
        except Exception as error:
            self.failed(name, f"{type(error).__name__}: {error}")
        write_partial(self._out, self.found)


def figures(found: dict[str, Any], main: Asked) -> Iterator[Figure]:
    """The rows of the table, with goals where there are some; `main` is the server of the goals."""
    yield from update_figures(found.get("update", []))
    for name, value in found.get("parity", {}).items():
        yield Figure(f"|delta| of {name}", value, "nats")
    yield from throughput.throughput_figures(found.get("served", {}), found.get("offline", []), str(main))
    if "failure" in found:
        yield at_most("stopped engine named after", found["failure"]["seconds"], "s", 30.0)


def measure(
    options: argparse.Namespace, servers: list[Asked], folder: Path, device: torch.device, rows: Rows
) -> None:
    """All rows; servers and offline engine start together."""
    config, log = model_config(options.size), options.out.with_suffix(".log")
    with ExitStack() as stack:
        offline = None
        if "throughput" in options.rows:
            shared = engine_kwargs(options, config, max(options.in_flight))
            load = {"vocab": config["vocab_size"], "prompt": PROMPT, "output": OUTPUT}
            load["warm"] = min(options.in_flight)
            offline = Offline(folder, options.gpus[1], shared, load, log.with_stem(f"{log.stem}_offline"))
            stack.callback(offline.close)
        running: dict[Asked, Server] = {}
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(lambda: stop(*processes))
        for number, one in enumerate(servers):
            port = options.port + 10 * number
            kwargs = engine_kwargs(options, config, counts_of(options, first=number == 0)[-1])
            argv = engine_argv(folder, port, one.backend, kwargs, one.api_servers)
            print(" ".join(argv), flush=True)
            one_log = log.with_stem(f"{log.stem}_server{number}")
            running[one] = vllm_server(argv, options.gpus[0], port, one_log)
            processes.append(running[one].process)
        for one in servers:
            try:
                running[one].wait_ready()
            except SystemExit as error:
                rows.failed(f"start, {one}", str(error))
                del running[one]
        if offline is not None:
            with suppress(RuntimeError):  # said when it is measured; until then it uses the same cores
                offline.wait_ready()
            measure_throughput(options, running, servers[0], offline, rows)
            offline.close()  # its card is the trainer's from here on
        if servers[0] in running and UPDATING & set(options.rows):
            side = TrainerSide(running[servers[0]], servers[0].backend, random_model(folder, device))
            streams, keep = max(options.in_flight), partial(rows.keep, "update")
            if "parity" in options.rows:
                rows.take("parity", side.parity)
            if "update" in options.rows:
                rows.take("update", lambda: side.updates(options.variants, streams, keep))
            if "failure" in options.rows:
                rows.take("failure", side.failure)


def measure_throughput(
    options: argparse.Namespace, running: dict[Asked, Server], main: Asked, offline: Offline, rows: Rows
) -> None:
    """Of the main server first, then of the offline engine, then of the others."""
    lengths = (model_config(options.size)["vocab_size"], PROMPT, OUTPUT)
    served = rows.found["served"] = {}

    def serve(one: Asked) -> None:
        counts = counts_of(options, first=one == main)
        rows.take(str(one), lambda: throughput.served(running[one], lengths, counts, options.clients), served)

    if main in running:
        serve(main)
    rows.take("offline", lambda: throughput.offline(offline, sorted(options.in_flight)))
    for one in running:
        if one != main:
            serve(one)


def main() -> int:
    options = parsed()
    servers = asked(options)
    # The trainer's side uses the second GPU alone, as the launcher would give it.
    os.environ["CUDA_VISIBLE_DEVICES"] = options.gpus[1]
    device = torch.device("cpu") if options.cpu else torch.device("cuda", 0)
    folder = model_folder(options.size, options.folder / options.size)
    if options.cpu:
        site = Path(tempfile.mkdtemp(prefix="site-"))
        named_vllm(site, str(installed_version(PYTHON)))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    else:
        memory = torch.cuda.get_device_properties(device).total_memory
        check_cards(options, [one.backend for one in servers], model_config(options.size), memory)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = Rows(options.out)
    leave_in_order()
    try:
        measure(options, servers, folder, device, rows)
    except Terminated:
        rows.failed("all rows", "ended before their end by SIGTERM")
    settings = {
        "card": "none" if options.cpu else torch.cuda.get_device_name(device),
        "cards": 0 if options.cpu else len(set(options.gpus)),
        "vllm": installed_version(PYTHON),
        "model": options.size,
        "api servers": servers[0].api_servers,
        "back-end": servers[0].backend,
        "client processes": options.clients,
        "torch": torch.__version__,
    }
    if settings["cards"] == 1 and servers[0].backend.startswith("nccl"):
        settings["nccl"] = "several ranks on one card"
    missed = report("gpu_engine", figures(rows.found, servers[0]), settings, options.out)
    write_json(options.out, json.loads(options.out.read_text()) | {"rows": rows.found})
    options.out.with_suffix(".partial").unlink(missing_ok=True)
    return 1 if "errors" in rows.found else min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
