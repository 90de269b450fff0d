"""The verifier over HTTP: `POST /verify_answer` and `GET /health`; errors as `{"error": {"message"}}`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from domains.math.answers import MAX_PREDICTION_LENGTH
from domains.math.pool import VerifierPool

MAX_BODY_BYTES = 4 << 20
ROUTE = "/verify_answer"
FIELDS: dict[str, tuple[type, Any]] = {
    "prediction": (str, None),
    "gold": (str, None),
    "strict": (bool, True),
    "max_prediction_length": (int, MAX_PREDICTION_LENGTH),
}
"""Type and default of each field of a request; None: it must be given."""


class BadRequest(ValueError):
    """A request that cannot be answered; the message is one line."""


def parse_request(body: bytes) -> dict[str, Any]:
    """Arguments of `VerifierPool.verify`. Raises BadRequest naming the field and what it holds."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {' '.join(str(error).split())[:100]}") from None
    if not isinstance(given, dict):
        raise BadRequest(f"the body is a {type(given).__name__}, expected an object")
    for name in given:
        if name not in FIELDS:
            raise BadRequest(f"{name[:60]}: unknown field; use {', '.join(FIELDS)}")
    read: dict[str, Any] = {}
    for name, (kind, default) in FIELDS.items():
        value = given.get(name, default)
        if value is None:
            raise BadRequest(f"{name}: missing")
        if not isinstance(value, kind) or (kind is int and not _is_positive(value)):
            raise BadRequest(f"{name}={json.dumps(value)[:60]}: expected {_expected(kind)}")
        read[name] = value
    return read


def _is_positive(value: Any) -> bool:
    return not isinstance(value, bool) and value >= 1


def _expected(kind: type) -> str:
    return {str: "a string", bool: "true or false"}.get(kind, "a whole number above 0")


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


def make_app(pool: VerifierPool) -> web.Application:
    """The server's application; the pool lives as long as it."""

    async def verify(request: web.Request) -> web.Response:
        try:
            status = await pool.verify(**parse_request(await request.read()))
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        except ValueError as error:
            return _error(400, str(error))
        return web.json_response({"answer_status": status})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "counts": dict(pool.counts)})

    async def running(_: web.Application) -> AsyncIterator[None]:
        async with pool:
            yield

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post(ROUTE, verify)
    app.router.add_get("/health", health)
    app.cleanup_ctx.append(running)
    return app
