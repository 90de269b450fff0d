"""An engine without a model: answers at once, and misbehaves on request."""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web

from pipelinerl.llm import TrainableLLM
from pipelinerl.rollouts import RolloutResult
from tests.support.tiny_model import build_tokenizer

Answer = Callable[[list[int]], list[int]]
Odd = int | bytes | dict[str, Any] | Callable[[web.Request], Awaitable[web.StreamResponse]]


def said(text: str) -> Answer:
    """The same text of the tiny tokeniser, and its end, whatever is asked."""
    tokenizer = build_tokenizer()
    ids = [*tokenizer.convert_tokens_to_ids(list(text)), tokenizer.eos_token_id]
    return lambda prompt: ids


async def rolled_out(
    policy: Callable[..., Any],
    cfg: Any,
    problem: dict[str, Any],
    engine: "FakeEngine",
    model: Path,
    **fields: Any,
) -> RolloutResult:
    """One rollout of a policy that asks the engine; `fields` are those of its `TrainableLLM`."""
    llm = TrainableLLM(model_name=str(model), base_url=engine.url, collect_logprobs=True, **fields)
    async with aiohttp.ClientSession() as session:
        result: RolloutResult = await policy(cfg, llm, problem, session)
    return result


class FakeEngine:
    """Runs in a thread. `misbehave` takes what the next generate requests get instead: a status, a body, or
    a function of the request that answers it.
    """

    def __init__(self, answer: Answer, version: str = "0", max_model_len: int = 512, delay_s: float = 0.0):
        self.answer, self.version, self.max_model_len, self.delay_s = answer, version, max_model_len, delay_s
        self.misbehave: deque[Odd] = deque()
        self.always: int | None = None
        self.counts: Counter[str] = Counter()
        self.sampling: list[dict[str, Any]] = []
        self.chats: list[dict[str, Any]] = []
        """Bodies of requests to the chat route."""
        self.url = ""

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._ready.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self.listen()
        self._ready.set()
        await self._stop.wait()
        # Requests that still sleep are cancelled with the loop; a clean shutdown would wait for them.

    async def listen(self) -> web.AppRunner:
        """Answer from the running event loop, until the runner is cleaned up."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/weight_info", self._weight_info)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake", "max_model_len": self.max_model_len}]})

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.version})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_running 0\n")

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.counts["requests"] += 1
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        odd = self.misbehave.popleft() if self.misbehave else self.always
        if isinstance(odd, int):
            return web.json_response({"error": {"message": f"told to say {odd}"}}, status=odd)
        if isinstance(odd, bytes):
            return web.Response(body=odd)
        if isinstance(odd, dict):
            return web.json_response(odd)
        if odd is not None:
            return await odd(request)
        self.counts["answered"] += 1
        self.sampling.append(body["sampling_params"])
        if "prompt_logprobs" in body["sampling_params"]:
            return web.json_response(self.scores(body["token_ids"]))
        return web.json_response(self.reply(self.answer(body["token_ids"])))

    async def _chat(self, request: web.Request) -> web.Response:
        """Calls the first tool that is offered, whatever was asked."""
        body = await request.json()
        self.counts["chats"] += 1
        odd = self.misbehave.popleft() if self.misbehave else None
        if isinstance(odd, int):
            return web.json_response({"error": {"message": f"told to say {odd}"}}, status=odd)
        self.chats.append(body)
        reply = self.reply(self.answer([1, 2, 3])) | {"prompt_token_ids": [1, 2, 3]}
        (choice,) = reply["choices"]
        choice["message"] = {"role": "assistant", "content": None}
        if body.get("tools"):
            function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"city": "Bern"}'}
            choice["message"]["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
            choice["finish_reason"] = "tool_calls"
        return web.json_response(reply | (odd if isinstance(odd, dict) else {}))

    def scores(self, ids: list[int]) -> dict[str, Any]:
        """The body of an answer that scores a prompt: token at position p has log-probability -p."""
        entries = [{str(token): {"logprob": -float(at)}} if at else None for at, token in enumerate(ids)]
        return {**self.reply([]), "prompt_logprobs": entries}

    def reply(self, ids: list[int], finish_reason: str = "stop", spans: Any = None) -> dict[str, Any]:
        """The body of an answer with these ids, each at log-probability -0.5."""
        spans = spans or [{"version": self.version, "start": 0, "end": len(ids)}]
        choice = {
            "index": 0,
            "token_ids": ids,
            "finish_reason": finish_reason,
            "logprobs": {"content": [{"logprob": -0.5, "token_id": id_} for id_ in ids]},
            "weight_versions": spans if ids else [],
        }
        return {"request_id": "r", "choices": [choice]}
