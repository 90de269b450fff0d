"""Bodies and stream chunks of the generating routes, from sampled tokens.

Called by `handlers`, for the embedded engine and for `pipelinerl.extras.recorder`, which answers alike.
"""

import base64
import io
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedTokenizerFast

from pipelinerl.engines.openai.chat import TextBeforeCalls, call_reader
from pipelinerl.engines.openai.fields import ChatFields, CompletionFields
from pipelinerl.engines.openai.text import token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens of one sequence: all of them, or those of one chunk of a stream; its text may lag behind."""

    index: int
    token_ids: list[int]
    logprobs: list[float]
    weight_versions: list[dict[str, Any]]
    """By output position, as all routes write them."""
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    first: bool
    """Whether the sequence begins here."""
    likeliest: list[tuple[int, float]] = field(default_factory=list)
    """The most likely id of each position, and its log-probability, where they are asked for."""
    routed_experts: np.ndarray | None = None
    """uint8 or uint16 [tokens, layers, active], of prompt and output, where an engine records them."""


def routes_field(piece: Piece) -> dict[str, str]:
    """`routed_experts` of a choice: an array as numpy writes it, in base64, as vLLM has it."""
    if piece.routed_experts is None:
        return {}
    file = io.BytesIO()
    np.save(file, piece.routed_experts, allow_pickle=False)
    return {"routed_experts": base64.b64encode(file.getbuffer()).decode("ascii")}


class Prompted(Protocol):
    """What an answer says of its request."""

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt as it was computed; asked for only where the answer holds it."""


class Writer:
    """What both routes say. `index` counts the choices of an answer through all its prompts."""

    kind: str
    chunk_kind: str
    prefix: str

    def __init__(self, tokenizer: PreTrainedTokenizerFast, fields: CompletionFields | ChatFields) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._names_ids = bool(fields.return_tokens_as_token_ids)
        self._ids = bool(fields.return_token_ids)

    def choice(self, index: int, request: Prompted, piece: Piece) -> dict[str, Any]:
        """A choice of an answer."""
        raise NotImplementedError

    def delta(self, index: int, request: Prompted, piece: Piece) -> dict[str, Any]:
        """A choice of a chunk."""
        raise NotImplementedError

    def top(self, request: Prompted) -> dict[str, Any]:
        """What is said once for the whole answer."""
        return {}

    def _shared(self, index: int, piece: Piece) -> dict[str, Any]:
        return {
            "index": index,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
            "weight_versions": piece.weight_versions,
            **({"token_ids": piece.token_ids} if self._ids else {}),
            **routes_field(piece),
        }

    def _name(self, token: int) -> str:
        """How a token is named beside its log-probability."""
        return f"token_id:{token}" if self._names_ids else self._backend.decode([token], False)


class CompletionWriter(Writer):
    """`/v1/completions`."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, fields: CompletionFields) -> None:
        super().__init__(tokenizer, fields)
        self._logprobs = fields.logprobs is not None
        # Characters begun so far, by choice: offsets go on from chunk to chunk.
        self._offsets: dict[int, int] = {}

    def choice(self, index: int, request: Prompted, piece: Piece) -> dict[str, Any]:
        """A choice of an answer, or of a chunk."""
        return {
            **self._shared(index, piece),
            "text": piece.text,
            "logprobs": self._logprobs_of(index, piece) if self._logprobs else None,
            **({"prompt_token_ids": request.prompt_ids} if self._ids and piece.first else {}),
        }

    # A chunk of this route has the shape of an answer.
    delta = choice

    def _logprobs_of(self, index: int, piece: Piece) -> dict[str, Any]:
        tokens = [self._name(one) for one in piece.token_ids]
        offsets, position = [], self._offsets.get(index, 0)
        for token in piece.token_ids:
            offsets.append(position)
            # A byte of this form goes on with the character of the byte before it.
            position += sum(byte & 0xC0 != 0x80 for byte in token_bytes(self._backend, token))
        self._offsets[index] = position
        return {
            "tokens": tokens,
            "token_logprobs": piece.logprobs,
            "top_logprobs": None,
            "text_offset": offsets,
        }


class ChatWriter(Writer):
    """`/v1/chat/completions`."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, fields: ChatFields, opened: bool = False) -> None:
        """`opened`: the prompt ends with `<think>`."""
        super().__init__(tokenizer, fields)
        self._logprobs = bool(fields.logprobs)
        self._reader = call_reader(tokenizer, fields, opened)
        # By choice: the text of a stream, which may turn out to be a call.
        self._came: defaultdict[int, TextBeforeCalls] = defaultdict(partial(TextBeforeCalls, opened))

    def choice(self, index: int, request: Prompted, piece: Piece) -> dict[str, Any]:
        """A choice of an answer."""
        text, calls = self._read(piece.text)
        message = {"role": "assistant", "content": text, "tool_calls": calls}
        return {**self._reply(index, piece, bool(calls)), "message": message}

    def delta(self, index: int, request: Prompted, piece: Piece) -> dict[str, Any]:
        """A choice of a chunk; calls come with the last one, and text as soon as it can be no call."""
        content, calls = self._read_more(index, piece)
        delta: dict[str, Any] = {"content": content}
        if piece.first:
            delta["role"] = "assistant"
        if calls:
            delta["tool_calls"] = [{**call, "index": number} for number, call in enumerate(calls)]
        return {**self._reply(index, piece, bool(calls)), "delta": delta}

    def _read(self, text: str) -> tuple[str | None, list[dict[str, Any]]]:
        """Text and tool calls of a whole answer."""
        return (text, []) if self._reader is None else self._reader(text)

    def _read_more(self, index: int, piece: Piece) -> tuple[str, list[dict[str, Any]]]:
        """Text and tool calls of a chunk."""
        if self._reader is None:
            return piece.text, []
        came = self._came[index]
        certain = came.add(piece.text)
        if not piece.finish_reason:
            return certain, []
        text, calls = self._reader(came.text)
        return certain + (text or "")[came.given :], calls

    def top(self, request: Prompted) -> dict[str, Any]:
        """What is said once for the whole answer."""
        return {"prompt_token_ids": request.prompt_ids} if self._ids else {}

    def _reply(self, index: int, piece: Piece, calls: bool) -> dict[str, Any]:
        content = [
            {
                "token": self._name(token),
                "logprob": value,
                "bytes": list(token_bytes(self._backend, token)),
                "top_logprobs": [],
            }
            for token, value in zip(piece.token_ids, piece.logprobs, strict=True)
        ]
        shared = self._shared(index, piece)
        # A generation that ends by itself with a call ends because of it.
        if calls and piece.finish_reason == "stop":
            shared["finish_reason"] = "tool_calls"
        return {**shared, "logprobs": {"content": content} if self._logprobs else None}


def usage(prompt: int, sampled: int) -> dict[str, int]:
    """Token counts of an answer."""
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def token_choice(piece: Piece, logprobs: bool) -> dict[str, Any]:
    """A choice of the token route; ids are repeated so that a client can check the pairing."""
    pairs = zip(piece.token_ids, piece.logprobs, strict=True)
    # vLLM before 0.32 names the id as a text, later versions as a number; clients of either find theirs.
    content: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "token_id": token, "logprob": value} for token, value in pairs
    ]
    for entry, (token, value) in zip(content, piece.likeliest, strict=False):
        entry["top_logprobs"] = [{"token": f"token_id:{token}", "token_id": token, "logprob": value}]
    return {
        "index": piece.index,
        "token_ids": piece.token_ids,
        "finish_reason": piece.finish_reason,
        "stop_reason": piece.stop_reason,
        "logprobs": {"content": content} if logprobs else None,
        "weight_versions": piece.weight_versions,
        **routes_field(piece),
    }
