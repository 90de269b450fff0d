"""The handlers of `/v1/completions`, `/v1/chat/completions` and `/tokenize`, which `server` adds to its own.

They let programs written for OpenAI's API or for vLLM run without a GPU; the pipeline asks the token route.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import web

from pipelinerl.base.thoughts import opened_by
from pipelinerl.base.web_pages import whole_body
from pipelinerl.engines.openai.answers import ChatWriter, CompletionWriter, Writer
from pipelinerl.engines.openai.chat import prompt_text
from pipelinerl.engines.openai.fields import (
    COMPLETION_MAX_TOKENS,
    ChatFields,
    CompletionFields,
    SharedFields,
)
from pipelinerl.engines.openai.handlers import Answer, json_response, read, streamed
from pipelinerl.engines.openai.protocol import TokenizeFields, parse
from pipelinerl.engines.serving.pending import PendingRequests, RequestFailed
from pipelinerl.engines.serving.sequence import Request, usage_of
from pipelinerl.engines.serving.served import Served
from pipelinerl.engines.serving.thread import Engine

F = TypeVar("F", CompletionFields, ChatFields)
# Bodies from this size on are read and tokenised beside the event loop.
IN_THREAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request: its prompts as the engine takes them, and the answer to be written."""

    fields: SharedFields
    requests: list[Request]
    answer: Answer


class OpenAIRoutes:
    """Adds the three routes to an application."""

    def __init__(self, engine: Engine, pending: PendingRequests, served: Served) -> None:
        self._engine = engine
        self._pending = pending
        self._served = served

    def routes(self) -> list[web.RouteDef]:
        """To be added to an application."""
        return [
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
            web.post("/tokenize", self.tokenize),
        ]

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """Text or ids in, their continuations out."""
        return await self._answer(http, self._continuation)

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """Messages in, the model's reply out."""
        return await self._answer(http, self._reply)

    async def tokenize(self, http: web.Request) -> web.Response:
        """The ids of a text; programs compare an engine's tokeniser with theirs."""
        fields = parse(await whole_body(http), TokenizeFields)
        self._served.check_model(fields.model)
        ids = await asyncio.to_thread(self._served.encoded, fields.prompt, fields.add_special_tokens)
        return json_response({"count": len(ids), "tokens": ids})

    async def _answer(self, http: web.Request, read: Callable[[bytes], Asked]) -> web.StreamResponse:
        self._engine.metrics.requests_received += 1
        body = await whole_body(http)
        asked = await asyncio.to_thread(read, body) if len(body) >= IN_THREAD_BYTES else read(body)
        if asked.fields.stream:
            return await streamed(http, self._chunks(asked), (RequestFailed,))
        await self._pending.run(self._engine, asked.requests)
        sequences = [one for request in asked.requests for one in request.sequences]
        sampled = [(one.request, one.piece()) for one in sequences]
        return json_response(asked.answer.whole(sampled, usage_of(asked.requests)))

    async def _chunks(self, asked: Asked) -> AsyncGenerator[dict[str, Any]]:
        # Choices are numbered through all prompts, which have as many each.
        first = {one.request_id: place * len(one.sequences) for place, one in enumerate(asked.requests)}
        async with aclosing(self._pending.stream(self._engine, asked.requests)) as results:
            async for request, piece in results:
                if piece is None:  # its last pieces said already why its sequences ended
                    continue
                yield asked.answer.chunk(first[request.request_id] + piece.index, request, piece)
        for chunk in asked.answer.last(usage_of(asked.requests)):
            yield chunk

    def _read(self, body: bytes, kind: type[F]) -> F:
        fields = read(body, kind)
        if fields.return_tokens_as_token_ids is None:
            fields.return_tokens_as_token_ids = self._served.names_ids
        return fields

    def _continuation(self, body: bytes) -> Asked:
        fields = self._read(body, CompletionFields)
        tokenizer, given = self._served.tokenizer, fields.prompts()
        self._pending.check_count(len(given) * max(1, fields.n or 1))
        prompts = [
            self._served.encoded(one, bool(fields.add_special_tokens)) if isinstance(one, str) else one
            for one in given
        ]
        max_tokens = COMPLETION_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
        return self._asked(fields, prompts, max_tokens, CompletionWriter(tokenizer, fields))

    def _reply(self, body: bytes) -> Asked:
        fields = self._read(body, ChatFields)
        tokenizer = self._served.tokenizer
        text = prompt_text(tokenizer, fields)
        ids = self._served.encoded(text, bool(fields.add_special_tokens))
        return self._asked(fields, [ids], fields.most_tokens, ChatWriter(tokenizer, fields, opened_by(text)))

    def _asked(
        self, fields: SharedFields, prompts: Sequence[list[int]], max_tokens: int | None, writer: Writer
    ) -> Asked:
        self._served.check_model(fields.model)
        sampling = fields.sampling(max_tokens)
        name = fields.request_id or uuid.uuid4().hex
        requests = [
            # The first prompt keeps the caller's id, by which `/abort_requests` finds it.
            self._served.request(
                f"{name}-{index}" if index else name,
                prompt,
                sampling,
                streams=bool(fields.stream),
                cache_salt=fields.cache_salt,
            )
            for index, prompt in enumerate(prompts)
        ]
        return Asked(fields, requests, Answer(writer, fields, self._served.name, name))
