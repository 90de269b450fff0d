"""The client of one engine: token ids in, checked token ids, log-probabilities and weight versions out.

It speaks the HTTP routes that every engine has and does not know which engine answers. Leaving `generate` by
cancellation closes the connection, which every engine treats as an abort.
"""

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec
import numpy as np
from yarl import URL

from pipelinerl.engines.answers import (
    UNVERSIONED,
    Generation,
    InvalidAnswer,
    LiveAnswer,
    read_chat,
    read_generation,
    read_prompt_logprobs,
)
from pipelinerl.engines.engine_metrics import parse_prometheus
from pipelinerl.engines.errors import AbortedCompletion, EngineError, EngineRequestError, EngineUnavailable
from pipelinerl.engines.requests import (
    Deadlines,
    RequestCounts,
    SamplingParams,
    cache_salt,
    encoded_sampling,
    scoring_body,
)

__all__ = [
    "AbortedCompletion",
    "Deadlines",
    "EngineClient",
    "EngineRequestError",
    "EngineUnavailable",
    "Generation",
    "SamplingParams",
    "parse_prometheus",
]

# Decoding holds up every other request of the event loop, so larger answers are decoded in a thread; for
# smaller ones handing over costs more than decoding.
DECODE_IN_THREAD_BYTES = 64 * 1024
T = TypeVar("T")
A = TypeVar("A")
_JSON = {"Content-Type": "application/json"}
log = logging.getLogger(__name__)
_WHOLE: set[str] = set()
"""Engines of which was said that they do not stream."""


class EngineClient:
    """Requests to one engine over a shared aiohttp session."""

    def __init__(
        self,
        base_url: str,
        session: aiohttp.ClientSession,
        *,
        deadlines: Deadlines | None = None,
        counts: RequestCounts | None = None,
        announced_version: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`announced_version` is asked when a request is sent: no token of the answer may be older.

        It stands in for the version of engines that report none, and in a prefix cache the request finds
        blocks of requests of the same version only.
        """
        self.base_url = base_url.rstrip("/")
        self.counts = counts if counts is not None else RequestCounts()
        self.deadlines = deadlines or Deadlines()
        # Context length; known after `load_model_info`, and checked from then on.
        self.max_model_len: int | None = None
        self._generate_url = URL(f"{self.base_url}/inference/v1/generate")
        self._chat_url = URL(f"{self.base_url}/v1/chat/completions")
        # Engines refuse an id that is in flight, and several processes ask the same engine: a random name for
        # each client, and a number for each of its requests.
        self._name, self._numbers = uuid.uuid4().hex, itertools.count()
        self._session = session
        self._announced_version = announced_version

    async def generate(
        self,
        token_ids: Sequence[int] | np.ndarray,
        sampling: SamplingParams,
        request_id: str | None = None,
        *,
        deadline_s: float | None = None,
        live: LiveAnswer | None = None,
    ) -> Generation:
        """One continuation of the prompt. Raises EngineRequestError, EngineUnavailable, AbortedCompletion.

        `live` gets its tokens as they are sampled, from an engine that streams.
        """
        prompt = np.asarray(token_ids, dtype=np.int32)
        fields = self._fields(prompt, sampling, request_id, live is not None)

        def read(answer: bytes, announced: int | None) -> Generation:
            return read_generation(answer, prompt, announced)

        return await self._sampled(self._generate_url, fields, deadline_s, read, live)

    async def chat(self, fields: Mapping[str, Any], *, deadline_s: float | None = None) -> Generation:
        """The answer to an `EngineLLM.chat_fields`; errors as in `generate`."""
        return await self._sampled(self._chat_url, fields, deadline_s, read_chat)

    async def _sampled(
        self,
        url: URL,
        fields: Mapping[str, Any],
        deadline_s: float | None,
        read: Callable[[bytes, int | None], Generation],
        live: LiveAnswer | None = None,
    ) -> Generation:
        # Before the request is sent: a version announced while it is under way is no reason to refuse tokens
        # that were sampled just before.
        announced, started = self._announced_version(), time.monotonic()
        body = msgspec.json.encode({**fields, **cache_salt(announced)})
        if live is not None:
            live.sent(np.asarray(fields["token_ids"], np.int32), announced, self.base_url)
        with self._counted():
            answer = await self._post(url, body, deadline_s, live)
            if live is not None and live.ended:
                generation = await self._checked(lambda _, whole: whole.generation(), b"", live)
            else:
                generation = await self._checked(read, answer, announced)
            self._refuse_aborted_and_old(generation, announced)
        generation.engine, generation.latency_s = self.base_url, time.monotonic() - started
        length = len(generation.token_ids)
        self.counts.answer_bytes += len(answer)
        self.counts.tokens += length
        self.counts.exact_tokens += length if generation.exact_versions else 0
        return generation

    def _refuse_aborted_and_old(self, generation: Generation, announced: int | None) -> None:
        # What an abort leaves ends at an arbitrary token; trained on, it would be a text that the policy
        # ended there.
        reason, length = generation.finish_reason, len(generation.token_ids)
        if reason == "abort" or length == 0:
            raise AbortedCompletion(self.base_url, f"finish_reason {reason} after {length} tokens")
        # Whoever was asked after an announcement must not sample from older weights. Where an engine reports
        # no versions the announced one stands in for them, so there is nothing to compare.
        oldest = generation.versions[0][0]
        if announced is not None and generation.exact_versions and oldest < announced:
            message = f"tokens of version {oldest}, but {announced} was announced before the request"
            raise EngineUnavailable(self.base_url, "invalid_answer", message)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request, and how it ended."""
        counts = self.counts
        counts.sent += 1
        try:
            yield
        except EngineRequestError:
            counts.refused += 1
            raise
        except (EngineUnavailable, AbortedCompletion):
            counts.failed += 1
            raise
        # The connection is closed by now, which the engine takes for an abort.
        except asyncio.CancelledError:
            counts.cancelled += 1
            raise
        counts.completed += 1

    async def prompt_logprobs(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """float32 [P - 1]: log-probability of prompt tokens 1 … P - 1 at temperature 1."""
        prompt = np.asarray(token_ids, dtype=np.int32)
        body = msgspec.json.encode(scoring_body(prompt))
        with self._counted():
            answer = await self._post(self._generate_url, body, None)
            return await self._checked(read_prompt_logprobs, answer, prompt)

    async def health(self) -> bool:
        """True when the engine says that it can generate, within `health_s`."""
        try:
            await self._get("/health")
        except EngineError:
            return False
        return True

    async def metrics(self) -> dict[str, float]:
        """Prometheus samples: each by its full name with labels, and summed by its bare name."""
        return parse_prometheus((await self._get("/metrics")).decode())

    async def weight_version(self) -> int | None:
        """The weights in use, UNVERSIONED before the first update, None from an engine that does not say."""
        # Engines say `default` as long as they have the weights they were started with.
        label = await self._said("/weight_info", "weight_version", "default")
        if label is None:
            return None
        return UNVERSIONED if not str(label).isdigit() else int(label)

    async def is_paused(self) -> bool:
        """Whether sampling is stopped, as during a weight update; False from an engine that does not say."""
        return bool(await self._said("/is_paused", "is_paused", False))

    async def load_model_info(self) -> None:
        """Learn the engine's context length."""
        models = msgspec.json.decode(await self._get("/v1/models"))["data"]
        self.max_model_len = models[0].get("max_model_len") if models else None

    def _fields(
        self, prompt: np.ndarray, sampling: SamplingParams, request_id: str | None, streams: bool
    ) -> dict[str, Any]:
        limit = self.max_model_len
        if limit is not None and len(prompt) + sampling.max_tokens > limit:
            raise EngineRequestError(
                self.base_url,
                400,
                f"{len(prompt)} prompt tokens and max_tokens {sampling.max_tokens} "
                f"exceed max_model_len {limit}",
            )
        return {
            "token_ids": prompt.tolist(),
            "sampling_params": encoded_sampling(sampling, streams),
            "request_id": request_id or f"{self._name}-{next(self._numbers)}",
            "stream": streams,
        }

    async def _post(
        self, url: URL, body: bytes, deadline_s: float | None, live: LiveAnswer | None = None
    ) -> bytes:
        total = self.deadlines.generate_s if deadline_s is None else deadline_s
        # `sock_connect` and not `connect`, which would also count the wait for a free connection of the
        # session: a busy client is no fault of the engine.
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=self.deadlines.connect_s)
        request = self._session.post(url, data=body, headers=_JSON, timeout=timeout)
        return await self._content(request, f"generate within {total:g} s", live=live)

    async def _get(self, path: str) -> bytes:
        timeout = aiohttp.ClientTimeout(total=self.deadlines.health_s)
        request = self._session.get(f"{self.base_url}{path}", timeout=timeout)
        return await self._content(request, f"GET {path}", f"GET {path}: ")

    async def _said(self, path: str, key: str, otherwise: Any) -> Any:
        """A field of an answer; None from an engine that works and has no such route (404)."""
        try:
            return msgspec.json.decode(await self._get(path)).get(key, otherwise)
        except EngineRequestError:
            return None

    async def _content(
        self,
        request: AbstractAsyncContextManager[aiohttp.ClientResponse],
        wait: str,
        where: str = "",
        live: LiveAnswer | None = None,
    ) -> bytes:
        """The answer's bytes. Raises EngineRequestError, or EngineUnavailable with the wait that it ended."""
        try:
            async with request as answer:
                if live is not None and answer.status < 400 and self._streams(answer):
                    return await self._heard(answer, live)
                content = await answer.read()
                self._raise_for_status(answer.status, content)
                return content
        # Before the next branch: TimeoutError is an OSError, and aiohttp's timeouts are ClientErrors too.
        except TimeoutError as error:
            name = "connect" if isinstance(error, aiohttp.ConnectionTimeoutError) else wait
            raise EngineUnavailable(self.base_url, "timeout", f"{name} passed its deadline") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(self.base_url, "connection", f"{where}{_text(error)}") from error

    def _streams(self, answer: aiohttp.ClientResponse) -> bool:
        """Whether an answer that was asked for as a stream is one; said once for an engine whose is none."""
        if answer.content_type == "text/event-stream":
            return True
        if self.base_url not in _WHOLE:
            _WHOLE.add(self.base_url)
            log.warning(
                "engine %s does not stream; its answers are passed on when they are whole", self.base_url
            )
        return False

    async def _heard(self, answer: aiohttp.ClientResponse, live: LiveAnswer) -> bytes:
        """Hand the events of a stream to `live`; the bytes of all. Raises EngineUnavailable."""
        whole, rest = bytearray(), b""
        async for part in answer.content.iter_any():
            whole += part
            *events, rest = (rest + part).split(b"\n\n")
            for event in events:
                data = event.removeprefix(b"data: ")
                if data == b"[DONE]":
                    if not live.ended:  # vLLM 0.26 leaves out the chunk of an abort, which has no token
                        raise AbortedCompletion(self.base_url, "the stream says no end")
                    return bytes(whole)
                if data.startswith(b'{"error"'):
                    raise EngineUnavailable(self.base_url, "server_error", _error_message(data))
                try:
                    live.take(data)
                except InvalidAnswer as error:
                    raise EngineUnavailable(self.base_url, "invalid_answer", str(error)) from None
        raise EngineUnavailable(self.base_url, "connection", "the stream ended before its answer")

    async def _checked(self, read: Callable[[bytes, A], T], content: bytes, argument: A) -> T:
        """Decode, in a thread when the answer is large; a lying answer makes the engine unavailable."""
        try:
            if len(content) > DECODE_IN_THREAD_BYTES:
                return await asyncio.to_thread(read, content, argument)
            return read(content, argument)
        except InvalidAnswer as error:
            raise EngineUnavailable(self.base_url, "invalid_answer", str(error)) from error

    def _raise_for_status(self, status: int, content: bytes) -> None:
        if status < 400:
            return
        message = _error_message(content)
        # 4xx is about the request, which every engine would refuse; 5xx is about this engine, so another may
        # answer.
        if status < 500:
            raise EngineRequestError(self.base_url, status, message)
        raise EngineUnavailable(
            # A full queue (503) passes: a fleet asks again later and keeps the engine in rotation.
            self.base_url,
            "busy" if status == 503 else "server_error",
            f"HTTP {status}: {message}",
        )


def _error_message(content: bytes) -> str:
    """The server's own message, on one line."""
    try:
        body = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return " ".join(content[:500].decode(errors="replace").split())
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
