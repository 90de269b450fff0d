"""A tiny model and a real engine in the test's own event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pipelinerl.engines.client import EngineClient
from pipelinerl.engines.cpu.backend import CpuBackend
from pipelinerl.engines.cpu.settings import EngineSettings
from pipelinerl.engines.serving.backend import Backend
from pipelinerl.engines.serving.server import EngineServer, listening
from tests.support.tiny_model import causal_lm

VOCAB = 256
EOS = 255


def build_model(folder: Path, *, tied: bool, seed: int = 0) -> Path:
    """Random Qwen3; weights large enough that its distributions are far from uniform."""
    shape: dict[str, Any] = {"hidden": 64, "heads": 4, "kv_heads": 2, "positions": 4096, "spread": 0.15}
    causal_lm(VOCAB, **shape, tied=tied, eos=EOS, seed=seed).save_pretrained(folder)
    return folder


def build_llama(folder: Path, *, seed: int = 0, **fields: Any) -> Path:
    """A Llama as sharp as that, every weight random, those of norms and biases too."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    ids = {"vocab_size": VOCAB, "eos_token_id": EOS, "bos_token_id": None}
    model = LlamaForCausalLM(LlamaConfig(**shape, **ids, initializer_range=0.15, **fields))
    for one in model.parameters():
        if one.ndim == 1:
            torch.nn.init.normal_(one, mean=1.0, std=0.15)
    model.save_pretrained(folder)
    return folder


def reference(folder: Path) -> PreTrainedModel:
    """The model as transformers runs it."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def full_logprobs(model: Any, ids: list[int] | np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """float32 [len(ids) - 1]: log-probability of every id but the first, by one full forward."""
    tokens = torch.as_tensor(np.asarray(ids, dtype=np.int64))[None]
    logprobs = (model(tokens).logits[0, :-1].float() / temperature).log_softmax(-1)
    return logprobs.gather(1, tokens[0, 1:, None])[:, 0].numpy()


@dataclass
class RunningEngine:
    url: str
    server: EngineServer
    backend: Any
    """Of the kind that the test asked for."""
    client: EngineClient
    session: aiohttp.ClientSession

    async def post(self, path: str, body: Any = None, expect: int = 200) -> Any:
        async with self.session.post(self.url + path, json=body) as answer:
            content = await answer.json()
            assert answer.status == expect, (path, answer.status, content)
            return content

    async def update(self, info: dict[str, Any]) -> None:
        """The calls of the publisher, one by one."""
        await self.post("/pause?mode=keep&clear_cache=false")
        await self.post("/start_weight_update")
        await self.post("/update_weights", {"update_info": info})
        await self.post("/finish_weight_update", {"weight_version": info["version"]})
        await self.post("/resume")

    async def get(self, path: str) -> Any:
        async with self.session.get(self.url + path) as answer:
            assert answer.status == 200, (path, answer.status)
            return await answer.json()


@asynccontextmanager
async def running_engine(folder: Path, port: int = 0, **settings: Any) -> AsyncIterator[RunningEngine]:
    values = {"max_num_seqs": 8, "max_model_len": 512, "max_prefill_tokens": 64, **settings}
    async with served(CpuBackend(EngineSettings(model=folder, **values)), port) as engine:
        yield engine


@asynccontextmanager
async def served(backend: Backend, port: int = 0) -> AsyncIterator[RunningEngine]:
    server = EngineServer(backend)
    async with listening(server, "127.0.0.1", port) as bound, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{bound}"
        yield RunningEngine(url, server, backend, EngineClient(url, session), session)


async def until(condition: Callable[[], bool], deadline_s: float = 200.0) -> None:
    """Wait for something that another thread or process does."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def random_prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, EOS, length).tolist()
