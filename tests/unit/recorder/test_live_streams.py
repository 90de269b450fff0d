"""Tokens reach a program while the engine samples, and what is recorded is what no stream would change."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from pipelinerl.async_llm import RetryableAbortedCompletionError
from pipelinerl.engines.client import EngineUnavailable
from pipelinerl.extras import recorder
from pipelinerl.extras.recorder import Session
from pipelinerl.llm import TrainableLLM
from tests.support.engine_harness import RunningEngine, until
from tests.support.fake_engine import FakeEngine
from tests.support.text_model import byte_tokenizer
from tests.support.tiny_model import save_model

Event = dict[str, Any]
TOKENIZER = byte_tokenizer()
SAY = [{"role": "user", "content": "Say something."}]
SCHEMA = {"type": "object"}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
WAIT_S = 300.0
ROUTES = ("chat", "completions", "responses", "messages")
PATHS = {"chat": "/chat/completions", "completions": "/completions"}


def body_of(route: str, tools: bool = False, stop: str | None = None) -> Event:
    """A request to a route; OpenAI's responses know no stop string."""
    body: Event = {
        "chat": {"messages": SAY, "logprobs": True, "return_token_ids": True},
        "completions": {"prompt": "Once", "logprobs": 0, "return_token_ids": True},
        "responses": {"input": "Say something."},
        "messages": {"messages": SAY, "max_tokens": 400},
    }[route]
    function = {"name": "f", "parameters": SCHEMA}
    if tools and route == "chat":
        body["tools"] = [{"type": "function", "function": function}]
    elif tools and route == "responses":
        body["tools"] = [{"type": "function", **function}]
    elif tools:
        body["tools"] = [{"name": "f", "input_schema": SCHEMA}]
    if stop is not None:
        body["stop_sequences" if route == "messages" else "stop"] = [stop]
    return {"model": "m", **body}


def text_of(event: Event) -> str:
    """What an event of any route adds to the text."""
    if "choices" in event:
        said = event["choices"][0] if event["choices"] else {}
        return said.get("text") or said.get("delta", {}).get("content") or ""
    if event["type"] == "content_block_delta":
        return str(event["delta"].get("text", ""))
    return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


class Program:
    """Posts to a session as it is told."""

    def __init__(self, session: Session, http: aiohttp.ClientSession) -> None:
        self._url, self._http = session.base_url, http

    async def ask(self, route: str, **fields: Any) -> Event:
        url = self._url + PATHS.get(route, f"/{route}")
        async with self._http.post(url, json=body_of(route, **fields)) as answer:
            assert answer.status == 200, await answer.text()
            found: Event = await answer.json()
            return found

    @asynccontextmanager
    async def stream(self, route: str, **fields: Any) -> AsyncIterator[AsyncIterator[Event]]:
        """The events of a stream while they come; leaving it hangs up."""
        body = {**body_of(route, **fields), "stream": True}
        if route in PATHS:
            body["stream_options"] = {"include_usage": True}
        answer = await self._http.post(self._url + PATHS.get(route, f"/{route}"), json=body)
        try:
            assert answer.status == 200, await answer.text()
            yield self._events(answer, named=route not in PATHS)
        finally:
            answer.close()

    async def _events(self, answer: aiohttp.ClientResponse, named: bool) -> AsyncIterator[Event]:
        done = False
        while line := (await answer.content.readuntil(b"\n\n")).decode():
            name, _, data = line.strip().rpartition("data: ")
            if done := data == "[DONE]":
                break
            event: Event = json.loads(data)
            assert name == (f"event: {event['type']}\n" if named else "")
            yield event
        assert done is not named and await answer.content.read() == b"", "nothing follows the end"

    async def streamed(self, route: str, **fields: Any) -> list[Event]:
        async with self.stream(route, **fields) as events:
            return [event async for event in events]


@asynccontextmanager
async def program(llm: TrainableLLM, **options: Any) -> AsyncIterator[tuple[Session, Program]]:
    async with (
        asyncio.timeout(WAIT_S),
        recorder.session(llm, **options) as session,
        aiohttp.ClientSession() as http,
    ):
        yield session, Program(session, http)


class Sampled:
    """What the engine samples instead of what its model says: one token for each that was allowed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._allowed = threading.Semaphore(0)
        self._ids: list[int] = []
        monkeypatch.setattr("pipelinerl.engines.cpu.backend.sample", self._sample)

    def begin(self, text: str, ends: bool = True, allowed: int | None = None) -> None:
        """The tokens of a text, a byte each, and the end; all of them at once, or as many as are allowed."""
        ids = TOKENIZER.backend_tokenizer.encode(text, add_special_tokens=False).ids
        self._ids = [*ids, *([TOKENIZER.eos_token_id] if ends else [])]
        self.allow(len(self._ids) if allowed is None else allowed)

    def allow(self, tokens: int) -> None:
        if tokens:
            self._allowed.release(tokens)

    def _sample(self, logits: Any, sequences: list[Any]) -> tuple[list[int], list[float]]:
        assert self._allowed.acquire(timeout=WAIT_S), "nobody allowed a token"
        return [self._ids.pop(0)], [-0.5 - 0.01 * len(self._ids)]


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Sampled:
    return Sampled(monkeypatch)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_character_is_sampled_only_when_the_one_before_has_reached_the_program(
    route: str, engine: RunningEngine, llm: TrainableLLM, sampled: Sampled
) -> None:
    said = "Grüße, 世界 👋"
    llm.parameters["max_tokens"] = 100
    sampled.begin(said, allowed=1)
    received = ""
    async with program(llm) as (session, client), client.stream(route) as events:
        async for event in events:
            received += text_of(event)
            # Of the next character all bytes but one come with a chunk that has no text.
            if text_of(event):
                assert said.startswith(received) and "\ufffd" not in received
                sampled.allow(len(said[len(received) : len(received) + 1].encode()) or 1)
    assert received == said
    assert session.texts()[0].output_tokens == len(said.encode()) + 1 and session.texts()[0].finished


def reason_of(events: Iterable[Event]) -> list[Any]:
    """Why a stream ended, as its route says it."""
    found = []
    for event in events:
        if event.get("choices"):
            found.append(event["choices"][0]["finish_reason"])
        elif event.get("type") == "message_delta":
            found.append((event["delta"]["stop_reason"], event["delta"]["stop_sequence"]))
        elif event.get("type") in ("response.completed", "response.incomplete"):
            found.append((event["response"]["status"], event["response"]["incomplete_details"]))
    return [one for one in found if one is not None]


def whole_of(route: str, events: list[Event]) -> Event:
    """The body that a client of the route puts together from a stream."""
    if route == "responses":
        return dict(events[-1]["response"])
    if route == "messages":
        whole: Event = {}
        for event in events:
            if event["type"] == "message_start":
                whole = {**event["message"], "content": []}
            elif event["type"] == "content_block_start":
                assert event["index"] == len(whole["content"])
                whole["content"].append({**event["content_block"]})
            elif event["type"] == "content_block_delta":
                block, delta = whole["content"][event["index"]], event["delta"]
                if delta["type"] == "text_delta":
                    block["text"] += delta["text"]
                else:
                    block["input"] = json.loads(delta["partial_json"])
            elif event["type"] == "message_delta":
                whole |= event["delta"]
                whole["usage"] = whole["usage"] | event["usage"]
        return whole
    *chunks, counts = events
    last, first = chunks[-1]["choices"][0], chunks[0]
    rows = [one["choices"][0] for one in chunks]
    choice = {name: last[name] for name in ("index", "finish_reason", "stop_reason")}
    choice["token_ids"] = [token for row in rows for token in row["token_ids"]]
    choice["weight_versions"] = joined_spans(span for row in rows for span in row["weight_versions"])
    text = "".join(map(text_of, chunks))
    if route == "completions":
        logprobs: Event = {"top_logprobs": None}
        for name in ("tokens", "token_logprobs", "text_offset"):
            logprobs[name] = [one for row in rows for one in row["logprobs"][name]]
        choice |= {"text": text, "logprobs": logprobs, "prompt_token_ids": rows[0]["prompt_token_ids"]}
        top: Event = {}
    else:
        calls = [
            {name: value for name, value in one.items() if name != "index"}
            for one in last["delta"].get("tool_calls", [])
        ]
        content = text or (None if calls else "")
        message = {"role": rows[0]["delta"]["role"], "content": content, "tool_calls": calls}
        entries = [one for row in rows for one in row["logprobs"]["content"]]
        choice |= {"message": message, "logprobs": {"content": entries}}
        top = {"prompt_token_ids": first["prompt_token_ids"]}
    kind = first["object"].removesuffix(".chunk")
    head = {name: first[name] for name in ("id", "created", "model")}
    return {**head, "object": kind, "choices": [choice], "usage": counts["usage"], **top}


def joined_spans(spans: Iterable[Event]) -> list[Event]:
    found: list[Event] = []
    for one in spans:
        if found and found[-1]["version"] == one["version"]:
            assert found[-1]["end"] == one["start"]
            found[-1]["end"] = one["end"]
        else:
            found.append(dict(one))
    return found


def without_names(value: Any) -> Any:
    """Without what is drawn anew for each answer: ids of answers and calls, and the time."""
    if isinstance(value, list):
        return [without_names(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: without_names(one)
        for name, one in value.items()
        if name not in ("id", "call_id", "created", "created_at")
    }


# Text, whether an end token follows, a stop string, calls of a tool.
SAID: dict[str, tuple[str, bool, str | None, int]] = {
    "plain": ("Grüße,\n 世界 👋\n", True, None, 0),
    "cut": ("This goes on and on", False, None, 0),
    "cut within a character": ("A 👋", False, None, 0),
    "stop": ("One, two, three and four", True, "thr", 0),
    "a stop string before min_tokens": ("ab ab c", True, "ab", 0),
    "nearly a stop": ("One, two, thr", True, "three", 0),
    "call": (f"Let me see. \n{CALL}", True, None, 1),
    "calls after blanks and thoughts": (f"\n<think>a {CALL}</think>\n\nWell \n{CALL}\n{CALL}", True, None, 2),
    "no call": ("Use <tool_call>, as in <tool_call>{oops}</tool_call>. ", True, None, 0),
    "nearly a call": ("a < b, so <tool_ca", True, None, 0),
    "a quoted thought": (f'Write "</think>" and {CALL}', True, None, 1),
}


CASES = [(route, name) for route in ROUTES for name in SAID]
CASES = [one for one in CASES if one[0] != "completions" or "<" not in SAID[one[1]][0]]  # it takes no tools


@pytest.mark.parametrize(("route", "name"), CASES)
async def test_a_stream_says_and_records_what_an_unstreamed_answer_does(
    route: str,
    name: str,
    engine: RunningEngine,
    llm: TrainableLLM,
    sampled: Sampled,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All is decided beforehand; what the model would say plays no part.
    monkeypatch.setattr(engine.backend.model, "logits", lambda plan, rows: rows)
    text, ends, stop, calls = SAID[name]
    if route == "responses" and stop is not None:
        llm.parameters["stop"] = [stop]
    tools = "<" in text
    cut = {"cut": len(text.encode()), "cut within a character": len(text.encode()) - 2}
    llm.parameters["max_tokens"] = cut.get(name, 300)
    llm.parameters["min_tokens"] = 4 if "min_tokens" in name else 0
    fields: Event = {"tools": tools, "stop": None if route == "responses" else stop}
    await engine.post("/update_weight_version", {"weight_version": "48"})
    async with program(llm) as (session, client):
        # Sampled ids that nothing asked for any more are dropped with the next answer's beginning.
        sampled.begin(text, ends)
        plain = await client.ask(route, **fields)
        sampled.begin(text, ends)
        events = await client.streamed(route, **fields)
    assert without_names(whole_of(route, events)) == without_names(plain)
    assert len(reason_of(events)) == 1
    first, second = session.calls
    assert first.output.content == second.output.content
    functions = [[one.function for one in call.output.tool_calls or []] for call in (first, second)]
    assert functions[0] == functions[1] and len(functions[0]) == calls
    one, other = session.texts()
    assert one.weight_versions == other.weight_versions == [(48, 0, one.output_tokens)]
    assert one.input_ids.tolist() == other.input_ids.tolist() and one.labels.tolist() == other.labels.tolist()
    assert list(one.logprobs) == list(other.logprobs)
    assert (one.finished, one.finish_reason) == (other.finished, other.finish_reason)
    assert one.metadata == other.metadata


async def test_text_that_may_be_a_call_or_a_stop_string_waits_until_it_is_decided(
    engine: RunningEngine, llm: TrainableLLM, sampled: Sampled
) -> None:
    llm.parameters["max_tokens"] = 300
    async with program(llm) as (_, client):
        for said, fields in (
            ("a <tool_box> b", {"tools": True}),
            ("a stop b", {"stop": "stomp"}),
        ):
            sampled.begin(said, allowed=0)
            received = ""
            sampled.allow(5)
            async with client.stream("messages", **fields) as events:
                async for event in events:
                    received += text_of(event)
                    if received == "a":  # all that is certain after five characters
                        sampled.allow(len(said.encode()) - 4)
            assert received == said


async def test_an_update_of_the_weights_goes_on_in_a_stream(
    engine: RunningEngine, llm: TrainableLLM, sampled: Sampled
) -> None:
    await engine.post("/update_weight_version", {"weight_version": "48"})
    llm.parameters["max_tokens"] = 100
    sampled.begin("before after", allowed=6)
    events: list[Event] = []
    async with program(llm) as (session, client), client.stream("chat") as stream:
        async for event in stream:
            events.append(event)
            if len(events) == 6:
                # The engine takes the update between two tokens, of which each has to be allowed.
                update = asyncio.create_task(engine.post("/update_weight_version", {"weight_version": "49"}))
                while not update.done():
                    sampled.allow(1)
                    await asyncio.wait([update], timeout=0.2)
                await update
                sampled.allow(100)
    whole = whole_of("chat", events)["choices"][0]["weight_versions"]
    length, first = len("before after") + 1, whole[0]["end"]
    assert 6 <= first < length
    assert session.texts()[0].weight_versions == [(48, 0, first), (49, first, length)]
    assert whole == [
        {"version": "48", "start": 0, "end": first},
        {"version": "49", "start": first, "end": length},
    ]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_program_that_hangs_up_aborts_its_request_and_what_was_said_is_recorded(
    route: str, engine: RunningEngine, llm: TrainableLLM, sampled: Sampled
) -> None:
    llm.parameters["max_tokens"] = 100
    sampled.begin("Hello, you there", allowed=6)
    async with program(llm) as (session, client):
        received = ""
        async with client.stream(route) as events:
            async for event in events:
                received += text_of(event)
                if len(received) == 6:
                    break
        await until(lambda: not session._running)
        sampled.allow(100)
        await until(lambda: engine.server._pending._sequences == 0)
        await until(lambda: engine.server.engine.metrics.finished["abort"] == 1)
        (call,) = session.calls
    (text,) = session.texts()
    assert text.output_text == "Hello," and text.metadata["cut_short"] == "program hung up"
    assert not text.finished and call.weight_versions == [(-1, 0, 6)] and len(text.logprobs) == 6


@pytest.mark.parametrize("route", ROUTES)
async def test_the_end_of_a_session_is_the_proper_end_of_a_stream(
    route: str, engine: RunningEngine, llm: TrainableLLM, sampled: Sampled
) -> None:
    llm.parameters["max_tokens"] = 100
    sampled.begin("Hello, you there", allowed=6)
    async with program(llm) as (session, client):
        events: list[Event] = []
        async with client.stream(route) as stream:
            async for event in stream:
                events.append(event)
                if "".join(map(text_of, events)) == "Hello,":
                    await session.end()
                    sampled.allow(100)
    cut: Any = {"messages": ("max_tokens", None)}
    cut["responses"] = ("incomplete", {"reason": "max_output_tokens"})
    assert reason_of(events) == [cut.get(route, "length")]
    assert "".join(map(text_of, events)) == "Hello,"
    (text,) = session.texts()
    assert text.output_text == "Hello," and text.metadata["cut_short"] == "session ended"


def breaking(fake: FakeEngine, ending: bytes) -> Callable[[web.Request], Any]:
    """Two tokens of an answer, then these bytes, or the end of the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for token in TOKENIZER.backend_tokenizer.encode("Oh", add_special_tokens=False).ids:
            chunk = fake.reply([token]) | {}
            chunk["choices"][0] |= {"finish_reason": None, "weight_versions": None}
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        if ending:
            await response.write(ending)
        else:
            assert request.transport is not None
            request.transport.close()
        return response

    return answer


ENDINGS = {
    "lost": (b"", "connection"),
    "refused": (b'data: {"error": {"message": "no memory"}}\n\ndata: [DONE]\n\n', "no memory"),
    "without an end": (b"data: [DONE]\n\n", "the stream says no end"),
    "nonsense": (b"data: {]\n\n", "cannot be decoded"),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("route", ROUTES)
async def test_an_engine_that_is_lost_in_a_stream_is_an_error_of_the_route(
    route: str, ending: str, folder: Any
) -> None:
    with FakeEngine(lambda prompt: [7, 8, 9]) as fake:
        said, message = ENDINGS[ending]
        fake.misbehave.append(breaking(fake, said))
        llm = TrainableLLM(model_name=str(folder), base_url=fake.url, context_size=512, max_retries=3)
        # Of whatever is raised in a session whose engine failed, the engine's error is left.
        with pytest.raises((EngineUnavailable, RetryableAbortedCompletionError), match=message) as failed:
            async with program(llm) as (session, client):
                *begun, last = await client.streamed(route)
                raise ValueError("the program gives up")
    assert "".join(map(text_of, begun)) == "Oh" and not reason_of([*begun, last])
    assert message in last["error"]["message"]
    assert last.get("type") == (None if route in PATHS else "error")
    assert session.calls == [] and fake.counts["requests"] == 1
    assert failed.value is session.failure and str(failed.value.__cause__) == "the program gives up"


async def test_openais_client_raises_what_went_wrong_in_a_stream(folder: Any) -> None:
    raised = []
    with FakeEngine(lambda prompt: [7, 8, 9]) as fake:
        llm = TrainableLLM(model_name=str(folder), base_url=fake.url, context_size=512, max_retries=0)
        async with (
            recorder.session(llm) as session,
            openai.AsyncOpenAI(base_url=session.base_url, api_key="none", max_retries=0) as client,
        ):
            chat: Any = client.chat.completions.create
            for create, fields in ((chat, {"messages": SAY}), (client.responses.create, {"input": "Hello"})):
                fake.misbehave.append(breaking(fake, b""))
                stream = await create(model="m", stream=True, **fields)
                try:
                    async for _ in stream:
                        pass
                except openai.APIError as error:
                    raised.append(error.message)
    assert len(raised) == 2 and all("connection: " in one for one in raised)


async def test_an_engine_that_is_lost_before_the_first_token_is_asked_again(
    folder: Any, engine: RunningEngine, llm: TrainableLLM
) -> None:
    with FakeEngine(lambda prompt: [72, 73]) as fake:
        fake.misbehave += [500, 503]
        llm = TrainableLLM(model_name=str(folder), base_url=fake.url, context_size=512)
        llm.base_delay, llm.max_retries = 1e-3, 3
        async with program(llm) as (session, client):
            events = await client.streamed("chat")
            assert reason_of(events) == ["stop"] and len(session.calls) == 1


async def test_an_engine_that_does_not_stream_is_named_once(
    folder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeEngine(lambda prompt: [72, 73]) as fake:
        llm = TrainableLLM(model_name=str(folder), base_url=fake.url, context_size=512)
        async with program(llm) as (session, client):
            for _ in range(2):
                (chunk, _usage) = await client.streamed("chat")
                assert text_of(chunk) == session.calls[-1].output.content
    (line,) = [one.getMessage() for one in caplog.records if "does not stream" in one.getMessage()]
    assert fake.url in line


async def test_the_token_route_streams_too(engine: RunningEngine, llm: TrainableLLM) -> None:
    llm.parameters |= {"seed": 1, "max_tokens": 20}
    body: Event = {"token_ids": [70, 71], "sampling_params": {"logprobs": 1, "stop": ["a"]}}
    async with program(llm) as (session, _), aiohttp.ClientSession() as http:
        route = session.base_url.removesuffix("/v1") + "/inference/v1/generate"
        async with http.post(route, json=body) as answer:
            (whole,) = (await answer.json())["choices"]
        async with http.post(route, json={**body, "stream": True}) as answer:
            *chunks, done = (await answer.text()).split("\n\n")[:-1]
    rows = [json.loads(one.removeprefix("data: "))["choices"][0] for one in chunks]
    assert done == "data: [DONE]" and len(rows) == len(whole["token_ids"])
    assert [token for row in rows for token in row["token_ids"]] == whole["token_ids"]
    entries = [one for row in rows for one in row["logprobs"]["content"]]
    assert entries == whole["logprobs"]["content"]
    assert joined_spans(one for row in rows for one in row["weight_versions"]) == whole["weight_versions"]
    assert rows[-1]["finish_reason"] == whole["finish_reason"]


async def test_calls_that_the_engine_reads_come_when_they_are_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeEngine(lambda prompt: [7, 8, 9]) as fake:
        llm = TrainableLLM(model_name=str(save_model(tmp_path)), base_url=fake.url, context_size=512)
        async with program(llm) as (session, client):
            for route in ("chat", "responses", "messages"):
                events = await client.streamed(route, tools=True)
                whole = whole_of(route, events)
                calls = session.calls[-1].output.tool_calls
                assert calls and calls[0].id in json.dumps(whole)
    lines = [one for one in caplog.messages if "are read by its engine" in one]
    assert len(lines) == 1 and str(tmp_path) in lines[0]


async def test_a_refusal_of_a_stream_keeps_its_status(llm: TrainableLLM) -> None:
    async with program(llm) as (session, _), aiohttp.ClientSession() as http:
        for path, fields in (
            ("/chat/completions", {"messages": SAY, "temperature": 0.1}),
            ("/messages", {"messages": SAY, "max_tokens": 0}),
            ("/responses", {"input": "a" * 600}),
            ("/completions", {"prompt": []}),
        ):
            url = session.base_url + path
            async with http.post(url, json={"model": "m", "stream": True, **fields}) as answer:
                assert answer.status == 400 and "error" in await answer.json()
