"""Stock vLLM on one GPU, weights from another: numbers, names and failures on real cards.

One is enough where NCCL connects two processes on it (`nccl_cards`).
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.gpu.cards import nccl_cards
from benchmarks.gpu.served import engine_argv, model_folder, serving
from pipelinerl.base.ports import is_free
from pipelinerl.engines.vllm.installed import installed_version
from pipelinerl.modeling.model import distinct_parameters
from pipelinerl.weights.engine_update import PublishDeadlines
from pipelinerl.weights.parity import ParityLimits, check_parity, probe_ids
from pipelinerl.weights.publisher import Publisher
from pipelinerl.weights.transports.nccl import NcclTransport
from pipelinerl.weights.version_update import WeightUpdateError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(torch.cuda.device_count() < nccl_cards(), reason=f"needs {nccl_cards()} GPU(s)"),
    pytest.mark.skipif(installed_version() is None, reason="needs vLLM"),
]
LIMITS = ParityLimits(max_abs=None, mean_abs=0.02)
FLAGS = {
    "max-model-len": 512,
    "max-num-seqs": 16,
    "gpu-memory-utilization": 0.2,
    "kv-cache-memory-bytes": 2**30,
    "enforce-eager": "",
}


@dataclass
class Served:
    url: str
    group: int
    folder: Path
    device: torch.device

    def model(self, seed: int) -> PreTrainedModel:
        torch.manual_seed(seed)
        with self.device:
            config = AutoConfig.from_pretrained(self.folder)
            return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()

    def publisher(self, deadlines: PublishDeadlines | None = None) -> Publisher:
        transport = NcclTransport(self.device, torch.bfloat16, buffer_bytes=2**20, first_port=9700)
        made = Publisher([self.url], transport, deadlines=deadlines)
        made.wait_ready(30)
        return made


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("vllm")
    folder = model_folder("tiny", root / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": request.param}))
    port = next(filter(is_free, range(8700, 65536)))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    with serving(engine_argv(folder, port, "nccl", FLAGS), visible[0], port, root / "log") as (url, group):
        yield Served(url, group, folder, torch.device("cuda", nccl_cards() - 1))


@torch.no_grad()
def score(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    rows = torch.as_tensor(ids, dtype=torch.int64, device=model.device)
    logprobs = model(rows).logits.float().log_softmax(-1)[:, :-1]
    return logprobs.gather(-1, rows[:, 1:, None])[..., 0].cpu().numpy()


def test_parity_after_one_and_after_ten_updates(served: Served) -> None:
    publisher = served.publisher()
    for version in range(1, 11):
        model = served.model(version)
        publisher.publish(version, distinct_parameters(model))
        if version in (1, 10):
            ids = probe_ids(int(model.config.vocab_size))
            check_parity(publisher, ids, partial(score, model), LIMITS)
    publisher.close()


def test_a_new_publisher_makes_a_new_group_with_the_same_engine(served: Served) -> None:
    for version in (20, 21):
        publisher = served.publisher()
        model = served.model(version)
        publisher.publish(version, distinct_parameters(model))
        ids = probe_ids(int(model.config.vocab_size))
        check_parity(publisher, ids, partial(score, model), LIMITS)
        publisher.close()


def test_an_engine_stopped_during_a_broadcast_is_named_and_the_sender_is_free(served: Served) -> None:
    publisher = served.publisher(PublishDeadlines(update_s=3.0))
    publisher.publish(30, distinct_parameters(served.model(30)))
    transport = publisher._transport
    send = transport.send

    def stop_then_send(*arguments: object) -> None:
        os.killpg(served.group, signal.SIGSTOP)
        send(*arguments)  # type: ignore[arg-type]

    transport.send = stop_then_send  # type: ignore[method-assign,assignment]
    started = time.monotonic()
    try:
        with pytest.raises(WeightUpdateError, match="update of") as error:
            publisher.publish(31, distinct_parameters(served.model(31)))
    finally:
        os.killpg(served.group, signal.SIGCONT)
    assert error.value.broken == [served.url]
    assert time.monotonic() - started < 30
    assert not [one for one in threading.enumerate() if "send" in one.name]
    publisher.close()
