"""The recording endpoint of a process: an HTTP site on the loopback interface, one for each event loop.

It starts with the first session and stays until `close`, which the actor's worker calls at its end, so that a
program that outlives its session is told so. The token in the path is the only secret: most SDKs let a user
set nothing but the base URL.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

import aiohttp
import msgspec
from aiohttp import web
from jinja2 import TemplateError

from pipelinerl.base.malformed import BAD_BODY, BODY_ERRORS, log_one_line
from pipelinerl.base.waits import wait_for
from pipelinerl.base.web_pages import no_web_pages
from pipelinerl.engines.errors import EngineRequestError
from pipelinerl.engines.llm_engine import EngineLLM
from pipelinerl.engines.openai.protocol import BadRequest, error_body
from pipelinerl.extras.recorder import routes
from pipelinerl.extras.recorder.routes import Answer
from pipelinerl.extras.recorder.session import ENGINE_FAILURES, NoSession, Session

HOST = "127.0.0.1"
MAX_BODY_BYTES = 64 * 1024 * 1024
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 5.0


class Site:
    """Hands requests to the sessions that are open."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors_as_json, no_web_pages])
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
            return _json(routes.card(session, name))
        return _json({"object": "list", "data": [routes.card(session, session.llm.model_name)]})

    def _handler(
        self, route: Callable[[Session, bytes], Awaitable[Answer]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(http: web.Request) -> web.StreamResponse:
            answer = await route(self._session(http), await http.read())
            return _json(answer.body) if answer.events is None else _stream(answer.events)

        return handle


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


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except NoSession as error:
        return _error(error, 404)
    except BODY_ERRORS:
        return _error(BadRequest(BAD_BODY), 400)
    except EngineRequestError as error:
        return _error(error, error.status)
    except ENGINE_FAILURES as error:
        return _error(error, 503)
    # Also BadRequest, prompts that fill the context, and what a template says of messages.
    except (ValueError, TemplateError) as error:
        return _error(error, 400)
    except web.HTTPException as error:
        # aiohttp's own refusals: unknown routes, wrong methods, bodies that are too large.
        path = "/" + request.path.partition("/r/")[2].partition("/")[2]
        return _error(ValueError(f"{request.method} {path}: {error.reason}"), error.status)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _error(error: BaseException, status: int) -> web.Response:
    return _json(error_body(error, status), status)


def _stream(events: list[dict[str, object]]) -> web.Response:
    """Server-sent events; all is known by now, so they are one body."""
    lines = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
    return web.Response(
        body=b"".join([*lines, b"data: [DONE]\n\n"]),
        content_type="text/event-stream",
        headers={"Cache-Control": "no-cache"},
    )
