"""What the three generating routes of a session take and answer: bodies in, bodies out, no HTTP.

Fields and answers are those of the embedded engine, which are vLLM's. `site` calls `answer` for each request.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pipelinerl.base.tokenizing import decode
from pipelinerl.engines.answers import UNVERSIONED
from pipelinerl.engines.llm_call import LLMCall, LLMOutput, Prompt
from pipelinerl.engines.llm_engine import EngineLLM
from pipelinerl.engines.openai.answers import ChatWriter, CompletionWriter, Piece, Writer, usage
from pipelinerl.engines.openai.chat import plain_messages, prompt_text
from pipelinerl.engines.openai.fields import ChatFields, CompletionFields, SharedFields
from pipelinerl.engines.openai.handlers import Answer, read, token_answer
from pipelinerl.engines.openai.protocol import GenerateFields, SamplingFields, require
from pipelinerl.extras.recorder import sampling
from pipelinerl.extras.recorder.session import Session, dialogue_key


@dataclass(frozen=True)
class Answered:
    """The body of an answer, or the events of one that was asked for as a stream."""

    body: dict[str, Any]
    events: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class _Prompted:
    """What a `Writer` asks of a request."""

    prompt_ids: list[int]


async def chat(session: Session, body: bytes) -> Answered:
    """`/v1/chat/completions`: messages in, the model's reply out."""
    fields = read(body, ChatFields)
    asked, others = _ruled(session, msgspec.json.decode(body))
    llm = _bound(session, asked, fields.chat_template_kwargs)
    messages = plain_messages(fields.messages)
    key = dialogue_key({"tools": fields.tools, **llm.chat_template_kwargs}, messages)
    calls_tools = bool(fields.tools) and fields.tool_choice != "none"
    if calls_tools:
        # Only the engine knows how its model writes calls. It renders the template itself.
        require((fields.add_generation_prompt, "add_generation_prompt: false with tools is not supported"))
        prompt = Prompt(messages=fields.messages, tools=fields.tools)
    else:
        # Ids are appended as the template begins an answer, so only where it was asked to.
        usual = fields.add_generation_prompt and not (fields.tools or fields.add_special_tokens)
        prompt = (session.continued(llm, key, messages) if usual else None) or _rendered(
            llm, fields, messages
        )
    most = sampling.bounded(fields.most_tokens, session.llm.parameters)
    (call,) = await session.ask(llm, [prompt], most, others)
    text = _shown(llm, call, fields, asked)
    writer = ChatWriter(llm.load_tokenizer(), fields)
    if calls_tools:
        writer = _EngineCalls(llm, fields, call.output)
    elif text == decode(llm.load_tokenizer(), call.output_token_ids, skip_special=True):
        # Nothing was cut off, so the program's next prompt may go on from these ids.
        reply = {"role": "assistant", "content": text}
        session.remember(key + dialogue_key({}, [reply])[1:], call)
    return _openai(session, writer, fields, [call], [text])


async def completions(session: Session, body: bytes) -> Answered:
    """`/v1/completions`: text or ids in, their continuations out."""
    fields = read(body, CompletionFields)
    asked, others = _ruled(session, msgspec.json.decode(body))
    llm = _bound(session, asked)
    tokenizer = llm.load_tokenizer()
    backend = tokenizer.backend_tokenizer
    prompts = [
        backend.encode(one, add_special_tokens=fields.add_special_tokens).ids if isinstance(one, str) else one
        for one in fields.prompts()
    ]
    most = sampling.bounded(fields.max_tokens, session.llm.parameters)
    calls = await session.ask(llm, [_by_ids(one) for one in prompts], most, others)
    texts = [_shown(llm, call, fields, asked) for call in calls]
    return _openai(session, CompletionWriter(tokenizer, fields), fields, calls, texts)


async def generate(session: Session, body: bytes) -> Answered:
    """`/inference/v1/generate`: token ids in, token ids and log-probabilities out."""
    fields = read(body, GenerateFields)
    own = fields.sampling_params
    require((own.prompt_logprobs is None, "prompt_logprobs are not recorded; leave them out"))
    asked, others = _ruled(session, msgspec.json.decode(body)["sampling_params"])
    llm = _bound(session, asked)
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

    def __init__(self, llm: EngineLLM, fields: ChatFields, output: LLMOutput) -> None:
        super().__init__(llm.load_tokenizer(), fields)
        self._reads_calls, self._output = True, output

    def _read(self, text: str) -> tuple[str | None, list[dict[str, Any]]]:
        calls: list[dict[str, Any]] = [
            {"type": "function", **one.model_dump()} for one in self._output.tool_calls or []
        ]
        return self._output.content, calls


def _ruled(session: Session, asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The request's fields, and those of them that the run overrides. Raises BadRequest."""
    require((asked.get("n") in (None, 1), f"n {asked.get('n')} is not supported; ask as often as needed"))
    others = sampling.overridden(asked, session.llm.parameters)
    if not session.override:
        sampling.refuse(others, session.llm.parameters)
    return asked, others


def _bound(
    session: Session, asked: Mapping[str, Any], template_kwargs: dict[str, Any] | None = None
) -> EngineLLM:
    """The rollout's llm with what one request may add; it counts and draws seeds with the rollout's."""
    llm = session.llm
    kwargs = {**llm.chat_template_kwargs, **(template_kwargs or {})}
    changed = {"parameters": sampling.with_ends(llm, asked), "chat_template_kwargs": kwargs}
    return llm.model_copy(update=changed)


def _by_ids(ids: Sequence[int]) -> Prompt:
    require((bool(ids), "the prompt is empty; at least one token id is needed"))
    return Prompt(token_ids=list(ids))


def _rendered(llm: EngineLLM, fields: ChatFields, messages: list[dict[str, Any]]) -> Prompt:
    backend = llm.load_tokenizer().backend_tokenizer
    whole = msgspec.structs.replace(fields, chat_template_kwargs=llm.chat_template_kwargs)
    text = prompt_text(llm.load_tokenizer(), whole)
    ids = backend.encode(text, add_special_tokens=fields.add_special_tokens).ids
    return Prompt(messages=messages, token_ids=ids)


def _shown(
    llm: EngineLLM, call: LLMCall, fields: SharedFields | SamplingFields, asked: Mapping[str, Any]
) -> str:
    """The answer's text as the program gets it: without the stop string that it named and that ended it."""
    text = decode(llm.load_tokenizer(), call.output_token_ids, fields.skip_special_tokens)
    if call.llm_info["finish_reason"] != "stop":
        return text
    stops = llm.parameters.get("stop") or ()
    found = [(at, one) for one in stops if (at := text.find(one)) >= 0]
    if not found:
        return text
    at, stop = min(found)
    return text[: at + len(stop)] if fields.include_stop_str_in_output else text[:at]


def _openai(
    session: Session, writer: Writer, fields: SharedFields, calls: Sequence[LLMCall], texts: Sequence[str]
) -> Answered:
    """The answer of an OpenAI route. A stream has one chunk for each choice: what was sampled is whole."""
    answer = Answer(writer, fields, session.llm.model_name)
    sampled = [
        (_Prompted(call.prompt_token_ids.tolist()), _piece(call, text))
        for call, text in zip(calls, texts, strict=True)
    ]
    if not fields.stream:
        return Answered(answer.whole(sampled, _usage(calls)))
    chunks = [answer.chunk(index, request, piece) for index, (request, piece) in enumerate(sampled)]
    return Answered({}, [*chunks, *answer.last(_usage(calls))])


def _piece(call: LLMCall, text: str) -> Piece:
    return Piece(
        index=0,
        token_ids=call.output_token_ids.tolist(),
        logprobs=[one.logprob for one in call.logprobs],
        weight_versions=[
            {"version": "default" if version == UNVERSIONED else str(version), "start": start, "end": end}
            for version, start, end in call.weight_versions
        ],
        text=text,
        finish_reason=call.llm_info["finish_reason"],
        stop_reason=None,
        first=True,
    )


def _usage(calls: Sequence[LLMCall]) -> dict[str, int]:
    prompt = sum(call.prompt_length_tokens for call in calls)
    return usage(prompt, sum(call.output_length_tokens for call in calls))
