"""The recording endpoint of a process: an HTTP site for each event loop, on the loopback interface by rule.

It starts with the first session and stays until `close`, which the actor's worker calls at its end, so that a
program that outlives its session is told so. On the loopback interface the token in the path is the only
secret: most SDKs let a user set nothing but the base URL. A site that other hosts reach asks for a key as
well, which SDKs send in a header, and which proxies and their logs do not show.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import web
from jinja2 import TemplateError

from pipelinerl.base.access import is_loopback
from pipelinerl.base.malformed import UNCOMPRESSED, log_one_line
from pipelinerl.base.waits import wait_for
from pipelinerl.base.web_pages import no_web_pages, whole_body
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
from pipelinerl.extras.recorder.asked import Changed
from pipelinerl.extras.recorder.messages import messages
from pipelinerl.extras.recorder.replies import Answered
from pipelinerl.extras.recorder.responses import responses
from pipelinerl.extras.recorder.session import ENGINE_FAILURES, NoSession, Session

HOST = "127.0.0.1"
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 5.0
FAILURES = (*ENGINE_FAILURES, EngineRequestError, NoSession, Changed)
"""Of calls; told in a stream that has begun."""


class NoKey(PermissionError):
    """A request from another host without the session's key (HTTP 401)."""

    def __init__(self) -> None:
        super().__init__(
            "the key is not the session's; send its api_key as Authorization: Bearer or x-api-key"
        )


class Site:
    """Hands requests to the sessions that are open. `host` is the address at which it listens."""

    def __init__(self, host: str = HOST) -> None:
        self.sessions: dict[str, Session] = {}
        self._host = host
        self._secret = None if is_loopback(host) else secrets.token_bytes(32)
        # Anthropic's client tells an error by its type, OpenAI's by what is below `error`.
        errors = errors_as_json(_status_of, _path_of, {"type": "error"})
        app = web.Application(
            client_max_size=MAX_BODY_BYTES, middlewares=[errors, no_web_pages], handler_args=UNCOMPRESSED
        )
        app.add_routes(
            [
                web.get("/r/{token}/v1/models", self._models),
                web.get("/r/{token}/v1/models/{name:.+}", self._models),  # a path has slashes
                web.post("/r/{token}/v1/chat/completions", self._handler(routes.chat)),
                web.post("/r/{token}/v1/completions", self._handler(routes.completions)),
                web.post("/r/{token}/v1/responses", self._handler(responses)),
                web.post("/r/{token}/v1/messages", self._handler(messages)),
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
        await web.TCPSite(self._runner, self._host, 0, backlog=1024).start()
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()

    def url(self, token: str) -> str:
        """What a program of the session takes for OpenAI's base URL."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._runner.addresses[0][1]}/r/{token}/v1"

    def api_key(self, token: str) -> str:
        """What requests to a session have to show. It follows from the token: a client that is kept fits."""
        return "none" if self._secret is None else hmac.digest(self._secret, token.encode(), "sha256").hex()

    def _session(self, http: web.Request) -> Session:
        token = http.match_info["token"]
        if self._secret is not None and not _shows(http, self.api_key(token)):
            raise NoKey
        session = self.sessions.get(token)
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
            answer = await route(self._session(http), await whole_body(http))
            if answer.events is None:
                return json_response(answer.body)
            return await streamed(http, answer.events, FAILURES, named=answer.named)

        return handle


def _card(session: Session, name: str) -> dict[str, Any]:
    """The model under any name: whatever a program calls it, its session has one."""
    return card(name, session.llm.model_name, session.llm.context_size)


_SITES: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Task[Site]]] = WeakKeyDictionary()
"""By event loop, and by the address at which they listen."""


@asynccontextmanager
async def session(
    llm: EngineLLM, *, override: bool = False, token: str | None = None, host: str = HOST
) -> AsyncIterator[Session]:
    """Record what a program asks of `llm` while the block runs, at `session.base_url`.

    The run's `llm.parameters` decide how tokens are drawn. A program that asks for another temperature,
    `top_p`, penalty or seed is refused in one line; with `override` it gets the run's, and the calls and
    texts name what it asked for under `overridden`. An engine failure that the program did not get over is
    raised in place of whatever the block raises.

    `token` is for clients that are costly to make for each address: that of an earlier session which ended,
    with nobody left who speaks to it. Raises ValueError while it is in use.

    `host` is for programs on other hosts: an address of this machine that they reach. They have to send
    `session.api_key`, as SDKs do with the key that they are given. Raises ValueError for what is no address.
    """
    _check_host(host)
    site = await _site(host)
    token = token or secrets.token_urlsafe(24)
    if token in site.sessions:
        raise ValueError("the token is that of a session that is still open")
    llm = llm.model_copy(update={"collect_logprobs": True})
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        opened = site.sessions[token] = Session(llm, http, site.url(token), override, site.api_key(token))
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
    """Stop the sites of this event loop."""
    for started in _SITES.pop(asyncio.get_running_loop(), {}).values():
        site = await wait_for(started, "the recording endpoint's start", START_DEADLINE_S)
        await wait_for(site.stop(), "the recording endpoint's end", 2 * STOP_DEADLINE_S)


async def _site(host: str) -> Site:
    """The site of this event loop at an address, started by whoever comes first."""
    sites = _SITES.setdefault(asyncio.get_running_loop(), {})
    if host not in sites:
        sites[host] = asyncio.create_task(Site(host).start(), name=f"recording endpoint at {host}")
    started = sites[host]
    try:
        # Shielded: the rollout that came first may be given up while others wait for the same site.
        return await wait_for(asyncio.shield(started), "the recording endpoint's start", START_DEADLINE_S)
    except OSError:  # no port; the next session tries again
        if sites.get(host) is started:
            del sites[host]
        raise


def _check_host(host: str) -> None:
    try:
        known = not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        known = False
    if not known:
        raise ValueError(
            f"host {host!r} is no address that a program could ask; give an IP address of this machine that "
            "the program's host reaches"
        )


def _shows(http: web.Request, key: str) -> bool:
    """Whether a request has the key where OpenAI's clients put it, or where Anthropic's do."""
    sent = http.headers.get("Authorization", "").removeprefix("Bearer "), http.headers.get("x-api-key", "")
    return any(hmac.compare_digest(_digest(one), _digest(key)) for one in sent)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _status_of(error: Exception) -> int | None:
    if isinstance(error, NoSession):
        return 404
    if isinstance(error, NoKey):
        return 401
    if isinstance(error, EngineRequestError):
        return error.status
    if isinstance(error, ENGINE_FAILURES):
        return 503
    # Also BadRequest, prompts that fill the context, and what a template says of messages.
    return 400 if isinstance(error, (ValueError, TemplateError)) else None


def _path_of(http: web.Request) -> str:
    """Without the token."""
    return "/" + http.path.partition("/r/")[2].partition("/")[2]
