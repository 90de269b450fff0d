"""The HTTP side of an engine: routes, limits, and the way between the event loop and the engine thread.

`command` serves it, tests do so in their own process. Handlers run in the event loop and touch neither back
end nor queue: they hand work to the engine thread and wait for its result.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from aiohttp import web

from pipelinerl.base.access import control_refusal, control_token, own_names, refusal
from pipelinerl.base.malformed import UNCOMPRESSED, log_one_line
from pipelinerl.base.web_pages import whole_body
from pipelinerl.engines.openai import protocol
from pipelinerl.engines.openai.handlers import (
    MAX_BODY_BYTES,
    Handler,
    card,
    error_response,
    errors_as_json,
    json_response,
    streamed,
    token_answer,
    token_chunk,
)
from pipelinerl.engines.openai.protocol import BadRequest, UnknownModel
from pipelinerl.engines.received import RECEIVED, Announced
from pipelinerl.engines.serving.backend import Backend, WeightsRefused
from pipelinerl.engines.serving.openai_routes import OpenAIRoutes
from pipelinerl.engines.serving.pending import PendingRequests, QueueFull, RequestFailed
from pipelinerl.engines.serving.sequence import Request, usage_of
from pipelinerl.engines.serving.served import Served
from pipelinerl.engines.serving.thread import COMMAND_DEADLINE_S, Engine, EngineEnded
from pipelinerl.engines.serving.update_state import OutOfOrder
from pipelinerl.engines.wire import CHECK_ROUTE, PREPARE_ROUTE

T = TypeVar("T")
# As long as clients wait for an answer (`Deadlines.generate_s`): a drain takes as long as the longest
# request.
DRAIN_DEADLINE_S = 3600.0
STOP_DEADLINE_S = 2.0
PAUSE_MODES = ("abort", "keep", "wait")

# The first entry that fits decides: UnknownModel is a BadRequest and has to stand before it.
STATUS: dict[type[Exception], int] = {
    UnknownModel: 404,
    BadRequest: 400,
    WeightsRefused: 400,
    OutOfOrder: 409,
    RequestFailed: 500,
    TimeoutError: 500,
    QueueFull: 503,
    EngineEnded: 503,
}


class EngineServer:
    """An aiohttp application around one engine; `app` is ready to be served."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.settings = backend, backend.settings
        # Set when the engine thread died; the process should end.
        self.failed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._created = int(time.time())
        self._served = Served(backend)
        self.engine = Engine(
            backend,
            # Called in the engine thread, which runs from `listening` on; `_pending` is made by then.
            on_results=lambda results: self._to_loop(self._pending.deliver, results),
            on_failed=lambda _: self._to_loop(self.failed.set),
        )
        self._pending = PendingRequests(self.settings.max_num_seqs, self.settings.max_waiting)
        self._token = control_token()
        self.app = web.Application(
            client_max_size=MAX_BODY_BYTES,
            middlewares=[errors_as_json(_status_of), self._guarded],
            handler_args=UNCOMPRESSED,
        )
        self.app.add_routes(self._routes())
        log_one_line()

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/metrics", self.metrics),
            web.get("/v1/models", self.models),
            web.get("/v1/models/{name:.+}", self.model),  # a path has slashes
            web.get("/get_world_size", self.world_size),
            web.post("/inference/v1/generate", self.generate),
            *OpenAIRoutes(self.engine, self._pending, self._served).routes(),
            web.post("/pause", self.pause),
            web.post("/resume", self.resume),
            web.get("/is_paused", self.is_paused),
            web.post("/abort_requests", self.abort_requests),
            web.post("/reset_prefix_cache", self.reset_prefix_cache),
            web.post("/init_weight_transfer_engine", self.init_transfer),
            web.post(PREPARE_ROUTE, self.prepare_weights),
            web.post("/start_weight_update", self.start_update),
            web.post("/update_weights", self.update_weights),
            web.post("/finish_weight_update", self.finish_update),
            web.get("/weight_info", self.weight_info),
            web.post("/update_weight_version", self.update_version),
            web.post(CHECK_ROUTE, self.weight_checker),
            web.post("/shutdown_weight_transfer_engine", self.shutdown_transfer),
        ]

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """No web page asks, and control routes take the run's token."""
        if (reason := refusal(request.headers, own_names())) is not None:
            return error_response(ValueError(reason), 403, "Forbidden")
        shown = request.headers.get("Authorization")
        if (reason := control_refusal(request.method, request.path, shown, self._token)) is not None:
            return error_response(ValueError(reason), 401, "Unauthorized")
        return await handler(request)

    async def health(self, _: web.Request) -> web.Response:
        """200 while the engine can generate, 503 when it cannot any more."""
        return web.Response(status=200 if self.engine.healthy else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(text=self.engine.metrics.text(self.settings.served_model_name))

    async def models(self, _: web.Request) -> web.Response:
        """The one model, with its context length."""
        return json_response({"object": "list", "data": [self._card(self._served.name)]})

    async def model(self, http: web.Request) -> web.Response:
        """The same by one of its names, which is its `id` then."""
        name = http.match_info["name"]
        self._served.check_model(name)
        return json_response(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        return card(name, str(self.settings.model), self.settings.max_model_len, self._created)

    async def world_size(self, _: web.Request) -> web.Response:
        """One process holds the whole model."""
        return json_response({"world_size": 1})

    async def generate(self, http: web.Request) -> web.StreamResponse:
        """Token ids in, token ids, log-probabilities and weight versions out; in a stream as they come."""
        self.engine.metrics.requests_received += 1
        fields = protocol.parse(await whole_body(http), protocol.GenerateFields)
        self._served.check_model(fields.model)
        fields.check()
        sampling = fields.sampling_params
        protocol.require(
            (
                sampling.detokenize or not sampling.stops,
                "stop strings need text; send detokenize: true with them",
            ),
        )
        name = fields.request_id or uuid.uuid4().hex
        salt = fields.cache_salt
        request = self._served.request(
            name, fields.token_ids, sampling, streams=fields.stream, cache_salt=salt
        )
        if fields.stream:
            return await streamed(http, self._tokens(request), (RequestFailed,))
        created = int(time.time())
        await self._pending.run(self.engine, [request])
        answer = token_answer(
            [one.piece() for one in request.sequences],
            self._served.name,
            usage_of([request]),
            name=request.request_id,
            created=created,
            logprobs=sampling.logprobs is not None,
            prompt_logprobs=request.prompt_logprobs(),
        )
        return json_response(answer)

    async def _tokens(self, request: Request) -> AsyncGenerator[dict[str, Any]]:
        logprobs = request.sampling.logprobs is not None
        async with aclosing(self._pending.stream(self.engine, [request])) as results:
            async for _, piece in results:
                if piece is not None:
                    yield token_chunk(piece, request.request_id, logprobs)

    async def pause(self, http: web.Request) -> web.Response:
        """Stop between two steps; what happens to running requests depends on mode and clear_cache."""
        query = _query(http, "mode", "clear_cache")
        mode = query.get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise BadRequest(f"mode {mode!r} is unknown; use one of {', '.join(PAUSE_MODES)}")
        clear_cache = _boolean(query, "clear_cache", default=True)
        with self._timed("pause"):
            done = await _engine_wait(self.engine.pause(mode, clear_cache), "pause")
            await _engine_wait(done, "drain before a pause", DRAIN_DEADLINE_S)
        return json_response({"status": "paused"})

    async def resume(self, http: web.Request) -> web.Response:
        """Go on where the engine stopped."""
        _query(http)
        with self._timed("resume"):
            await _engine_wait(self.engine.resume(), "resume")
        return json_response({"status": "resumed"})

    async def is_paused(self, _: web.Request) -> web.Response:
        """Whether sampling is stopped."""
        return json_response({"is_paused": not self.engine.update.serving})

    async def abort_requests(self, http: web.Request) -> web.Response:
        """End requests with reason `abort`; they answer with what they have."""
        fields = protocol.parse(await whole_body(http), protocol.AbortFields)
        count = await _engine_wait(self.engine.abort(fields.request_ids), "abort_requests")
        return json_response({"status": "aborted", "aborted": count})

    async def reset_prefix_cache(self, http: web.Request) -> web.Response:
        """Empty it; running requests hold nothing of it, so there is nothing to reset them for."""
        _boolean(_query(http, "reset_running_requests"), "reset_running_requests", default=False)
        await _engine_wait(self.engine.reset_prefix_cache(), "reset_prefix_cache")
        return json_response({"success": True})

    async def init_transfer(self, http: web.Request) -> web.Response:
        """Nothing is agreed on beforehand; the answer names the routes that vLLM lacks."""
        protocol.parse(await whole_body(http), protocol.InitFields)
        await self._between_steps(self.engine.weights.init, "init_weight_transfer_engine")
        routes = [PREPARE_ROUTE, CHECK_ROUTE]
        return json_response({"message": "Weight transfer initialized", "optional_routes": routes})

    async def prepare_weights(self, http: web.Request) -> web.Response:
        """Read and check a version while tokens are sampled, so that its update only has to switch to it."""
        info = await self._announced(http)
        with self._timed("prepare"):
            await asyncio.to_thread(self.engine.weights.prepare, info)
        return json_response({"message": "Weights prepared"})

    async def start_update(self, http: web.Request) -> web.Response:
        """An update begins."""
        protocol.parse(await whole_body(http), protocol.NoFields)
        with self._timed("start"):
            await self._between_steps(self.engine.update.start, "start_weight_update")
        return json_response({"message": "Weight update started"})

    async def update_weights(self, http: web.Request) -> web.Response:
        """Answers after the weights are in place, or without any change when the file is not right."""
        info = await self._announced(http)
        with self._timed("update"):
            # In a thread: reading a file would stop the event loop, and with it health checks and answers.
            await asyncio.to_thread(self.engine.weights.update, info)
        return json_response({"message": "Weights updated"})

    async def _announced(self, http: web.Request) -> Announced:
        """Which version is on its way, as the engine's transport says it. Raises BadRequest."""
        body = RECEIVED[self.settings.weight_transport]
        info: Announced = protocol.parse(await whole_body(http), body).update_info
        protocol.check_version(info.version)
        return info

    async def finish_update(self, http: web.Request) -> web.Response:
        """The weight version changes, once every tensor is in place."""
        version = _weight_version(await whole_body(http))
        with self._timed("finish"):
            await self._between_steps(lambda: self.engine.update.finish(version), "finish_weight_update")
        return json_response({"message": "Weight update finished"})

    async def weight_info(self, _: web.Request) -> web.Response:
        """The weight version in use and where the engine stands in an update."""
        update = self.engine.update
        return json_response({"weight_version": update.version, "state": str(update.state)})

    async def update_version(self, http: web.Request) -> web.Response:
        """Another version number for the weights in use, as after a restore."""
        version = _weight_version(await whole_body(http))
        await self._between_steps(lambda: self.engine.update.relabel(version), "update_weight_version")
        return json_response({"message": "Weight version updated", "weight_version": version})

    async def weight_checker(self, http: web.Request) -> web.Response:
        """Checksums of the weights in use, to be compared with another engine's or the trainer's."""
        protocol.parse(await whole_body(http), protocol.NoFields)
        checksums = await self._between_steps(self.engine.weights.loader.checksums, "weight_checker")
        return json_response({"weight_version": self.engine.update.version, "checksums": checksums})

    async def shutdown_transfer(self, http: web.Request) -> web.Response:
        """Forget the transport."""
        protocol.parse(await whole_body(http), protocol.NoFields)
        await self._between_steps(self.engine.weights.leave, "shutdown_weight_transfer_engine")
        return json_response({"message": "Weight transfer shut down"})

    def _to_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        """From the engine thread; a loop that is closing needs no results any more."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)

    async def _between_steps(self, work: Callable[[], T], name: str) -> T:
        """Result of `work`, done by the engine thread; `name` is what the error at the deadline names."""
        return await _engine_wait(self.engine.between_steps(work), name)

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        """Count the seconds of an operation of a weight update that ends without an error."""
        started = time.perf_counter()
        yield
        self.engine.metrics.observe_update(operation, time.perf_counter() - started)


@asynccontextmanager
async def listening(server: EngineServer, host: str, port: int) -> AsyncIterator[int]:
    """Run the engine and answer on `host`; yields the port bound (for `port` 0 a free one)."""
    # `handler_cancellation`: aiohttp lets a handler run on when its connection closes, and a request whose
    # client is gone would be sampled to its end.
    runner = web.AppRunner(
        server.app, handler_cancellation=True, access_log=None, shutdown_timeout=STOP_DEADLINE_S
    )
    await runner.setup()
    server.engine.start()
    try:
        # A wave of rollouts opens hundreds of connections at once; aiohttp's backlog is 128.
        await web.TCPSite(runner, host, port, backlog=1024, reuse_address=True).start()
        yield runner.addresses[0][1]
    finally:
        # The engine first: commands that handlers wait for are refused as it ends, so `cleanup` need not wait
        # for them.
        server.engine.stop(STOP_DEADLINE_S)
        await runner.cleanup()


async def _engine_wait(future: Future[T], name: str, deadline_s: float = COMMAND_DEADLINE_S) -> T:
    """Result of a command of the engine thread; RequestFailed names the wait when the deadline passes."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), deadline_s)
    except TimeoutError:
        raise RequestFailed(f"{name}: the engine thread did not answer within {deadline_s:g} s") from None


def _status_of(error: Exception) -> int | None:
    return next((status for kind, status in STATUS.items() if isinstance(error, kind)), None)


def _weight_version(body: bytes) -> str:
    """The version that a body names. Raises BadRequest."""
    version = protocol.parse(body, protocol.FinishFields).weight_version
    # Clients refuse answers whose version is no number, so none is taken into use.
    protocol.check_version(version)
    return version


def _query(http: web.Request, *known: str) -> dict[str, str]:
    """Query arguments; BadRequest for one that the route does not know."""
    for key in http.query:
        if key not in known:
            raise BadRequest(f"{http.path} has no argument {key!r}; known: {', '.join(known) or 'none'}")
    return dict(http.query)


def _boolean(query: dict[str, str], key: str, *, default: bool) -> bool:
    text = query.get(key, str(default)).lower()
    if text not in ("true", "false", "1", "0"):
        raise BadRequest(f"{key}={query[key]!r} is not a boolean; send true or false")
    return text in ("true", "1")
