"""A verifier over HTTP: `POST /verify_answer` with a judge's arguments as JSON, `GET /health`.

The environments of `ifeval`, `fn_calling`, `logic` and `math` are such servers, because upstream's
configurations start them; where a run has none, rollouts call the judge in their own process. Errors are
`{"error": {"message"}}`.
"""

import asyncio
import inspect
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import nullcontext
from typing import Any

import aiohttp
from aiohttp import web
from omegaconf import DictConfig

from domains.pool import JudgePool
from pipelinerl.base.malformed import BAD_BODY, BODY_ERRORS, UNCOMPRESSED, log_one_line
from pipelinerl.base.web_pages import no_web_pages, whole_body
from pipelinerl.utils import get_environment_jobs

MAX_BODY_BYTES = 4 << 20
ROUTE = "/verify_answer"
DEADLINE_S = 60.0

Judge = Callable[..., Any]
"""Its keyword arguments are the body's keys; returns what is answered, or awaits it. ValueError is a 400.

One that is no coroutine function is called in several threads at once."""


def make_app(
    judge: Judge, read: Callable[[bytes], Any] = json.loads, pool: JudgePool | None = None
) -> web.Application:
    """The server's application. `read` turns a body into the judge's arguments; ValueError is a 400.

    `pool` lives as long as the server, and `/health` says its counts.
    """
    is_async = inspect.iscoroutinefunction(judge)

    async def verify(request: web.Request) -> web.Response:
        try:
            sent = await whole_body(request)
        except (web.HTTPRequestTimeout, web.HTTPUnsupportedMediaType) as refused:
            return _error(refused.status, refused.reason)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        except BODY_ERRORS:
            return _error(400, BAD_BODY)
        try:
            body = read(sent)
            inspect.signature(judge).bind(**body)
            # Beside the loop: a text of megabytes takes seconds, in which health and other answers go on.
            found = judge(**body) if is_async else await asyncio.to_thread(judge, **body)
            return web.json_response(await found if inspect.isawaitable(found) else found)
        except KeyError as error:
            return _error(400, f"the body lacks {' '.join(str(error).split())[:200]}")
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            return _error(400, " ".join(str(error).split())[:200])

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"} | ({} if pool is None else {"counts": dict(pool.counts)}))

    async def running(_: web.Application) -> AsyncIterator[None]:
        async with pool or nullcontext():
            yield

    app = web.Application(
        client_max_size=MAX_BODY_BYTES, middlewares=[no_web_pages], handler_args=UNCOMPRESSED
    )
    app.router.add_post(ROUTE, verify)
    app.router.add_get("/health", health)
    app.cleanup_ctx.append(running)
    log_one_line()
    return app


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


def serve(app: web.Application, host: str, port: int) -> None:
    """Serve until the process is stopped."""
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    web.run_app(app, host=host, port=port, print=None, shutdown_timeout=2.0)


def any_server(cfg: DictConfig, key: str | None) -> tuple[str, int] | None:
    """Host and port of one of an environment's servers, another one each time; None if the run has none."""
    jobs = get_environment_jobs(cfg, key)
    if not jobs:
        return None
    job = random.choice(jobs)
    assert job.port is not None
    return job.hostname, job.port


async def ask(
    session: aiohttp.ClientSession, host: str, port: int, body: Mapping[str, Any]
) -> dict[str, Any]:
    """What the server at `host:port` says of an answer.

    Raises ValueError for what it refuses and for an answer that is no object with a status; what a retry may
    mend (aiohttp's connection errors, 5xx as ClientResponseError, TimeoutError) is left to the caller.
    """
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with session.post(f"http://{host}:{port}{ROUTE}", json=dict(body), timeout=timeout) as response:
        text = await response.text()
        if 400 <= response.status < 500:
            raise ValueError(
                f"verifier {host}:{port}: HTTP {response.status}: {' '.join(text.split())[:200]}"
            )
        response.raise_for_status()
    try:
        found = json.loads(text)
        assert isinstance(found["answer_status"], str)
    except (ValueError, TypeError, KeyError, AssertionError):
        raise ValueError(
            f"verifier {host}:{port}: {' '.join(text.split())[:100]!r} is no answer status"
        ) from None
    return found  # type: ignore[no-any-return]
