"""Bodies with a deadline and failures as JSON objects, for every server that speaks this protocol."""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable

from aiohttp import web

from retrieval_server.access import page_refusal
from retrieval_server.limits import RequestError
from retrieval_server.malformed import BAD_BODY, BODY_ERRORS, COMPRESSED, is_compressed

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
BODY_DEADLINE_S = 30.0


async def read_body(request: web.Request, most_bytes: int) -> bytes:
    """The whole body. Raises HTTP 413 unread if it is too large, `RequestError` 415 unread if it is
    compressed, 408 if it does not arrive."""
    if is_compressed(request.headers):
        raise RequestError(415, "compressed", COMPRESSED)
    if request.content_length is not None and request.content_length > most_bytes:
        raise web.HTTPRequestEntityTooLarge(most_bytes, request.content_length)
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            return await request.read()
    except TimeoutError as error:
        message = f"the body did not arrive within {BODY_DEADLINE_S:g} s"
        raise RequestError(408, "slow_body", message) from error


async def answered(
    request: web.Request, handler: Handler, paths: str, most_bytes: int, any_name: bool = False
) -> web.StreamResponse:
    """The handler's answer, or its failure as `{"error": {"code", "message"}}`; `paths` exist.

    A web page is refused; `any_name` as in `page_refusal`.
    """
    try:
        if (reason := page_refusal(request.headers, any_name)) is not None:
            raise RequestError(403, "browser", reason)
        return await handler(request)
    except RequestError as error:
        return _response(error)
    except web.HTTPException as error:
        return _response(_refused(request, error, paths, most_bytes), error.headers.get("Allow"))
    except BODY_ERRORS:
        return _response(RequestError(400, "bad_body", BAD_BODY))
    except ConnectionError:  # the client hung up, in its body perhaps; aiohttp ends the connection
        raise
    except Exception as error:
        # Places without values: an exception's text may quote the request.
        places = "".join(traceback.format_tb(error.__traceback__))
        logger.error("%s %s failed: %s\n%s", request.method, request.path, type(error).__name__, places)
        return _response(RequestError(500, "internal", f"internal error: {type(error).__name__}"))


def _refused(request: web.Request, error: web.HTTPException, paths: str, most_bytes: int) -> RequestError:
    """What aiohttp refused, in the words of this protocol."""
    if error.status == 404:
        return RequestError(404, "unknown_path", f"no such path; use {paths}")
    if error.status == 405:
        return RequestError(405, "method_not_allowed", f"{request.method} is not allowed here")
    if error.status == 413:
        return RequestError(413, "too_large", f"the body exceeds {most_bytes} bytes")
    return RequestError(error.status, "http_error", error.reason)


def _response(error: RequestError, allow: str | None = None) -> web.Response:
    """The JSON answer for an error, with `Retry-After` and `Allow` where they apply."""
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if allow:
        headers["Allow"] = allow
    body = {"error": {"code": error.code, "message": str(error)}}
    return web.json_response(body, status=error.status, headers=headers)
