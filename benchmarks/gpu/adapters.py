"""Adapters alone into vLLM beside merged versions: bytes, pause and steps of updates under load.

    python -m benchmarks.gpu.adapters [--size 1.7B] [--backend file_ahead] [--gpus 0 0] [--streams 256]
                                      [--rank 16] [--port 8300] [--folder /tmp/pipelinerl-bench] [--out FILE]

Random weights of a Qwen3 architecture with adapters around all linear layers. The engine has one GPU and the
trainer's side another, or the same. Both kinds of versions go to one engine whose back-end receives ahead:
`nccl_ahead` on two cards, `file_ahead` on any. Adapters come first, because an engine that was sent whole
weights has nothing left to add them to. The streams' tokens are counted: a token has to cost the same.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks._figures import RESULTS, Figure, command_line, report, write_json
from benchmarks._processes import started
from benchmarks.gpu.cards import CONTEXT, OUTPUT, PROMPT, SHARED_MEMORY, kv_bytes, need_cuda
from benchmarks.gpu.clients import end_load, load
from benchmarks.gpu.served import engine_argv, model_config, model_folder, vllm_server
from benchmarks.gpu.updates import WARM_S, Variant, random_model, update_figures, update_row
from pipelinerl.config.finetune import LoraConfig
from pipelinerl.engines.vllm.installed import installed_version
from pipelinerl.modeling.adapters import is_adapter
from pipelinerl.modeling.lora import adapter_tensors, add_adapters
from pipelinerl.modeling.model import distinct_parameters
from pipelinerl.weights.engine_update import PublishDeadlines
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports.base import NamedTensor, Transport
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.transports.nccl import NcclTransport

ALONE, MERGED = "adapters alone", "merged"


def versions(model: PreTrainedModel, alone: bool) -> Iterator[NamedTensor]:
    """The next version: other adapters, by themselves or within the weights."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_adapter(name):
                parameter.normal_(0, 0.01)
    yield from adapter_tensors(model, torch.Tensor.detach).items() if alone else distinct_parameters(model)


def transport_of(backend: str, model: PreTrainedModel, lora: LoraConfig, alone: bool) -> Transport:
    scale, dtype = (lora.scale, torch.float32) if alone else (None, torch.bfloat16)
    if backend.startswith("nccl"):
        return NcclTransport(model.device, dtype, first_port=9100, ahead=True, adapter_scale=scale)
    folder = Path(f"/dev/shm/pipelinerl-bench-{os.getpid()}-{alone}")
    return FileTransport(folder, dtype, True, adapter_scale=scale)


def measured(url: str, model: PreTrainedModel, lora: LoraConfig, backend: str, streams: int) -> list[Any]:
    """A row for each kind of version, under load."""
    rows = []
    for number, name in enumerate((ALONE, MERGED), start=1):
        alone = name == ALONE
        publisher = Publisher(
            [url], transport_of(backend, model, lora, alone), deadlines=PublishDeadlines(health_s=10.0)
        )
        publisher.wait_ready(60)
        with load(url, streams, model.config.vocab_size, PROMPT, OUTPUT) as child:
            time.sleep(WARM_S)
            begun = time.perf_counter()
            made = partial(versions, alone=alone)
            row = update_row(Variant(name, in_flight=streams), model, publisher, 100 * number, made)
            rows.append(row | {"seconds": time.perf_counter() - begun} | end_load(child))
        publisher.close()
    return rows


def figures(rows: list[Any]) -> Iterator[Figure]:
    yield from update_figures(rows)
    for row in rows:
        yield Figure(f"{row['name']}: bytes of a version", row["bytes"] / 1e6, "MB")
        yield Figure(f"{row['name']}: first pause", row["first_paused_ms"], "ms")
        yield Figure(f"{row['name']}: sampled while updates came", row["tokens"] / row["seconds"], "tok/s")


def main() -> int:
    options = command_line(__doc__)
    need_cuda("benchmarks.gpu.adapters")
    out = options.out or RESULTS / "vllm_adapters.json"
    engine, trainer = (str(gpu) for gpu in options.gpus)
    os.environ["CUDA_VISIBLE_DEVICES"] = trainer
    folder, config = model_folder(options.size, options.folder / options.size), model_config(options.size)
    lora = LoraConfig(enabled=True, r=options.rank, alpha=float(options.rank))
    model = random_model(folder, torch.device("cuda", 0))
    model.save_pretrained(folder)  # the engine adds to what it read there
    add_adapters(model, lora)
    kwargs = {
        "max-model-len": CONTEXT,
        "max-num-seqs": options.streams,
        "max-num-batched-tokens": 8192,
        "kv-cache-memory-bytes": kv_bytes(config, options.streams),
        "gpu-memory-utilization": SHARED_MEMORY,
        "load-format": "safetensors",
    }
    argv = engine_argv(folder, options.port, options.backend, kwargs)
    out.parent.mkdir(parents=True, exist_ok=True)
    server = vllm_server(argv, engine, options.port, out.with_suffix(".log"))
    with started(server):
        server.wait_ready()
        rows = measured(server.url, model, lora, options.backend, options.streams)
    settings = {
        "card": torch.cuda.get_device_name(0),
        "cards": len({engine, trainer}),
        "vllm": installed_version(),
        "model": options.size,
        "back-end": options.backend,
        "rank of adapters": options.rank,
        "torch": torch.__version__,
    }
    missed = report("vllm_adapters", figures(rows), settings, out)
    write_json(out, json.loads(out.read_text()) | {"rows": rows})
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
