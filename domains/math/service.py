"""The verifier over HTTP: the server of `verdict_server`, with bodies that are checked field by field."""

from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from domains import verdict_server
from domains.math.answers import MAX_PREDICTION_LENGTH
from domains.math.pool import VerifierPool


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


def make_app(pool: VerifierPool) -> web.Application:
    """The server's application; the pool lives as long as it."""

    async def judge(**question: Any) -> dict[str, str]:
        return {"answer_status": await pool.verify(**question)}

    return verdict_server.make_app(judge, lambda body: parse_request(body).model_dump(), pool)
