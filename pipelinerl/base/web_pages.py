"""What every aiohttp server here guards against: web pages in somebody's browser, and half a body."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from pipelinerl.base.access import own_names, refusal
from pipelinerl.base.malformed import COMPRESSED, is_compressed

BODY_DEADLINE_S = 30.0
"""From the headers of a request to the end of its body; half a body would hold its connection for ever."""


@web.middleware
async def no_web_pages(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """403 with one line for a foreign `Origin` or `Host`; the handler's answer otherwise."""
    if (reason := refusal(request.headers, own_names())) is not None:
        return web.json_response({"error": {"message": reason}}, status=403)
    return await handler(request)


async def whole_body(http: web.Request) -> bytes:
    """The body of a request.

    Raises HTTPRequestTimeout (408) where it does not arrive, HTTPUnsupportedMediaType (415) where it is
    compressed.
    """
    if is_compressed(http.headers):
        raise web.HTTPUnsupportedMediaType(reason=COMPRESSED)
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            return await http.read()
    except TimeoutError:
        late = f"the body did not arrive within {BODY_DEADLINE_S:g} s; send it whole"
        raise web.HTTPRequestTimeout(reason=late) from None
