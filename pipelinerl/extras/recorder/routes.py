"""What OpenAI's chat and completion routes and vLLM's token route take and answer: bodies in, bodies out.

Fields and answers are those of the embedded engine, which are vLLM's. `site` calls these for each request.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pipelinerl.engines.answers import UNVERSIONED
from pipelinerl.engines.llm_call import LLMCall, Prompt, TokenLogprobs
from pipelinerl.engines.llm_engine import EngineLLM
from pipelinerl.engines.openai.answers import ChatWriter, CompletionWriter, Piece, Writer, usage
from pipelinerl.engines.openai.fields import ChatFields, CompletionFields, SharedFields
from pipelinerl.engines.openai.handlers import Answer, read, token_answer
from pipelinerl.engines.openai.protocol import GenerateFields, require
from pipelinerl.extras.recorder import sampling
from pipelinerl.extras.recorder.replies import (
    Answered,
    Reply,
    bound,
    by_token,
    calls_tools,
    chat_reply,
    encoded,
    ruled,
    shown,
)
from pipelinerl.extras.recorder.session import Session


@dataclass(frozen=True)
class _Prompted:
    """What a `Writer` asks of a request."""

    prompt_ids: list[int]


async def chat(session: Session, body: bytes) -> Answered:
    """`/v1/chat/completions`: messages in, the model's reply out."""
    fields = read(body, ChatFields)
    reply = await chat_reply(session, fields, msgspec.json.decode(body))
    tokenizer = session.llm.load_tokenizer()
    if calls_tools(fields):
        writer = _EngineCalls(tokenizer, fields, reply)
        return _openai(session, writer, fields, [reply.call], [reply.content], whole=True)
    return _openai(session, ChatWriter(tokenizer, fields), fields, [reply.call], [reply.content])


async def completions(session: Session, body: bytes) -> Answered:
    """`/v1/completions`: text or ids in, their continuations out."""
    fields = read(body, CompletionFields)
    asked, others = ruled(session, msgspec.json.decode(body))
    llm = bound(session, asked)
    tokenizer, special = llm.load_tokenizer(), fields.add_special_tokens
    prompts = [await encoded(llm, one, special) if isinstance(one, str) else one for one in fields.prompts()]
    most = sampling.bounded(fields.max_tokens, session.llm.parameters)
    calls = await session.ask(llm, [_by_ids(one) for one in prompts], most, others)
    texts = [shown(llm, call, fields)[0] for call in calls]
    return _openai(session, CompletionWriter(tokenizer, fields), fields, calls, texts)


async def generate(session: Session, body: bytes) -> Answered:
    """`/inference/v1/generate`: token ids in, token ids and log-probabilities out."""
    fields = read(body, GenerateFields)
    own = fields.sampling_params
    require((own.prompt_logprobs is None, "prompt_logprobs are not recorded; leave them out"))
    asked, others = ruled(session, msgspec.json.decode(body)["sampling_params"])
    llm = bound(session, asked)
    most = sampling.bounded(own.max_tokens, session.llm.parameters)
    (call,) = await session.ask(llm, [_by_ids(fields.token_ids)], most, others)
    return Answered(
        token_answer(
            [_piece(call, "")],
            llm.model_name,
            _usage([call]),
            name=fields.request_id or uuid.uuid4().hex,
            created=int(time.time()),
            logprobs=own.logprobs is not None,
        )
    )


class _EngineCalls(ChatWriter):
    """Writes the tool calls that the engine read from its answer."""

    def __init__(self, tokenizer: Any, fields: ChatFields, reply: Reply) -> None:
        super().__init__(tokenizer, fields)
        self._reads_calls, self._said = True, reply

    def _read(self, text: str) -> tuple[str | None, list[dict[str, Any]]]:
        calls: list[dict[str, Any]] = [
            {"type": "function", **one.model_dump()} for one in self._said.tool_calls
        ]
        return self._said.call.output.content, calls


def _by_ids(ids: Sequence[int]) -> Prompt:
    require((bool(ids), "the prompt is empty; at least one token id is needed"))
    return Prompt(token_ids=list(ids))


def _openai(
    session: Session,
    writer: Writer,
    fields: SharedFields,
    calls: Sequence[LLMCall],
    texts: Sequence[str],
    whole: bool = False,
) -> Answered:
    """The answer of an OpenAI route. A stream has a chunk for each token; with `whole` one for each call."""
    answer = Answer(writer, fields, session.llm.model_name)
    sampled = [
        (_Prompted(call.prompt_token_ids.tolist()), call, text)
        for call, text in zip(calls, texts, strict=True)
    ]
    if not fields.stream:
        rows = [(request, _piece(call, text)) for request, call, text in sampled]
        return Answered(answer.whole(rows, _usage(calls)))
    chunks = [
        answer.chunk(index, request, piece)
        for index, (request, call, text) in enumerate(sampled)
        for piece in ([_piece(call, text)] if whole else _pieces(session.llm, call, text))
    ]
    return Answered({}, [*chunks, *answer.last(_usage(calls))])


def _piece(call: LLMCall, text: str, start: int = 0, end: int | None = None) -> Piece:
    """The tokens of a call from output position `start` to `end`, with their text."""
    length = call.output_length_tokens
    end = length if end is None else end
    return Piece(
        index=0,
        token_ids=call.output_token_ids[start:end].tolist(),
        logprobs=TokenLogprobs.of(call.logprobs).logprobs[start:end].tolist(),
        weight_versions=[
            {
                "version": "default" if version == UNVERSIONED else str(version),
                "start": max(first, start),
                "end": min(behind, end),
            }
            for version, first, behind in call.weight_versions
            if first < end and behind > start
        ],
        text=text,
        finish_reason=call.llm_info["finish_reason"] if end == length else None,
        stop_reason=call.llm_info["stop_reason"] if end == length else None,
        first=start == 0,
    )


def _pieces(llm: EngineLLM, call: LLMCall, text: str) -> list[Piece]:
    return [_piece(call, one, at, at + 1) for at, one in enumerate(by_token(llm, call, text))]


def _usage(calls: Sequence[LLMCall]) -> dict[str, int]:
    prompt = sum(call.prompt_length_tokens for call in calls)
    return usage(prompt, sum(call.output_length_tokens for call in calls))
