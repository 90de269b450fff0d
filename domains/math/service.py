"""The verifier over HTTP: `POST /verify_answer` and `GET /health`; errors as `{"error": {"message"}}`."""

from collections.abc import AsyncIterator

from aiohttp import web
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from domains.math.answers import MAX_PREDICTION_LENGTH
from domains.math.pool import VerifierPool
from pipelinerl.base.malformed import BAD_BODY, BODY_ERRORS, log_one_line
from pipelinerl.base.web_pages import no_web_pages

MAX_BODY_BYTES = 4 << 20
ROUTE = "/verify_answer"


class Question(BaseModel):
    """The body of a request: the arguments of `VerifierPool.verify`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prediction: str
    gold: str
    strict: bool = True
    max_prediction_length: PositiveInt = MAX_PREDICTION_LENGTH


def parse_request(body: bytes) -> Question:
    """The request of a body. Raises ValueError, in one line, naming the field and what it holds."""
    try:
        return Question.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))[:60] or "the body"
        raise ValueError(f"{field}: {first['msg']}, found {str(first['input'])[:60]!r}") from None


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


def make_app(pool: VerifierPool) -> web.Application:
    """The server's application; the pool lives as long as it."""

    async def verify(request: web.Request) -> web.Response:
        try:
            status = await pool.verify(**parse_request(await request.read()).model_dump())
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        except BODY_ERRORS:
            return _error(400, BAD_BODY)
        except ValueError as error:
            return _error(400, str(error))
        return web.json_response({"answer_status": status})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "counts": dict(pool.counts)})

    async def running(_: web.Application) -> AsyncIterator[None]:
        async with pool:
            yield

    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[no_web_pages])
    app.router.add_post(ROUTE, verify)
    app.router.add_get("/health", health)
    app.cleanup_ctx.append(running)
    log_one_line()
    return app
