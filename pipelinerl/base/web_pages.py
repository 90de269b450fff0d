"""An aiohttp middleware that refuses what a web page in somebody's browser asks."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from pipelinerl.base.access import own_names, refusal


@web.middleware
async def no_web_pages(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """403 with one line for a foreign `Origin` or `Host`; the handler's answer otherwise."""
    if (reason := refusal(request.headers, own_names())) is not None:
        return web.json_response({"error": {"message": reason}}, status=403)
    return await handler(request)
