"""The client of one engine: token ids in, checked token ids, log-probabilities and weight versions out.

It speaks the HTTP routes that every engine has and does not know which engine answers. Leaving `generate` by
cancellation closes the connection, which every engine treats as an abort.
"""

import asyncio
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import aiohttp
import msgspec
import numpy as np
from yarl import URL

from pipelinerl.inference.answers import (
    UNVERSIONED,
    ChatGeneration,
    Generation,
    InvalidAnswer,
    read_chat,
    read_generations,
    read_prompt_logprobs,
)
from pipelinerl.inference.engine_metrics import parse_prometheus
from pipelinerl.inference.errors import AbortedCompletion, EngineError, EngineRequestError, EngineUnavailable

__all__ = [
    "UNVERSIONED",
    "AbortedCompletion",
    "Deadlines",
    "EngineClient",
    "EngineError",
    "EngineRequestError",
    "EngineUnavailable",
    "Generation",
    "RequestCounts",
    "SamplingParams",
    "parse_prometheus",
]

DECODE_IN_THREAD_BYTES = 64 * 1024
_JSON = {"Content-Type": "application/json"}
WHOLE_ANSWER = {"logprobs": 0, "output_kind": 2, "flat_logprobs": True}
"""How an answer is asked for: with the log-probability of each sampled token, in whatever way is cheapest.

vLLM then builds it once, at its end (2 is `FINAL_ONLY`; before 0.32 it would at every token), and collects
log-probabilities in a few lists, not in objects of each token. What an engine sends is the same.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds a client waits, each with the name of the wait in the error."""

    connect_s: float = 5.0
    generate_s: float = 3600.0
    stall_s: float = 120.0
    health_s: float = 2.0
    health_interval_s: float = 1.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample; names and meaning as in vLLM. The defaults reshape nothing."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    """Texts that end the answer; their ids belong to it."""
    n: int = 1
    """How many continuations `generate_many` returns."""

    def body(self) -> dict[str, Any]:
        """`sampling_params` of a request to the token route; log-probabilities are always asked for."""
        detokenize = bool(self.stop)  # an engine looks for stop strings in the text
        return {**self.fields(), **WHOLE_ANSWER, "detokenize": detokenize}

    def fields(self) -> dict[str, Any]:
        """What decides which tokens are sampled, by names that every route knows."""
        fields: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        optional: dict[str, tuple[Any, Any]] = {
            "top_p": (self.top_p, 1.0),
            "top_k": (self.top_k, 0),
            "min_p": (self.min_p, 0.0),
            "seed": (self.seed, None),
            "stop_token_ids": (list(self.stop_token_ids), []),
            "ignore_eos": (self.ignore_eos, False),
            "min_tokens": (self.min_tokens, 0),
            "repetition_penalty": (self.repetition_penalty, 1.0),
            "presence_penalty": (self.presence_penalty, 0.0),
            "frequency_penalty": (self.frequency_penalty, 0.0),
            "stop": (list(self.stop), []),
        }
        fields.update({name: value for name, (value, default) in optional.items() if value != default})
        return fields


@lru_cache(maxsize=256)
def _encoded(sampling: SamplingParams) -> msgspec.Raw:
    """`sampling_params` as JSON; requests of a run repeat a few."""
    return msgspec.Raw(msgspec.json.encode(sampling.body()))


@dataclass(slots=True)
class RequestCounts:
    """What was asked and how it ended, to be compared with the engines' own counters.

    `sent` equals completed + refused + cancelled + failed + those still in flight; `retries` says why
    requests were made again.
    """

    sent: int = 0
    completed: int = 0
    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    exact_tokens: int = 0
    """Tokens whose weight version the engine reported."""
    answer_bytes: int = 0
    checks: int = 0
    """How often an engine in rotation was looked at."""
    idle_checks: int = 0
    """Of these, how often no request was running on it."""

    def as_dict(self) -> dict[str, float]:
        """Flat numbers for a metrics record."""
        flat = {name: getattr(self, name) for name in ("sent", "completed", "refused", "cancelled", "failed")}
        flat.update({f"retries/{reason}": count for reason, count in sorted(self.retries.items())})
        flat["bytes_per_token"] = self.answer_bytes / max(1, self.tokens)
        flat["exact_versions"] = self.exact_tokens / max(1, self.tokens)
        flat["engine_idle_share"] = self.idle_checks / max(1, self.checks)
        return flat


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

        It stands in for the version of engines that report none.
        """
        self.base_url = base_url.rstrip("/")
        self.counts = counts if counts is not None else RequestCounts()
        self.deadlines = deadlines or Deadlines()
        self.max_model_len: int | None = None
        """Context length; known after `load_model_info`, and checked from then on."""
        self._generate_url = URL(f"{self.base_url}/inference/v1/generate")
        self._chat_url = URL(f"{self.base_url}/v1/chat/completions")
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
    ) -> Generation:
        """One continuation of the prompt. Raises EngineRequestError, EngineUnavailable, AbortedCompletion."""
        if sampling.n != 1:
            raise ValueError(f"generate returns one continuation, n={sampling.n}; use generate_many")
        prompt = np.asarray(token_ids, dtype=np.int32)
        body = self._body(prompt, sampling, request_id)
        announced = self._announced_version()
        started = time.monotonic()
        answer = await self._post(self._generate_url, body, deadline_s)
        generations: list[Generation] = await self._checked(
            read_generations, answer, prompt, n=1, announced_version=announced
        )
        self._accept(generations, announced, time.monotonic() - started, len(answer))
        return generations[0]

    async def generate_many(
        self,
        token_ids: Sequence[int] | np.ndarray,
        sampling: SamplingParams,
        request_id: str | None = None,
        *,
        deadline_s: float | None = None,
    ) -> list[Generation]:
        """`sampling.n` continuations of the prompt, with the seeds from `seed` on; errors as in `generate`.

        Each is a request of its own: asked for several, the token route of vLLM before 0.32 answers with the
        last one to end.
        """
        calls = []
        for index in range(sampling.n):
            seed = None if sampling.seed is None else sampling.seed + index
            name = request_id if request_id is None else f"{request_id}-{index}"
            one = self.generate(token_ids, replace(sampling, n=1, seed=seed), name, deadline_s=deadline_s)
            calls.append(asyncio.ensure_future(one))
        try:
            return list(await asyncio.gather(*calls))
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def chat(self, body: bytes, *, deadline_s: float | None = None) -> ChatGeneration:
        """The answer to a request of `pipelinerl.inference.chat`; errors as in `generate`."""
        announced, started = self._announced_version(), time.monotonic()
        answer = await self._post(self._chat_url, body, deadline_s)
        generation: ChatGeneration = await self._checked(read_chat, answer, announced_version=announced)
        self._accept([generation], announced, time.monotonic() - started, len(answer))
        return generation

    def _accept(
        self, generations: Sequence[Generation], announced: int | None, latency_s: float, size: int
    ) -> None:
        """Count generations that may be used. Raises AbortedCompletion or EngineUnavailable for others."""
        for one in generations:
            if one.finish_reason == "abort" or len(one.token_ids) == 0:
                self.counts.failed += 1
                raise AbortedCompletion(
                    self.base_url, f"finish_reason {one.finish_reason} after {len(one.token_ids)} tokens"
                )
            self._check_age(one, announced)
            one.engine, one.latency_s = self.base_url, latency_s
        self._count(generations, size)

    def _check_age(self, generation: Generation, announced: int | None) -> None:
        """Whoever was asked after an announcement must not sample from older weights."""
        oldest = generation.versions[0][0]
        if announced is not None and generation.exact_versions and oldest < announced:
            self.counts.failed += 1
            message = f"tokens of version {oldest}, but {announced} was announced before the request"
            raise EngineUnavailable(self.base_url, "invalid_answer", message)

    async def prompt_logprobs(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """float32 [P - 1]: log-probability of prompt tokens 1 … P - 1 at temperature 1."""
        prompt = np.asarray(token_ids, dtype=np.int32)
        sampling = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False}
        body = msgspec.json.encode(
            {"token_ids": prompt.tolist(), "sampling_params": sampling, "stream": False}
        )
        answer = await self._post(self._generate_url, body, None)
        scores = await self._checked(read_prompt_logprobs, answer, prompt)
        self.counts.completed += 1
        return scores

    async def health(self) -> bool:
        """True when the engine says that it can generate, within `health_s`."""
        try:
            async with self._session.get(f"{self.base_url}/health", timeout=self._short()) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def metrics(self) -> dict[str, float]:
        """Prometheus samples: each by its full name with labels, and summed by its bare name."""
        return parse_prometheus((await self._get("/metrics")).decode())

    async def weight_version(self) -> int | None:
        """Label in force, UNVERSIONED before the first update, None from an engine that does not say."""
        try:
            label = msgspec.json.decode(await self._get("/weight_info")).get("weight_version")
        except EngineRequestError:
            return None
        return UNVERSIONED if not str(label).isdigit() else int(label)

    async def is_paused(self) -> bool:
        """Whether sampling is stopped, as during a weight update; False from an engine that does not say."""
        try:
            return bool(msgspec.json.decode(await self._get("/is_paused")).get("is_paused"))
        except EngineRequestError:
            return False

    async def load_model_info(self) -> None:
        """Learn the engine's context length."""
        models = msgspec.json.decode(await self._get("/v1/models"))["data"]
        self.max_model_len = models[0].get("max_model_len") if models else None

    def _body(self, prompt: np.ndarray, sampling: SamplingParams, request_id: str | None) -> bytes:
        limit = self.max_model_len
        if limit is not None and len(prompt) + sampling.max_tokens > limit:
            raise EngineRequestError(
                self.base_url,
                400,
                f"{len(prompt)} prompt tokens and max_tokens {sampling.max_tokens} "
                f"exceed max_model_len {limit}",
            )
        fields = {
            "token_ids": prompt.tolist(),
            "sampling_params": _encoded(sampling),
            "request_id": request_id or f"{self._name}-{next(self._numbers)}",
            "stream": False,
        }
        return msgspec.json.encode(fields)

    async def _post(self, url: URL, body: bytes, deadline_s: float | None) -> bytes:
        """The answer's bytes; counts the request and how it failed."""
        total = self.deadlines.generate_s if deadline_s is None else deadline_s
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=self.deadlines.connect_s)
        self.counts.sent += 1
        try:
            async with self._session.post(url, data=body, headers=_JSON, timeout=timeout) as answer:
                content = await answer.read()
                self._raise_for_status(answer.status, content)
                return content
        except EngineRequestError:
            self.counts.refused += 1
            raise
        except EngineUnavailable:
            self.counts.failed += 1
            raise
        except TimeoutError as error:
            self.counts.failed += 1
            name = (
                "connect"
                if isinstance(error, aiohttp.ConnectionTimeoutError)
                else f"generate within {total:g} s"
            )
            raise EngineUnavailable(self.base_url, "timeout", f"{name} passed its deadline") from error
        except (aiohttp.ClientError, OSError) as error:
            self.counts.failed += 1
            raise EngineUnavailable(self.base_url, "connection", _text(error)) from error
        except asyncio.CancelledError:
            self.counts.cancelled += 1
            raise

    async def _checked(self, read: Callable[..., Any], content: bytes, *args: Any, **kwargs: Any) -> Any:
        """Decode, in a thread when the answer is large; a lying answer makes the engine unavailable."""
        try:
            if len(content) > DECODE_IN_THREAD_BYTES:
                return await asyncio.to_thread(read, content, *args, **kwargs)
            return read(content, *args, **kwargs)
        except InvalidAnswer as error:
            self.counts.failed += 1
            raise EngineUnavailable(self.base_url, "invalid_answer", str(error)) from error

    def _count(self, generations: Sequence[Generation], answer_bytes: int) -> None:
        self.counts.completed += 1
        self.counts.answer_bytes += answer_bytes
        for one in generations:
            self.counts.tokens += len(one.token_ids)
            self.counts.exact_tokens += len(one.token_ids) if one.exact_versions else 0

    async def _get(self, path: str) -> bytes:
        try:
            async with self._session.get(f"{self.base_url}{path}", timeout=self._short()) as answer:
                content = await answer.read()
                self._raise_for_status(answer.status, content)
                return content
        except TimeoutError as error:
            raise EngineUnavailable(self.base_url, "timeout", f"GET {path} passed its deadline") from error
        except aiohttp.ClientError as error:
            raise EngineUnavailable(self.base_url, "connection", f"GET {path}: {_text(error)}") from error

    def _short(self) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=self.deadlines.health_s)

    def _raise_for_status(self, status: int, content: bytes) -> None:
        if status < 400:
            return
        message = _error_message(content)
        if status < 500:
            raise EngineRequestError(self.base_url, status, message)
        raise EngineUnavailable(
            self.base_url, "busy" if status == 503 else "server_error", f"HTTP {status}: {message}"
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
