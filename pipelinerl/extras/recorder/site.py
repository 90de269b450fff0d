"""The recording endpoint of a process: an HTTP site on the loopback interface, one for each event loop.

It starts with the first session and stays until `close`, which the actor's worker calls at its end, so that a
program that outlives its session is told so. The token in the path is the only secret: most SDKs let a user
set nothing but the base URL.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import web
from jinja2 import TemplateError

from pipelinerl.base.malformed import log_one_line
from pipelinerl.base.waits import wait_for
from pipelinerl.base.web_pages import no_web_pages
from pipelinerl.engines.errors import EngineRequestError
from pipelinerl.engines.llm_engine import EngineLLM
from pipelinerl.engines.openai.handlers import (
    MAX_BODY_BYTES,
    card,
    errors_as_json,
    json_response,
    streamed,
)
from pipelinerl.extras.recorder import routes
from pipelinerl.extras.recorder.routes import Answered
from pipelinerl.extras.recorder.session import ENGINE_FAILURES, NoSession, Session

HOST = "127.0.0.1"
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 5.0


class Site:
    """Hands requests to the sessions that are open."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        app = web.Application(
            client_max_size=MAX_BODY_BYTES, middlewares=[errors_as_json(_status_of, _path_of), no_web_pages]
        )
        app.add_routes(
            [
                web.get("/r/{token}/v1/models", self._models),
                web.get("/r/{token}/v1/models/{name:.+}", self._models),  # a path has slashes
                web.post("/r/{token}/v1/chat/completions", self._handler(routes.chat)),
                web.post("/r/{token}/v1/completions", self._handler(routes.completions)),
                # Beside /v1, where clients of vLLM look for it.
                web.post("/r/{token}/inference/v1/generate", self._handler(routes.generate)),
            ]
        )
        log_one_line()
        # `handler_cancellation`: a program that hangs up gives up its call, as with an engine.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=STOP_DEADLINE_S
        )

    async def start(self) -> "Site":
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0, backlog=1024).start()
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()

    def url(self, token: str) -> str:
        """What a program of the session takes for OpenAI's base URL."""
        return f"http://{HOST}:{self._runner.addresses[0][1]}/r/{token}/v1"

    def _session(self, http: web.Request) -> Session:
        session = self.sessions.get(http.match_info["token"])
        if session is None:
            raise NoSession
        return session

    async def _models(self, http: web.Request) -> web.Response:
        session = self._session(http)
        name = http.match_info.get("name")
        if name is not None:
            return json_response(_card(session, name))
        return json_response({"object": "list", "data": [_card(session, session.llm.model_name)]})

    def _handler(
        self, route: Callable[[Session, bytes], Awaitable[Answered]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(http: web.Request) -> web.StreamResponse:
            answer = await route(self._session(http), await http.read())
            if answer.events is None:
                return json_response(answer.body)
            return await streamed(http, _each(answer.events))

        return handle


def _card(session: Session, name: str) -> dict[str, Any]:
    """The model under any name: whatever a program calls it, its session has one."""
    return card(name, session.llm.model_name, session.llm.context_size)


_SITES: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Site]] = WeakKeyDictionary()


@asynccontextmanager
async def session(
    llm: EngineLLM, *, override: bool = False, token: str | None = None
) -> AsyncIterator[Session]:
    """Record what a program asks of `llm` while the block runs, at `session.base_url`.

    The run's `llm.parameters` decide how tokens are drawn. A program that asks for another temperature,
    `top_p`, penalty or seed is refused in one line; with `override` it gets the run's, and the calls and
    texts name what it asked for under `overridden`. An engine failure that the program did not get over is
    raised in place of whatever the block raises.

    `token` is for clients that are costly to make for each address: that of an earlier session which ended,
    with nobody left who speaks to it. Raises ValueError while it is in use.
    """
    site = await _site()
    token = token or secrets.token_urlsafe(24)
    if token in site.sessions:
        raise ValueError("the token is that of a session that is still open")
    llm = llm.model_copy(update={"collect_logprobs": True})
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        opened = site.sessions[token] = Session(llm, http, site.url(token), override)
        try:
            yield opened
        except Exception as error:
            if opened.failure is not None and error is not opened.failure:
                raise opened.failure from error
            raise
        finally:
            del site.sessions[token]
            await opened.end()


async def close() -> None:
    """Stop the site of this event loop, if there is one."""
    started = _SITES.pop(asyncio.get_running_loop(), None)
    if started is not None:
        site = await wait_for(started, "the recording endpoint's start", START_DEADLINE_S)
        await wait_for(site.stop(), "the recording endpoint's end", 2 * STOP_DEADLINE_S)


async def _site() -> Site:
    """The site of this event loop, started by whoever comes first."""
    loop = asyncio.get_running_loop()
    if loop not in _SITES:
        _SITES[loop] = asyncio.create_task(Site().start(), name="recording endpoint")
    started = _SITES[loop]
    try:
        # Shielded: the rollout that came first may be given up while others wait for the same site.
        return await wait_for(asyncio.shield(started), "the recording endpoint's start", START_DEADLINE_S)
    except OSError:  # no port; the next session tries again
        _SITES.pop(loop, None)
        raise


def _status_of(error: Exception) -> int | None:
    if isinstance(error, NoSession):
        return 404
    if isinstance(error, EngineRequestError):
        return error.status
    if isinstance(error, ENGINE_FAILURES):
        return 503
    # Also BadRequest, prompts that fill the context, and what a template says of messages.
    return 400 if isinstance(error, (ValueError, TemplateError)) else None


def _path_of(http: web.Request) -> str:
    """Without the token."""
    return "/" + http.path.partition("/r/")[2].partition("/")[2]


async def _each(events: list[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
    for event in events:
        yield event
