"""Tools and formats go to the chat route, and what comes back can be trained on."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipelinerl.async_llm import llm_async_generate, make_training_text
from pipelinerl.engines.client import EngineRequestError, EngineUnavailable
from pipelinerl.engines.fleet import Fleet
from pipelinerl.llm import LLMCall, Prompt, TrainableLLM
from tests.support.fake_engine import FakeEngine
from tests.support.tiny_model import save_model

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "rain"}]}


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(lambda prompt: [7, 8, 9], version="4") as running:
        yield running


@pytest.fixture
def llm(engine: FakeEngine, tmp_path: Path) -> TrainableLLM:
    return TrainableLLM(
        model_name=str(save_model(tmp_path)),
        base_url=engine.url,
        parameters={"max_tokens": 16, "temperature": 0.7, "seed": 3},
        chat_template_kwargs={"enable_thinking": False},
        collect_logprobs=True,
        max_retries=1,
        base_delay=0.01,
    )


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def test_a_tool_call_is_read_by_the_engine_and_trained_by_its_ids(
    engine: FakeEngine, llm: TrainableLLM, session: aiohttp.ClientSession
) -> None:
    call = await llm_async_generate(llm, Prompt(**ASK, tools=[WEATHER]), session)
    assert call.output.tool_calls is not None
    (asked,) = call.output.tool_calls
    assert (asked.id, asked.function.name, asked.function.arguments) == (
        "call_1",
        "weather",
        '{"city": "Bern"}',
    )
    text = make_training_text(llm, call)
    assert text.input_ids.tolist() == [1, 2, 3, 7, 8, 9] and text.finished
    assert text.weight_versions == [(4, 0, 3)] and text.logprobs.tolist() == [-0.5] * 3
    (body,) = engine.chats
    assert body["messages"] == ASK["messages"] and body["tools"] == [WEATHER]
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (16, 0.7, 3)
    assert body["return_token_ids"] is True and body["logprobs"] is True
    assert body["chat_template_kwargs"] == {"enable_thinking": False} and "response_format" not in body


async def test_a_call_that_the_engine_left_in_the_text_is_said_once(
    llm: TrainableLLM,
    session: aiohttp.ClientSession,
    engine: FakeEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`[TOOL_CALLS]` as Mistral writes it, which no character of the tiny model can."""
    unread = engine.reply([7, 8, 9])["choices"][0] | {"message": {"content": "weather{}"}}
    for text, lines in (
        ("'<tool_call>' helps", 0),
        ("<think>[TOOL_CALLS]</think>no", 0),
        ("[TOOL_CALLS]w{}", 1),
    ):
        monkeypatch.setattr("pipelinerl.async_llm.decode", lambda *_, said=text, **__: said)
        for _ in range(2):
            engine.misbehave.append({"choices": [unread]})
            await llm_async_generate(llm, Prompt(**ASK, tools=[WEATHER]), session)
        remarks = [one.getMessage() for one in caplog.records if "read no call" in one.getMessage()]
        assert len(remarks) == lines and all("has [TOOL_CALLS]," in one for one in remarks)


async def test_a_response_format_is_handed_on_and_plain_prompts_keep_the_other_route(
    engine: FakeEngine, llm: TrainableLLM, session: aiohttp.ClientSession
) -> None:
    await llm_async_generate(llm, Prompt(**ASK, response_format={"type": "json_object"}), session)
    assert engine.chats[0]["response_format"] == {"type": "json_object"}
    await llm_async_generate(llm, Prompt(**ASK), session)
    assert len(engine.chats) == 1 and engine.counts["answered"] == 1
    with pytest.raises(ValueError, match="response_format needs messages"):
        await llm_async_generate(llm, Prompt(token_ids=[1], response_format={"type": "text"}), session)


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        ([400], EngineRequestError, "told to say 400"),
        ([500, 500], EngineUnavailable, "server_error"),
        ([{"prompt_token_ids": None}] * 2, EngineUnavailable, "the engine must return token ids"),
        ([{"choices": []}] * 2, EngineUnavailable, "0 choices instead of 1"),
    ],
)
async def test_a_refusal_ends_it_and_a_broken_answer_is_asked_for_again(
    engine: FakeEngine,
    llm: TrainableLLM,
    session: aiohttp.ClientSession,
    answers: list[Any],
    error: type[Exception],
    message: str,
) -> None:
    engine.misbehave.extend(answers)
    with pytest.raises(error, match=message):
        await llm_async_generate(llm, Prompt(**ASK, tools=[WEATHER]), session)
    assert not engine.misbehave and engine.counts["chats"] == len(answers)


async def test_within_a_run_another_engine_is_asked(
    engine: FakeEngine, llm: TrainableLLM, session: aiohttp.ClientSession
) -> None:
    with FakeEngine(lambda prompt: [7], version="4") as other:
        engine.misbehave.append(500)
        async with Fleet([engine.url, other.url], session) as fleet:
            await fleet.wait_ready(20)
            bound = llm.bind(fleet, engine.url)
            call: LLMCall = await llm_async_generate(bound, Prompt(**ASK, tools=[WEATHER]), session)
    assert call.llm_info["engine"] == other.url and call.output.tool_calls
