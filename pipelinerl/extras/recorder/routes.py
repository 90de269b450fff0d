"""What OpenAI's chat and completion routes and vLLM's token route take and answer: bodies in, bodies out.

Fields and answers are those of the embedded engine, which are vLLM's. `site` calls these for each request.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from pipelinerl.engines.llm_call import LLMCall, Prompt
from pipelinerl.engines.openai.answers import ChatWriter, CompletionWriter, Piece, usage
from pipelinerl.engines.openai.fields import ChatFields, CompletionFields
from pipelinerl.engines.openai.handlers import Answer, read, token_answer, token_chunk
from pipelinerl.engines.openai.protocol import GenerateFields, require
from pipelinerl.extras.recorder import sampling
from pipelinerl.extras.recorder.asked import Asked, bound, piece, ruled
from pipelinerl.extras.recorder.replies import Answered, Chat, chat_of, encoded
from pipelinerl.extras.recorder.session import Session


@dataclass(frozen=True)
class _Prompted:
    """What a `Writer` asks of a request."""

    prompt_ids: list[int]


async def chat(session: Session, body: bytes) -> Answered:
    """`/v1/chat/completions`: messages in, the model's reply out."""
    fields = read(body, ChatFields)
    asked = await chat_of(session, fields, msgspec.json.decode(body))
    answer = Answer(_Replied(session.llm.load_tokenizer(), fields, asked), fields, session.llm.model_name)
    if fields.stream:
        return Answered({}, _chat_chunks(answer, asked))
    reply = await asked.reply()
    return Answered(answer.whole([(asked, piece(reply.call, reply.content))], _usage([reply.call])))


async def _chat_chunks(answer: Answer, asked: Chat) -> AsyncGenerator[dict[str, Any]]:
    async with aclosing(asked.pieces()) as pieces:
        async for one in pieces:
            yield answer.chunk(0, asked, one)
    for last in answer.last(_usage([asked.replied.call])):
        yield last


async def completions(session: Session, body: bytes) -> Answered:
    """`/v1/completions`: text or ids in, their continuations out."""
    fields = read(body, CompletionFields)
    sent, others = ruled(session, msgspec.json.decode(body))
    llm = bound(session, sent)
    tokenizer, special = llm.load_tokenizer(), fields.add_special_tokens
    prompts = [await encoded(llm, one, special) if isinstance(one, str) else one for one in fields.prompts()]
    most = sampling.bounded(fields.max_tokens, session.llm.parameters)
    asked = Asked(session, llm, [_by_ids(one) for one in prompts], most, others, fields)
    answer = Answer(CompletionWriter(tokenizer, fields), fields, session.llm.model_name)
    if fields.stream:
        return Answered({}, _completion_chunks(answer, asked))
    calls = await asked.calls()
    rows = [
        (_Prompted(prompt), piece(call, asked.text(call)))
        for prompt, call in zip(prompts, calls, strict=True)
    ]
    return Answered(answer.whole(rows, _usage(calls)))


async def _completion_chunks(answer: Answer, asked: Asked) -> AsyncGenerator[dict[str, Any]]:
    async with aclosing(asked.pieces(asked.text)) as pieces:
        async for one in pieces:
            yield answer.chunk(one.index, _Prompted(asked.prompts[one.index].token_ids), one)
    for last in answer.last(_usage(asked.answered)):
        yield last


async def generate(session: Session, body: bytes) -> Answered:
    """`/inference/v1/generate`: token ids in, token ids and log-probabilities out."""
    fields = read(body, GenerateFields)
    own = fields.sampling_params
    require((own.prompt_logprobs is None, "prompt_logprobs are not recorded; leave them out"))
    sent, others = ruled(session, msgspec.json.decode(body)["sampling_params"])
    llm = bound(session, sent)
    most = sampling.bounded(own.max_tokens, session.llm.parameters)
    asked = Asked(session, llm, [_by_ids(fields.token_ids)], most, others, own)
    name, logprobs = fields.request_id or uuid.uuid4().hex, own.logprobs is not None
    created = int(time.time())
    if fields.stream:
        return Answered({}, _token_chunks(asked, name, logprobs))
    (call,) = await asked.calls()
    counts = _usage([call])
    return Answered(
        token_answer([piece(call, "")], llm.model_name, counts, name=name, created=created, logprobs=logprobs)
    )


async def _token_chunks(asked: Asked, name: str, logprobs: bool) -> AsyncGenerator[dict[str, Any]]:
    async with aclosing(asked.pieces(asked.text)) as pieces:
        async for one in pieces:
            yield token_chunk(one, name, logprobs)


class _Replied(ChatWriter):
    """Writes the calls that were read from a reply, under the ids that are recorded."""

    def __init__(self, tokenizer: Any, fields: ChatFields, asked: Chat) -> None:
        super().__init__(tokenizer, fields)
        self._asked = asked

    def _read(self, text: str) -> tuple[str | None, list[dict[str, Any]]]:
        calls = self._calls()
        return text or (None if calls else ""), calls

    def _read_more(self, index: int, piece: Piece) -> tuple[str, list[dict[str, Any]]]:
        return piece.text, self._calls() if piece.finish_reason else []

    def _calls(self) -> list[dict[str, Any]]:
        return [{"type": "function", **one.model_dump()} for one in self._asked.replied.tool_calls]


def _by_ids(ids: Sequence[int]) -> Prompt:
    require((bool(ids), "the prompt is empty; at least one token id is needed"))
    return Prompt(token_ids=list(ids))


def _usage(calls: Sequence[LLMCall]) -> dict[str, int]:
    prompt = sum(call.prompt_length_tokens for call in calls)
    return usage(prompt, sum(call.output_length_tokens for call in calls))
