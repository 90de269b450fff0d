"""Weights that travel to a running engine: what an update costs under load, parity, and a stopped engine."""

import asyncio
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks._figures import Figure, at_most
from benchmarks._processes import Server
from benchmarks.gpu.cards import OUTPUT, PROMPT
from benchmarks.gpu.clients import end_load, load
from pipelinerl.engines.client import SamplingParams
from pipelinerl.engines.fleet import Fleet
from pipelinerl.engines.wire import weights_directory
from pipelinerl.modeling.model import distinct_parameters
from pipelinerl.weights.engine_update import PublishDeadlines
from pipelinerl.weights.parity import probe_ids
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports.base import NamedTensor, Transport
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.transports.nccl import NcclTransport
from pipelinerl.weights.version_update import WeightUpdateError

STREAMS = 256
UPDATES = 7
SAMPLES, PROMPTED, SAMPLED = 64, 128, 256
"""Requests whose importance ratios are looked at, and their tokens."""
BETWEEN_S = 0.8
WARM_S = 6.0
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
    ahead: bool = True
    """Receive before the pause; otherwise within it."""


VARIANTS: tuple[Variant, ...] = (
    Variant("ahead, 2 packets of 256 MiB"),
    Variant("idle", in_flight=0),
    Variant("received in the pause", ahead=False),
    Variant("ahead, 2 packets of 1 GiB", megabytes=1024),
)
"""In the order of what they tell; files have no packets."""


def random_model(folder: Path, device: torch.device) -> PreTrainedModel:
    """Random, on the trainer's device: bfloat16 on a GPU."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
    return model.eval()


def next_version(model: PreTrainedModel) -> None:
    """Change every weight."""
    with torch.no_grad():
        for _, parameter in distinct_parameters(model):
            parameter.mul_(1.01)


@torch.no_grad()
def scores_of(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """float32 [N, P - 1]: log-probabilities of the forward of this side."""
    rows = torch.as_tensor(ids, dtype=torch.int64, device=model.device)
    hidden = model.get_decoder()(input_ids=rows, use_cache=False).last_hidden_state[:, :-1]
    logits = hidden.float() @ model.get_output_embeddings().weight.float().T
    return logits.log_softmax(-1).gather(-1, rows[:, 1:, None])[..., 0].cpu().numpy()


async def sampled(url: str, vocab: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ids of prompt and answer, and the engine's log-probabilities of the answer, of each sample."""
    generator, sampling = np.random.default_rng(3), SamplingParams(max_tokens=SAMPLED, ignore_eos=True)
    prompts = [generator.integers(0, vocab, PROMPTED) for _ in range(SAMPLES)]
    async with aiohttp.ClientSession() as http, Fleet([url], http) as fleet:
        answers = await asyncio.gather(*(fleet.generate(ids, sampling) for ids in prompts))
    return [(np.append(ids, one.token_ids), np.asarray(one.logprobs)) for ids, one in zip(prompts, answers)]


def ratio_spread(log_ratios: np.ndarray) -> dict[str, tuple[float, str]]:
    """What importance ratios, trainer over engine, of tokens sampled by one version look like."""
    ratios = np.exp(log_ratios)
    found = {"mean |log ratio|": (float(np.abs(log_ratios).mean()), "nats")}
    found["deviation of the log ratio"] = (float(log_ratios.std()), "nats")
    for share in (1, 99):
        found[f"ratio, {share} % are below"] = (float(np.percentile(ratios, share)), "x")
    found["effective sample size"] = (float(ratios.sum() ** 2 / (ratios**2).sum() / ratios.size), "share")
    return found


def file_transport(model: PreTrainedModel, ahead: bool = True) -> FileTransport:
    size = sum(one.numel() for _, one in distinct_parameters(model)) * model.dtype.itemsize
    folder = weights_directory(Path(tempfile.mkdtemp(prefix="weights-")), size)
    return FileTransport(folder, model.dtype, ahead, size)


def update_row(
    variant: Variant,
    model: PreTrainedModel,
    publisher: Publisher,
    first: int,
    weights: Callable[[PreTrainedModel], Iterable[NamedTensor]] = distinct_parameters,
) -> dict[str, Any]:
    """Medians over several updates, in milliseconds, and the share of the time that was paused.

    `weights`: what a version consists of.
    """
    reports = []
    begun = time.perf_counter()
    for version in range(first, first + UPDATES):
        time.sleep(BETWEEN_S)
        reports.append(publisher.publish(version, weights(model)))
    wall = time.perf_counter() - begun
    paused = [1e3 * max(one.paused_s.values()) for one in reports]
    inside, steady = IN_PAUSE[variant.ahead], reports[1:]
    between = [
        all_ms - 1e3 * sum(one.seconds[step] for step in inside) for all_ms, one in zip(paused[1:], steady)
    ]
    steps = {step: 1e3 * median(one.seconds[step] for one in steady) for step in steady[0].seconds}
    row = {
        "name": variant.name,
        "in_flight": variant.in_flight,
        "bytes": reports[0].bytes,
        "paused_ms": median(paused[1:]),
        "paused_ms_all": [round(one, 1) for one in paused[1:]],
        "steps_ms": steps,
        "in_pause": list(inside),
        "between_steps_ms": median(between),
        "first_paused_ms": paused[0],
        "idle_share": sum(paused) / 1e3 / wall,
    }
    print(json.dumps(row), flush=True)
    return row


def update_figures(rows: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """The pause of each way beside the goal, and its parts."""
    for row in rows:
        name = f"paused: {row['name']}, {row['in_flight']} in flight"
        wanted = row["in_flight"] > 0 and "in the pause" not in row["name"]
        yield at_most(name, row["paused_ms"], "ms", 100.0 if wanted else None)
        for step, value in row["steps_ms"].items():
            part = "of it " if step in row["in_pause"] else ""
            yield Figure(f"  {row['name']}: {part}{step}", value, "ms")
        yield Figure(f"  {row['name']}: of it between steps", row["between_steps_ms"], "ms")
        yield Figure(f"  {row['name']}: share of the time", row["idle_share"], "share")


@dataclass(frozen=True)
class TrainerSide:
    """Where a model lies that is sent to a running engine."""

    engine: Server
    backend: str
    """Of the weight transfer."""
    model: PreTrainedModel

    @contextmanager
    def publisher(self, variant: Variant, deadlines: PublishDeadlines | None = None) -> Iterator[Publisher]:
        """To an engine that receives ahead; it also takes what is sent while it is paused."""
        transport: Transport
        if self.backend.startswith("file"):
            transport = file_transport(self.model, variant.ahead)
        else:
            device, dtype, size = self.model.device, self.model.dtype, variant.megabytes * 2**20
            transport = NcclTransport(
                device, dtype, buffer_bytes=size, buffers=2, first_port=9100, ahead=variant.ahead
            )
        deadlines = deadlines or PublishDeadlines(health_s=10.0)
        publisher = Publisher([self.engine.url], transport, deadlines=deadlines)
        try:
            publisher.wait_ready(60)
            yield publisher
        finally:
            publisher.close()

    def updates(
        self, variants: int, streams: int, keep: Callable[[list[dict[str, Any]]], None]
    ) -> list[dict[str, Any]]:
        """The first `variants` ways, each in a group of its own, with at most so many `streams`.

        `keep` gets the rows as they come.
        """
        rows: list[dict[str, Any]] = []
        known: Sequence[Variant] = VARIANTS
        if self.backend.startswith("file"):
            known = (replace(VARIANTS[0], name="ahead"), *VARIANTS[1:3])
        for number, variant in enumerate(known[:variants], start=1):
            variant = replace(variant, in_flight=min(streams, variant.in_flight))
            with self.publisher(variant) as publisher, ExitStack() as stack:
                if variant.in_flight:
                    vocab = self.model.config.vocab_size
                    busy = load(self.engine.url, variant.in_flight, vocab, PROMPT, OUTPUT)
                    child = stack.enter_context(busy)
                    time.sleep(WARM_S)
                rows.append(update_row(variant, self.model, publisher, 100 * number))
                if variant.in_flight:
                    rows[-1] |= end_load(child)
            keep(rows)
        return rows

    def spread(self) -> dict[str, tuple[float, str]]:
        """Importance ratios of what the engine samples with the weights of this model."""
        found = []
        for ids, logprobs in asyncio.run(sampled(self.engine.url, self.model.config.vocab_size)):
            found.append(scores_of(self.model, ids[None])[0, PROMPTED - 1 :] - logprobs)
        return ratio_spread(np.concatenate(found).astype(np.float64))

    def parity(self, keep: Callable[[dict[str, tuple[float, str]]], None]) -> dict[str, float]:
        """Mean and largest differences after two updates, each side also against float32 of the same weights.

        A random model of 28 layers amplifies rounding: what bfloat16 alone does is the distance of the
        trainer's own forward from float32. `keep` gets the importance ratios of sampled tokens.
        """
        model = self.model
        with self.publisher(Variant("parity")) as publisher:
            for version in (1, 2):  # the second may be put into place in another way than the first
                next_version(model)
                publisher.publish(version, distinct_parameters(model))
            keep(self.spread())
            ids, dtype = probe_ids(model.config.vocab_size), model.dtype
            sides = {"engine": np.stack([publisher.prompt_logprobs(row)[self.engine.url] for row in ids])}
            sides["trainer"] = scores_of(model, ids)
            sides["float32"] = scores_of(model.float(), ids)
            model.to(dtype)
        found: dict[str, float] = {}
        for one, other in (("engine", "trainer"), ("engine", "float32"), ("trainer", "float32")):
            difference = np.abs(sides[one].astype(np.float64) - sides[other])
            found[f"{one} and {other}, mean"] = float(difference.mean())
            found[f"{one} and {other}, max"] = float(difference.max())
        print(f"parity: {found}", flush=True)
        return found

    def failure(self) -> dict[str, Any]:
        """Stop the engine's processes while it should receive; the error has to come at the deadline."""
        deadlines = PublishDeadlines(update_s=4.0, start_s=10.0, pause_s=10.0, health_s=10.0)
        with self.publisher(Variant("failure", megabytes=16), deadlines) as publisher:
            publisher.publish(9000, distinct_parameters(self.model))
            transport: Any = publisher._transport
            send, said = transport.send, "no error was raised"

            def stop_then_send(*arguments: Any) -> None:
                os.killpg(self.engine.process.pid, signal.SIGSTOP)
                send(*arguments)

            transport.send = stop_then_send
            started = time.perf_counter()
            try:
                publisher.publish(9001, distinct_parameters(self.model))
            except WeightUpdateError as error:
                said = str(error)
            seconds = time.perf_counter() - started
            threads = [one.name for one in threading.enumerate() if "send" in one.name]
        row = {"seconds": seconds, "said": said, "threads_left": threads}
        print(json.dumps(row), flush=True)
        return row
