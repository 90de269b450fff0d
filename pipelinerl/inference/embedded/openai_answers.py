"""Bodies and stream chunks of the OpenAI routes, from sampled tokens; written by `openai_routes`."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from pipelinerl.inference.embedded.openai_chat import ToolCall, ToolCallDelta, read_tool_calls
from pipelinerl.inference.embedded.openai_fields import ChatFields, CompletionFields
from pipelinerl.inference.embedded.protocol import VersionSpan
from pipelinerl.inference.embedded.sequence import Request, Sequence, TokenEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens of one choice: all of them, or those of one chunk of a stream."""

    index: int
    token_ids: list[int]
    logprobs: list[float]
    spans: list[VersionSpan]
    """Weight versions by output position."""
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_ids: list[int]
    first: bool = True
    """Whether the choice begins here."""


def whole(sequence: Sequence, index: int) -> Piece:
    """A sequence that ended."""
    output = sequence.output
    assert output is not None, "requests of these routes collect their text"
    choice = sequence.choice()
    return Piece(
        index=index,
        token_ids=choice.token_ids,
        logprobs=sequence.logprobs,
        spans=choice.weight_versions,
        text=output.close(),
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        prompt_ids=sequence.request.prompt_ids,
    )


def chunk(request: Request, event: TokenEvent, index: int) -> Piece:
    """One token of a stream."""
    return Piece(
        index=index,
        token_ids=[event.token_id],
        logprobs=[event.logprob],
        spans=[VersionSpan(event.version, event.position, event.position + 1)],
        text=event.text,
        finish_reason=event.finish_reason,
        stop_reason=event.stop_reason,
        prompt_ids=request.prompt_ids if event.position == 0 else [],
        first=event.position == 0,
    )


def cut_off(sequence: Sequence, index: int) -> Piece:
    """The end of a streamed sequence that was aborted: what of its text was held back."""
    output = sequence.output
    assert output is not None, "requests of these routes collect their text"
    output.close()
    return Piece(
        index=index,
        token_ids=[],
        logprobs=[],
        spans=[],
        text=output.take(),
        finish_reason=sequence.finish_reason or "abort",
        stop_reason=None,
        prompt_ids=[],
        first=sequence.output_length == 0,
    )


class CompletionWriter:
    """`/v1/completions`."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, fields: CompletionFields) -> None:
        self._tokens = _TokenTexts(tokenizer, bool(fields.return_tokens_as_token_ids))
        self._logprobs = fields.logprobs is not None
        self._ids = bool(fields.return_token_ids)
        # Characters told so far, by choice: offsets go on from chunk to chunk.
        self._offsets: dict[int, int] = {}

    def choice(self, piece: Piece) -> dict[str, Any]:
        """A choice of an answer, or of a chunk."""
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": self._logprobs_of(piece) if self._logprobs else None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
            "weight_versions": piece.spans,
            **({"token_ids": piece.token_ids} if self._ids else {}),
            **({"prompt_token_ids": piece.prompt_ids} if self._ids and piece.first else {}),
        }

    # A chunk of this route has the shape of an answer.
    delta = choice

    def top(self, prompt_ids: list[int]) -> dict[str, Any]:
        """What is said once for the whole answer."""
        return {}

    def _logprobs_of(self, piece: Piece) -> dict[str, Any]:
        tokens = [self._tokens.text(one) for one in piece.token_ids]
        offsets, position = [], self._offsets.get(piece.index, 0)
        for token in tokens:
            offsets.append(position)
            position += len(token)
        self._offsets[piece.index] = position
        return {
            "tokens": tokens,
            "token_logprobs": piece.logprobs,
            "top_logprobs": None,
            "text_offset": offsets,
        }


class ChatWriter:
    """`/v1/chat/completions`."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, fields: ChatFields, *, reads_tool_calls: bool
    ) -> None:
        self._tokens = _TokenTexts(tokenizer, bool(fields.return_tokens_as_token_ids))
        self._logprobs = bool(fields.logprobs)
        self._ids = bool(fields.return_token_ids)
        self._calls = reads_tool_calls
        # Text by choice, while it may still turn out to be a call.
        self._held: dict[int, str] = {}

    def choice(self, piece: Piece) -> dict[str, Any]:
        """A choice of an answer."""
        text, calls = read_tool_calls(piece.text) if self._calls else (piece.text, [])
        message = {"role": "assistant", "content": text, "tool_calls": calls}
        return {**self._shared(piece, calls), "message": message}

    def delta(self, piece: Piece) -> dict[str, Any]:
        """A choice of a chunk; where tools may be called the text comes whole, with the last one."""
        content: str | None = piece.text
        calls: list[ToolCall] = []
        if self._calls:
            content = self._held[piece.index] = self._held.get(piece.index, "") + piece.text
            content, calls = read_tool_calls(content) if piece.finish_reason else ("", [])
        delta: dict[str, Any] = {"content": content}
        if piece.first:
            delta["role"] = "assistant"
        if calls:
            delta["tool_calls"] = [
                ToolCallDelta(one.id, one.function, one.type, index) for index, one in enumerate(calls)
            ]
        return {**self._shared(piece, calls), "delta": delta}

    def top(self, prompt_ids: list[int]) -> dict[str, Any]:
        """What is said once for the whole answer."""
        return {"prompt_token_ids": prompt_ids} if self._ids else {}

    def _shared(self, piece: Piece, calls: SequenceOf[ToolCall]) -> dict[str, Any]:
        reason = "tool_calls" if calls and piece.finish_reason == "stop" else piece.finish_reason
        content = [
            self._logprob(token, value) for token, value in zip(piece.token_ids, piece.logprobs, strict=True)
        ]
        return {
            "index": piece.index,
            "logprobs": {"content": content} if self._logprobs else None,
            "finish_reason": reason,
            "stop_reason": piece.stop_reason,
            "weight_versions": piece.spans,
            **({"token_ids": piece.token_ids} if self._ids else {}),
        }

    def _logprob(self, token: int, value: float) -> dict[str, Any]:
        text = self._tokens.text(token)
        return {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}


class _TokenTexts:
    """How a token is named beside its log-probability."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, as_ids: bool) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._as_ids = as_ids

    def text(self, token: int) -> str:
        return f"token_id:{token}" if self._as_ids else self._backend.decode([token], False)
