"""Stock vLLM as the pipeline uses it: generation through the actor's client, weights in flight over NCCL.

    python -m benchmarks.gpu.engine [--size 1.7B] [--rows update parity throughput failure] [--out FILE]

Random weights of a Qwen3 architecture. Needs two GPUs: one for the engine, one for the trainer's side.
`--cpu` rehearses the same on a CPU build of vLLM with a tiny model, weights through files.

- `update`: updates while requests are in flight, by size and number of the packets and by what happens to the
  KV cache; seconds of each step, what lies between them, and the share of the time in which nothing was
  generated. `--variants N` measures the first N ways only.
- `parity`: log-probabilities of the engine after an update against transformers' forward, tied weights; of
  both against float32.
- `throughput`: 512 + 512 tokens with log-probabilities, N requests always in flight, against N requests at
  once of the offline engine with the same flags, on the other card while the server rests.
- `failure`: the engine is stopped with SIGSTOP in the middle of a broadcast; the publisher has to name it at
  its deadline and to free its sender.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks._figures import RESULTS, Figure, at_least, at_most, report
from benchmarks.gpu.load import Load, session
from benchmarks.gpu.offline import Offline
from benchmarks.gpu.runs import Terminated, leave_in_order
from benchmarks.gpu.served import PYTHON, engine_argv, model_folder, serving
from benchmarks.gpu.updates import OUTPUT, PROMPT, VARIANTS, WARM_S, publisher_for, update_figures, updates
from pipelinerl.finetune.model import distinct_parameters
from pipelinerl.inference.client import SamplingParams
from pipelinerl.inference.fleet import Fleet
from pipelinerl.inference.vllm import installed_version
from pipelinerl.weights.looking import counters
from pipelinerl.weights.parity import probe_ids
from pipelinerl.weights.publisher import PublishDeadlines, WeightUpdateError

WINDOW_S = 12.0
ROWS = ("parity", "update", "throughput", "failure")
PORT = 8300


async def _wave(url: str, in_flight: int, vocab: int, output: int = OUTPUT) -> float:
    """Tokens per second of `in_flight` requests sent together."""
    generator = np.random.default_rng(1)
    prompts = [generator.integers(0, vocab, PROMPT) for _ in range(in_flight)]
    async with session() as http, Fleet([url], http) as fleet:
        started = time.perf_counter()
        answers = await asyncio.gather(
            *(fleet.generate(ids, SamplingParams(max_tokens=output, ignore_eos=True)) for ids in prompts)
        )
        return sum(len(one.token_ids) for one in answers) / (time.perf_counter() - started)


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


def parity(url: str, model: PreTrainedModel, device: torch.device, vocab: int) -> dict[str, float]:
    """Mean and largest differences after an update, each side also against float32 of the same weights.

    A random model of 28 layers amplifies rounding: what bfloat16 alone does is the distance of the trainer's
    own forward from float32.
    """
    publisher, dtype = publisher_for(url, device, 256), model.dtype
    try:
        with torch.no_grad():
            for _, parameter in distinct_parameters(model):
                parameter.mul_(1.01)
        publisher.publish(1, distinct_parameters(model))
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


def failure(url: str, group: int, model: PreTrainedModel, device: torch.device) -> dict[str, Any]:
    """Stop the engine's processes while it should receive; the error has to come at the deadline."""
    deadlines = PublishDeadlines(update_s=4.0, start_s=10.0, pause_s=10.0, health_s=10.0)
    publisher = publisher_for(url, device, 16, deadlines=deadlines)
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


def throughput(url: str, vocab: int, in_flight: list[int]) -> dict[int, float]:
    """Tokens per second, by the engine's counter, with so many requests of the client always in flight."""
    asyncio.run(_wave(url, min(in_flight), vocab, output=64))
    rates = {}
    for count in in_flight:
        with Load(url, count, vocab, PROMPT, OUTPUT) as load:
            time.sleep(WARM_S)
            first = counters(url, 30.0)
            time.sleep(WINDOW_S)
            rates[count] = counters(url, 30.0).rate_since(first)
        print(f"served, {count} in flight: {rates[count]:.0f} tokens/s {load.result}", flush=True)
    return rates


def figures(found: dict[str, Any]) -> Iterator[Figure]:
    """The rows of the table, with goals where there are some."""
    yield from update_figures(found.get("update", []))
    for name, value in found.get("parity", {}).items():
        yield Figure(f"|delta| of {name}", value, "nats")
    served, offline = found.get("served", {}), found.get("offline", {})
    for count, rate in served.items():
        yield Figure(f"client, {count} in flight", rate, "tok/s")
        if count in offline:
            yield Figure(f"offline engine, {count} requests", offline[count], "tok/s")
            yield at_least(f"client / offline, {count}", rate / offline[count], "", 0.95)
    if "failure" in found:
        yield at_most("stopped engine named after", found["failure"]["seconds"], "s", 30.0)


def engine_kwargs(options: argparse.Namespace) -> dict[str, Any]:
    """Flags that server and offline engine share."""
    kwargs: dict[str, Any] = {
        "max-model-len": PROMPT + OUTPUT + 16,
        "max-num-seqs": max(options.in_flight),
        "max-num-batched-tokens": 8192,
    }
    if options.cpu:
        return {**kwargs, "dtype": "float32", "enforce-eager": ""}
    if options.kv_gib:  # somebody else uses the card: what is free must not be measured then
        kwargs["kv-cache-memory-bytes"] = options.kv_gib * 2**30
    return {**kwargs, "gpu-memory-utilization": options.memory}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="1.7B")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--gpus", nargs=2, default=["0", "1"], help="of the engine and of the trainer's side")
    parser.add_argument("--variants", type=int, default=len(VARIANTS), help="ways of updating")
    parser.add_argument("--in-flight", nargs="+", type=int, default=[256, 512])
    parser.add_argument("--api-servers", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/pipelinerl-bench"))
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--memory", type=float, default=0.85, help="the engine's share of its card")
    parser.add_argument("--kv-gib", type=int, default=0, help="KV cache; 0 = what the share leaves")
    parser.add_argument("--cpu", action="store_true", help="rehearse on a CPU build of vLLM")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_engine.json")
    options = parser.parse_args()
    if options.cpu:
        options.size, options.gpus = "tiny", ["", ""]
    # The trainer's side uses the second GPU alone, as the launcher would give it.
    os.environ["CUDA_VISIBLE_DEVICES"] = options.gpus[1]
    device = torch.device("cpu") if options.cpu else torch.device("cuda", 0)
    folder = model_folder(options.size, options.folder / options.size)
    vocab = int(json.loads((folder / "config.json").read_text())["vocab_size"])
    kwargs = engine_kwargs(options)
    argv = engine_argv(folder, options.port, "file" if options.cpu else "nccl", kwargs, options.api_servers)
    print(" ".join(argv), flush=True)
    found: dict[str, Any] = {}
    logs = options.out.parent
    offline = None
    if "throughput" in options.rows:
        shared = dict(kwargs)
        if not options.cpu:  # the trainer's side needs room beside it
            shared["gpu-memory-utilization"] = min(0.6, options.memory)
        load = {"counts": options.in_flight, "vocab": vocab, "prompt": PROMPT, "output": OUTPUT}
        offline = Offline(folder, options.gpus[1], shared, load, logs / f"{options.out.stem}_offline.log")
    leave_in_order()
    try:
        with serving(argv, options.gpus[0], options.port, logs / f"{options.out.stem}_server.log") as (
            url,
            group,
        ):
            _rows(options, url, group, folder, device, vocab, offline, found)
    except Terminated:
        print("ended before its end; what there is follows", flush=True)
    finally:
        if offline is not None:
            offline.close()
    settings = {
        "card": "none" if options.cpu else torch.cuda.get_device_name(device),
        "vllm": installed_version(PYTHON),
        "model": options.size,
    }
    settings |= {"api servers": options.api_servers, "torch": torch.__version__, "rows": found}
    shown = {key: value for key, value in settings.items() if key != "rows"}
    options.out.with_suffix(".partial").unlink(missing_ok=True)
    missed = report("gpu_engine", list(figures(found)), shown, options.out)
    record = json.loads(options.out.read_text())
    options.out.write_text(json.dumps(record | {"rows": found}, indent=1) + "\n")
    return min(missed, 1)


def _rows(
    options: argparse.Namespace,
    url: str,
    group: int,
    folder: Path,
    device: torch.device,
    vocab: int,
    offline: Offline | None,
    found: dict[str, Any],
) -> None:
    """Each row by itself: what fails is said and does not cost the others."""
    if offline is not None:
        _guarded(found, "served", lambda: throughput(url, vocab, options.in_flight), options.out)
        _guarded(found, "offline", offline.measure, options.out)
        offline.close()  # its card is the trainer's from here on
    if not {"parity", "update", "failure"} & set(options.rows):
        return
    model = random_model(folder, device)
    if "parity" in options.rows:
        _guarded(found, "parity", lambda: parity(url, model, device, vocab), options.out)
    if "update" in options.rows:
        keep = partial(_keep, found, "update", options.out)
        _guarded(
            found,
            "update",
            lambda: updates(url, model, device, vocab, options.variants, max(options.in_flight), keep),
            options.out,
        )
    if "failure" in options.rows:
        _guarded(found, "failure", lambda: failure(url, group, model, device), options.out)


def _guarded(found: dict[str, Any], name: str, work: Callable[[], Any], out: Path) -> None:
    """Keep what `work` gives, or why it failed, also for somebody who has to end this before its end."""
    try:
        found[name] = work()
    except Exception as error:
        found.setdefault("errors", {})[name] = f"{type(error).__name__}: {error}"
        print(f"{name} FAILED: {type(error).__name__}: {error}", flush=True)
    out.with_suffix(".partial").write_text(json.dumps(found, indent=1))


def _keep(found: dict[str, Any], name: str, out: Path, rows: Any) -> None:
    """What there is so far, for somebody who has to end this in the middle of a row."""
    found[name] = rows
    out.with_suffix(".partial").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())
