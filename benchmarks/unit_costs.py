"""What a rollout, a sample and an engine's update cost each process of a run, for `benchmarks.capacity`.

    python -m benchmarks.unit_costs [--tokens 512] [--in-flight 512] [--seconds 10.0] [--groups 256]
                                    [--gigabytes 1.0] [--out FILE]

Everything is the project's own process or client, with prompts of about 520 tokens and answers of `--tokens`:
CPU of the actor and of its worker for a rollout that an instant engine answers; of preprocess for a sample;
of a redis server, its writer and its reader for a record; of the trainer's side of a weight update for an
engine that answers at once; of both sides of a weight file of `--gigabytes`, in turns with a file that the
safetensors library writes and reads in fresh memory. CPU seconds do not depend on what else runs on this
machine, rates would.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from omegaconf import OmegaConf
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from benchmarks._figures import Figure, command_line, report
from benchmarks._instant import IDS, serve
from benchmarks._processes import Logged, function, stop
from benchmarks.actor import measure as measure_actor
from benchmarks.actor import write_config
from pipelinerl.config import Job, load, save
from pipelinerl.config.files import load_tree
from pipelinerl.engines.version_file import HostMemory, read_tensors
from pipelinerl.engines.wire import SHARED_MEMORY
from pipelinerl.extras.bootstrap.tokenizer import train_tokenizer
from pipelinerl.launcher.trainer_stand_in import stand_in
from pipelinerl.streams import SingleStreamSpec, read_stream, set_streams_backend, write_to_streams
from pipelinerl.streams.local_server import local_server
from pipelinerl.weights.engine_state import EngineState
from pipelinerl.weights.engine_update import EngineUpdate, PublishDeadlines
from pipelinerl.weights.transports.file import FileTransport

GROUP = 8
PROMPT = 518
ENGINES = (1, 8, 40)
UPDATES = 20
RECORD_TEXTS = (1, 8)
VERSIONS, TENSORS = 6, 24
DEADLINE_S = 300.0


def actor_costs(folder: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """A rollout in the actor, which schedules and publishes, and in the worker, which plays it."""
    with function(serve, 0.0, options.tokens) as engine:
        url = f"http://127.0.0.1:{engine.recv()}"
        out = folder / "actor"
        load_of = (options.in_flight, options.seconds)
        found = measure_actor("long_rollout", url, folder, *load_of, out, options.tokens)
    with read_stream(SingleStreamSpec(out, "actor")) as stream:
        texts = [text for group in stream.read_available(50) for text in group]
    yield Figure("prompt", statistics.mean(len(one["input_ids"]) for one in texts) - options.tokens, "tokens")
    yield Figure("actor: a rollout, scheduler", found["scheduler_us"], "us")
    yield Figure("actor: a rollout, worker", found["worker_us"], "us")


def group_of(index: int, tokens: int) -> list[dict[str, Any]]:
    """Eight samples as the actor publishes them, with one prompt and two rewards, so that none is dropped."""
    rng = np.random.default_rng(index)
    prompt = rng.integers(0, IDS, PROMPT, dtype=np.int32)
    found = []
    for number in range(GROUP):
        answer = rng.integers(0, IDS, tokens, dtype=np.int32)
        labels = np.concatenate([np.full(PROMPT, -100, np.int32), answer])
        metadata = {"rollout_index": number, "step_index": 0, "model_version": 0}
        found.append(
            {
                "text": "word " * (PROMPT + tokens),
                "n_predicted": 5 * tokens,
                "input_ids": np.concatenate([prompt, answer]),
                "labels": labels,
                "logprobs": -rng.random(tokens, dtype=np.float32),
                "reward": float(number % 2),
                "finished": True,
                "group_id": f"group {index}",
                "weight_versions": [[0, 0, tokens]],
                "metadata": metadata,
            }
        )
    return found


def preprocess_costs(folder: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """A sample in preprocess: read, validated, valued, packed and written."""
    out, texts = folder / "preprocess", options.groups * GROUP
    write_config(out, folder, "ready_rollout", "http://127.0.0.1:9", 64)
    tree = load_tree(out)
    job = Job(kind="preprocessor", idx=0, name="preprocess").model_dump()
    per_step = 64 * GROUP
    steps = texts // per_step
    finetune = {"seq_length": 16384, "max_train_steps": steps, "gradient_accumulation_passes": per_step}
    changes = {"jobs": [job], "max_lag": None, "pop_old_data": False, "finetune": finetune}
    merged = OmegaConf.merge(tree, changes)
    merged.finetune.train_batch_size = 1
    merged.preprocess.max_ready_samples_per_lead = texts
    merged.derived = {"trainer_ranks": 1, "texts_per_step": per_step, "texts_per_update": per_step}
    save(merged, out)  # type: ignore[arg-type]
    written = 0
    with write_to_streams(SingleStreamSpec(out, "actor")) as stream:
        for index in range(options.groups):
            stream.write(group_of(index, options.tokens))
            written += GROUP
    size = sum(path.stat().st_size for path in (out / "streams/actor").rglob("*") if path.is_file())
    yield Figure("stream actor: a sample", size / written, "bytes")
    trainer = threading.Thread(target=stand_in, args=(load(out), out), daemon=True)
    trainer.start()
    role = Logged([sys.executable, "-m", "pipelinerl.preprocess", str(out), "--job", "0"], None, None)
    try:
        process = psutil.Process(role.process.pid)
        cpu = dict(cpu_at(out, process, (per_step, steps * per_step)))
        trainer.join(DEADLINE_S)
    finally:
        stop(role.process)
    packed = sum(path.stat().st_size for path in (out / "streams/training_data").rglob("*") if path.is_file())
    spent = cpu[steps * per_step] - cpu[per_step]
    yield Figure("preprocess: a sample", 1e6 * spent / ((steps - 1) * per_step), "us")
    yield Figure("stream training_data: a sample", packed / (steps * per_step), "bytes")


def cpu_at(out: Path, process: psutil.Process, counts: Sequence[int]) -> Iterator[tuple[int, float]]:
    """CPU seconds of a process when so many texts have been packed."""
    packed = 0
    with read_stream(SingleStreamSpec(out, "training_data")) as rows:
        for row in rows.read(DEADLINE_S):
            packed += int(row["n_texts"])
            if packed in counts:
                yield packed, sum(process.cpu_times()[:2])
            if packed >= counts[-1]:
                return


def read_records(folder: Path, count: int, port: int, connection: Connection) -> None:
    """The other process: read so many records, and send the CPU seconds of that."""
    set_streams_backend("redis", port=port)
    with read_stream(SingleStreamSpec(folder, "actor")) as stream:
        connection.send("ready")
        source = stream.read(deadline_s=DEADLINE_S)
        next(source)
        begun = time.process_time()
        for _ in range(count - 1):
            next(source)
        connection.send(time.process_time() - begun)


def redis_costs(folder: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """A record of one and of eight samples: in the server, in its writer and in its reader."""
    for texts in RECORD_TEXTS:
        count = options.groups * GROUP // texts
        place = folder / f"redis-{texts}"
        place.mkdir()
        with contextlib.ExitStack() as stack:
            port = stack.enter_context(local_server(place))
            children = psutil.Process().children()
            (server,) = [child for child in children if child.name().startswith("redis-server")]
            set_streams_backend("redis", port=port)
            reader = stack.enter_context(function(read_records, place, count, port))
            reader.recv()
            stream = stack.enter_context(write_to_streams(SingleStreamSpec(place, "actor")))
            record = group_of(0, options.tokens)[:texts]
            begun, before = time.process_time(), sum(server.cpu_times()[:2])
            for _ in range(count):
                stream.write(record)
            writer_s = time.process_time() - begun
            reader_s = reader.recv()
            server_s = sum(server.cpu_times()[:2]) - before
        set_streams_backend("files")
        name = f"redis: a record of {texts} samples" if texts > 1 else "redis: a record of 1 sample"
        for who, spent in (("server", server_s), ("writer", writer_s), ("reader", reader_s)):
            yield Figure(f"{name}, {who}", 1e6 * spent / count, "us")


def update_costs() -> Iterator[Figure]:
    """The calls of a weight update to engines that answer at once, as `VersionUpdate` makes them."""
    with function(serve, 0.0, 1) as engine:
        url = f"http://127.0.0.1:{engine.recv()}"
        for count in ENGINES:
            seconds, cpu = [], time.process_time()
            for version in range(UPDATES):
                begun = time.perf_counter()
                update_all([EngineState(url, 10.0) for _ in range(count)], version)
                seconds.append(time.perf_counter() - begun)
            each = 1e6 * (time.process_time() - cpu) / UPDATES / count
            yield Figure(f"update: calls to {count} engines", 1e3 * statistics.median(seconds), "ms")
            yield Figure(f"update: calls to {count} engines, CPU of the trainer for each", each, "us")


def update_all(engines: Sequence[EngineState], version: int) -> None:
    """Start, update and finish with all at the same time, on a thread for each."""

    def one(engine: EngineState) -> None:
        update = EngineUpdate(engine, PublishDeadlines(), ahead=True)
        update.start()
        update.update(b"{}", DEADLINE_S, lambda: True)
        update.finish(version)
        update.close()
        assert update.error is None, update.error

    threads = [threading.Thread(target=one, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def library_stage(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    data = save_safetensors({name: tensor.clone() for name, tensor in tensors.items()})
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return {"path": str(path), "bytes": len(data), "checksum": zlib.crc32(data)}


def library_read(info: dict[str, Any]) -> list[torch.Tensor]:
    data = Path(info["path"]).read_bytes()
    assert zlib.crc32(data) == info["checksum"]
    return [tensor.clone() for tensor in load_safetensors(data).values()]  # as for page-locked ones


def write_files(folder: Path, size: int, library: bool, connection: Connection) -> None:
    """The trainer's side: a version for each message, answered by what it took and how to read it."""
    columns = 1000
    rows = size // (columns * TENSORS * torch.bfloat16.itemsize)
    tensors = {f"w{i}": torch.full((rows, columns), i, dtype=torch.bfloat16) for i in range(TENSORS)}
    transport, before = FileTransport(folder, torch.bfloat16, size=size), peak_gb()
    for version in range(connection.recv()):
        begun, cpu = time.perf_counter(), time.process_time()
        if library:
            info = library_stage(folder / "library", tensors)
        else:
            info = transport.stage(version, tensors.items()).info
        took = time.perf_counter() - begun, time.process_time() - cpu, peak_gb() - before
        connection.send((took, info))
        connection.recv()
    transport.close()


def read_files(library: bool, connection: Connection) -> None:
    """An engine's side: reads each file that is named and says what it took."""
    memory, before = HostMemory(), peak_gb()
    while (info := connection.recv()) is not None:
        begun, cpu = time.perf_counter(), time.process_time()
        if library:
            library_read(info)
        else:
            read_tensors(Path(info["path"]), info["bytes"], info["checksum"], memory)
        connection.send((time.perf_counter() - begun, time.process_time() - cpu, peak_gb() - before))


def peak_gb() -> float:
    """The most memory that this process has had; that of getrusage begins with its parent's."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e9


def file_costs(gigabytes: float) -> Iterator[Figure]:
    """A version through a file: wall and CPU seconds of each side for a GB, and the most memory it took.

    Medians of the versions from the third on, when all memory is there.
    """
    size = int(1e9 * gigabytes)
    took: dict[tuple[str, bool], list[tuple[float, float, float]]] = {}
    with contextlib.ExitStack() as stack:
        ends = []
        for library in (True, False):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=SHARED_MEMORY)))
            writer = stack.enter_context(function(write_files, folder, size, library))
            ends.append((library, writer, stack.enter_context(function(read_files, library))))
            writer.send(VERSIONS)
        for _ in range(VERSIONS):
            for library, writer, reader in ends:
                spent, info = writer.recv()
                took.setdefault(("staged", library), []).append(spent)
                reader.send(info)
                took.setdefault(("read", library), []).append(reader.recv())
                writer.send("next")
    for side in ("staged", "read"):
        wall, cpu, memory = (
            {
                library: statistics.median(one[part] for one in took[side, library][2:])
                for library in (True, False)
            }
            for part in range(3)
        )
        yield Figure(f"files: a GB {side}, CPU", 1e3 * cpu[False] / gigabytes, "ms")
        yield Figure(f"files: {side}, GB in a second", gigabytes / wall[False], "GB/s")
        yield Figure(f"files: {side}, times as fast as the library", wall[True] / wall[False], "x")
        for library, who in ((False, ""), (True, ", the library")):
            yield Figure(f"files: {side}, most memory for a GB{who}", memory[library] / gigabytes, "GB")


def main(argv: Sequence[str] | None = None) -> int:
    options = command_line(__doc__, argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        train_tokenizer(["say something of 0123456789"] * 10, IDS).save_pretrained(str(folder))
        (folder / "config.json").write_text(json.dumps({"vocab_size": IDS, "eos_token_id": 0}))
        figures = [*actor_costs(folder, options), *preprocess_costs(folder, options)]
        figures += [*redis_costs(folder, options), *update_costs(), *file_costs(options.gigabytes)]
    names = ("tokens", "in_flight", "seconds", "groups", "gigabytes")
    settings = {name: getattr(options, name) for name in names}
    report("unit_costs", figures, settings | {"group": GROUP}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
