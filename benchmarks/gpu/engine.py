"""Stock vLLM as the pipeline uses it: generation through the actor's client, weights in flight over NCCL.

    python -m benchmarks.gpu.engine [--size 1.7B] [--rows update parity throughput failure]
                                    [--api-servers 4 1] [--out FILE]

Random weights of a Qwen3 architecture. The engine has one GPU and the trainer's side another; with
`--gpus 0 0` they share one, which NCCL has to be told (`NCCL_MULTI_RANK_GPU_ENABLE=1`, from 2.30; otherwise
`--backends file_ahead`). `--cpu` rehearses the same on a CPU build of vLLM with a tiny model, weights through
files.

- `update`: updates while requests are in flight, by size and number of the packets and by what happens to the
  KV cache; seconds of each step, what lies between them, and the share of the time in which nothing was
  generated. `--variants N` measures the first N ways only.
- `parity`: log-probabilities of the engine after an update against transformers' forward, tied weights; of
  both against float32.
- `throughput`: waves of N requests of 512 + 512 tokens with log-probabilities, against the same wave of the
  offline engine with the same flags, on the trainer's card while the server rests; beside it the rate with N
  requests always in flight, and the CPU time of every process. `--api-servers 4 1` does it with each of these
  numbers of HTTP front-ends, for all but the first with the smallest N only. All servers start together; the
  other rows take the first.
- `failure`: the engine is stopped with SIGSTOP in the middle of a broadcast; the publisher has to name it at
  its deadline and to free its sender.

The KV cache of every engine is what its requests need, so several fit on a card.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks._figures import RESULTS, Figure, at_most, report
from benchmarks.gpu.cards import UPDATING, check_cards, counts_of, engine_kwargs
from benchmarks.gpu.cpu_build import named_vllm
from benchmarks.gpu.offline import Offline
from benchmarks.gpu.runs import Terminated, leave_in_order, write_partial
from benchmarks.gpu.served import PYTHON, Server, engine_argv, model_config, model_folder, started
from benchmarks.gpu.throughput import offline as measure_offline
from benchmarks.gpu.throughput import served, throughput_figures
from benchmarks.gpu.updates import (
    OUTPUT,
    PROMPT,
    VARIANTS,
    Variant,
    publisher_for,
    update_figures,
    updates,
)
from pipelinerl.inference.vllm import api_servers, installed_version
from pipelinerl.modeling.model import distinct_parameters
from pipelinerl.weights.send.engine_update import PublishDeadlines
from pipelinerl.weights.send.parity import probe_ids
from pipelinerl.weights.send.version_update import WeightUpdateError

ROWS = ("parity", "update", "throughput", "failure")
PORT = 8300


def random_model(folder: Path, device: torch.device) -> PreTrainedModel:
    """Random, on the trainer's device: bfloat16 on a GPU."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
    return model.eval()


@torch.no_grad()
def scores_of(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """float32 [N, P - 1]: log-probabilities of the forward of this side."""
    rows = torch.as_tensor(ids, dtype=torch.int64, device=model.device)
    hidden = model.get_decoder()(input_ids=rows, use_cache=False).last_hidden_state[:, :-1]
    logits = hidden.float() @ model.get_output_embeddings().weight.float().T
    return logits.log_softmax(-1).gather(-1, rows[:, 1:, None])[..., 0].cpu().numpy()


def parity(url: str, backend: str, model: PreTrainedModel, vocab: int) -> dict[str, float]:
    """Mean and largest differences after two updates, each side also against float32 of the same weights.

    A random model of 28 layers amplifies rounding: what bfloat16 alone does is the distance of the trainer's
    own forward from float32.
    """
    publisher, dtype = publisher_for(url, backend, model, Variant("parity")), model.dtype
    try:
        for version in (1, 2):  # the second may be put into place in another way than the first
            with torch.no_grad():
                for _, parameter in distinct_parameters(model):
                    parameter.mul_(1.01)
            publisher.publish(version, distinct_parameters(model))
        ids = probe_ids(vocab)
        engine = np.stack([publisher.prompt_logprobs(row)[url] for row in ids])
        trainer = scores_of(model, ids)
        exact = scores_of(model.float(), ids)
        model.to(dtype)
    finally:
        publisher.close()
    found: dict[str, float] = {}
    for name, one, other in (
        ("engine and trainer", engine, trainer),
        ("engine and float32", engine, exact),
        ("trainer and float32", trainer, exact),
    ):
        difference = np.abs(one.astype(np.float64) - other)
        found |= {f"{name}, mean": float(difference.mean()), f"{name}, max": float(difference.max())}
    print(f"parity: {found}", flush=True)
    return found


def failure(url: str, group: int, backend: str, model: PreTrainedModel) -> dict[str, Any]:
    """Stop the engine's processes while it should receive; the error has to come at the deadline."""
    deadlines = PublishDeadlines(update_s=4.0, start_s=10.0, pause_s=10.0, health_s=10.0)
    publisher = publisher_for(url, backend, model, Variant("failure", megabytes=16), deadlines)
    publisher.publish(9000, distinct_parameters(model))
    transport: Any = publisher._transport
    send = transport.send

    def stop_then_send(*arguments: Any) -> None:
        os.killpg(group, signal.SIGSTOP)
        send(*arguments)

    transport.send = stop_then_send
    started = time.perf_counter()
    said = "no error was raised"
    try:
        publisher.publish(9001, distinct_parameters(model))
    except WeightUpdateError as error:
        said = str(error)
    seconds = time.perf_counter() - started
    threads = [one.name for one in threading.enumerate() if "send" in one.name]
    publisher.close()
    row = {"seconds": seconds, "said": said, "threads_left": threads}
    print(json.dumps(row), flush=True)
    return row


@dataclass(frozen=True)
class Asked:
    """A server that is to be measured."""

    api_servers: int
    backend: str
    """Of its weight transfer."""

    def __str__(self) -> str:
        return f"API servers {self.api_servers}, {self.backend}"


def figures(found: dict[str, Any], main: Asked) -> Iterator[Figure]:
    """The rows of the table, with goals where there are some; `main` is the server of the goals."""
    yield from update_figures(found.get("update", []))
    for name, value in found.get("parity", {}).items():
        yield Figure(f"|delta| of {name}", value, "nats")
    yield from throughput_figures(found.get("served", {}), found.get("offline", []), str(main))
    if "failure" in found:
        yield at_most("stopped engine named after", found["failure"]["seconds"], "s", 30.0)


def default_api_servers(options: argparse.Namespace) -> int:
    """The number that a run on these cards has unless it is told another one."""
    return 1 if options.cpu else api_servers(len(os.sched_getaffinity(0)), 1, len(set(options.gpus)))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="1.7B")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--gpus", nargs=2, default=["0", "1"], help="of the engine and of the trainer's side")
    parser.add_argument("--variants", type=int, default=len(VARIANTS), help="ways of updating")
    parser.add_argument("--in-flight", nargs="+", type=int, default=[256, 512])
    parser.add_argument(
        "--api-servers", nargs="+", type=int, default=[0], help="front-ends of each server; 0: as a run has"
    )
    parser.add_argument("--backends", nargs="+", default=["nccl_ahead"], help="weight transfer of each")
    parser.add_argument("--clients", type=int, default=2, help="processes that send the requests of a wave")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/pipelinerl-bench"))
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--cpu", action="store_true", help="rehearse on a CPU build of vLLM")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_engine.json")
    options = parser.parse_args()
    if options.cpu:
        options.size, options.gpus = "tiny", ["", ""]
        options.backends = [one.replace("nccl", "file") for one in options.backends]
    return options


def asked(options: argparse.Namespace) -> list[Asked]:
    """The servers, in the order of the command line; a back-end that is not given is the last that is."""
    counts = [count or default_api_servers(options) for count in options.api_servers]
    backends = options.backends + options.backends[-1:] * (len(counts) - len(options.backends))
    return list(dict.fromkeys(Asked(*pair) for pair in zip(counts, backends)))


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
    found: dict[str, Any] = {}
    leave_in_order()
    try:
        _measure(options, servers, folder, device, found)
    except Terminated:
        print("ended before its end; what there is follows", flush=True)
        found.setdefault("errors", {})["all rows"] = "ended before their end by SIGTERM"
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
    missed = report("gpu_engine", list(figures(found, servers[0])), settings, options.out)
    record = json.loads(options.out.read_text())
    options.out.write_text(json.dumps(record | {"rows": found}, indent=1) + "\n")
    options.out.with_suffix(".partial").unlink(missing_ok=True)
    return 1 if "errors" in found else min(missed, 1)


def _measure(
    options: argparse.Namespace,
    servers: list[Asked],
    folder: Path,
    device: torch.device,
    found: dict[str, Any],
) -> None:
    """All rows, into `found`; servers and offline engine start together."""
    config = model_config(options.size)
    lengths = (int(config["vocab_size"]), PROMPT, OUTPUT)
    log = options.out.with_suffix(".log")
    offline = None
    if "throughput" in options.rows:
        shared = engine_kwargs(options, config, max(options.in_flight))
        load = {**dict(zip(("vocab", "prompt", "output"), lengths)), "warm": min(options.in_flight)}
        offline = Offline(folder, options.gpus[1], shared, load, log.with_stem(f"{log.stem}_offline"))
    running: dict[Asked, Server] = {}
    try:
        for number, one in enumerate(servers):
            port = options.port + 10 * number
            kwargs = engine_kwargs(options, config, counts_of(options, first=number == 0)[-1])
            argv = engine_argv(folder, port, one.backend, kwargs, one.api_servers)
            print(" ".join(argv), flush=True)
            running[one] = Server(argv, options.gpus[0], port, log.with_stem(f"{log.stem}_server{number}"))
        with started(list(running.values())):
            ready = _ready(running, found)
            if offline is not None:
                with suppress(RuntimeError):  # said when it is measured; until then it uses the same cores
                    offline.wait_ready()
                _throughput(options, ready, servers[0], lengths, offline, found)
                offline.close()  # its card is the trainer's from here on
            if servers[0] in ready and UPDATING & set(options.rows):
                model = random_model(folder, device)
                _updates(options, ready[servers[0]], servers[0].backend, model, lengths[0], found)
    finally:
        if offline is not None:
            offline.close()


def _ready(running: dict[Asked, Server], found: dict[str, Any]) -> dict[Asked, Server]:
    """Those that have started; of the others it is said why not."""
    ready = {}
    for one, server in running.items():
        try:
            server.wait_ready()
            ready[one] = server
        except SystemExit as error:
            found.setdefault("errors", {})[f"start, {one}"] = str(error)
            print(f"{one}: {error}", flush=True)
    return ready


def _throughput(
    options: argparse.Namespace,
    ready: dict[Asked, Server],
    main: Asked,
    lengths: tuple[int, int, int],
    offline: Offline,
    found: dict[str, Any],
) -> None:
    """Of the main server first, then of the offline engine, then of the others."""
    rows: dict[str, Any] = {}
    found["served"] = rows

    def serve(one: Asked, first: bool) -> None:
        server, counts = ready[one], counts_of(options, first)
        print(f"{one}:", flush=True)
        work = partial(served, server.url, server.group, lengths, counts, options.clients)
        _guarded(rows, str(one), work, options.out, found)

    if main in ready:
        serve(main, first=True)
    _guarded(found, "offline", lambda: measure_offline(offline, sorted(options.in_flight)), options.out)
    for one in ready:
        if one != main:
            serve(one, first=False)


def _updates(
    options: argparse.Namespace,
    server: Server,
    backend: str,
    model: PreTrainedModel,
    vocab: int,
    found: dict[str, Any],
) -> None:
    """Each row by itself: what fails is said and does not cost the others."""
    url = server.url
    if "parity" in options.rows:
        _guarded(found, "parity", lambda: parity(url, backend, model, vocab), options.out)
    if "update" in options.rows:
        keep = partial(_keep, found, "update", options.out)
        streams = max(options.in_flight)
        work = partial(updates, url, backend, model, vocab, options.variants, streams, keep)
        _guarded(found, "update", work, options.out)
    if "failure" in options.rows:
        group = server.group
        _guarded(found, "failure", lambda: failure(url, group, backend, model), options.out)


def _guarded(
    rows: dict[str, Any],
    name: str,
    work: Callable[[], Any],
    out: Path,
    found: dict[str, Any] | None = None,
) -> None:
    """Keep what `work` gives, or why it failed, also for somebody who has to end this before its end.

    `rows` may be a part of everything that is `found`.
    """
    found = rows if found is None else found
    try:
        rows[name] = work()
    except Exception as error:
        found.setdefault("errors", {})[name] = f"{type(error).__name__}: {error}"
        print(f"{name} FAILED: {type(error).__name__}: {error}", flush=True)
    write_partial(out, found)


def _keep(found: dict[str, Any], name: str, out: Path, rows: Any) -> None:
    """What there is so far, for somebody who has to end this in the middle of a row."""
    found[name] = rows
    write_partial(out, found)


if __name__ == "__main__":
    sys.exit(main())
