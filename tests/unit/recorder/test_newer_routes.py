"""What programs ask by OpenAI's responses and Anthropic's messages, and what is recorded of it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import openai
import psutil
import pytest

from pipelinerl.extras import recorder
from pipelinerl.extras.recorder import Session
from pipelinerl.llm import TrainableLLM
from tests.support.engine_harness import RunningEngine, full_logprobs, reference
from tests.support.fake_engine import FakeEngine
from tests.support.tiny_model import save_model

SAY: list[Any] = [{"role": "user", "content": "Say something."}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
FUNCTION: Any = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": SCHEMA}
FUNCTION_OF_CHAT = {"name": "weather", "parameters": SCHEMA, "description": "Of a city."}
CALLED = '{"city": "Bern"}'


class Client:
    """Posts bodies to a session as they are."""

    def __init__(self, session: Session, http: aiohttp.ClientSession) -> None:
        self.session, self._http = session, http

    async def messages(self, expect: int = 200, **fields: Any) -> Any:
        """The answer of `/v1/messages`, or the events of a stream with their names."""
        body = {"model": "m", "max_tokens": 12, "messages": SAY, **fields}
        url = f"{self.session.anthropic_base_url}/v1/messages?beta=true"
        async with self._http.post(url, json=body) as answer:
            assert answer.status == expect, await answer.text()
            if not fields.get("stream"):
                return await answer.json()
            return [named(one) for one in (await answer.text()).split("\n\n") if one]


def named(event: str) -> dict[str, Any]:
    name, data = event.split("\n")
    value: dict[str, Any] = json.loads(data.removeprefix("data: "))
    assert name == f"event: {value['type']}"
    return value


@asynccontextmanager
async def asked(llm: TrainableLLM, **options: Any) -> AsyncIterator[tuple[Session, Client]]:
    async with recorder.session(llm, **options) as session, aiohttp.ClientSession() as http:
        yield session, Client(session, http)


@asynccontextmanager
async def openai_client(session: Session, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    given = {"base_url": session.base_url, "api_key": session.api_key, "max_retries": 0, "timeout": 300}
    async with openai.AsyncOpenAI(**{**given, **options}) as client:
        yield client


@pytest.fixture
def calling(tmp_path: Path) -> Any:
    """An engine that calls the tool, and the llm that asks it."""
    with FakeEngine(lambda prompt: [7, 8, 9], version="4") as fake:
        yield fake, TrainableLLM(model_name=str(save_model(tmp_path)), base_url=fake.url, context_size=512)


def is_as_sampled(session: Session, engine: RunningEngine, count: int) -> None:
    """One text of `count` calls, whose log-probabilities a reference model has too."""
    (text,) = session.texts(joined=True)
    outputs = [call.output_token_ids for call in session.calls]
    assert len(outputs) == count
    learned = text.labels != -100
    assert text.labels[learned].tolist() == np.concatenate(outputs).tolist()
    expected = full_logprobs(reference(engine.server.settings.model), text.input_ids, temperature=0.8)
    assert text.logprobs == pytest.approx(expected[learned[1:]].tolist(), abs=1e-4)
    assert text.weight_versions == [(48, 0, int(learned.sum()))]


async def test_a_dialogue_of_messages_is_trained_as_the_engine_sampled_it(
    engine: RunningEngine, llm: TrainableLLM
) -> None:
    await engine.post("/update_weight_version", {"weight_version": "48"})
    dialogue = list(SAY)
    async with asked(llm) as (session, client):
        first = await client.messages(messages=dialogue, system=[{"type": "text", "text": "Be brief."}])
        dialogue += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": "More."}]
        events = await client.messages(messages=dialogue, system="Be brief.", stream=True)
        call = session.calls[1]
        text = session.texts()[0].text
    assert text.startswith("<|start|>system\nBe brief.<|end|><|start|>user\nSay something.<|end|>")
    reason = {"length": "max_tokens", "stop": "end_turn"}[call.llm_info["finish_reason"]]
    deltas = [one["delta"]["text"] for one in events if one["type"] == "content_block_delta"]
    assert "".join(deltas) == call.output.content and 1 < len(deltas) <= len(call.output_token_ids)
    kinds = [one["type"] for one in events if one["type"] != "content_block_delta"]
    edges = ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert kinds == edges and events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == len(call.output_token_ids)
    assert events[0]["message"]["usage"]["input_tokens"] == len(call.prompt_token_ids)
    is_as_sampled(session, engine, 2)


async def test_a_dialogue_of_responses_is_trained_as_the_engine_sampled_it(
    engine: RunningEngine, llm: TrainableLLM
) -> None:
    await engine.post("/update_weight_version", {"weight_version": "48"})
    async with asked(llm) as (session, _), openai_client(session) as client:
        first = await client.responses.create(model="m", input="Say something.")
        items: Any = [*SAY, *(one.model_dump() for one in first.output), {"role": "user", "content": "More."}]
        stream: Any = await client.responses.create(model="m", input=items, stream=True)
        events = [one async for one in stream]
        deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
        second = events[-1].response
        third = await client.responses.create(model="m", input="On.", previous_response_id=second.id)
        with pytest.raises(openai.BadRequestError, match="previous_response_id 'resp_0' is not of this"):
            await client.responses.create(model="m", input="On.", previous_response_id="resp_0")
        contents = [call.output.content for call in session.calls]
    assert [one.output_text for one in (first, second, third)] == contents
    assert "".join(deltas) == contents[1] and len(deltas) > 1
    assert [one.sequence_number for one in events] == list(range(len(events)))
    for response, call in zip((first, second, third), session.calls, strict=True):
        cut = call.llm_info["finish_reason"] == "length"
        assert response.status == ("incomplete" if cut else "completed")
        assert response.usage and response.usage.output_tokens == len(call.output_token_ids)
        assert response.usage.input_tokens == len(call.prompt_token_ids)
    is_as_sampled(session, engine, 3)


async def test_a_stop_sequence_is_named_and_its_ids_stay(llm: TrainableLLM) -> None:
    llm.parameters |= {"max_tokens": 60, "seed": 1}
    async with asked(llm) as (session, client):
        free = (await client.messages(max_tokens=60))["content"][0]["text"]
        stop = next(one for one in free[5:] if one.isascii())
        cut = await client.messages(max_tokens=60, stop_sequences=["never there", stop])
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", stop)
    assert cut["content"][0]["text"] == free.partition(stop)[0]
    assert session.texts()[1].output_text.endswith(stop) and session.texts()[1].finished


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0.2}, "temperature 0.2 is not the run's 0.8"),
    ({"top_p": 0.9}, "top_p 0.9 is not the run's 1.0"),
    ({"top_k": 20}, "top_k 20 is not the run's 0"),
    ({"max_tokens": 0}, "max_tokens 0 asks for no token"),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking 'enabled' is not supported"),
    ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice 'any' is not supported"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, r"tools\[0\].type 'bash_20250124' is not"),
    ({"messages": [*SAY, {"role": "assistant", "content": "So"}]}, "a reply that the last message begins"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, r"messages\[0\] has a block of type"),
    ({"container": "c"}, "container"),
]


async def test_messages_refuse_in_one_line_what_is_not_the_policys(llm: TrainableLLM) -> None:
    async with asked(llm) as (session, client):
        for fields, message in REFUSED:
            refused = await client.messages(expect=400, **fields)
            with pytest.raises(ValueError, match=message):
                raise ValueError(refused["error"]["message"])
            assert refused["type"] == "error" and "\n" not in refused["error"]["message"]
        assert session.calls == []
        await client.messages(temperature=0.8, thinking={"type": "disabled"}, metadata={"user_id": "7"})
    async with asked(llm, override=True) as (session, client):
        await client.messages(temperature=0.2)
    assert session.texts()[0].metadata["overridden"] == {"temperature": 0.2}


async def test_responses_refuse_in_one_line_what_is_not_the_policys(llm: TrainableLLM) -> None:
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 0.2}, "temperature 0.2 is not the run's 0.8"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort 'low' is not supported"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format 'json_object' is not supported"),
        ({"tools": [{"type": "web_search"}]}, r"tools\[0\].type 'web_search' is not supported"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, r"input\[0\].type 'item_reference'"),
        ({"tools": [FUNCTION], "tool_choice": "required"}, "tool_choice 'required' is not supported"),
        ({"tool_choice": "required"}, "tool_choice 'required' is not supported"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls: false is not supported"),
        ({"background": True}, "background: true is not supported"),
        ({"conversation": "c"}, "conversation"),
    ]
    async with asked(llm) as (session, _), openai_client(session) as client:
        for fields, message in refusals:
            with pytest.raises(openai.BadRequestError, match=message) as refused:
                await client.responses.create(**{"model": "m", "input": "Hello", **fields})
            assert "\n" not in refused.value.message
        assert session.calls == []


async def test_tools_of_messages_are_those_of_a_chat(calling: Any) -> None:
    fake, llm = calling
    async with asked(llm) as (session, client):
        answer = await client.messages(tools=[TOOL])
        (use,) = answer["content"]
        assert (answer["stop_reason"], use["type"], use["input"]) == (
            "tool_use",
            "tool_use",
            {"city": "Bern"},
        )
        result = [{"type": "tool_result", "tool_use_id": use["id"], "content": "cold"}]
        result.append({"type": "text", "text": "Well?"})
        dialogue = [*SAY, {"role": "assistant", "content": [use]}, {"role": "user", "content": result}]
        events = await client.messages(tools=[TOOL], messages=dialogue, stream=True)
    (delta,) = [one["delta"] for one in events if one["type"] == "content_block_delta"]
    assert delta["type"] == "input_json_delta" and json.loads(delta["partial_json"]) == {"city": "Bern"}
    is_the_chat(fake, use["id"], json.loads)
    assert fake.chats[1]["messages"][-1] == {"role": "user", "content": "Well?"}
    assert [text.input_ids.tolist() for text in session.texts()] == [[1, 2, 3, 7, 8, 9]] * 2


async def test_a_call_whose_arguments_are_no_object_is_shown_as_the_model_wrote_it(calling: Any) -> None:
    fake, llm = calling
    odd = fake.reply([7, 8, 9])["choices"][0]
    function = {"name": "weather", "arguments": "{city"}
    odd["message"] = {"role": "assistant", "content": None}
    odd["message"]["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    fake.misbehave.append({"choices": [odd]})
    async with asked(llm) as (session, client):
        answer = await client.messages(tools=[TOOL])
    assert answer["content"] == [{"type": "text", "text": llm.load_tokenizer().decode([7, 8, 9])}]
    assert answer["stop_reason"] == "end_turn" and len(session.calls) == 1


async def test_tools_of_responses_are_those_of_a_chat(calling: Any) -> None:
    fake, llm = calling
    async with asked(llm) as (session, _), openai_client(session) as client:
        answer = await client.responses.create(model="m", input="Say something.", tools=[FUNCTION])
        (call,) = answer.output
        assert call.type == "function_call" and call.arguments == CALLED
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "cold"}
        items: Any = [*SAY, call.model_dump(), result]
        async with client.responses.stream(model="m", input=items, tools=[FUNCTION]) as stream:
            kinds = [one.type async for one in stream]
            (again,) = (await stream.get_final_response()).output
        assert again.type == "function_call" and again.arguments == CALLED
    assert "response.function_call_arguments.done" in kinds and kinds[-1] == "response.completed"
    is_the_chat(fake, call.call_id, json.loads)
    assert len(session.texts()) == 2


def is_the_chat(fake: FakeEngine, call_id: str, read: Any) -> None:
    """What the engine was asked in the second turn: the tool, its call and its result."""
    first, second = fake.chats
    assert first["messages"] == SAY
    assert first["tools"] == second["tools"] == [{"type": "function", "function": FUNCTION_OF_CHAT}]
    _, reply, result = second["messages"][:3]
    (called,) = reply["tool_calls"]
    assert called["id"] == call_id and read(called["function"]["arguments"]) == {"city": "Bern"}
    assert result == {"role": "tool", "tool_call_id": call_id, "content": "cold"}


def other_address() -> str:
    """An address of this machine that other hosts may reach."""
    found = [
        one.address
        for interface in psutil.net_if_addrs().values()
        for one in interface
        if one.family.name == "AF_INET" and not one.address.startswith("127.")
    ]
    if not found:
        pytest.skip("this machine has no address but that of the loopback interface")
    return found[0]


async def test_a_session_for_other_hosts_asks_for_its_key(llm: TrainableLLM) -> None:
    host = other_address()
    async with asked(llm, host=host) as (session, client), recorder.session(llm, host=host) as other:
        assert session.base_url.startswith(f"http://{host}:") and len(session.api_key) >= 32
        assert other.base_url.partition("/r/")[0] == session.base_url.partition("/r/")[0]
        async with openai_client(session) as good:
            await good.responses.create(model="m", input="Hello")
        for key in ("none", "", other.api_key, session.api_key[:-1]):
            async with openai_client(session, api_key=key or "x") as bad:
                with pytest.raises(openai.AuthenticationError, match="the key is not the session's"):
                    await bad.models.list()
        assert (await client.messages(expect=401))["type"] == "error"
        headers = {"x-api-key": session.api_key}
        async with aiohttp.ClientSession(headers=headers) as http:
            await Client(session, http).messages()
        assert len(session.calls) == 2 and other.calls == []
    async with recorder.session(llm) as session:
        assert session.base_url.startswith("http://127.0.0.1:") and session.api_key == "none"
        with pytest.raises(aiohttp.ClientConnectionError):
            async with aiohttp.ClientSession() as http:
                await http.get(session.base_url.replace("127.0.0.1", host) + "/models")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "node7", ""])
async def test_a_host_that_no_program_could_ask_is_refused(llm: TrainableLLM, host: str) -> None:
    with pytest.raises(ValueError, match="is no address that a program could ask; give an IP address"):
        async with recorder.session(llm, host=host):
            pass
