"""A service behind HTTP that answers as it is told."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from domains.privacy_hopqa.agent.transport import JsonClient, Retries

FAST = Retries(backoff_s=(0.0, 0.0, 0.0), jitter=0.0)


class Service:
    """Answers in turn, the last one again and again; keeps the path and the JSON of every request.

    An answer is a status, a text, a response, a function of the request's JSON that makes one of these, or
    what becomes JSON.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, Any]] = []

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.requests.append((request.path, json.loads(text) if text else None))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer(self.requests[-1][1])
        if isinstance(answer, int):
            return web.json_response({"error": {}}, status=answer, headers={"Retry-After": "0"})
        if isinstance(answer, str):
            return web.Response(text=answer)
        return answer if isinstance(answer, web.StreamResponse) else web.json_response(answer)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[JsonClient]:
        """A client of the running service, which tries four times without a wait."""
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        async with TestServer(app) as server, aiohttp.ClientSession() as session:
            yield JsonClient(str(server.make_url("")), session, 5.0, FAST)
