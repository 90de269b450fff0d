"""Stock vLLM as the pipeline uses it: generation through the actor's client, weights in flight over NCCL.

    python -m benchmarks.gpu.engine [--size 1.7B] [--rows parity update throughput once failure] [--gpus 0 1]
                                    [--variants 4] [--in-flight 256 512] [--api-servers 0]
                                    [--backend nccl_ahead] [--clients 2] [--quick-slots] [--cpu] [--port 8300]
                                    [--kv auto|fp8|fp8_e5m2]
                                    [--folder /tmp/pipelinerl-bench] [--out FILE]

Random weights of a Qwen3 architecture. The engine has one GPU and the trainer's side another; with
`--gpus 0 0` they share one, which NCCL has to be told (`NCCL_MULTI_RANK_GPU_ENABLE=1`, from 2.30; otherwise
`--backend file_ahead`). `--cpu` rehearses the same on a CPU build of vLLM with a tiny model, weights through
files.

- `update`: updates while requests are in flight, received ahead or not and by the size of the packets;
  seconds of each step, what lies between them, and the share of the time in which nothing was generated.
  `--variants` measures the first ways only.
- `parity`: log-probabilities of the engine after an update against transformers' forward, tied weights; of
  both against float32; and the ratio r of transformers to engine of tokens that the engine samples then: mean
  |log r|, quantiles of r, and the effective sample size. `--kv fp8` keeps keys and values in 8 bits, in all
  servers; run with and without it to compare.
- `throughput`: waves of N requests of 512 + 512 tokens with log-probabilities, against the same wave of the
  offline engine with the same flags, on the trainer's card while the server rests; beside it the rate with N
  requests always in flight, and the CPU time of every process. `--api-servers` are its HTTP front-ends (0: as
  many as a run has). Rates are also said as a share of the card's limit: what reading the weights once a step
  and the keys and values of these lengths allows at the bandwidth of a copy, measured before anything starts.
- `once`: the server's waves of `throughput` again on another server, with `vllm_config.outputs_once` and,
  given `--quick-slots`, `quick_slots`, on the trainer's card. `--rows throughput once` has both servers.
- `failure`: the engine is stopped with SIGSTOP in the middle of a broadcast; the publisher has to name it at
  its deadline and to free its sender.

The KV caches are what the requests need, so that server and offline engine fit on one card.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks._figures import Figure, at_most, command_line, report, write_json
from benchmarks._processes import started
from benchmarks.gpu import throughput
from benchmarks.gpu.cards import (
    OUTPUT,
    PROMPT,
    UPDATING,
    card_limits,
    check_cards,
    engine_kwargs,
    kept_at,
    need_cuda,
)
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
from pipelinerl.engines.vllm import outputs_once, quick_slots
from pipelinerl.engines.vllm.installed import installed_version
from pipelinerl.engines.vllm.options import api_servers

ROWS = ("parity", "update", "throughput", "once", "failure")


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    options = command_line(__doc__, argv, rows=ROWS)
    options.out = kept_at("gpu_engine", options.out, options.cpu)
    options.gpus = [str(gpu) for gpu in options.gpus]
    if options.cpu:
        options.size, options.gpus = "tiny", ["", ""]
        options.backend = options.backend.replace("nccl", "file")
        options.api_servers = options.api_servers or 1
    options.api_servers = options.api_servers or api_servers(
        len(os.sched_getaffinity(0)), 1, len(set(options.gpus))
    )
    return options


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

    def take(self, name: str, work: Callable[[], Any]) -> None:
        """What `work` gives, or why it failed, which costs no other row."""
        try:
            self.found[name] = work()
        except Exception as error:
            self.failed(name, f"{type(error).__name__}: {error}")
        write_partial(self._out, self.found)


def figures(found: dict[str, Any]) -> Iterator[Figure]:
    """The rows of the table, with goals where there are some."""
    yield from update_figures(found.get("update", []))
    for name, value in found.get("parity", {}).items():
        yield Figure(f"|delta| of {name}", value, "nats")
    for name, (value, unit) in found.get("ratio", {}).items():
        yield Figure(f"sampled tokens: {name}", value, unit)
    yield from throughput.throughput_figures(found.get("served"), found.get("offline", []))
    yield from throughput.once_figures(found.get("once"), found.get("served"))
    servers = {"client": found.get("served"), "outputs once": found.get("once")}
    yield from throughput.limit_figures(found.get("limits"), servers)
    if "failure" in found:
        yield at_most("stopped engine named after", found["failure"]["seconds"], "s", 30.0)


def measure(options: argparse.Namespace, folder: Path, device: torch.device, rows: Rows) -> None:
    """All rows; server and offline engine start together."""
    config, log = model_config(options.size), options.out.with_suffix(".log")
    kwargs = engine_kwargs(options, config)
    argv = engine_argv(folder, options.port, options.backend, kwargs, options.api_servers)
    print(" ".join(argv), flush=True)
    with ExitStack() as stack:
        server = vllm_server(argv, options.gpus[0], options.port, log.with_stem(f"{log.stem}_server"))
        stack.enter_context(started(server))
        if "throughput" in options.rows:
            load = {"vocab": config.vocab_size, "prompt": PROMPT, "output": OUTPUT}
            load["warm"] = min(options.in_flight)
            offline = Offline(folder, options.gpus[1], kwargs, load, log.with_stem(f"{log.stem}_offline"))
            stack.callback(offline.close)
        try:
            server.wait_ready()
        except SystemExit as error:
            rows.failed("start", str(error))
            return
        counts, streams = sorted(options.in_flight), max(options.in_flight)
        lengths = (config.vocab_size, PROMPT, OUTPUT)
        if "throughput" in options.rows:
            with suppress(RuntimeError):  # said when it is measured; until then it uses the same cores
                offline.wait_ready()
            rows.take("served", lambda: throughput.served(server, lengths, counts, options.clients))
            rows.take("offline", lambda: throughput.offline(offline, counts))
            offline.close()  # its card is the trainer's from here on
        if "once" in options.rows:
            port, gpu = options.port + 1, options.gpus[1]
            argv = engine_argv(folder, port, options.backend, kwargs, options.api_servers)
            keys = (outputs_once.SWITCH, *[quick_slots.SWITCH] * options.quick_slots)
            server_once = vllm_server(argv, gpu, port, log.with_stem(f"{log.stem}_once"), *keys)
            rows.take("once", lambda: throughput.once(server_once, lengths, counts, options.clients))
        if UPDATING & set(options.rows):
            side = TrainerSide(server, options.backend, random_model(folder, device))
            keep = partial(rows.keep, "update")
            works: dict[str, Callable[[], Any]] = {
                "parity": lambda: side.parity(partial(rows.keep, "ratio")),
                "update": lambda: side.updates(options.variants, streams, keep),
                "failure": side.failure,
            }
            for name in [one for one in works if one in options.rows]:
                rows.take(name, works[name])


def main() -> int:
    options = parsed()
    if not options.cpu:
        need_cuda("benchmarks.gpu.engine", "--cpu")
    # The trainer's side uses the second GPU alone, as the launcher would give it.
    os.environ["CUDA_VISIBLE_DEVICES"] = options.gpus[1]
    device, limits = torch.device("cpu") if options.cpu else torch.device("cuda", 0), None
    folder = model_folder(options.size, options.folder / options.size)
    if options.cpu:
        site = Path(tempfile.mkdtemp(prefix="site-"))
        named_vllm(site, str(installed_version(PYTHON)))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    else:
        about, config = torch.cuda.get_device_properties(device), model_config(options.size)
        check_cards(options, config, about.total_memory)
        if {"throughput", "once"} & set(options.rows):  # before a server is on this card
            limits = card_limits(config, engine_kwargs(options, config), options.in_flight, about.name)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = Rows(options.out)
    if limits is not None:
        rows.keep("limits", limits)
    leave_in_order()
    try:
        measure(options, folder, device, rows)
    except Terminated:
        rows.failed("all rows", "ended before their end by SIGTERM")
    settings = {
        "card": "none" if options.cpu else torch.cuda.get_device_name(device),
        "cards": 0 if options.cpu else len(set(options.gpus)),
        "vllm": installed_version(PYTHON),
        "model": options.size,
        "api servers": options.api_servers,
        "back-end": options.backend,
        "client processes": options.clients,
        "keys and values": options.kv,
        "torch": torch.__version__,
    }
    if "once" in options.rows:
        also = ["vllm_config.quick_slots"] * options.quick_slots
        settings["keys"] = ["vllm_config.outputs_once", *also]
    if settings["cards"] == 1 and options.backend.startswith("nccl"):
        settings["nccl"] = "several ranks on one card"
    missed = report("gpu_engine", figures(rows.found), settings, options.out)
    write_json(options.out, json.loads(options.out.read_text()) | {"rows": rows.found})
    options.out.with_suffix(".partial").unlink(missing_ok=True)
    return 1 if "errors" in rows.found else min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
