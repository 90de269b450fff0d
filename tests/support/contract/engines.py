"""What a test sees of the engine that it runs on, and the engines there are."""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from transformers import PreTrainedModel

from benchmarks.gpu.cards import nccl_cards
from pipelinerl.base.http import CallFailed, call
from pipelinerl.engines.client import EngineClient, Generation
from pipelinerl.engines.cpu.backend import CpuBackend
from pipelinerl.engines.cpu.settings import EngineSettings
from pipelinerl.engines.serving.backend import Backend, ServerSettings
from pipelinerl.engines.vllm.installed import installed_version
from pipelinerl.engines.vllm.options import VllmVersion
from pipelinerl.weights.engine_update import PublishDeadlines
from pipelinerl.weights.publisher import KvPolicy, Publisher
from pipelinerl.weights.transports.base import NamedTensor, StagedUpdate, Transport
from pipelinerl.weights.transports.file import FileTransport
from pipelinerl.weights.transports.nccl import NcclTransport
from tests.support.contract import models
from tests.support.contract.toy import ToyBackend

TAPES = Path(__file__).resolve().parents[2] / "fixtures"
RECORDED = {"recorded-0.26": TAPES / "vllm_0_26.jsonl.gz", "recorded-0.32": TAPES / "vllm_0_32.jsonl.gz"}
LIMITS: dict[str, Any] = {"max_num_seqs": 16, "max_model_len": models.CONTEXT}
BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "embedded": lambda model: CpuBackend(EngineSettings(model=model, max_prefill_tokens=64, **LIMITS)),
    "toy": lambda model: ToyBackend(ServerSettings(model=model, **LIMITS)),
}
"""Of a folder of a model; served in the test's own process."""
COLUMNS = (*BACKENDS, *RECORDED, "cpu", "cpu-ahead", "cpu-once")
COLUMNS += ("gpu-file", "gpu-nccl", "gpu-nccl-ahead", "gpu-file-once")
"""`toy`: the smallest back end behind this project's server; `cpu`: a CPU build of vLLM in the environment of
VLLM_PYTHON; `gpu`: vLLM of this environment.

`ahead`: weights are received while the engine generates. `once`: with
`vllm_config.outputs_once` and `quick_slots`.
"""
LENGTHS = (200, 800, 1900)
"""Tokens of a request to be stopped: if it ends before that on a busy machine, a longer one is tried."""
TOKENS = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
CACHE_QUERIES, CACHE_HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"


@dataclass(frozen=True)
class Facts:
    """What the contract leaves to the kind and version of an engine."""

    reports_versions: bool
    """Whether answers say which weights sampled each token; otherwise there is a lower bound."""
    says_label: bool
    """Whether it is asked for the version of its weights and says it."""
    out_of_order: int
    """Status of a call that does not fit the state of an update."""
    keeps_blocks: bool
    """Whether a prefix cache has blocks of the old weights after an update that was not to clear it."""

    def said(self, sampled: int, announced: int) -> int:
        """The version that tokens sampled by `sampled` are known by."""
        return sampled if self.reports_versions else announced

    def needs_versions(self) -> None:
        """For a test of what only exact versions make possible."""
        if not self.reports_versions:
            pytest.skip("this engine's versions are lower bounds")

    @classmethod
    def of_vllm(cls, version: str) -> "Facts":
        found = VllmVersion.parse(version)
        return cls(found.reports_versions, found >= VllmVersion(0, 27), 500, True)


EMBEDDED = Facts(reports_versions=True, says_label=True, out_of_order=409, keeps_blocks=False)


@dataclass
class Engine:
    """A running engine that has loaded `models.model(tied, 0)`."""

    url: str
    facts: Facts
    tied: bool
    folder: Path
    """The served model's folder, for its tokeniser."""
    session: aiohttp.ClientSession
    transport: Callable[[], Transport]
    spoiled: bool = False
    """Set by a test that leaves the engine unusable: it is replaced, as in a run."""

    def client(self, announced: int | None = None) -> EngineClient:
        return EngineClient(self.url, self.session, announced_version=lambda: announced)

    def model(self, seed: int) -> PreTrainedModel:
        return models.model(self.tied, seed)

    def parameters(self, seed: int) -> list[NamedTensor]:
        """The distinct parameters of a model."""
        return list(self.model(seed).named_parameters())

    async def publisher(self, kv: KvPolicy = "keep", transport: Transport | None = None) -> Publisher:
        """A publisher that has agreed on its transport with the engine."""
        made = Publisher([self.url], transport or self.transport(), kv, PublishDeadlines(health_s=100))
        await asyncio.to_thread(made.wait_ready, 200)
        return made

    async def publish(self, version: int, seed: int, kv: KvPolicy = "keep") -> None:
        """One whole update by a publisher of its own."""
        publisher = await self.publisher(kv)
        await asyncio.to_thread(publisher.publish, version, self.parameters(seed))
        publisher.close()

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Decoded answer of a control route; CallFailed for any status but 200."""
        return json.loads(await asyncio.to_thread(call, method, self.url, path, 200.0, body) or b"null")

    async def refused(self, path: str, body: Any = None) -> CallFailed:
        """How the engine refuses a POST."""
        try:
            await self.call("POST", path, body)
        except CallFailed as error:
            return error
        raise AssertionError(f"{path} was not refused")

    async def metric(self, name: str) -> float:
        return (await self.client().metrics()).get(name, 0.0)

    async def until(self, name: str, holds: Callable[[float], bool]) -> None:
        """Wait for a counter of the engine."""
        async with asyncio.timeout(200.0):
            while not holds(await self.metric(name)):  # noqa: ASYNC110 - another process counts
                await asyncio.sleep(0.01)

    def needs_files(self) -> None:
        """For a test of what becomes of a weight file."""
        if not isinstance(self.transport(), FileTransport):
            pytest.skip("this engine's weights do not come in files")

    def boundaries(self, one: Generation, latest: int) -> list[int]:
        """Where the weights may have changed: exactly known, or one of the last places up to `latest`."""
        if one.exact_versions:
            return [start for _, start, _ in one.versions if start]
        return list(range(latest, max(latest - 4, -1), -1))


class Held:
    """A transport that waits after an update is staged, just before the engines are paused."""

    def __init__(self, transport: Transport, wait: Callable[[], None] = lambda: None) -> None:
        self._transport, self.wait = transport, wait

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def stage(self, version: int, named: Any) -> StagedUpdate:
        staged = self._transport.stage(version, named)
        self.wait()
        return staged


def file_transport(folder: Path, ahead: bool = False) -> Callable[[], Transport]:
    return lambda: FileTransport(folder, ahead=ahead)


def nccl_transport(ahead: bool) -> Callable[[], Transport]:
    device = torch.device("cuda", nccl_cards() - 1)
    return lambda: NcclTransport(device, torch.float32, buffer_bytes=2**20, first_port=9500, ahead=ahead)


def missing(column: str) -> str:
    """Why an engine cannot be had here; empty if it can."""
    if column in RECORDED:
        return "" if RECORDED[column].exists() else f"{RECORDED[column].name} was not recorded"
    if column.startswith("cpu"):
        return "" if os.environ.get("VLLM_PYTHON") else "VLLM_PYTHON names no interpreter with vLLM"
    if column.startswith("gpu"):
        cards = nccl_cards() if column.startswith("gpu-nccl") else 1
        if torch.cuda.device_count() < cards or installed_version() is None:
            return f"needs vLLM and {cards} GPU(s)"
    return ""
