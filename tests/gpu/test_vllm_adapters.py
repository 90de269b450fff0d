"""vLLM that is sent adapters alone, on one GPU: the numbers of merged versions, no drift, requests go on."""

import asyncio
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

pytest.importorskip("peft")

from benchmarks.gpu.cards import nccl_cards
from benchmarks.gpu.served import TOKENIZER, engine_argv, model_config, serving
from pipelinerl.base.http import call
from pipelinerl.base.ports import is_free
from pipelinerl.config.finetune import LoraConfig
from pipelinerl.engines.client import EngineClient, SamplingParams
from pipelinerl.engines.engine_metrics import parse_prometheus
from pipelinerl.engines.vllm.installed import installed_version
from pipelinerl.modeling.adapters import is_adapter
from pipelinerl.modeling.lora import adapter_tensors, add_adapters
from pipelinerl.modeling.model import distinct_parameters
from pipelinerl.weights.parity import probe_ids
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports.base import Transport
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.transports.nccl import NcclTransport
from pipelinerl.weights.version_update import UpdateReport, WeightUpdateError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(installed_version() is None, reason="needs vLLM"),
]
LORA = LoraConfig(enabled=True, r=8, alpha=16.0)
FLAGS = {
    "max-model-len": 4096,
    "max-num-seqs": 16,
    "gpu-memory-utilization": 0.2,
    "kv-cache-memory-bytes": 2**30,
    "load-format": "safetensors",
}
"""With graphs: their kernels read the weights from where they lay when the graph was recorded."""
CLOSE = 0.02
"""Nats at most between adapters that travelled alone and the merged version."""
TOKENS = "vllm:generation_tokens_total"
BACKENDS = ["file", "file_ahead", "nccl_ahead"]
LENGTH = 3000
FUSED = {
    "self_attn.qkv_proj": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attn.o_proj": ["self_attn.o_proj"],
    "mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"],
    "mlp.down_proj": ["mlp.down_proj"],
}


def trainer_card() -> torch.device:
    """Another card than the engine's where there are several, or where NCCL asks for it."""
    return torch.device("cuda", min(nccl_cards(), torch.cuda.device_count()) - 1)


@dataclass
class Served:
    """An engine with a back-end, and the trainer's model with random adapters on another card, if any."""

    url: str
    backend: str
    model: PreTrainedModel
    scratch: Path
    start: np.ndarray | None = None
    """What it makes of the probe with the weights of its folder."""

    def publisher(self, adapters: bool = True) -> Publisher:
        scale, ahead = LORA.scale if adapters else None, self.backend.endswith("_ahead")
        dtype = torch.float32 if adapters else torch.bfloat16
        transport: Transport
        if self.backend.startswith("nccl"):
            transport = NcclTransport(
                trainer_card(), dtype, first_port=9800, ahead=ahead, adapter_scale=scale
            )
        else:
            transport = FileTransport(self.scratch / f"{adapters}", dtype, ahead, adapter_scale=scale)
        made = Publisher([self.url], transport)
        made.wait_ready(60)
        return made

    def draw(self, seed: int) -> None:
        """Adapters that change the model as a training does that moves every token by nats."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if is_adapter(name):
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))

    def send(self, publisher: Publisher, version: int, seed: int, adapters: bool = True) -> UpdateReport:
        self.draw(seed)
        return publisher.publish(version, self.alone() if adapters else distinct_parameters(self.model))

    def alone(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(adapter_tensors(self.model, torch.Tensor.detach).items())

    def sampled(self) -> float:
        return parse_prometheus(call("GET", self.url, "/metrics", 60).decode())[TOKENS]

    def scores(self, publisher: Publisher) -> np.ndarray:
        ids = probe_ids(int(self.model.config.vocab_size))
        return np.stack([publisher.prompt_logprobs(row)[self.url] for row in ids])

    def held(self) -> dict[str, str]:
        """Of every parameter as vLLM holds it: the SHA-256 of its bytes, by its name in vLLM."""
        found = json.loads(call("POST", self.url, "/weight_checker", 60, {"action": "checksum"}))
        return {name.rpartition(":")[2]: one for name, one in found["checksums"].items()}

    def expected(self) -> dict[str, str]:
        """The same of the layers with adapters, from what the trainer merges."""
        merged = {name: one.detach() for name, one in distinct_parameters(self.model)}
        found = {}
        for number in range(self.model.config.num_hidden_layers):
            for fused, parts in FUSED.items():
                names = [f"model.layers.{number}.{one}.weight" for one in parts]
                whole = torch.cat([merged[name] for name in names]).cpu().view(torch.uint8).numpy()
                found[f"model.layers.{number}.{fused}.weight"] = hashlib.sha256(whole.tobytes()).hexdigest()
        return found


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("nccl") and torch.cuda.device_count() < nccl_cards():
        pytest.skip(f"needs {nccl_cards()} GPUs for NCCL")
    return str(request.param)


@pytest.fixture(scope="module")
def served(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp(backend)
    folder = root / "model"
    torch.manual_seed(0)
    config = model_config("tiny")
    config.initializer_range = 0.1  # distributions far from uniform
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / name)
    model = plain.to(trainer_card()).eval()
    add_adapters(model, LORA)
    port = next(filter(is_free, range(8700, 65536)))
    card = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    with serving(engine_argv(folder, port, backend, FLAGS), card, port, root / "log") as (url, _):
        made = Served(url, backend, model, root)
        publisher = made.publisher()
        made.start = made.scores(publisher)
        publisher.close()
        yield made


# Before the test below, whose merged versions leave nothing to add adapters to.
async def test_requests_in_flight_go_on_and_their_tokens_carry_both_versions(served: Served) -> None:
    publisher = served.publisher()
    await asyncio.to_thread(served.send, publisher, 1, 1)
    parameters = SamplingParams(max_tokens=LENGTH, temperature=1.0, ignore_eos=True)
    prompts = [np.random.default_rng(seed).integers(2, 2000, 32).tolist() for seed in range(8)]
    async with aiohttp.ClientSession() as session:
        client = EngineClient(served.url, session, announced_version=lambda: 1)
        before = await asyncio.to_thread(served.sampled)
        asked = [asyncio.create_task(client.generate(one, parameters)) for one in prompts]
        end = time.monotonic() + 100
        while await asyncio.to_thread(served.sampled) < before + 50 * len(prompts):
            assert time.monotonic() < end and not any(one.done() for one in asked)
        report = await asyncio.to_thread(served.send, publisher, 2, 2)
        print(f"{served.backend}: under load {report.bytes} bytes, paused {report.paused_s}")
        answers = await asyncio.gather(*asked)
    publisher.close()
    for one in answers:
        assert [version for version, _, _ in one.versions] == [1, 2]
        (_, start, middle), (_, again, stop) = one.versions
        assert start == 0 < middle == again < stop == len(one.token_ids) == LENGTH


def test_versions_are_the_trainers_merged_weights_bit_for_bit_and_do_not_drift(served: Served) -> None:
    """Adapters first: an engine that was sent whole weights has nothing left to add them to."""
    publisher = served.publisher()
    first, sizes = served.held(), dict[int, int]()
    found: dict[int, np.ndarray] = {}
    for version, seed in enumerate((1, 2, 3, 4, 1), start=1):
        report = served.send(publisher, version, seed)
        print(f"{served.backend}: version {version}, {report.bytes} bytes, paused {report.paused_s}")
        held, scored = served.held(), served.scores(publisher)
        # Layers with adapters have the trainer's bits, and all else is what it was.
        wrong = {name for name, one in (first | served.expected()).items() if held[name] != one}
        assert not wrong and held.keys() == first.keys()
        if seed in found:  # three others were there in between
            np.testing.assert_array_equal(scored, found[seed])
        assert np.abs(scored - served.start).mean() > 5 * CLOSE
        found[seed], sizes[seed] = scored, report.bytes
    publisher.close()

    publisher = served.publisher(adapters=False)
    for version, seed in enumerate((1, 2, 3, 4), start=10):
        report = served.send(publisher, version, seed, adapters=False)
        print(f"{served.backend}: merged, {report.bytes} bytes, paused {report.paused_s}")
        merged = served.scores(publisher)
        assert np.abs(merged - found[seed]).max() <= CLOSE
        assert 4 * sum(one.numel() for _, one in served.alone()) <= sizes[seed] < report.bytes / 5
        for other in {1, 2, 3, 4} - {seed}:
            assert np.abs(merged - found[other]).mean() > 5 * CLOSE
    publisher.close()
    publisher = served.publisher()
    with pytest.raises(WeightUpdateError, match=r"does not hold model\.layers.*set weights\.lora=merged"):
        served.send(publisher, 20, 1)
    publisher.close()
