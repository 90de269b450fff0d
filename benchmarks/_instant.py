"""Rollouts of one call, and an engine that answers it at once, for actors that are measured alone."""

import asyncio
import json
import random
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import numpy as np
from omegaconf import DictConfig

from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.llm import Prompt, TrainableLLM
from pipelinerl.rollouts import BaseMetrics, RolloutResult, TrainingText

TOKENS = 8
CONTEXT = 4096
IDS = 300
"""Of the vocabulary."""
ROUTES = {
    b"/health": b"",
    b"/v1/models": b'{"data": [{"id": "m", "max_model_len": %d}]}' % CONTEXT,
    b"/weight_info": b'{"weight_version": "1000000"}',
    b"/metrics": b"vllm:num_requests_running 0\n",
}
"""What it answers beside completions. Without versions: it serves whatever was announced last."""
LONG = "say something of " * 128
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def completion(tokens: int) -> bytes:
    """The answer to a request for so many tokens."""
    ids = [6 + i % (IDS - 6) for i in range(tokens)]
    choice = {
        "index": 0,
        "token_ids": ids,
        "finish_reason": "stop",
        "logprobs": {"content": [{"logprob": -0.5, "token_id": one} for one in ids]},
    }
    return json.dumps({"choices": [choice]}).encode()


def load_problems(names: list[str]) -> list[dict[str, Any]]:
    return [{"id": index, "dataset": name} for name in names for index in range(1000)]


def _result(text: TrainingText) -> RolloutResult:
    metrics = BaseMetrics(reward=1.0, success=True, no_error=True, no_answer=False)
    return RolloutResult(training_texts=[text], metrics=metrics)


async def ready_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One text of 64 tokens, without an engine."""
    await asyncio.sleep(0)
    ids = np.arange(64, dtype=np.int32)
    labels = np.where(ids < 64 - TOKENS, -100, ids)
    text = TrainingText(text="prompt and answer", n_predicted=6, input_ids=ids, labels=labels, finished=True)
    text.logprobs = np.full(TOKENS, -0.5, np.float32)
    text.weight_versions = [(0, 0, TOKENS)]
    return _result(text)


async def http_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One call to the engine."""
    call = await llm_async_generate(llm, Prompt.from_user_message("say something"), session)
    return _result(make_training_text(llm, call))


async def long_rollout(
    cfg: DictConfig, llm: TrainableLLM, problem: dict[str, Any], session: aiohttp.ClientSession
) -> RolloutResult:
    """One call with a prompt of about 520 tokens, another one for each problem."""
    prompt = Prompt.from_user_message(f"{problem['id']}: {LONG}")
    return _result(make_training_text(llm, await llm_async_generate(llm, prompt, session)))


class InstantEngine(asyncio.Protocol):
    """Just enough HTTP to be an engine; answers every other POST with the same tokens."""

    def __init__(self, delay_s: float, tokens: int) -> None:
        self._delay_s, self._completion = delay_s, completion(tokens)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            if len(self.buffer) < end + 4 + length:
                return
            self.buffer = self.buffer[end + 4 + length :]
            body = ROUTES.get(head.split(b" ", 2)[1], self._completion)
            delay_s = self._delay_s * random.uniform(0.5, 1.5) if head.startswith(b"POST") else 0.0
            reply = HEAD % len(body) + body
            asyncio.get_running_loop().call_later(delay_s, self.transport.write, reply)  # type: ignore[attr-defined]


def serve(delay_s: float, tokens: int, connection: Connection) -> None:
    """For ever, on a port that is sent first; an answer takes half to one and a half times `delay_s`."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: InstantEngine(delay_s, tokens), "127.0.0.1", 0)
        connection.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
