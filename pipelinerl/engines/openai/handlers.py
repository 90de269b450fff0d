"""What servers of OpenAI's routes do alike: read bodies, put answers together, stream them, tell errors.

Called by the server of engines (`engines/serving`) and the recording endpoint (`extras/recorder`), which say
what was sampled and by which model.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from pipelinerl.base.malformed import BAD_BODY, BODY_ERRORS
from pipelinerl.engines.openai.answers import Piece, Prompted, Writer, token_choice
from pipelinerl.engines.openai.fields import SharedFields
from pipelinerl.engines.openai.protocol import BadRequest, error_body, parse

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# aiohttp allows 1 MiB unless told otherwise, too little for many long prompts in one request.
MAX_BODY_BYTES = 64 * 2**20


class _Checked(Protocol):
    def check(self) -> None:
        """Raises BadRequest."""


F = TypeVar("F", bound=_Checked)


def read(body: bytes, kind: type[F]) -> F:
    """The fields of a body. Raises BadRequest for what no server of these routes does."""
    fields = parse(body, kind)
    fields.check()
    return fields


def card(name: str, root: str, context: int, created: int = 0) -> dict[str, Any]:
    """A model, as `/v1/models` names it; `context` in tokens, `created` in seconds since 1970."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "pipelinerl",
        "root": root,
        "max_model_len": context,
    }


class Answer:
    """The answer of a completion or chat route: `whole`, or each `chunk` and then `last`."""

    def __init__(self, writer: Writer, fields: SharedFields, model: str, name: str | None = None) -> None:
        self.writer, self.fields = writer, fields
        self._head = {
            "id": f"{writer.prefix}-{name or uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._begun = False

    def whole(self, sampled: Iterable[tuple[Prompted, Piece]], counts: dict[str, int]) -> dict[str, Any]:
        """The body for all choices in order, each with its request."""
        rows = list(sampled)
        return {
            **self._head,
            "object": self.writer.kind,
            "choices": [
                self.writer.choice(index, request, piece) for index, (request, piece) in enumerate(rows)
            ],
            "usage": counts,
            **self.writer.top(rows[0][0]),
        }

    def chunk(self, index: int, request: Prompted, piece: Piece) -> dict[str, Any]:
        """One event of a stream; `index` counts choices through all prompts."""
        top = {} if self._begun else self.writer.top(request)
        self._begun = True
        return {**self._chunk_head(), "choices": [self.writer.delta(index, request, piece)], **top}

    def last(self, counts: dict[str, int]) -> list[dict[str, Any]]:
        """What follows the last chunk: the token counts, where they were asked for."""
        options = self.fields.stream_options
        if options is None or not options.include_usage:
            return []
        return [{**self._chunk_head(), "choices": [], "usage": counts}]

    def _chunk_head(self) -> dict[str, Any]:
        return {**self._head, "object": self.writer.chunk_kind}


def token_answer(
    pieces: Iterable[Piece],
    model: str,
    counts: dict[str, int],
    *,
    name: str,
    created: int,
    logprobs: bool,
    prompt_logprobs: list[dict[str, Any] | None] | None = None,
) -> dict[str, Any]:
    """The answer of the token route."""
    return {
        "request_id": name,
        "model": model,
        "created": created,
        "choices": [token_choice(piece, logprobs) for piece in pieces],
        "usage": counts,
        "prompt_logprobs": prompt_logprobs,
    }


def token_chunk(piece: Piece, name: str, logprobs: bool) -> dict[str, Any]:
    """An event of a stream of the token route."""
    return {"request_id": name, "choices": [token_choice(piece, logprobs)]}


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def error_response(error: BaseException, status: int, kind: str | None = None) -> web.Response:
    return json_response(error_body(error, status, kind), status)


async def streamed(
    http: web.Request,
    chunks: AsyncGenerator[dict[str, Any]],
    failures: tuple[type[Exception], ...] = (),
    named: bool = False,
) -> web.StreamResponse:
    """Server-sent events. The first is awaited before any header, so that a refusal keeps its status.

    `failures` are told in the stream once it has begun. With `named` each event is sent under its `type`, and
    the last of them ends the stream, as in OpenAI's responses and Anthropic's messages.
    """
    waiting: dict[str, Any] | None = await anext(chunks, None)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(http)
    try:
        while waiting is not None:
            await response.write(_event(waiting, named))
            waiting = await anext(chunks, None)
    except failures as error:
        told = error_body(error, 500)
        # Both newer routes have an event `error`; OpenAI's has the fields of the error beside its type.
        await response.write(_event({**told["error"], **told, "type": "error"} if named else told, named))
    finally:
        await chunks.aclose()  # a connection that closed aborts the requests
    if not named:
        await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def errors_as_json(
    status_of: Callable[[Exception], int | None],
    path_of: Callable[[web.Request], str] = lambda one: one.path,
    beside: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """The middleware that answers errors as OpenAI's clients expect them.

    `status_of` gives None for what is no answer but a fault of the server; `path_of` is the path to be named;
    `beside` are fields of the body beside `error`.
    """

    def told(error: BaseException, status: int, kind: str | None = None) -> web.Response:
        return json_response({**error_body(error, status, kind), **beside}, status)

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except BODY_ERRORS:
            return told(BadRequest(BAD_BODY), 400)
        except RecursionError:  # of JSON in the body, or of a template that writes it out
            return told(BadRequest("the body has brackets too deep inside each other; nest them less"), 400)
        except web.HTTPException as error:
            # aiohttp's own refusals: unknown routes, wrong methods, bodies that are too large.
            problem = ValueError(f"{request.method} {path_of(request)}: {error.reason}")
            return told(problem, error.status, "HTTPError")
        except Exception as error:
            status = status_of(error)
            if status is None:
                raise
            return told(error, status)

    return answered


def _event(value: dict[str, Any], named: bool = False) -> bytes:
    name = f"event: {value['type']}\n".encode() if named else b""
    return name + b"data: " + msgspec.json.encode(value) + b"\n\n"
